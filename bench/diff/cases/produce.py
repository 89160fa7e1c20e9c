"""Produce: acknowledgements, bad batches, compression, timestamps. Idempotent produce stands in producers.py."""

from __future__ import annotations

import struct
from typing import Any

from bench.diff import batches
from bench.diff.batches import Record, batch, records
from bench.diff.cases.topics import UNKNOWN_ID
from bench.diff.script import Script, Topic, case

YEAR_MS = 365 * 86_400_000


def produce(
    topic: Topic,
    data: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
) -> dict[str, Any]:
    part = {"index": partition, "records": data}
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": 10000,
        "topic_data": [{"name": topic.name, "topic_id": topic.id, "partition_data": [part]}],
    }


def look(s: Script, label: str, topic: Topic) -> None:
    """What the log holds after all that."""
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000_000}
    request = {
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 10_000_000,
        "topics": [{"topic": topic.name, "topic_id": topic.id, "partitions": [part]}],
    }
    s.ask(label, request, api="fetch", version=12)


@case("produce")
def good(s: Script) -> None:
    t = s.topic("x", 2)
    s.ask("acks all", produce(t, batch(records(2))))
    s.ask("acks 1", produce(t, batch(records(1)), acks=1))
    s.ask_without_reply("acks 0", produce(t, batch(records(1)), acks=0))
    s.ask("base offset is replaced", produce(t, batch(records(1), base_offset=77)))
    s.ask("leader epoch is replaced", produce(t, batch(records(1), leader_epoch=5)))
    with_headers = [Record(headers=(("a", b"1"), ("b", None))), Record(None, None)]
    s.ask("headers, null key, null value", produce(t, batch(with_headers)))
    s.ask("second partition", produce(t, batch(records(1)), partition=1))
    s.ask("no topics", {"acks": -1, "timeout": 1000, "topic_data": []})
    s.ask(
        "no partitions",
        {"acks": -1, "topic_data": [{"name": t.name, "topic_id": t.id, "partition_data": []}]},
    )
    look(s, "the log", t)


@case("produce")
def bad_acks(s: Script) -> None:
    t = s.topic("x")
    for acks in (2, -2):
        s.ask(f"acks {acks}", produce(t, batch(records(1)), acks=acks))
    s.ask_without_reply("acks 0, unknown partition", produce(t, batch(records(1)), partition=9, acks=0))
    s.ask_without_reply("acks 0, wrong crc", produce(t, batch(records(1), crc=1), acks=0))
    look(s, "the log", t)


@case("produce")
def unknown(s: Script) -> None:
    t = s.topic("x")
    missing = Topic(s.name("missing"), UNKNOWN_ID)
    s.ask("topic", produce(missing, batch(records(1))))
    s.ask("partition", produce(t, batch(records(1)), partition=1))
    s.ask("negative partition", produce(t, batch(records(1)), partition=-1))
    s.ask("invalid name", produce(Topic("not a name", UNKNOWN_ID), batch(records(1))))
    both = produce(missing, batch(records(1)))
    both["topic_data"] += produce(t, batch(records(1)))["topic_data"]
    s.ask("good beside unknown", both)
    twice = produce(t, batch(records(1)))
    twice["topic_data"][0]["partition_data"] *= 2
    s.ask("partition twice", twice)
    look(s, "the log", t)


@case("produce", only_ends=True)
def bad_batches(s: Script) -> None:
    t = s.topic("x")
    good = batch(records(2))

    def ask(label: str, data: bytes | None) -> None:
        s.ask(label, produce(t, data))

    ask("null", None)
    ask("no bytes", b"")
    ask("fewer bytes than a header", good[:30])
    ask("cut short", good[:-3])
    ask("one byte left over", good + b"\x00")
    ask("20 bytes left over", good + bytes(20))
    ask("wrong crc", batch(records(2), crc=1))
    ask("flipped bit", good[:-1] + bytes([good[-1] ^ 1]))
    ask("length too large", batch(records(2), length=5000))
    ask("length too small", batch(records(2), length=60))
    ask("length below a header's", batch(records(2), length=10))
    ask("length 0", batch(records(2), length=0))
    ask("length negative", batch(records(2), length=-1))
    ask("magic 3", batch(records(2), magic=3))
    ask("magic -1", batch(records(2), magic=-1))
    ask("magic 0", batches.message_set(0))
    ask("magic 1", batches.message_set(1))
    ask("count too high", batch(records(2), count=3))
    ask("count too low", batch(records(2), count=1))
    ask("count and last offset too high", batch(records(2), count=3, last_offset_delta=2))
    ask("count and last offset too low", batch(records(2), count=1, last_offset_delta=0))
    ask("count 0", batch(records(2), count=0, last_offset_delta=-1))
    ask("count negative", batch(records(2), count=-1, last_offset_delta=-2))
    ask("last offset too high", batch(records(2), last_offset_delta=5))
    ask("last offset too low", batch(records(2), last_offset_delta=0))
    ask("last offset negative", batch(records(2), last_offset_delta=-1))
    ask("no records", batch([], last_offset_delta=0))
    ask("no records, last offset -1", batch([]))
    ask("two batches", good + good)
    ask("three batches, the second bad", good + batch(records(1), crc=1) + good)
    ask("records are garbage", batch(records(2), payload=b"\x07garbage!"))
    ask("record longer than the batch", batch(records(1), payload=b"\x7e\x00\x00\x00\x01\x01\x00"))
    ask("unused attribute bit", batch(records(1), attributes=0x80))
    ask("unknown codec 5", batch(records(1), attributes=5))
    ask("unknown codec 7", batch(records(1), attributes=7))
    ask("marked as LogAppendTime", batch(records(1), flags=batches.LOG_APPEND_TIME))
    look(s, "the log", t)


@case("produce", only_ends=True)
def flags(s: Script) -> None:
    t = s.topic("x")
    marker = struct.pack(">hhhi", 0, 0, 0, 0)
    s.ask("control batch", produce(t, batch([Record(marker[4:], marker[:4])], flags=batches.CONTROL)))
    s.ask("transactional, no producer", produce(t, batch(records(1), flags=batches.TRANSACTIONAL)))
    s.ask("transactional id, plain batch", produce(t, batch(records(1)), transactional_id="tx"))
    s.ask("delete horizon", produce(t, batch(records(1), attributes=0x40)))
    look(s, "the log", t)


@case("produce")
def codecs(s: Script) -> None:
    t = s.topic("x")
    for codec in batches.CODECS[1:]:
        s.ask(codec, produce(t, batch(records(3), codec=codec)))
    for codec in batches.CODECS[1:]:
        s.ask(f"{codec}, garbage", produce(t, batch(records(3), codec=codec, payload=b"garbage" * 3)))
        s.ask(
            f"{codec}, wrong count", produce(t, batch(records(3), codec=codec, count=4, last_offset_delta=3))
        )
    look(s, "the log", t)


@case("produce", only_ends=True)
def broker_compression(s: Script) -> None:
    """A topic that names a codec gets its batches rewritten in it."""
    for codec in ("uncompressed", "gzip", "snappy", "lz4", "zstd"):
        t = s.topic(codec, compression_type=codec)
        s.ask(f"plain to {codec}", produce(t, batch(records(3))))
        s.ask(f"lz4 to {codec}", produce(t, batch(records(3), codec="lz4")))
        s.ask(f"wrong count to {codec}", produce(t, batch(records(3), count=4, last_offset_delta=3)))
        s.ask(f"two batches to {codec}", produce(t, batch(records(1)) + batch(records(2))))
        look(s, f"the log of {codec}", t)


@case("produce", only_ends=True)
def sizes(s: Script) -> None:
    t = s.topic("x", max_message_bytes="1000")
    fits = 1000 - len(batch([Record(b"", b"")])) - 1
    s.ask("just fits", produce(t, batch([Record(b"v" * fits, b"")])))
    s.ask("one byte more", produce(t, batch([Record(b"v" * (fits + 1), b"")])))
    s.ask("one of two batches", produce(t, batch(records(1)) + batch([Record(b"v" * 2000)])))
    s.ask("compressed to less", produce(t, batch([Record(b"v" * 5000)], codec="gzip")))
    s.ask("above the broker's limit", produce(s.topic("y"), batch([Record(b"v" * 1_100_000)])))
    small = s.topic("small-segment", segment_bytes="1048576", max_message_bytes="5000000")
    s.ask("above the segment's size", produce(small, batch([Record(b"v" * 1_100_000)])))
    look(s, "the log", t)


@case("produce", only_ends=True)
def timestamps(s: Script) -> None:
    t = s.topic(
        "x", message_timestamp_before_max_ms=str(100 * YEAR_MS), message_timestamp_after_max_ms="3600000"
    )
    now = s.now_ms
    s.ask("now", produce(t, batch([Record(timestamp_ms=now)])))
    s.ask("in two hours", produce(t, batch([Record(timestamp_ms=now + 7_200_000)])))
    s.ask("second of three is too new", produce(t, batch(_stamped(now, now + 7_200_000, now))))
    s.ask("compressed, too new", produce(t, batch(_stamped(now, now + 7_200_000), codec="gzip")))
    s.ask("no timestamp (-1)", produce(t, batch([Record(timestamp_ms=-1)])))
    s.ask("negative (-2)", produce(t, batch([Record(timestamp_ms=-2)])))
    s.ask("zero", produce(t, batch([Record(timestamp_ms=0)])))
    s.ask("max timestamp is wrong", produce(t, batch(records(2), max_timestamp=batches.T0_MS + 99)))
    s.ask("max timestamp alone too new", produce(t, batch(records(2), max_timestamp=now + 7_200_000)))
    old = s.topic("old", message_timestamp_before_max_ms="3600000")
    s.ask("two hours ago", produce(old, batch([Record(timestamp_ms=now - 7_200_000)])))
    s.ask("half an hour ago", produce(old, batch([Record(timestamp_ms=now - 1_800_000)])))
    s.ask("T0", produce(old, batch(records(2))))
    s.ask("in a year, by default", produce(s.topic("y"), batch([Record(timestamp_ms=now + YEAR_MS)])))
    look(s, "the log", t)


def _stamped(*timestamps_ms: int) -> list[Record]:
    return [Record(timestamp_ms=ms) for ms in timestamps_ms]


@case("produce")
def log_append_time(s: Script) -> None:
    t = s.topic("x", message_timestamp_type="LogAppendTime")
    s.ask("plain", produce(t, batch(records(2))))
    s.ask("compressed", produce(t, batch(records(2), codec="zstd")))
    s.ask("no timestamp", produce(t, batch([Record(timestamp_ms=-1)])))
    s.ask("wrong crc", produce(t, batch(records(1), crc=1)))
    s.ask("far in the future", produce(t, batch([Record(timestamp_ms=s.now_ms + 9 * YEAR_MS)])))
    look(s, "the log", t)


@case("produce")
def compacted(s: Script) -> None:
    t = s.topic("x", cleanup_policy="compact")
    s.ask("with keys", produce(t, batch(records(2))))
    s.ask("without a key", produce(t, batch([Record(key=None)])))
    s.ask("second and third without a key", produce(t, batch([Record(), Record(key=None), Record(key=None)])))
    s.ask("compressed, without a key", produce(t, batch([Record(), Record(key=None)], codec="gzip")))
    s.ask("tombstone", produce(t, batch([Record(None)])))
    s.ask("empty key", produce(t, batch([Record(key=b"")])))
    two = batch(records(2)) + batch([Record(key=None)])
    s.ask("second batch without a key", produce(t, two))
    look(s, "the log", t)
