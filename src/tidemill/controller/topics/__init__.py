"""Decisions about topics: their names, partitions, placement of replicas, and views."""
