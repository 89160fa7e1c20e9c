"""The machine of one partition of __transaction_state."""
