"""A segment that was let go of: its readers go on, and its paths belong to others."""

from __future__ import annotations

import pytest

from tests.unit.log.batches import T0, append, small_segments
from tidemill.log.log import Log
from tidemill.log.segments.segment import Segment
from tidemill.log.time_search import search_time
from tidemill.protocol.records import Record, build_batch
from tidemill.protocol.steps import run_steps
from tidemill.sim.platform.disk import SimulatedDisk


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_folder("/d")
    return disk


@pytest.fixture
def log(disk: SimulatedDisk) -> Log:
    log = Log(disk, "/d", small_segments(segment_bytes=2000), wall_ms=T0)
    for number in range(40):
        append(log, build_batch([Record(0, T0 + number, b"k", b"v" * 60)]))
    return log


def _read(segment: Segment) -> list[bytes]:
    """Every batch of a segment, each found by its offset."""
    ends = [header.next_offset for _, header, _ in segment.batches()]
    return [segment.read(end - 1, 1, None, at_least_one=True).read() for end in ends]


@pytest.mark.parametrize("let_go", ["release", "delete"])
def test_segment_is_read_as_before_and_touches_no_file(log: Log, disk: SimulatedDisk, let_go: str) -> None:
    segments = list(log.segments)
    assert len(segments) > 1
    before = [_read(segment) for segment in segments]
    if let_go == "release":
        log.release()
    else:
        log.restart_at(100, T0)
    for path in list(disk.contents()):
        disk.remove(path)
    assert [_read(segment) for segment in segments] == before
    assert not disk.contents()


def test_time_search_in_a_released_log_touches_no_file(log: Log, disk: SimulatedDisk) -> None:
    log.release()
    for path in list(disk.contents()):
        disk.remove(path)
    found = run_steps(search_time(log, T0 + 35))
    assert found is not None
    assert found.offset == 35
    assert not disk.contents()
