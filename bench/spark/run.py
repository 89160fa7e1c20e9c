"""The order of a run: for each case a warm-up of each connector, then rounds, the connectors in turn (A B A B …).

A read's warm-up counts the rows, a write's is read back, so that a connector cannot be quick by leaving some out. A
case that fails is recorded with its reason and the run goes on.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from bench.brokers import Broker
from bench.cases import KB, MB, size_text
from bench.connection import RequestFailedError, create_topics, delete_topics
from bench.processes import Metrics
from bench.results import Result
from bench.run import say
from bench.spark import FAMILIES, SCAN, SINK, SOURCE, topics
from bench.spark.connectors import Connector
from bench.spark.meter import SparkMeter
from bench.spark.topics import Filled

VALUE_BYTES = (100, KB)
CODECS = ("none", "lz4")
# What one tunes in the Java producer first; ours fills its batches by itself.
TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": str(256 * KB), "kafka.buffer.memory": str(64 * MB)}
_numbers = itertools.count(1)


@dataclass(frozen=True)
class SparkScale:
    is_quick: bool
    rounds: int
    read_bytes: Mapping[int, int]
    written_bytes: Mapping[int, int]


FULL = SparkScale(
    is_quick=False,
    rounds=5,
    read_bytes={100: 500_000_000, KB: 1_500_000_000},
    written_bytes={100: 200_000_000, KB: 1_000_000_000},
)
QUICK = SparkScale(
    is_quick=True,
    rounds=1,
    read_bytes={100: 50_000_000, KB: 150_000_000},
    written_bytes={100: 20_000_000, KB: 50_000_000},
)


class Run:
    def __init__(
        self,
        session: SparkSession,
        broker: Broker,
        segments: Path,
        connectors: Sequence[Connector],
        families: Sequence[str],
        scale: SparkScale,
    ) -> None:
        self.results: list[Result] = []
        self._session, self._broker, self._segments = session, broker, segments
        self._connectors, self._families, self._scale = connectors, families, scale

    def to_the_end(self) -> None:
        shapes = [(value_bytes, codec) for value_bytes in VALUE_BYTES for codec in CODECS]
        if SOURCE in self._families or SCAN in self._families:
            self._read_all(shapes)
        if SINK in self._families:
            for value_bytes, codec in shapes:
                self._write_case(value_bytes, codec, {}, case_text(value_bytes, codec))
                if not self._scale.is_quick:
                    tuned = f"{case_text(value_bytes, codec)}, the Java producer tuned"
                    self._write_case(value_bytes, codec, TUNED, tuned)
        self.results.sort(key=lambda result: FAMILIES.index(result.family))

    # -- reads -----------------------------------------------------------------------------------------------

    def _read_all(self, shapes: Sequence[tuple[int, str]]) -> None:
        filled = {case_text(*shape): self._fill(*shape) for shape in shapes}
        if SCAN in self._families:
            topics.await_synced(self._segments, list(filled.values()))
        for name, topic in filled.items():
            for family in (SOURCE, SCAN):
                if family in self._families:
                    count, read = partial(self._count, family, topic), partial(self._read, family, topic)
                    self._alternate(family, name, count, read)
        delete_topics(self._broker.bootstrap, [topic.name for topic in filled.values()])

    def _fill(self, value_bytes: int, codec: str) -> Filled:
        rows = self._scale.read_bytes[value_bytes] // value_bytes
        say(f"filling a topic: {rows:,} rows of {case_text(value_bytes, codec)}")
        name = f"bench-read-{value_bytes}-{codec}"
        return topics.fill(self._broker.bootstrap, name, rows=rows, value_bytes=value_bytes, codec=codec)

    def _rows(self, family: str, filled: Filled, connector: Connector) -> DataFrame:
        options = connector.scan_options(self._segments) if family == SCAN else {}
        return connector.rows(self._session, self._broker.bootstrap, filled.name, options)

    def _count(self, family: str, filled: Filled, connector: Connector) -> None:
        found = self._rows(family, filled, connector).count()
        if found != filled.rows:
            raise RequestFailedError(f"{connector.name} reads {found} of {filled.rows} rows")

    def _read(self, family: str, filled: Filled, connector: Connector) -> Metrics:
        rows = self._rows(family, filled, connector)
        with SparkMeter(self._broker.pids) as meter:
            rows.write.format("noop").mode("overwrite").save()
        return meter.throughput(filled.rows, filled.payload_bytes)

    # -- writes ----------------------------------------------------------------------------------------------

    def _write_case(self, value_bytes: int, codec: str, jvm_options: Mapping[str, str], name: str) -> None:
        count = self._scale.written_bytes[value_bytes] // value_bytes

        def options_of(connector: Connector) -> dict[str, str]:
            options = {} if codec == "none" else {"kafka.compression.type": codec}
            return options if connector.name == "tidemill" else options | dict(jvm_options)

        self._alternate(
            SINK,
            name,
            lambda connector: self._check_written(connector, value_bytes, count // 10, options_of(connector)),
            lambda connector: self._write(connector, value_bytes, count, options_of(connector)),
        )

    def _write(
        self, connector: Connector, value_bytes: int, count: int, options: Mapping[str, str]
    ) -> Metrics:
        with self._output() as topic:
            return self._write_to(topic, connector, value_bytes, count, options)

    def _check_written(
        self, connector: Connector, value_bytes: int, count: int, options: Mapping[str, str]
    ) -> None:
        """Both readers of this run see all of it."""
        with self._output() as topic:
            self._write_to(topic, connector, value_bytes, count, options)
            for reader in self._connectors:
                rows = reader.rows(self._session, self._broker.bootstrap, topic, {})
                found = rows.selectExpr("count(*) rows", "sum(length(value)) bytes").first()
                if found is None or (found.rows, found.bytes) != (count, count * value_bytes):
                    raise RequestFailedError(
                        f"{connector.name} wrote {count} rows, {reader.name} reads {found}"
                    )

    def _write_to(
        self, topic: str, connector: Connector, value_bytes: int, count: int, options: Mapping[str, str]
    ) -> Metrics:
        # A hash every 16 digits that no codec can shorten, and as much that any can.
        noise = ", ".join(f"hex(xxhash64(id, {part}))" for part in range(-(-value_bytes // 32)))
        value = f"rpad(concat({noise}), {value_bytes}, 'order created ')"
        rows = self._session.range(0, count, 1, topics.PARTITIONS).selectExpr(
            "cast(lpad(cast(id % 1000003 as string), 8, '0') as binary) key", f"cast({value} as binary) value"
        )
        with SparkMeter(self._broker.pids) as meter:
            connector.write(rows, self._broker.bootstrap, topic, options)
        return meter.throughput(count, count * value_bytes)

    @contextmanager
    def _output(self) -> Iterator[str]:
        name = f"bench-write-{next(_numbers)}"
        create_topics(self._broker.bootstrap, [name], topics.PARTITIONS)
        try:
            yield name
        finally:
            delete_topics(self._broker.bootstrap, [name])

    # -- one case --------------------------------------------------------------------------------------------

    def _alternate(
        self,
        family: str,
        case: str,
        warm_up: Callable[[Connector], None],
        measure: Callable[[Connector], Metrics],
    ) -> None:
        results = {connector.name: Result(family, case, connector.name) for connector in self._connectors}
        self.results += results.values()
        for connector in self._connectors:
            self._attempt(results[connector.name], "warm-up", partial(warm_up, connector))
        for number in range(1, self._scale.rounds + 1):
            for connector in self._connectors:
                os.sync()  # what was written before is not this one's cost
                round_text = f"round {number} of {self._scale.rounds}"
                self._attempt(results[connector.name], round_text, partial(measure, connector))

    def _attempt(self, result: Result, what: str, run: Callable[[], Metrics | None]) -> None:
        label = f"{result.target}: {result.family}: {result.case}: {what}"
        if result.error is not None:
            return
        started_s = time.monotonic()
        try:
            metrics = run()
        except (RequestFailedError, PySparkException, OSError) as failure:
            result.error = (str(failure).strip().splitlines() or ["no reason given"])[0]
            say(f"{label}: FAILED: {failure}")
            return
        figures = ""
        if metrics is not None:
            result.rounds.append(metrics)
            figures = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        say(f"{label}: {figures} ({time.monotonic() - started_s:.1f} s)")


def case_text(value_bytes: int, codec: str) -> str:
    return f"{size_text(value_bytes)}, {'uncompressed' if codec == 'none' else codec}"
