"""Appending to a partition: rules for produced batches, transactions about to begin, batches for former partitions."""
