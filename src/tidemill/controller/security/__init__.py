"""Decisions about ACLs, SCRAM credentials and client quotas, and what the metadata image holds of them."""
