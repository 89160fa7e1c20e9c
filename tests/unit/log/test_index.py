"""The two index files, byte for byte, and what becomes of broken ones."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.unit.log.batches import T0, append, batch, parse_segment, small_segments
from tidemill.errors import StorageError
from tidemill.log.log import Log
from tidemill.log.segments.index import CorruptIndex, OffsetIndex, TimeIndex
from tidemill.log.time_search import search_time
from tidemill.protocol.steps import run_steps
from tidemill.sim.platform.disk import SimulatedDisk


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_folder("/d")
    return disk


def test_an_offset_entry_is_a_relative_offset_and_a_position_of_four_bytes_each(disk: SimulatedDisk) -> None:
    index = OffsetIndex(disk, "/d/i", 1_000_000_000_000, 1024)
    index.append(1_000_000_000_005, 4097)
    index.append(1_000_002_000_000, 0x01020304)
    index.trim()
    assert disk.read("/d/i") == bytes.fromhex("00000005 00001001 001e8480 01020304")


def test_a_time_entry_is_a_timestamp_of_eight_bytes_and_a_relative_offset_of_four(
    disk: SimulatedDisk,
) -> None:
    index = TimeIndex(disk, "/d/t", 100, 1024)
    index.append(0x0102030405060708, 107)
    index.append(0x0102030405060708, 120)  # not newer: says nothing
    index.append(0x0102030405060709, 300)
    index.trim()
    assert disk.read("/d/t") == bytes.fromhex("0102030405060708 00000007 0102030405060709 000000c8")


def test_reopened_indexes_keep_entries_and_grow(disk: SimulatedDisk) -> None:
    index = OffsetIndex(disk, "/d/i", 0, 1 << 20)
    for number in range(1, 2000):
        index.append(number * 10, number * 100)
    assert index.at_or_before_offset(9) == (0, 0)
    assert index.at_or_before_offset(10) == (10, 100)
    assert index.at_or_before_offset(12_345) == (12_340, 123_400)
    assert index.at_or_before_position(123_499) == (12_340, 123_400)
    index.trim()
    again = OffsetIndex(disk, "/d/i", 0, 1 << 20)
    assert again.count == 1999
    assert again.last == (19_990, 199_900)


def test_an_index_is_full_at_its_size(disk: SimulatedDisk) -> None:
    index = OffsetIndex(disk, "/d/i", 0, 24)
    for number in range(1, 4):
        assert not index.is_full
        index.append(number, number)
    assert index.is_full
    assert disk.size("/d/i") == 24


def test_index_size_not_multiple_of_entry_is_corrupt(disk: SimulatedDisk) -> None:
    disk.open("/d/i", create=True).write(b"x" * 9, 0)
    with pytest.raises(CorruptIndex):
        OffsetIndex(disk, "/d/i", 0, 1024)


def test_a_map_that_cannot_grow_leaves_the_index_usable(disk: SimulatedDisk) -> None:
    index = OffsetIndex(disk, "/d/i", 0, 1 << 20)
    for number in range(1, 513):
        index.append(number, number)
    disk.fail("map", error=errno.ENOSPC, times=1)
    with pytest.raises(OSError, match="No space"):
        index.append(513, 513)
    assert index.at_or_before_offset(600) == (512, 512)
    index.append(513, 513)
    assert index.last == (513, 513)


# -- in a log ------------------------------------------------------------------------------------------------

CONFIG = small_segments(segment_bytes=2000, index_interval_bytes=200)


def _filled(disk: SimulatedDisk) -> tuple[Log, list[bytes]]:
    log = Log(disk, "/d", CONFIG, wall_ms=T0)
    appended = []
    for number in range(40):
        data = batch(2, timestamps=[T0 + number * 10, T0 + number * 10 + 5])
        append(log, data)
        appended.append(bytes(data))
    assert len(log.segments) >= 3
    return log, appended


def test_entries_point_at_batches_as_kafka_writes_them(disk: SimulatedDisk) -> None:
    """After more than index.interval.bytes: the last offset of the batch that begins there, and its position."""
    log, _ = _filled(disk)
    log.close()
    base = log.segments[1].base_offset
    batches = parse_segment(disk.read(f"/d/{base:020d}.log"))
    expected, since = b"", 0
    for found in batches:
        if since > 200:
            expected += (found.last_offset - base).to_bytes(4, "big") + found.position.to_bytes(4, "big")
            since = 0
        since += len(found.raw)
    assert disk.read(f"/d/{base:020d}.index") == expected
    timeindex = disk.read(f"/d/{base:020d}.timeindex")
    newest = batches[-1]
    assert timeindex[-12:] == newest.max_timestamp.to_bytes(8, "big") + (newest.last_offset - base).to_bytes(
        4, "big"
    )


def _zeros(content: bytes) -> bytes:
    return bytes(len(content))


def _garbage(content: bytes) -> bytes:
    return bytes((byte * 7 + 13) & 0xFF for byte in range(len(content)))


def _zeros_in_the_middle(content: bytes) -> bytes:
    third = len(content) // 24 * 8
    return content[:third] + bytes(len(content) - 2 * third) + content[-third:]


def _shifted_in_the_middle(content: bytes) -> bytes:
    """Both ends are right, but some positions between them are not those of batches."""
    shifted = bytearray(content)
    for position in range(len(content) // 24 * 8 + 7, len(content) * 2 // 3, 8):
        shifted[position] ^= 5
    return bytes(shifted)


def _longer(content: bytes) -> bytes:
    return content + bytes(4096 - len(content) % 4096)


BREAKERS: list[Callable[[bytes], bytes]] = [
    _zeros,
    _garbage,
    _zeros_in_the_middle,
    _shifted_in_the_middle,
    _longer,
    lambda _: b"",
    lambda content: content[:5],
    lambda content: content[:24],
    lambda content: content + b"\xff" * 24,
    lambda content: b"\xff" * len(content),
]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("damage", BREAKERS, ids=range(len(BREAKERS)))
def test_broken_index_is_rebuilt_and_reads_stay_correct(
    disk: SimulatedDisk, damage: Callable[[bytes], bytes], suffix: str, is_clean: bool
) -> None:
    log, appended = _filled(disk)
    log.close()
    for name in disk.list("/d"):
        if name.endswith(f".{suffix}"):
            content = damage(disk.read(f"/d/{name}"))
            disk.replace(f"/d/{name}", content)
    log = Log(disk, "/d", CONFIG, wall_ms=T0, is_clean=is_clean, recovery_point=log.recovery_point)
    assert log.log_end_offset == 80
    for offset in range(80):
        for max_bytes in (1, 300, 700):
            found = log.read(offset, max_bytes, 80)
            assert found is not None
            served = parse_segment(found.read())
            assert served[0].base_offset == offset - offset % 2
            assert [b.raw for b in served] == appended[offset // 2 : offset // 2 + len(served)]
        by_time = run_steps(search_time(log, T0 + offset // 2 * 10 + (offset % 2) * 5))
        assert by_time is not None
        assert by_time.offset == offset
    log.check_invariants()
    assert [s.max_timestamp for s in log.segments] == [
        parse_segment(disk.read(s.path_of("log")))[-1].max_timestamp for s in log.segments
    ]


def test_a_missing_index_is_rebuilt(disk: SimulatedDisk) -> None:
    log, _ = _filled(disk)
    log.close()
    for name in disk.list("/d"):
        if name.endswith("index"):
            disk.remove(f"/d/{name}")
    log = Log(disk, "/d", CONFIG, wall_ms=T0, recovery_point=80)
    log.check_invariants()
    assert all(segment.offset_index.count for segment in log.segments[:-1])


def test_the_indexes_of_a_segment_that_is_gone_are_removed(disk: SimulatedDisk) -> None:
    disk.open("/d/00000000000000000007.index", create=True).write(b"x" * 8, 0)
    disk.open("/d/00000000000000000007.timeindex", create=True)
    Log(disk, "/d", CONFIG, wall_ms=T0)
    assert disk.list("/d") == [f"{0:020d}.{suffix}" for suffix in ("index", "log", "timeindex")]


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("field", [8, 16], ids=["length", "magic"])
def test_a_damaged_batch_is_reported_where_it_is_and_other_offsets_serve(
    disk: SimulatedDisk, field: int, is_reopened: bool
) -> None:
    """Whether an index entry points at it or not, and although its segment has others behind it."""
    log, appended = _filled(disk)
    if is_reopened:
        log.close()
    victim_segment = log.segments[1]
    path, base = victim_segment.path_of("log"), victim_segment.base_offset
    batches = parse_segment(disk.read(path))
    for number in (2, 3, 4):
        victim = batches[number]
        disk.flip_bit(path, victim.position + field, 6)
        if is_reopened:
            log = Log(disk, "/d", CONFIG, wall_ms=T0, recovery_point=80)
        with pytest.raises(StorageError):
            log.read(victim.base_offset, 100, 80)
        with pytest.raises(StorageError):
            log.read(victim.base_offset, 100, 80)
        served = 0
        for offset in range(0, 80, 2):
            try:
                found = log.read(offset, 1, 80)
            except StorageError:
                assert victim.base_offset <= offset < victim.base_offset + 8, (
                    "only up to the next index entry"
                )
                continue
            assert found is not None
            assert found.read() == appended[offset // 2]
            served += 1
        assert served >= 36
        disk.flip_bit(path, victim.position + field, 6)
        if not is_reopened:
            return
    assert base


def test_batch_with_implausible_base_offset_is_ignored(disk: SimulatedDisk) -> None:
    """The CRC does not cover it, and an index could not express it."""
    log, _ = _filled(disk)
    path = log.segments[0].path_of("log")
    disk.flip_bit(path, parse_segment(disk.read(path))[3].position + 1, 2)
    log = Log(disk, "/d", CONFIG, wall_ms=T0, is_clean=False, recovery_point=0)
    assert log.log_end_offset == 6
