"""Produce: acknowledgements, bad batches, compression, timestamps. For idempotence see producers.py."""

from __future__ import annotations

import struct
from typing import Any

from bench.diff import batches
from bench.diff.batches import Record, batch, records
from bench.diff.cases.topics import UNKNOWN_ID
from bench.diff.script import SILENT_SECONDS, Script, Topic, case

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
    s.ask(label, _read(topic, 0), api="fetch", version=12)


def _read(topic: Topic, partition: int) -> dict[str, Any]:
    part = {"partition": partition, "fetch_offset": 0, "partition_max_bytes": 10_000_000}
    return {
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 10_000_000,
        "topics": [{"topic": topic.name, "topic_id": topic.id, "partitions": [part]}],
    }


class Trials:
    """Questions that do not disturb each other, each with a partition of its own."""

    def __init__(self, s: Script, label: str = "x", count: int = 45, **configs: str):
        self.s, self.topic, self.next = s, s.topic(label, count, **configs), 0

    def ask(self, label: str, data: bytes, **more: Any) -> None:
        """Record the answer and, if the batch was taken, what of it stands in the log."""
        partition, self.next = self.next, self.next + 1
        self.s.ask(label, produce(self.topic, data, partition=partition, **more), keep=self._with_log)

    def _with_log(self, tree: dict[str, Any]) -> dict[str, Any]:
        answer = tree["responses"][0]["partition_responses"][0]
        if answer["error_code"] != "NONE(0)":
            return tree
        log = self.s.tell(_read(self.topic, answer["index"]), api="fetch", version=12)
        return {**tree, "log": log["responses"][0]["partitions"][0]}


@case("produce")
def good(s: Script) -> None:
    t = s.topic("x", 2)
    s.ask("acks all", produce(t, batch(records(2))))
    s.ask("acks 1", produce(t, batch(records(1)), acks=1))
    s.ask_without_reply("acks 0", produce(t, batch(records(1)), acks=0))
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
    """What a broker can see in the header and the checksum."""
    t = Trials(s)
    good = batch(records(2))
    s.ask("null", produce(t.topic, None), timeout_seconds=SILENT_SECONDS)
    t.ask("no bytes", b"")
    t.ask("fewer bytes than a header", good[:30])
    t.ask("cut short", good[:-3])
    t.ask("one byte left over", good + b"\x00")
    t.ask("20 bytes left over", good + bytes(20))
    t.ask("wrong crc", batch(records(2), crc=1))
    t.ask("flipped bit", good[:-1] + bytes([good[-1] ^ 1]))
    t.ask("length too large", batch(records(2), length=5000))
    t.ask("length too small", batch(records(2), length=60))
    t.ask("length below a header's", batch(records(2), length=10))
    t.ask("length 0", batch(records(2), length=0))
    t.ask("length negative", batch(records(2), length=-1))
    t.ask("magic 3", batch(records(2), magic=3))
    t.ask("magic -1", batch(records(2), magic=-1))
    t.ask("magic 0", batches.message_set(0))
    t.ask("magic 1", batches.message_set(1))
    t.ask("base offset 77", batch(records(2), base_offset=77))
    t.ask("base offset negative", batch(records(2), base_offset=-1))
    t.ask("count too high", batch(records(2), count=3))
    t.ask("count too low", batch(records(2), count=1))
    t.ask("count 0", batch(records(2), count=0, last_offset_delta=-1))
    t.ask("count negative", batch(records(2), count=-1, last_offset_delta=-2))
    t.ask("last offset too high", batch(records(2), last_offset_delta=5))
    t.ask("last offset too low", batch(records(2), last_offset_delta=0))
    t.ask("last offset negative", batch(records(2), last_offset_delta=-1))
    t.ask("no records", batch([], last_offset_delta=0))
    t.ask("no records, last offset -1", batch([]))
    t.ask("two batches", good + good)
    t.ask("three batches, the second bad", good + batch(records(1), crc=1) + good)
    t.ask("unused attribute bit", batch(records(1), attributes=0x80))
    t.ask("unknown codec 5", batch(records(1), attributes=5))
    t.ask("unknown codec 7", batch(records(1), attributes=7))
    t.ask("marked as LogAppendTime", batch(records(1), flags=batches.LOG_APPEND_TIME))


@case("produce", only_ends=True)
def bad_records(s: Script) -> None:
    """What a broker can see only if it decodes the records of a batch whose header and checksum are right."""
    t = Trials(s)
    future = s.wall_ms + 7_200_000
    t.ask("garbage", batch(records(2), payload=b"\x07garbage!"))
    t.ask("record longer than the batch", batch(records(1), payload=b"\x7e\x00\x00\x00\x01\x01\x00"))
    t.ask("one record more in the header", batch(records(2), count=3, last_offset_delta=2))
    t.ask("one record less in the header", batch(records(2), count=1, last_offset_delta=0))
    t.ask("max timestamp is wrong", batch(records(2), max_timestamp=batches.T0_MS + 99))
    t.ask("max timestamp alone too new", batch(records(2), max_timestamp=future))
    for codec in batches.CODECS[1:]:
        t.ask(f"{codec}, garbage", batch(records(3), codec=codec, payload=b"garbage" * 3))
        t.ask(f"{codec}, wrong count", batch(records(3), codec=codec, count=4, last_offset_delta=3))


@case("produce", only_ends=True)
def flags(s: Script) -> None:
    t = Trials(s, count=5)
    marker = struct.pack(">hhhi", 0, 0, 0, 0)
    t.ask("control batch", batch([Record(marker[4:], marker[:4])], flags=batches.CONTROL))
    t.ask("transactional, no producer", batch(records(1), flags=batches.TRANSACTIONAL))
    t.ask("transactional id, plain batch", batch(records(1)), transactional_id="tx")
    t.ask("delete horizon", batch(records(1), attributes=0x40))


@case("produce")
def codecs(s: Script) -> None:
    t = Trials(s, count=4)
    for codec in batches.CODECS[1:]:
        t.ask(codec, batch(records(3), codec=codec))


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
    now = s.wall_ms
    before, after = str(100 * YEAR_MS), "3600000"
    t = Trials(s, count=10, message_timestamp_before_max_ms=before, message_timestamp_after_max_ms=after)
    t.ask("now", batch(_stamped(now)))
    t.ask("in two hours", batch(_stamped(now + 7_200_000)))
    t.ask("second of three is too new", batch(_stamped(now, now + 7_200_000, now)))
    t.ask("compressed, too new", batch(_stamped(now, now + 7_200_000), codec="gzip"))
    t.ask("no timestamp (-1)", batch(_stamped(-1)))
    t.ask("negative (-2)", batch(_stamped(-2)))
    t.ask("zero", batch(_stamped(0)))
    old = Trials(s, "old", count=5, message_timestamp_before_max_ms="3600000")
    old.ask("two hours ago", batch(_stamped(now - 7_200_000)))
    old.ask("second of two is too old", batch(_stamped(now, now - 7_200_000)))
    old.ask("half an hour ago", batch(_stamped(now - 1_800_000)))
    old.ask("T0", batch(records(2)))
    Trials(s, "y", count=1).ask("in a year, by default", batch(_stamped(now + YEAR_MS)))


def _stamped(*timestamps_ms: int) -> list[Record]:
    return [Record(timestamp_ms=ms) for ms in timestamps_ms]


@case("produce")
def log_append_time(s: Script) -> None:
    t = s.topic("x", message_timestamp_type="LogAppendTime")
    s.ask("plain", produce(t, batch(records(2))))
    s.ask("compressed", produce(t, batch(records(2), codec="zstd")))
    s.ask("no timestamp", produce(t, batch([Record(timestamp_ms=-1)])))
    s.ask("wrong crc", produce(t, batch(records(1), crc=1)))
    s.ask("far in the future", produce(t, batch([Record(timestamp_ms=s.wall_ms + 9 * YEAR_MS)])))
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
