"""Decisions about the replicas of partitions: ISR, leaders, elections, reassignments."""
