"""Inspection of a batch's records: refusals, recompression, and bounded steps."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.unit.log.batches import T0, batch
from tests.wire.batches import Record, encode_records
from tidemill.broker.partitions.appending.produce_rules import ProduceRules
from tidemill.config import TopicConfig
from tidemill.errors import ErrorCode, ProtocolError
from tidemill.protocol.compression import CompressionType, compress
from tidemill.protocol.record_walk import RECORDS_A_STEP
from tidemill.protocol.records import (
    BatchHeader,
    InvalidBatch,
    assemble,
    check_produced,
    header_at,
    iterate_records,
    split_batches,
)
from tidemill.protocol.steps import NotAtOnce, run_first_step, run_steps

CODECS = list(CompressionType)
NAMES = ["uncompressed", "gzip", "snappy", "lz4", "zstd"]
# Length 6; attributes, timestamp delta, offset delta, no key, no value, no headers.
TINY_RECORD = b"\x0c\0\0\0\x01\x01\0"


def _claiming(count: int, payload: bytes, codec: int = 4, max_timestamp: int = T0) -> bytearray:
    plain = header_at(batch(1))
    header = plain._replace(
        attributes=codec, record_count=count, last_offset_delta=count - 1, max_timestamp=max_timestamp
    )
    return assemble(header, payload)


def _bomb(count: int, **fields: int) -> bytearray:
    return _claiming(count, compress(4, TINY_RECORD * count), **fields)


def _inspect(config: TopicConfig, data: bytearray, wall_ms: int = T0) -> tuple[memoryview, BatchHeader]:
    return run_steps(ProduceRules("t", config).inspect(memoryview(data), header_at(data), wall_ms))


@pytest.mark.parametrize("old", CODECS)
@pytest.mark.parametrize("new", CODECS)
def test_recompressing_keeps_the_records(old: int, new: int) -> None:
    data = batch(5, codec=old, producer=(4, 2, 10))
    again, told = _inspect(TopicConfig(compression_type=NAMES[new]), data)
    (header,) = split_batches(again)
    assert header == told
    assert header.codec == new
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 2, 10)
    assert list(iterate_records(again)) == list(iterate_records(memoryview(data)))


@pytest.mark.parametrize(
    ("codec", "low", "high"),
    [
        ("gzip", TopicConfig(compression_gzip_level=1), TopicConfig(compression_gzip_level=9)),
        ("lz4", TopicConfig(compression_lz4_level=9), TopicConfig(compression_lz4_level=17)),
        ("zstd", TopicConfig(compression_zstd_level=-50), TopicConfig(compression_zstd_level=19)),
    ],
)
def test_recompressing_uses_the_level_of_the_topic(codec: str, low: TopicConfig, high: TopicConfig) -> None:
    words = random.Random(7).choices([b"order", b"paid", b"shipped", b"cancelled", b"returned"], k=20_000)
    data = _claiming(1, encode_records([Record(b" ".join(words))]), codec=0)
    sizes = [len(_inspect(replace(config, compression_type=codec), data)[0]) for config in (low, high)]
    assert sizes[0] > sizes[1]


def test_a_batch_that_becomes_too_large_by_recompressing_is_refused() -> None:
    """A few kilobytes of zstd would be stored as two megabytes."""
    large = compress(4, encode_records([Record(bytes(2_000_000))]))
    config = TopicConfig(compression_type="uncompressed", max_message_bytes=1_000_000)
    data = _claiming(1, large)
    assert len(data) < 10_000
    with pytest.raises(InvalidBatch) as refused:
        _inspect(config, data)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    _inspect(TopicConfig(compression_type="gzip", max_message_bytes=1_000_000), data)


@pytest.mark.parametrize("wrong", [1, 3, 1 << 30])
def test_records_are_counted(wrong: int) -> None:
    data = batch(2)
    rules = ProduceRules("t", TopicConfig(compression_type="uncompressed"))
    run_steps(rules.inspect(memoryview(data), header_at(data), T0))
    with pytest.raises(ProtocolError):
        run_steps(rules.inspect(memoryview(data), header_at(data)._replace(record_count=wrong), T0))


@pytest.mark.parametrize(
    "data",
    [
        _claiming(8_000_000, compress(4, TINY_RECORD * 8_000_000)),
        _claiming(1_000_000_000, bytes(5_000)),
        _claiming(8_000, TINY_RECORD * 999, codec=0),
    ],
    ids=["8 M records in 5 KB", "more records than fit", "uncompressed"],
)
def test_more_records_than_its_bytes_can_hold_are_refused_by_the_header(data: bytearray) -> None:
    with pytest.raises(InvalidBatch) as raised:
        check_produced(header_at(data))
    assert raised.value.code is ErrorCode.INVALID_RECORD
    assert "do not fit" in raised.value.reason


def test_a_dense_batch_that_a_client_may_send_is_taken() -> None:
    """A hundred thousand equal records: as dense as a real producer's batches can get."""
    data = batch(100_000, value=b"", codec=4)
    check_produced(header_at(data))
    _inspect(TopicConfig(message_timestamp_before_max_ms=1_000_000), data)


def test_decompressed_size_is_limited_by_the_batch_size() -> None:
    bomb = _claiming(3, compress(4, bytes(50_000_000)))
    assert len(bomb) < 10_000
    with pytest.raises(ProtocolError, match="decompresses to more than 16777216 bytes"):
        _inspect(TopicConfig(compression_type="gzip"), bomb)


@pytest.mark.parametrize("cleanup_policy", ["delete", "compact"])
def test_few_of_many_wrong_records_are_named(cleanup_policy: str) -> None:
    """No key, and a time of which the topic thinks that it is too new."""
    newest = T0 if cleanup_policy == "compact" else T0 - 10_000_000
    with pytest.raises(InvalidBatch) as raised:
        _inspect(TopicConfig(cleanup_policy=(cleanup_policy,)), _bomb(20_000), wall_ms=newest)
    assert len(raised.value.record_errors) == 100


def test_many_records_are_looked_at_in_steps() -> None:
    rules = ProduceRules("t", TopicConfig(cleanup_policy=("compact",)))
    many = batch(3 * RECORDS_A_STEP)
    with pytest.raises(NotAtOnce):
        run_first_step(rules.inspect(memoryview(many), header_at(many), T0))
    few = batch(RECORDS_A_STEP // 2)
    assert run_first_step(rules.inspect(memoryview(few), header_at(few), T0))[1] == header_at(few)


def test_much_is_decompressed_in_a_thread() -> None:
    data = batch(2, value=bytes(1_000_000), codec=4)
    rules = ProduceRules("t", TopicConfig(cleanup_policy=("compact",)))
    steps = rules.inspect(memoryview(data), header_at(data), T0)
    work = next(steps)
    assert work is not None
    with pytest.raises(StopIteration):
        steps.send(work())


def test_a_step_costs_the_same_whatever_a_record_holds() -> None:
    """A record with very many headers is one record."""
    headers = 200_000
    body = b"\0\0\0\x02k\x01" + b"\xc0\x9a\x0c" + b"\0\x01" * headers
    length = (len(body)) << 1
    varint = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14])
    data = _claiming(1, varint + body, codec=0)
    rules = ProduceRules("t", TopicConfig(cleanup_policy=("compact",)))
    assert run_first_step(rules.inspect(memoryview(data), header_at(data), T0))[1].record_count == 1
