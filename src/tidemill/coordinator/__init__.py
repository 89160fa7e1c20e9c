"""The replicated machines of coordinators, and the shard that runs them over a log."""
