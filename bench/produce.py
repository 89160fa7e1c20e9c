"""Produce throughput: from librdkafka, as applications send, and from canned frames, the broker's ceiling."""

from __future__ import annotations

from functools import partial

from bench.brokers import Broker
from bench.cases import KB, MB, LiveCase, Scale, size_text, topic
from bench.librdkafka_loads import Produce
from bench.load import measure
from bench.processes import Metrics
from bench.raw_loads import CannedProduce

VALUE_BYTES = (KB, 100)
BATCH_BYTES = (64 * KB, 256 * KB, MB)
ACKS = (0, 1, -1)
# A quick run takes every batch size at acks=1 and, for the middle size, every acks.
_QUICK = {
    *((KB, batch, 1) for batch in BATCH_BYTES),
    *((100, batch, 1) for batch in (64 * KB, MB)),
    *((KB, 256 * KB, acks) for acks in ACKS),
}


def acks_text(acks: int) -> str:
    return "all" if acks == -1 else str(acks)


def cases(scale: Scale) -> list[LiveCase]:
    matrix = [(value, batch, acks) for value in VALUE_BYTES for batch in BATCH_BYTES for acks in ACKS]
    return [
        LiveCase(
            "produce",
            f"{size_text(value)} messages, {size_text(batch)} batches, acks={acks_text(acks)}",
            partial(_produce, scale.payload_bytes(value), value, batch, acks),
            written_bytes=scale.payload_bytes(value),
        )
        for value, batch, acks in matrix
        if not scale.is_quick or (value, batch, acks) in _QUICK
    ]


def ceiling_cases(scale: Scale) -> list[LiveCase]:
    return [
        LiveCase(
            "produce-ceiling",
            f"canned frames of {size_text(batch)}, acks=1, 5 in flight",
            partial(_ceiling, scale.throughput_bytes, batch),
            written_bytes=scale.throughput_bytes,
        )
        for batch in BATCH_BYTES
    ]


def _produce(payload_bytes: int, value_bytes: int, batch_bytes: int, acks: int, broker: Broker) -> Metrics:
    with topic(broker) as name:
        return measure(
            Produce(
                broker.bootstrap,
                broker.pids,
                topic=name,
                payload_bytes=payload_bytes,
                value_bytes=value_bytes,
                batch_bytes=batch_bytes,
                acks=acks,
            )
        )


def _ceiling(payload_bytes: int, batch_bytes: int, broker: Broker) -> Metrics:
    with topic(broker) as name:
        metrics = measure(
            CannedProduce(
                broker.bootstrap,
                broker.pids,
                topic=name,
                payload_bytes=payload_bytes,
                value_bytes=KB,
                batch_bytes=batch_bytes,
            )
        )
    return {key: value for key, value in metrics.items() if key != "messages"}
