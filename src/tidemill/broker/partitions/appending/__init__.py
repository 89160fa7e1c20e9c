"""Appending to a partition: the rules for produced batches, transactions that are about to begin, refused batches."""
