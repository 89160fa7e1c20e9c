"""Measurements of a cluster of three brokers: replicated produce, its latency, failover, many partitions."""
