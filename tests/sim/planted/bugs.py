"""Bugs to be planted into the production code, from outside, each of which the simulator has to find.

Each is a mistake that a replicated log can make and still look right on a quiet day. `plant` replaces functions for as
long as the context lasts; the code itself knows nothing of it. `seeds` is in how many seeds, from 0 on, the bug has to be
found at the latest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemill.broker.coordinators.runtime import HostedShard
from tidemill.broker.partitions import delayed_operations, fetchers, leadership, partition
from tidemill.broker.quorum import driver
from tidemill.broker.quorum import log as quorum_log
from tidemill.broker.quorum import state as quorum_state
from tidemill.broker.requests.fetching import replica_fetch
from tidemill.controller import brokers
from tidemill.controller.partitions import alter_partition
from tidemill.errors import ErrorCode
from tidemill.log.producer_state import producers
from tidemill.log.segments import segment
from tidemill.raft import elections, tracker
from tidemill.replication import follower, leader
from tidemill.sim.stage import Plan

# Short and rough: what a bug needs to show comes sooner than in ten quiet minutes.
ROUGH = Plan(duration_s=150.0, pause_s_max=1.0, mean_fault_interval_s=5.0, has_transactions=False)
# Every message takes its time: a moment in which two nodes know different things becomes a long one.
SLOW = replace(ROUGH, pause_s_max=0.5, latency_s_max=0.1)

Replace = Callable[[object, str, object], None]


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    plant: Callable[[Replace], None]
    # A seed that finds it, and how many seeds it takes at most when they are tried from 0 on.
    found_in: int = 0
    seeds: int = 5
    plan: Plan = ROUGH


@contextlib.contextmanager
def planted(bug: Bug) -> Iterator[None]:
    undo: list[tuple[object, str, object]] = []

    def replace(owner: object, name: str, value: object) -> None:
        undo.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    bug.plant(replace)
    try:
        yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


# -- the leader ----------------------------------------------------------------------------------------------


def ack_before_replication(replace: Replace) -> None:
    def when_committed(
        self: leadership.Leadership, end_offset: int, settled: delayed_operations.Settled
    ) -> delayed_operations.Waiter:
        waiter = delayed_operations.Waiter(end_offset, settled)
        waiter.settle(ErrorCode.NONE)
        return waiter

    replace(leadership.Leadership, "when_committed", when_committed)


def high_watermark_is_the_leaders_end(replace: Replace) -> None:
    def _advance(self: leader.PartitionLeader, steady_ms: int) -> Sequence[leader.Effect]:
        if self.synced_end_offset <= self.high_watermark:
            return leader.NOTHING
        self.high_watermark = self.synced_end_offset
        return [leader.AdvanceHighWatermark(self.high_watermark)]

    replace(leader.PartitionLeader, "_advance", _advance)


def shrunk_isr_counts_at_once(replace: Replace) -> None:
    """The leader acts on a smaller ISR before the controller has agreed to it."""

    def maximal_isr(self: leader.PartitionLeader) -> tuple[int, ...]:
        return self._proposal.isr if self._proposal is not None else self.isr

    replace(leader.PartitionLeader, "maximal_isr", property(maximal_isr))
    replace(leader.FollowerState, "is_caught_up", lambda self, end, *_: self.log_end_offset == end)


def new_leader_shows_everything(replace: Replace) -> None:
    """A new leader takes its log's end for the high watermark (failures 11 and 13)."""
    original = leader.PartitionLeader.__init__

    def initialise(self: leader.PartitionLeader, *args: Any, **options: Any) -> None:
        original(self, *args, **{**options, "high_watermark": options["end_offset"]})

    begin = leadership.Leadership._begin

    def _begin(self: leadership.Leadership, *args: Any) -> leader.PartitionLeader:
        begun = begin(self, *args)
        self._advance_high_watermark(begun.high_watermark)
        return begun

    replace(leader.PartitionLeader, "__init__", initialise)
    replace(leadership.Leadership, "_begin", _begin)


def joins_the_isr_when_it_is_behind(replace: Replace) -> None:
    """A follower is taken into the ISR whatever it has."""

    def _expanded(self: leader.PartitionLeader, state: leader.FollowerState) -> Sequence[leader.Effect]:
        if self._proposal is not None or state.broker_id in self.isr or not self._is_eligible(state):
            return leader.NOTHING
        wanted = [each for each in self.replicas if each in self.isr or each == state.broker_id]
        return [self._propose(wanted, is_expansion=True)]

    replace(leader.PartitionLeader, "_expanded", _expanded)


def followers_epochs_are_not_compared(replace: Replace) -> None:
    """The leader hands out records behind whatever the follower has: no divergence is ever found."""
    original = replica_fetch.ReplicaFetch._checked

    def _checked(self: replica_fetch.ReplicaFetch, hosted: partition.Partition, wanted: Any) -> Any:
        wanted.last_fetched_epoch = -1
        return original(self, hosted, wanted)

    replace(replica_fetch.ReplicaFetch, "_checked", _checked)


def duplicates_are_not_found(replace: Replace) -> None:
    replace(producers.Producers, "duplicate_of", lambda *_: None)


def consumers_read_to_the_logs_end(replace: Replace) -> None:
    """Fetch serves what is not committed (failure 13)."""
    from tidemill.broker.requests.handlers import fetch

    original = fetch.ConsumerFetch._read_partition

    def _read_partition(self: Any, hosted: partition.Partition, *args: Any, **options: Any) -> Any:
        reader = hosted.reader
        high_watermark = reader.high_watermark
        if reader.log is not None:
            reader.high_watermark = reader.log.log_end_offset
        try:
            return original(self, hosted, *args, **options)
        finally:
            reader.high_watermark = high_watermark

    replace(fetch.ConsumerFetch, "_read_partition", _read_partition)


# -- the follower --------------------------------------------------------------------------------------------


def truncates_to_its_own_high_watermark(replace: Replace) -> None:
    """What Kafka did before KIP-101 (failure 1)."""
    original = fetchers.Fetchers.follow

    def follow(self: fetchers.Fetchers, hosted: partition.Partition, leader_id: int, epoch: int) -> None:
        if hosted.log is not None and hosted.log.log_end_offset > hosted.high_watermark:
            self._storage.truncate(hosted, follower.TruncateTo(hosted.high_watermark), lambda: None)
        original(self, hosted, leader_id, epoch)

    replace(fetchers.Fetchers, "follow", follow)


# -- the controller ------------------------------------------------------------------------------------------


def unclean_broker_stays_in_the_isr(replace: Replace) -> None:
    """A broker that lost its page cache is trusted as before (failure 3)."""
    replace(brokers, "_take_leave", lambda *_: [])


def stale_broker_epoch_is_accepted(replace: Replace) -> None:
    """AlterPartition puts a broker into the ISR that has been replaced by another incarnation (failure 4)."""
    replace(alter_partition, "_is_eligible", lambda *_: True)
    replace(leader.PartitionLeader, "_is_eligible", lambda _, state: state.broker_epoch != -1)


def snapshot_loses_a_topic(replace: Replace) -> None:
    """A snapshot of the metadata without one of its topics (failure 16)."""
    original = vars(driver)["image_records"]

    def image_records(image: Any) -> Iterator[Any]:
        names = sorted(image.topics_by_name)
        left_out = image.topics_by_name[names[-1]].id if names else None
        return (each for each in original(image) if getattr(each, "topic_id", None) != left_out)

    replace(driver, "image_records", image_records)


def a_start_believes_what_it_reads(replace: Replace) -> None:
    """A flipped bit is not looked for."""
    replace(segment, "checksum_matches", lambda *_: True)


# -- the quorum ----------------------------------------------------------------------------------------------


def votes_are_forgotten(replace: Replace) -> None:
    replace(quorum_state.QuorumStateFile, "write", lambda *_: None)


def metadata_is_not_synced(replace: Replace) -> None:
    replace(quorum_log._SyncWork, "run", lambda _: None)


def one_vote_is_a_majority(replace: Replace) -> None:
    """What the leader has is committed."""
    replace(tracker, "majority_value", lambda values: max(values, default=-1))


def votes_for_anybody(replace: Replace) -> None:
    """A voter does not look whether the candidate has everything."""
    replace(elections, "is_up_to_date", lambda *_: True)


# -- groups --------------------------------------------------------------------------------------------------


def commits_are_answered_before_replication(replace: Replace) -> None:
    original = HostedShard.append

    def append(self: HostedShard[Any], records: Any, steady_ms: int, writer: Any = None) -> int:
        end_offset = original(self, records, steady_ms, writer)
        asyncio.get_running_loop().call_soon(self._shard.committed, end_offset)
        return end_offset

    replace(HostedShard, "append", append)


BUGS: tuple[Bug, ...] = (
    Bug("ack before replication", ack_before_replication),
    Bug("the high watermark is the leader's end", high_watermark_is_the_leaders_end),
    Bug("a shrunk ISR counts at once", shrunk_isr_counts_at_once),
    Bug("a new leader shows everything", new_leader_shows_everything, plan=SLOW),
    Bug("joins the ISR when it is behind", joins_the_isr_when_it_is_behind),
    Bug("followers' epochs are not compared", followers_epochs_are_not_compared),
    Bug("duplicates are not found", duplicates_are_not_found),
    Bug("consumers read to the log's end", consumers_read_to_the_logs_end),
    Bug("truncates to its own high watermark", truncates_to_its_own_high_watermark),
    Bug("an unclean broker stays in the ISR", unclean_broker_stays_in_the_isr),
    Bug("a start believes what it reads", a_start_believes_what_it_reads),
    Bug("a snapshot loses a topic", snapshot_loses_a_topic),
    Bug("votes are forgotten", votes_are_forgotten),
    Bug("the metadata is not synced", metadata_is_not_synced),
    Bug("one vote is a majority", one_vote_is_a_majority),
    Bug("votes for anybody", votes_for_anybody),
)
