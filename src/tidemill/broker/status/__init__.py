"""The status listener: Prometheus metrics, health and the causes of rebalances over HTTP."""
