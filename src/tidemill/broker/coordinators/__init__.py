"""The coordinator runtime: hosts groups and transactions on the partitions of their topics, and sends markers."""
