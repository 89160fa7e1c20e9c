"""The recovery point: torn writes leave the older value, and a late sync cannot undo a truncation."""

from __future__ import annotations

from random import Random

import pytest

from tidemill.broker.disk.recovery_point import RecoveryPoint
from tidemill.errors import StorageError
from tidemill.sim.platform.disk import SimulatedDisk, every_cut_point

FOLDER = "/log"


def _new(disk: SimulatedDisk) -> RecoveryPoint:
    disk.make_folder("/log")
    disk.sync_folder("/")
    return RecoveryPoint(disk, FOLDER)


def test_it_is_what_was_written_last() -> None:
    disk = SimulatedDisk()
    point = _new(disk)
    assert point.offset == 0
    for offset in (5, 9, 200):
        point.raise_to(offset, point.generation)
        assert RecoveryPoint(disk, FOLDER).offset == offset
    point.lower_to(7)
    assert RecoveryPoint(disk, FOLDER).offset == 7


def test_a_sync_from_before_a_truncation_does_not_count() -> None:
    disk = SimulatedDisk()
    point = _new(disk)
    generation = point.generation
    point.raise_to(10, generation)
    point.lower_to(4)
    point.raise_to(10, generation)
    assert point.offset == 4
    point.raise_to(6, point.generation)
    assert RecoveryPoint(disk, FOLDER).offset == 6


def test_at_every_cut_it_is_the_old_or_the_new_value() -> None:
    def scenario(disk: SimulatedDisk, done: list[int]) -> None:
        point = _new(disk)
        for offset in (10, 20, 5, 30):
            done.append(-offset)
            if offset < point.offset:
                point.lower_to(offset)
            else:
                point.raise_to(offset, point.generation)
            done.append(offset)

    for cut in every_cut_point(scenario, list[int], torn_writes=(-1, -2)):
        finished = [offset for offset in cut.history if offset > 0]
        begun = [-offset for offset in cut.history if offset < 0]
        allowed = {finished[-1] if finished else 0, begun[-1] if begun else 0}
        for disk in (cut.disk.kill(), *(cut.disk.crash(Random(seed)) for seed in range(4))):
            disk.make_folder("/log")
            assert RecoveryPoint(disk, FOLDER).offset in allowed, str(cut)


def test_without_either_of_the_two_it_is_refused() -> None:
    disk = SimulatedDisk()
    _new(disk)
    disk.flip_bit("/log/recovery-point-0", 3)
    assert RecoveryPoint(disk, FOLDER).offset == 0
    disk.flip_bit("/log/recovery-point-1", 9)
    with pytest.raises(StorageError, match="damaged"):
        RecoveryPoint(disk, FOLDER)
