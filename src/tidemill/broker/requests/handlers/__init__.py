"""One module per family of APIs; importing this package fills the dispatch table."""

from tidemill.broker.requests.handlers import (
    cluster,
    configs,
    controller,
    fetch,
    groups,
    offsets,
    produce,
    producer_ids,
    producers,
    quorum,
    sasl,
    security,
    share_groups,
    share_state,
    telemetry,
    transactions,
)

__all__ = [
    "cluster",
    "configs",
    "controller",
    "fetch",
    "groups",
    "offsets",
    "produce",
    "producer_ids",
    "producers",
    "quorum",
    "sasl",
    "security",
    "share_groups",
    "share_state",
    "telemetry",
    "transactions",
]
