"""Tidemill: a distributed message queue that speaks the Kafka wire protocol.

`tidemill.Client` and `tidemill.AsyncClient` are the SDK (docs/sdk.md). Their names are looked up when they are asked for: a
broker imports this package, too, and neither needs confluent-kafka nor should wait for it. `__init__.pyi` has their types.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "AsyncBatch": "async_client",
    "AsyncBatches": "async_client",
    "AsyncClient": "async_client",
    "AsyncJob": "queues.jobs",
    "AsyncQueue": "queues.queue",
    "Batch": "consuming.batches",
    "Batches": "consuming.batches",
    "Client": "client",
    "ClientError": "errors",
    "Delivery": "records",
    "HotKeys": "publishing.hot_keys",
    "Job": "queues.jobs",
    "LargePayloads": "claims",
    "NewRecord": "records",
    "Queue": "queues.queue",
    "Record": "records",
    "stop_on_sigterm": "stopping",
    "to_json": "records",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.sdk.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        missing = import_module(f"{__name__}.sdk.errors").MissingExtra
        raise missing(f"tidemill.{name} needs confluent-kafka: pip install 'tidemill[client]'") from None
