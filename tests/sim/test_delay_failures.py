"""Delayed records at a leader whose disk kept a snapshot and lost the log that the snapshot describes."""

from __future__ import annotations

from tests.sim.scripted import Stage, play
from tests.unit.delays.snapshots import snapshot
from tidemill.broker.partitions.originals import replay_batch
from tidemill.broker.partitions.partition import Partition
from tidemill.delays.state import PartitionDelays
from tidemill.log.segments.segment import segment_name
from tidemill.protocol.api.replicas import ElectLeadersRequest, ElectLeadersResponse
from tidemill.protocol.steps import run_steps
from tidemill.sim.cluster import Machine
from tidemill.sim.crowds.delays import DELAY_TOPIC
from tidemill.types import TopicPartition

LATER = TopicPartition(DELAY_TOPIC, 0)
_PREFERRED = 0
_UNCOMMITTED_MIN = 3


def _partition(machine: Machine) -> Partition:
    assert machine.node is not None
    partition, _ = machine.node.broker.replicas.find((LATER.topic, LATER.partition))
    assert partition is not None
    return partition


def _state(machine: Machine) -> PartitionDelays | None:
    """Returns the leader's state, once it has replayed its log to the end."""
    partition = _partition(machine)
    log = partition.log
    state = None if log is None else partition.delivery.state_of(log)
    return state if state is not None and log is not None and state.end_offset == log.log_end_offset else None


def _read_anew(machine: Machine) -> PartitionDelays:
    """Returns the state that a replay of the whole log gives."""
    partition = _partition(machine)
    assert partition.log is not None
    state = PartitionDelays(partition.log.log_start_offset, partition.high_watermark)
    for segment in partition.log.segments:
        for _, header, batch in segment.batches():
            run_steps(replay_batch(state, header, batch))
    return state


def _pending(state: PartitionDelays) -> list[tuple[int, int]]:
    return state.pending.offsets.first_from(0, 1 << 30)


def _has_uncommitted(machine: Machine) -> bool:
    state = _state(machine)
    return state is not None and state.end_offset >= _partition(machine).high_watermark + _UNCOMMITTED_MIN


def _elect_preferred(stage: Stage, leader: Machine) -> None:
    request = ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=None, timeout_ms=5_000)
    stage.ask(request, ElectLeadersResponse)
    stage.wait(lambda: stage.partition(LATER).leader == leader.id, "the first leader leads again")


def test_failure_29_snapshot_of_a_log_end_that_was_lost_is_not_trusted() -> None:
    """A leader that its followers do not reach has written a snapshot. A power failure takes the end of its log only."""

    def course(stage: Stage) -> None:
        first = stage.leader_of(LATER)
        stage.require(stage.partition(LATER).replicas[0] == first.id, "another replica is preferred")
        stage.part([first], stage.followers_of(LATER))
        stage.wait(lambda: _has_uncommitted(first), "the leader has records that no other replica has")
        state, log = _state(first), _partition(first).log
        assert state is not None
        assert log is not None
        snapshot_end = state.end_offset
        content = snapshot(state, log.epochs.epoch_of(snapshot_end - 1))
        path = f"{log.folder}/{segment_name(snapshot_end)}.delays"
        stage.cluster.cut_power(first)
        stage.wait(lambda: stage.partition(LATER).leader not in (-1, first.id), "another replica leads")
        stage.heal()
        stage.wait_healthy()
        stage.wait(
            lambda: _partition(first).high_watermark > snapshot_end, "the log is longer than it was before"
        )
        first.disk.open(path, create=True).write(content, 0)
        _elect_preferred(stage, first)
        stage.wait(lambda: _state(first) is not None, "the leader has read its log")
        known = _state(first)
        assert known is not None
        stage.require(_pending(known) == _pending(_read_anew(first)), "what waits is not what the log says")
        stage.require(not first.disk.exists(path), "the snapshot of another log is still there")

    play(course, has_delays=True, settings={"auto.leader.rebalance.enable": "false"})
