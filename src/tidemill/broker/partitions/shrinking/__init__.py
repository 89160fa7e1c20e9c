"""Fewer partitions of a topic (decision 18): where records are stored instead, and how batches get there."""
