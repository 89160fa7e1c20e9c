"""Leader epochs: where each begins and ends, and the checkpoint file."""

from __future__ import annotations

import pytest

from tidemill.errors import StorageError
from tidemill.log.epochs import LeaderEpochs
from tidemill.sim.platform.disk import SimulatedDisk


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_folder("/d")
    return disk


def _epochs(disk: SimulatedDisk, *entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs(disk, "/d/e")
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),  # no epoch was asked about
        (0, (0, 10)),  # older than all: ends where the first known one begins
        (1, (1, 10)),
        (2, (2, 50)),
        (3, (2, 50)),  # unknown between two: the one below it, which ends where the one above begins
        (4, (2, 50)),
        (5, (5, 80)),
        (6, (5, 80)),
        (7, (7, 100)),  # the latest ends at the log's end
        (8, (-1, -1)),  # newer than all: nothing is known
    ],
)
def test_end_offset_of_epoch_is_start_of_next_epoch(
    disk: SimulatedDisk, asked: int, answer: tuple[int, int]
) -> None:
    epochs = _epochs(disk, (2, 10), (5, 50), (7, 80))
    assert epochs.end_offset_of(asked, 100) == answer


def test_empty_log_has_no_epochs(disk: SimulatedDisk) -> None:
    assert _epochs(disk).end_offset_of(0, 0) == (-1, -1)


def test_epoch_without_records_is_dropped(disk: SimulatedDisk) -> None:
    epochs = _epochs(disk, (1, 0), (2, 40), (3, 40))
    assert epochs.entries == [(1, 0), (3, 40)]


def test_epochs_only_rise(disk: SimulatedDisk) -> None:
    epochs = _epochs(disk, (3, 0), (2, 10), (3, 20))
    assert epochs.entries == [(3, 0)]


def test_an_offset_belongs_to_the_epoch_that_began_before_it(disk: SimulatedDisk) -> None:
    epochs = _epochs(disk, (2, 10), (5, 50))
    assert [epochs.epoch_of(offset) for offset in (0, 9, 10, 49, 50, 999)] == [-1, -1, 2, 2, 5, 5]


@pytest.mark.parametrize(
    ("end", "left"), [(100, [(2, 10), (5, 50)]), (51, [(2, 10), (5, 50)]), (50, [(2, 10)]), (10, [])]
)
def test_truncate_from_end_drops_later_epochs(
    disk: SimulatedDisk, end: int, left: list[tuple[int, int]]
) -> None:
    epochs = _epochs(disk, (2, 10), (5, 50))
    epochs.truncate_from_end(end)
    assert epochs.entries == left


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (5, [(2, 10), (5, 50)]),
        (10, [(2, 10), (5, 50)]),
        (30, [(2, 30), (5, 50)]),
        (50, [(5, 50)]),
        (70, [(5, 70)]),
    ],
)
def test_truncating_the_start_keeps_the_epoch_that_covers_it(
    disk: SimulatedDisk, start: int, left: list[tuple[int, int]]
) -> None:
    epochs = _epochs(disk, (2, 10), (5, 50))
    epochs.truncate_from_start(start)
    assert epochs.entries == left


def test_leader_epoch_checkpoint_has_kafkas_format(disk: SimulatedDisk) -> None:
    epochs = _epochs(disk, (2, 10), (5, 50))
    assert epochs.content() == b"0\n2\n2 10\n5 50\n"
    disk.replace("/d/e", epochs.content())
    assert LeaderEpochs(disk, "/d/e").entries == [(2, 10), (5, 50)]


def test_epochs_are_dirty_until_latest_content_is_saved(disk: SimulatedDisk) -> None:
    epochs = _epochs(disk)
    assert not epochs.is_dirty
    epochs.assign(1, 0)
    handed_out = epochs.changes
    epochs.assign(2, 10)
    epochs.saved(handed_out)
    assert epochs.is_dirty
    epochs.saved(epochs.changes)
    assert not epochs.is_dirty


@pytest.mark.parametrize(
    "content", [b"", b"1\n0\n", b"0\n2\n1 1\n", b"0\n1\n1\n", b"0\n1\nx 1\n", b"\xff\xfe"]
)
def test_a_damaged_file_is_refused(disk: SimulatedDisk, content: bytes) -> None:
    disk.replace("/d/e", content)
    with pytest.raises(StorageError, match="/d/e"):
        LeaderEpochs(disk, "/d/e")
