"""The reassignment of partitions, with progress: shared by `reassign` and `brokers`.

A move is complete when the controller no longer lists it and the partition has its target replicas. Progress is
measured in bytes: the size of each new replica against the size of its leader. The cluster continues when the command
ends early.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tidemill.cli.cluster import throttle
from tidemill.cli.failures import CommandError
from tidemill.cli.progress import Progress
from tidemill.cli.table import size_text
from tidemill.client.admin.cluster import ClusterAdmin, Reassignment, raise_first_refusal
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import BrokerUnreachable, ConnectionLost
from tidemill.errors import ApiError
from tidemill.protocol.api.cluster import DescribeClusterBroker
from tidemill.types import TopicPartition

_POLL_S = 0.5
_METADATA_POLL_S = 0.1
GOES_ON = (
    "the cluster goes on moving partitions; `tidemill reassign status` shows how far it is, "
    "`tidemill reassign cancel` takes it back"
)

Targets = Mapping[TopicPartition, Sequence[int]]


class State(NamedTuple):
    """The replicas of each partition or, for partitions that are being moved, their target replicas."""

    brokers: dict[int, DescribeClusterBroker]
    assignments: dict[TopicPartition, tuple[int, ...]]
    leaders: dict[TopicPartition, int]
    moving: dict[TopicPartition, Reassignment]

    @property
    def racks(self) -> dict[int, str | None]:
        return {broker_id: broker.rack for broker_id, broker in self.brokers.items()}

    @property
    def live(self) -> list[int]:
        return sorted(broker_id for broker_id, broker in self.brokers.items() if not broker.is_fenced)

    def held_by(self, broker_id: int) -> list[TopicPartition]:
        """The partitions with a replica on the broker, including those that are leaving or arriving."""
        held = {partition for partition, replicas in self.assignments.items() if broker_id in replicas}
        held.update(partition for partition, move in self.moving.items() if broker_id in move.replicas)
        return sorted(held)


class Moved(NamedTuple):
    """The partitions and bytes that were moved."""

    partitions: int
    size_bytes: int
    seconds: float


class Moving:
    """Starts and watches moves."""

    def __init__(self, cluster: Cluster) -> None:
        self.admin = Admin(cluster)
        self.cluster_admin = ClusterAdmin(cluster)

    def state(self) -> State:
        moving = self.cluster_admin.reassignments()
        assignments, leaders = {}, {}
        for topic in self.admin.topics():
            for each in topic.partitions:
                partition = TopicPartition(topic.name or "", each.partition_index)
                leaving = moving[partition].removing if partition in moving else []
                assignments[partition] = tuple(
                    replica for replica in each.replica_nodes if replica not in leaving
                )
                leaders[partition] = each.leader_id
        brokers = {each.broker_id: each for each in self.admin.describe_cluster().brokers}
        return State(brokers, assignments, leaders, moving)

    def begin(self, state: State, targets: Targets, rate_bytes: int | None) -> None:
        """Start all moves or none: when one partition is rejected, the others are cancelled."""
        if rate_bytes is not None:
            throttle.start(self.admin, state.live, state.assignments, targets, rate_bytes)
        answers = self.cluster_admin.reassign(targets)
        if any(answers.values()):
            self.cluster_admin.reassign({each: None for each, refusal in answers.items() if refusal is None})
            if rate_bytes is not None:
                throttle.stop(self.admin, state.live, {partition.topic for partition in targets})
        raise_first_refusal(answers)

    def finish(self, state: State, targets: Targets, rate_bytes: int | None) -> Moved:
        """Watch until all moves are complete, and then remove the throttle."""
        started = time.monotonic()
        size_bytes = self._watch(state, targets)
        if rate_bytes is not None:
            throttle.stop(self.admin, self.state().live, {partition.topic for partition in targets})
        return Moved(len(targets), size_bytes, time.monotonic() - started)

    def arrived_bytes(self, moves: Mapping[TopicPartition, Collection[int]]) -> dict[TopicPartition, Arrived]:
        """For each partition, how many bytes the new replicas have, and how many they should have."""
        leaders = {
            TopicPartition(topic.name or "", each.partition_index): each.leader_id
            for topic in self.admin.topics()
            for each in topic.partitions
        }
        wanted: dict[int, list[TopicPartition]] = {}
        for partition, added in moves.items():
            for broker_id in {leaders.get(partition, -1), *added}:
                wanted.setdefault(broker_id, []).append(partition)
        live = set(self.admin.cluster.broker_ids())
        sizes = {
            broker_id: self._sizes(broker_id, partitions)
            for broker_id, partitions in sorted(wanted.items())
            if broker_id in live
        }
        arrived = {}
        for partition, added in moves.items():
            full = sizes.get(leaders.get(partition, -1), {}).get(partition, 0)
            there = sum(min(full, sizes.get(each, {}).get(partition, 0)) for each in added)
            arrived[partition] = Arrived(there, full * len(added))
        return arrived

    def _sizes(self, broker_id: int, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The sizes of a broker's replicas; empty while the broker does not respond, since a move survives its
        restart.
        """
        try:
            directories = self.admin.log_dirs_now(broker_id, partitions)
        except (BrokerUnreachable, ConnectionLost, ApiError):
            return {}
        return {
            TopicPartition(topic.name, each.partition_index): each.partition_size
            for directory in directories
            for topic in directory.topics
            for each in topic.partitions
        }

    def _watch(self, state: State, targets: Targets) -> int:
        added = {
            partition: [each for each in replicas if each not in state.assignments[partition]]
            for partition, replicas in targets.items()
        }
        expected = {partition: each.total for partition, each in self.arrived_bytes(added).items()}
        first: tuple[float, int] | None = None
        with Progress() as progress:
            self._note_dead_targets(state, added, progress)
            while True:
                pending = {each: added[each] for each in self.cluster_admin.reassignments() if each in added}
                arrived = self.arrived_bytes(pending)
                expected |= {
                    partition: max(expected[partition], arrived[partition].total) for partition in pending
                }
                done_bytes = sum(size for each, size in expected.items() if each not in pending)
                done_bytes += sum(each.there for each in arrived.values())
                now = time.monotonic()
                first = first or (now, done_bytes)
                rate = (done_bytes - first[1]) / (now - first[0]) if now > first[0] else None
                progress.show(*_shown(len(targets), len(pending), done_bytes, sum(expected.values()), rate))
                if not pending:
                    break
                time.sleep(_POLL_S)
        self._check_arrived(targets)
        return sum(expected.values())

    def _note_dead_targets(
        self, state: State, added: Mapping[TopicPartition, Sequence[int]], progress: Progress
    ) -> None:
        used = {broker_id for each in added.values() for broker_id in each}
        for broker_id in sorted(used.difference(state.live)):
            progress.note(f"broker {broker_id} is down: what moves to it waits until it is back")

    def _check_arrived(self, targets: Targets) -> None:
        """Check the result. Brokers learn the end of a move a little later than the controller."""
        deadline = time.monotonic() + self.admin.cluster.timeout_s
        while astray := self._astray(targets):
            if time.monotonic() > deadline:
                partition, found = next(iter(astray.items()))
                raise CommandError(
                    f"{partition} was to have its replicas on {_ids(targets[partition])} and has them on "
                    f"{_ids(found)}: the move was cancelled, or replaced by another"
                )
            time.sleep(_METADATA_POLL_S)

    def _astray(self, targets: Targets) -> dict[TopicPartition, tuple[int, ...]]:
        """The partitions that do not have their target replicas; deleted ones are left out."""
        assignments = self.state().assignments
        return {
            partition: assignments[partition]
            for partition, replicas in targets.items()
            if partition in assignments and set(assignments[partition]) != set(replicas)
        }


class Arrived(NamedTuple):
    """The bytes of a partition that have arrived, and the total."""

    there: int
    total: int


def _shown(
    partitions: int, pending: int, done_bytes: int, total_bytes: int, rate: float | None
) -> tuple[float, str]:
    """The share of the work that is done, with a text. Without bytes, partitions are counted."""
    finished = partitions - pending
    share = done_bytes / total_bytes if total_bytes else finished / partitions
    text = f"{finished} of {partitions} partitions, {size_text(done_bytes)} of {size_text(total_bytes)}"
    if pending:
        # All bytes have arrived before the last replica is in sync.
        share = min(share, 0.99)
        text += f", {size_text(int(rate))}/s" if rate is not None else ""
    return share, text


def _ids(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas))
