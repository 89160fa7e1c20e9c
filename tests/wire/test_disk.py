"""A disk that is full, damaged, or holds files that lie: what was acked stays, the rest of the broker serves."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.wire import health
from tests.wire.batches import NOW_MS, BadBatchError, Header, encode, parse_batch
from tests.wire.connection import Connection, read_all

MEGABYTE = 1_000_000
DISK_SIZE = 48 * MEGABYTE
SEGMENT = {"segment.bytes": "1048576"}
KAFKA_STORAGE_ERROR = 56


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    directory.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    options = f"size={DISK_SIZE}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("root, but mounting is not allowed here: " + mounted.stderr.decode().strip())
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def _fill(connection: Connection, topic: str) -> list[tuple[int, bytes]]:
    """Produces until the broker refuses, and returns what it acked."""
    acked: list[tuple[int, bytes]] = []
    for number in range(10 * DISK_SIZE // MEGABYTE):
        value = b"%d " % number + b"x" * 700_000
        produced = connection.produce(topic, encode([value]))
        if produced.error_code:
            return acked
        acked.append((produced.base_offset, value))
    raise AssertionError("the disk never filled")


def test_failure_27_a_full_disk_refuses_and_keeps_what_was_acked(
    start: Callable[..., Broker], tmp_path: Path, topic: str
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(8 * MEGABYTE))
        broker = start(data_dir=disk / "data")
        with Connection(broker) as connection:
            connection.create_topic(topic, configs=SEGMENT)
            acked = _fill(connection, topic)
            assert len(acked) > 5
            assert connection.request("api_versions", 0).error_code == 0
            assert connection.request("metadata", 12, topics=None).topics
        assert broker.is_alive
        stored = [record for batch in read_all(broker, topic) for record in batch.records()]
        assert [(record.offset, record.value) for record in stored][: len(acked)] == acked
        ballast.unlink()
        broker.stop()
        again = start(data_dir=disk / "data")
        stored = [record for batch in read_all(again, topic) for record in batch.records()]
        assert [(record.offset, record.value) for record in stored][: len(acked)] == acked
        with Connection(again) as connection:
            assert connection.produce(topic, encode([b"space again"])).error_code == 0
        again.stop()


def test_failure_27_a_partition_recovers_when_space_returns(
    start: Callable[..., Broker], tmp_path: Path, topic: str
) -> None:
    """Without a restart: either appends go on, or the log stays fenced and says so; reads work throughout."""
    with small_disk(tmp_path / "disk") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(8 * MEGABYTE))
        broker = start(data_dir=disk / "data")
        with Connection(broker) as connection:
            connection.create_topic(topic, configs=SEGMENT)
            acked = _fill(connection, topic)
            ballast.unlink()
            produced = connection.produce(topic, encode([b"space again"]))
            end = len(acked) + (produced.error_code == 0)
            assert connection.end_offset(topic) == end
        stored = [record.offset for batch in read_all(broker, topic) for record in batch.records()]
        assert stored == list(range(end))
        broker.stop()


def _partition_dir(broker: Broker, topic: str) -> Path:
    (found,) = broker.data_dir.rglob(f"{topic}-0")
    return found


def _write_segments(connection: Connection, topic: str) -> None:
    """A topic of about four segments, timestamps a second apart."""
    connection.create_topic(topic, configs=SEGMENT)
    for number in range(40):
        header = Header(base_timestamp_ms=NOW_MS - 1_000_000 + number * 1000)
        produced = connection.produce(topic, encode([b"%d " % number + b"x" * 100_000], header))
        assert produced.error_code == 0


@pytest.fixture
def stopped(start: Callable[..., Broker], topic: str) -> tuple[Callable[..., Broker], Path]:
    """A topic of several segments, and one beside it; the broker cleanly stopped."""
    broker = start()
    with Connection(broker) as connection:
        _write_segments(connection, topic)
        connection.create_topic("beside-" + topic)
        connection.produce("beside-" + topic, encode([b"untouched"]))
    directory = _partition_dir(broker, topic)
    assert broker.stop() == 0
    return start, directory


def _assert_complete(broker: Broker, topic: str) -> None:
    stored = [record for batch in read_all(broker, topic) for record in batch.records()]
    assert [record.offset for record in stored] == list(range(40))
    with Connection(broker) as connection:
        for number in (0, 7, 23, 39):
            assert connection.read(topic, number)[0].base_offset == number
            found = connection.list_offset(topic, NOW_MS - 1_000_000 + number * 1000)
            assert found.offset == number


_DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "deleted": lambda _: None,
    "empty": lambda _: b"",
    "garbage": lambda content: bytes(byte ^ 0x5A for byte in content.ljust(240, b"\0")),
    "odd-size": lambda content: content + b"abc",
    "zeros": lambda content: bytes(len(content) + 120),
}


def test_damaged_indexes_are_rebuilt(start: Callable[..., Broker]) -> None:
    """A topic for each kind of damage and of index, so that two starts are enough."""
    broker = start()
    topics = {
        f"{damage}{suffix}": (damage, suffix) for damage in _DAMAGES for suffix in (".index", ".timeindex")
    }
    with Connection(broker) as connection:
        for topic in topics:
            _write_segments(connection, topic)
    assert broker.stop() == 0
    for topic, (damage, suffix) in topics.items():
        indexes = sorted(_partition_dir(broker, topic).glob(f"*{suffix}"))
        assert len(indexes) >= 3
        for index in indexes:
            damaged = _DAMAGES[damage](index.read_bytes())
            if damaged is None:
                index.unlink()
            else:
                index.write_bytes(damaged)
    broker = start()
    for topic in topics:
        _assert_complete(broker, topic)
    health.assert_serves(broker)


def test_names_and_bytes_are_kafkas(stopped: tuple[Callable[..., Broker], Path], topic: str) -> None:
    _, directory = stopped
    logs = sorted(directory.glob("*.log"))
    assert all(len(path.stem) == 20 and path.stem.isdigit() for path in logs)
    assert {path.stem for path in directory.glob("*.index")} == {path.stem for path in logs}
    assert {path.stem for path in directory.glob("*.timeindex")} == {path.stem for path in logs}
    next_offset = 0
    for path in logs:
        assert int(path.stem) == next_offset
        data = path.read_bytes()
        at = 0
        while at < len(data):
            batch = parse_batch(data, at)
            assert batch.base_offset == next_offset
            next_offset = batch.last_offset + 1
            at += batch.size
    assert next_offset == 40


def test_failure_15_a_flipped_bit_in_an_old_segment_costs_that_batch_alone(
    stopped: tuple[Callable[..., Broker], Path], topic: str
) -> None:
    """The damaged batch is never passed off as sound; what lies before, behind and beside it stays."""
    start, directory = stopped
    first = sorted(directory.glob("*.log"))[0]
    data = bytearray(first.read_bytes())
    batch = parse_batch(bytes(data))
    damaged_offset = 1
    data[batch.size + 5000] ^= 0x10
    first.write_bytes(data)
    broker = start()
    with Connection(broker) as connection:
        assert connection.end_offset(topic) == 40
        fetched = connection.fetch(topic, damaged_offset, partition_max_bytes=1)
        if fetched.error_code == 0:
            with pytest.raises(BadBatchError, match="CRC"):
                parse_batch(bytes(fetched.records))
        for offset in (0, 2, 3, 20, 39):
            fetched = connection.fetch(topic, offset, partition_max_bytes=1)
            assert fetched.error_code == 0, offset
            assert parse_batch(bytes(fetched.records)).base_offset == offset
        assert connection.produce(topic, encode([b"next"])).base_offset == 40
        assert connection.read("beside-" + topic, 0)[0].values() == [b"untouched"]


def test_a_torn_tail_is_cut_off_after_a_crash(start: Callable[..., Broker]) -> None:
    """Bytes of half a batch at the end of each log, as a power failure leaves them."""
    broker = start()
    cuts = {f"torn-{cut}": cut for cut in (1, 30, 61, 5000)}
    with Connection(broker) as connection:
        for topic in cuts:
            connection.create_topic(topic)
            for number in range(5):
                connection.produce(topic, encode([b"%d" % number]))
    broker.kill()
    torn = encode([b"x" * 10_000], Header(base_offset=5))
    for topic, cut in cuts.items():
        log = sorted(_partition_dir(broker, topic).glob("*.log"))[-1]
        whole_size = _whole_size(log.read_bytes())
        with log.open("r+b") as file:
            file.truncate(whole_size)
            file.seek(whole_size)
            file.write(torn[:cut])
    again = start()
    for topic in cuts:
        stored = [value for batch in read_all(again, topic) for value in batch.values()]
        assert stored == [b"%d" % number for number in range(5)], topic
        with Connection(again) as connection:
            assert connection.produce(topic, encode([b"5"])).base_offset == 5
        assert [batch.base_offset for batch in read_all(again, topic)] == list(range(6))


def _whole_size(data: bytes) -> int:
    """Where the whole batches end, should the file be preallocated."""
    at = 0
    while at < len(data):
        try:
            at += parse_batch(data, at).size
        except BadBatchError:
            break
    return at


def test_a_topic_is_made_again_while_records_of_another_are_deleted(
    target: Broker, connection: Connection, topic: str
) -> None:
    """Both write the checkpoints of the data directory."""
    other = f"{topic}-again"
    connection.create_topic(topic)
    connection.create_topic(other)
    assert connection.produce(topic, encode([b"x"] * 200)).error_code == 0
    with Connection(target) as deleting:
        for number in range(1, 26):
            partitions = [{"partition_index": 0, "offset": number}]
            topics = [{"name": topic, "partitions": partitions}]
            asked = [deleting.start("delete_records", 2, topics=topics, timeout=20_000) for _ in range(20)]
            doomed = [{"name": other, "topic_id": None}]
            deleted = connection.request("delete_topics", 6, topics=doomed, timeout=20_000)
            assert deleted.responses[0].error_code == 0
            connection.create_topic(other)
            # It may still be the old one that answers; neither may be offline.
            assert connection.produce(other, encode([b"y"])).error_code != KAFKA_STORAGE_ERROR
            for each in asked:
                answer = deleting.finish("delete_records", 2, each)
                assert answer.topics[0].partitions[0].error_code == 0
