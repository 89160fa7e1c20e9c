"""Fewer partitions of a topic (decision 18): batches for decommissioned partitions are passed on, empty ones removed."""
