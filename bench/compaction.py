"""The cost of compacting a log, measured from outside: a topic is filled, then set to compact."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from bench import compaction_frames as frames
from bench.brokers import Broker
from bench.cases import KB, MB, LiveCase, Scale, size_text, topic
from bench.connection import Connection, RequestFailedError
from bench.frames import produce_request
from bench.load import Load, measure
from bench.processes import Meter, Metrics
from bench.raw_loads import send_pipelined

RECORDS_PER_KEY = 10
BATCH_BYTES = 64 * KB
SEGMENT_BYTES = 4 * MB
CLEAN_LIMIT_S = 120.0
# One record of ten stays, and the active segment as a whole.
REST = 0.3


def cases(scale: Scale) -> list[LiveCase]:
    size = min(scale.throughput_bytes, 128 * MB)
    return [
        LiveCase(
            "compaction",
            f"{size_text(value_bytes)} values, {RECORDS_PER_KEY} for each key",
            partial(_compact, size, value_bytes),
            size,
        )
        for value_bytes in (100, KB)
    ]


def _compact(size: int, value_bytes: int, broker: Broker) -> Metrics:
    with topic(broker) as name:
        load = Compaction(
            broker.bootstrap, broker.pids, topic=name, payload_bytes=size, value_bytes=value_bytes
        )
        return measure(load)


@dataclass(frozen=True)
class Compaction(Load):
    topic: str
    payload_bytes: int
    value_bytes: int

    def run(self) -> Metrics:
        with Connection(self.bootstrap) as connection:
            self._configure(connection, {"segment.bytes": str(SEGMENT_BYTES)})
            send_pipelined(connection, self._requests(), in_flight_max=5)
            full = self._size(connection)
            with Meter(self.broker_pids) as meter:
                self._configure(
                    connection,
                    {
                        "segment.bytes": str(SEGMENT_BYTES),
                        "cleanup.policy": "compact",
                        "min.cleanable.dirty.ratio": "0.01",
                    },
                )
                self._await_rest(connection, full)
        return {
            "mb_per_cpu_s": full / 1e6 / meter.broker_cpu_s,
            "broker_cpu_s_per_gb": meter.broker_cpu_s / full * 1e9,
        }

    def _configure(self, connection: Connection, configs: dict[str, str]) -> None:
        if error := frames.alter_error(connection.call(frames.alter_topic_configs(self.topic, configs))):
            raise RequestFailedError(f"AlterConfigs: error code {error}")

    def _requests(self) -> Iterator[bytearray]:
        per_batch = max(1, BATCH_BYTES // self.value_bytes)
        keys = max(1, self.payload_bytes // self.value_bytes // RECORDS_PER_KEY)
        value = bytes(self.value_bytes)
        for first in range(0, self.payload_bytes // self.value_bytes, per_batch):
            # A step coprime to the number of keys visits them all in a cache-hostile order.
            pairs = [
                (b"key-%012d" % (number * 7919 % keys), value) for number in range(first, first + per_batch)
            ]
            yield produce_request(self.topic, {0: frames.keyed_batch(pairs)}, acks=1)

    def _size(self, connection: Connection) -> int:
        return frames.log_size(connection.call(frames.describe_log_dirs(self.topic)))

    def _await_rest(self, connection: Connection, full: int) -> None:
        deadline_s = time.monotonic() + CLEAN_LIMIT_S
        while (size := self._size(connection)) > full * REST:
            if time.monotonic() > deadline_s:
                raise RequestFailedError(f"{size} of {full} bytes are left after {CLEAN_LIMIT_S:.0f} s")
            time.sleep(0.25)
