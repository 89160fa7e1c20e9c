"""Fetch throughput: everything from offset 0, by librdkafka and by canned requests that drop the bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench.brokers import Broker
from bench.cases import KB, MB, LiveCase, Scale, size_text, topic
from bench.librdkafka_loads import Fetch
from bench.load import Load, measure
from bench.processes import Metrics
from bench.raw_loads import CannedFetch, CannedProduce

FILL_BATCH_BYTES = 256 * KB
FETCH_BYTES_MAX = 16 * MB

# broker, topic, size of a value, number of messages
LoadOf = Callable[[Broker, str, int, int], Load]


def cases(scale: Scale) -> list[LiveCase]:
    return [
        LiveCase(
            "fetch",
            f"{size_text(value)} messages, {client}",
            partial(_fetch, scale, value, load_of),
            scale.payload_bytes(value),
        )
        for client, load_of in (("librdkafka", _librdkafka), ("canned requests", _canned))
        for value in (KB, 100)
    ]


def _librdkafka(broker: Broker, name: str, value_bytes: int, messages: int) -> Load:
    return Fetch(broker.bootstrap, broker.pids, topic=name, value_bytes=value_bytes, messages=messages)


def _canned(broker: Broker, name: str, value_bytes: int, messages: int) -> Load:
    return CannedFetch(
        broker.bootstrap,
        broker.pids,
        topic=name,
        value_bytes=value_bytes,
        messages=messages,
        fetch_bytes_max=FETCH_BYTES_MAX,
    )


def _fetch(scale: Scale, value_bytes: int, load_of: LoadOf, broker: Broker) -> Metrics:
    with topic(broker) as name:
        filled = measure(
            CannedProduce(
                broker.bootstrap,
                broker.pids,
                topic=name,
                payload_bytes=scale.payload_bytes(value_bytes),
                value_bytes=value_bytes,
                batch_bytes=FILL_BATCH_BYTES,
            )
        )
        return measure(load_of(broker, name, value_bytes, int(filled["messages"])))
