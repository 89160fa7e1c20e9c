"""Reading delayed records by their offsets."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from random import Random

import pytest

from tests.unit.log.batches import T0, append, small_segments
from tidemill.broker.partitions import originals as module
from tidemill.broker.partitions.originals import Originals
from tidemill.delays.copies import Original
from tidemill.log.log import Log
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.records import Header, Record, build_batch
from tidemill.protocol.steps import run_steps
from tidemill.sim.platform.disk import SimulatedDisk


def _filled(disk: SimulatedDisk, random: Random, batches: int = 30) -> tuple[Log, dict[int, Record]]:
    disk.make_folder("/d")
    log = Log(disk, "/d", small_segments(segment_bytes=2000), wall_ms=T0)
    records: dict[int, Record] = {}
    for _ in range(batches):
        made = [
            Record(number, T0 + number, b"k", random.randbytes(random.randrange(90)), [Header("a", b"1")])
            for number in range(random.randrange(1, 9))
        ]
        offset = append(log, build_batch(made, codec=random.choice(list(CompressionType))))
        records |= {offset + each.offset: each._replace(offset=offset + each.offset) for each in made}
    return log, records


def _at(originals: Originals, log: Log, offsets: Iterable[int]) -> dict[int, Original]:
    found, is_cut = run_steps(originals.at(log, offsets, 1 << 30))
    assert not is_cut
    return found


@pytest.mark.parametrize("seed", range(10))
def test_records_are_found_by_their_offsets(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr(module, "_REMEMBERED_BYTES_MAX", random.choice((0, 500, 1 << 20)))
    log, records = _filled(SimulatedDisk(), random)
    originals = Originals()
    for _ in range(20):
        wanted = random.sample(sorted(records), random.randrange(1, 12))
        found = _at(originals, log, wanted)
        assert sorted(found) == sorted(wanted)
        for offset, each in found.items():
            record = records[offset]
            assert (each.offset, each.timestamp) == (offset, record.timestamp)
            assert each.content[each.key_start : each.key_start + 2] == b"\x02k"
            assert (record.value or b"") in each.content[each.key_start :]


def test_records_below_the_log_start_are_missing() -> None:
    log, records = _filled(SimulatedDisk(), Random(1))
    log.move_start(log.segments[1].base_offset)
    found = _at(Originals(), log, records)
    assert sorted(found) == [offset for offset in sorted(records) if offset >= log.log_start_offset]


def test_damaged_batch_hides_its_own_records_only(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    log, records = _filled(disk, Random(2))
    segment = log.segments[0]
    places = [(at, header) for at, header, _ in segment.batches()]
    at, header = places[1]
    disk.flip_bit(segment.path_of("log"), at + header.size - 1)
    with caplog.at_level(logging.ERROR):
        found = _at(Originals(), log, records)
    lost = range(header.base_offset, header.next_offset)
    assert sorted(found) == [offset for offset in sorted(records) if offset not in lost]
    assert f"offset {header.base_offset}" in caplog.text


def test_truncated_log_is_read_anew() -> None:
    disk = SimulatedDisk()
    log, _ = _filled(disk, Random(3), batches=1)
    originals = Originals()
    _at(originals, log, [0])
    log.truncate_to(0)
    append(log, build_batch([Record(0, T0 + 77, b"k", b"new")]), leader_epoch=1)
    (found,) = _at(originals, log, [0]).values()
    assert found.timestamp == T0 + 77


def test_reading_stops_at_a_number_of_bytes_and_keeps_no_batch_alive() -> None:
    disk = SimulatedDisk()
    disk.make_folder("/d")
    log = Log(disk, "/d", small_segments(segment_bytes=1 << 20), wall_ms=T0)
    append(log, build_batch([Record(number, T0, b"k", b"v" * 1000, []) for number in range(50)]))
    found, is_cut = run_steps(Originals().at(log, range(50), 2500))
    assert (sorted(found), is_cut) == ([0, 1, 2], True)
    assert sum(len(each.content) for each in found.values()) < 4000
