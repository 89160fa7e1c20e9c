"""A short run of everything before anything is timed, the same for every broker: it fills caches and warms up a JIT."""

from __future__ import annotations

from bench.brokers import Broker
from bench.cases import KB, MB, topic
from bench.librdkafka_loads import Fetch, Produce
from bench.load import measure
from bench.raw_loads import CannedFetch, CannedProduce, SmallRequests

PAYLOAD_BYTES = 128 * MB
REQUESTS = 20_000


def warm_up(broker: Broker) -> None:
    at = (broker.bootstrap, broker.pids)
    with topic(broker) as name:
        filled = measure(CannedProduce(*at, name, PAYLOAD_BYTES, value_bytes=KB, batch_bytes=64 * KB))
        messages = int(filled["messages"])
        measure(CannedFetch(*at, name, value_bytes=KB, messages=messages, fetch_bytes_max=MB))
        measure(Fetch(*at, name, value_bytes=KB, messages=messages))
    with topic(broker) as name:
        measure(Produce(*at, name, PAYLOAD_BYTES, value_bytes=KB, batch_bytes=64 * KB, acks=1))
    with topic(broker) as name:
        measure(SmallRequests(*at, (name,), REQUESTS, partitions=1, value_bytes=100, in_flight_max=5))
