"""One module per family of APIs; importing this package fills the dispatch table."""

from tidemill.broker.handlers import cluster, configs, fetch, groups, offsets, produce, producer_ids, topics

__all__ = ["cluster", "configs", "fetch", "groups", "offsets", "produce", "producer_ids", "topics"]
