"""Every place that decodes records against batches that cannot be decoded: each fails in its own orderly way.

A right checksum says that the disk is sound. So no such batch may be taken for damage, which would stop a broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.poisoned import KEYS, POISONED, T0
from tests.unit.log.compacted import open_log, prepare, put, seal, topic_config
from tidemill.broker.clock import Clock, SystemClock
from tidemill.broker.coordinators.runtime import HostedShard
from tidemill.broker.partitions.appending.produce_rules import ProduceRules
from tidemill.client.fetch import decoded
from tidemill.config import TopicConfig
from tidemill.errors import ApiError, ErrorCode, ProtocolError, StorageError
from tidemill.filters.language import parse
from tidemill.filters.matching import compile_filter
from tidemill.gateway.cluster.fetching import Chunk
from tidemill.log.log import Log
from tidemill.log.time_search import search_time
from tidemill.protocol.record_walk import records_in_steps, select
from tidemill.protocol.records import header_at, split_batches
from tidemill.protocol.steps import run_steps
from tidemill.sim.platform.disk import SimulatedDisk
from tidemill.spark.arrow.decode import SCHEMA, Decoder
from tidemill.types import TopicPartition

TP = TopicPartition("t", 0)
NOT_COMPACTED = topic_config(cleanup_policy=("delete",), segment_bytes=10_000)


def _log_with(batch: bytes) -> Log:
    """A log as its topic was before it was compacted: records were not inspected."""
    log = open_log(SimulatedDisk(), NOT_COMPACTED)
    put(log, (b"a", b"before"), timestamp=T0)
    data = memoryview(bytearray(batch))
    log.append(data, split_batches(data), 0, T0)
    put(log, (b"a", b"after"), timestamp=T0)
    return log


def _search_a_time(batch: bytes) -> None:
    run_steps(search_time(_log_with(batch), T0 + 1_000))


def _search_the_newest(batch: bytes) -> None:
    _log_with(batch).newest()


def _inspect(batch: bytes, config: TopicConfig) -> None:
    run_steps(ProduceRules("t", config).inspect(memoryview(bytearray(batch)), header_at(batch), T0))


def _recompress(batch: bytes) -> None:
    _inspect(batch, TopicConfig(compression_type="gzip" if header_at(batch).codec != 1 else "zstd"))


def _check_keys(batch: bytes) -> None:
    _inspect(batch, topic_config())


def _check_timestamps(batch: bytes) -> None:
    _inspect(batch, TopicConfig(message_timestamp_before_max_ms=1_000))


def _consume(batch: bytes) -> None:
    list(decoded(TP, header_at(batch), memoryview(batch)))


def _browse(batch: bytes) -> None:
    list(Chunk(TP, 0, [(header_at(batch), memoryview(batch))], [], 3).records(3))


def _decode_for_spark(batch: bytes) -> None:
    Decoder(TP, 0, 3, SCHEMA.names).decode([(header_at(batch), memoryview(batch))])


def _filter(batch: bytes) -> None:
    header = header_at(batch)
    body = run_steps(records_in_steps(memoryview(batch), header))
    run_steps(select(body, header, compile_filter(parse("region != 'eu'"))))


DECODERS: dict[str, Callable[[bytes], None]] = {
    "time search": _search_a_time,
    "search of the newest": _search_the_newest,
    "recompression": _recompress,
    "keys of a compacted topic": _check_keys,
    "timestamps of a topic that limits them": _check_timestamps,
    "consume": _consume,
    "browse": _browse,
    "spark": _decode_for_spark,
    "filter": _filter,
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", POISONED)
def test_a_batch_that_cannot_be_decoded_is_the_fault_of_its_producer(name: str, decoder: str) -> None:
    with pytest.raises(ProtocolError):
        DECODERS[decoder](POISONED[name])


@pytest.mark.parametrize("name", POISONED)
def test_a_cleaning_that_meets_it_ends_and_changes_nothing(name: str) -> None:
    log = _log_with(POISONED[name])
    seal(log)
    log.configure(topic_config(segment_bytes=10_000))
    disk = cast("SimulatedDisk", log._files)
    before = {path: content for path, content in disk.contents().items() if path.endswith(".log")}
    with pytest.raises(StorageError, match="the batch at offset 1"):
        prepare(disk, log)
    after = {path: content for path, content in disk.contents().items() if path.endswith(".log")}
    assert after == before


class _Machine:
    deadline_ms = None

    def decode(self, key: bytes, value: bytes | None) -> None:
        assert key in KEYS or value is not None

    def waiting_tokens(self) -> list[int]:
        return []


@pytest.mark.parametrize("name", POISONED)
def test_a_coordinator_that_meets_it_does_not_load_and_says_so_in_one_line(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Any] = []

    async def load() -> None:
        partition = SimpleNamespace(
            log=_log_with(POISONED[name]),
            name=TP,
            high_watermark=5,
            reader=SimpleNamespace(wait=lambda _grew: None),
        )
        shard: HostedShard[Any] = HostedShard(
            cast("Any", partition),
            0,
            _Machine(),
            Clock(SystemClock(), asyncio.get_running_loop().time),
            respond=lambda _token, answer: answers.append(answer),
            report=lambda _effect: None,
            may_be_replaced=lambda: False,
            returned=lambda _machine, _steady_ms: None,
        )
        await shard.load()
        shard.handle("anything", 1)

    with caplog.at_level(logging.ERROR):
        asyncio.run(load())
    (answer,) = answers
    assert isinstance(answer, ApiError)
    assert answer.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    (line,) = caplog.records
    assert "the batch at offset 1" in line.message
    assert line.exc_info is None
