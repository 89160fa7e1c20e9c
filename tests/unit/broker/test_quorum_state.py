"""The file in which a vote is kept: what was written can be read, and what could not be is not written."""

from __future__ import annotations

import pytest

from tidemill.broker.quorum.state import QuorumStateFile
from tidemill.errors import StorageError
from tidemill.raft.effects import ElectionState
from tidemill.raft.state import EPOCH_END
from tidemill.raft.voters import ReplicaKey
from tidemill.sim.platform.disk import SimulatedDisk

_STATES = [
    ElectionState(),
    ElectionState(7, 2, None),
    ElectionState(EPOCH_END - 1, None, ReplicaKey((1 << 31) - 1, b"\xff" * 16)),
    ElectionState(3, 1, ReplicaKey(0)),
]


@pytest.fixture
def file() -> QuorumStateFile:
    disk = SimulatedDisk()
    disk.make_folder("/data")
    return QuorumStateFile(disk, "/data")


@pytest.mark.parametrize("state", _STATES)
def test_written_state_can_be_read(file: QuorumStateFile, state: ElectionState) -> None:
    file.write(state)
    assert file.read() == state


@pytest.mark.parametrize("epoch", [EPOCH_END, EPOCH_END + 1, -1])
def test_an_epoch_without_a_successor_is_not_written(file: QuorumStateFile, epoch: int) -> None:
    file.write(_STATES[1])
    with pytest.raises(StorageError):
        file.write(ElectionState(epoch))
    assert file.read() == _STATES[1]
