"""Random lives of replicated partitions, judged by what their replicas would hold.

Beside the controller lives a dumb twin of the brokers: which processes are alive, and how many of the committed
records each replica holds. A record is committed when every member of the ISR is alive and has it, and enough
are in the ISR. A process that crashes loses its unsynced records, which are all of them here; a disk that is
replaced is empty. A replica that joins the ISR has the leader's records.

Invariants: a leader that was elected cleanly has every committed record. An unclean election happens only where it is
allowed or requested, or with a sole replica, since no other can have more. Each leader epoch has one leader. Epochs never
go back, and a replay of the log gives the same image.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.thoroughness import examples
from tests.unit.controller.cluster import Cluster, creatable, directory
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage, PartitionImage
from tidemill.controller.partitions.elections import ElectionType
from tidemill.controller.partitions.partition_changes import RECOVERING
from tidemill.controller.records import decode_record, encode_record
from tidemill.errors import ErrorCode
from tidemill.protocol.api.admin import (
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from tidemill.protocol.api.brokers import BrokerState
from tidemill.protocol.api.metadata import PartitionChangeRecord
from tidemill.protocol.api.replicas import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
    UnregisterBrokerRequest,
)
from tidemill.types import BrokerId

BROKERS = (1, 2, 3, 4)
PARTITIONS = 2
broker_ids = st.sampled_from(BROKERS)
indexes = st.integers(0, PARTITIONS - 1)


class Replicas:
    """The prefix of the committed records that each replica of one partition has."""

    def __init__(self) -> None:
        self.committed = 0
        self.held = dict.fromkeys(BROKERS, 0)


class Proposal(NamedTuple):
    partition: int
    leader: BrokerId
    isr: list[BrokerState]
    leader_epoch: int
    partition_epoch: int

    def is_current(self, partition: PartitionImage) -> bool:
        return (self.leader_epoch, self.partition_epoch) == (
            partition.leader_epoch,
            partition.partition_epoch,
        )


class PartitionLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(brokers=0, min_insync_replicas="2", auto_leader_rebalance_enable="true")
        # The broker epoch of each process that runs, and of each that stopped cleanly.
        self.running: dict[int, int] = {}
        self.stopped: dict[int, int] = {}
        self.disks = dict.fromkeys(BROKERS, 0)
        self.replicas = [Replicas() for _ in range(PARTITIONS)]
        self.allows_unclean = False
        self.asked_unclean = False
        self.judged = 0
        self.leaders: dict[tuple[int, int], int] = {}
        # The unanswered proposals of each leader, and all proposals so far.
        self.pending: dict[int, Proposal] = {}
        self.proposals: list[Proposal] = []
        # Replicas whose disk was replaced since they were last in sync.
        self.empty: set[tuple[int, int]] = set()

    @initialize(factor=st.integers(1, 3))
    def begin(self, factor: int) -> None:
        for broker_id in BROKERS:
            self.start(broker_id, wiped=False)
        self.cluster.create(
            creatable(
                "t",
                assignments=[(index, list(BROKERS[index : index + factor])) for index in range(PARTITIONS)],
            )
        )

    # -- processes -------------------------------------------------------------------------------------------

    @rule(broker_id=broker_ids, wiped=st.booleans())
    def start(self, broker_id: int, wiped: bool) -> None:
        if broker_id in self.running:
            return
        if wiped:
            self.disks[broker_id] += 1
            self.lose(broker_id)
            self.empty |= {(index, broker_id) for index in range(PARTITIONS)}
        reply = self.cluster.ask(
            self.cluster.registration(
                broker_id,
                previous_broker_epoch=self.stopped.get(broker_id, -1),
                log_dirs=[directory(broker_id, self.disks[broker_id])],
            )
        )
        if reply.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            return
        assert reply.error_code == ErrorCode.NONE
        self.running[broker_id] = reply.broker_epoch
        self.cluster.beat(broker_id)

    @rule(broker_id=broker_ids)
    def crash(self, broker_id: int) -> None:
        if self.running.pop(broker_id, None) is not None:
            self.lose(broker_id)

    def lose(self, broker_id: int) -> None:
        for replicas in self.replicas:
            replicas.held[broker_id] = 0

    @rule(broker_id=broker_ids)
    def stop_cleanly(self, broker_id: int) -> None:
        if self.is_known(broker_id) and self.cluster.beat(broker_id, want_shut_down=True).should_shut_down:
            self.stopped[broker_id] = self.running.pop(broker_id)

    @rule(broker_id=broker_ids, want_fence=st.booleans())
    def beat(self, broker_id: int, want_fence: bool) -> None:
        if self.is_known(broker_id):
            self.cluster.beat(broker_id, want_fence=want_fence)

    @rule(elapsed_ms=st.sampled_from([1_000, 9_000, 300_000]), data=st.data())
    def time_passes(self, elapsed_ms: int, data: st.DataObject) -> None:
        heard = data.draw(st.lists(broker_ids, unique=True))
        self.cluster.pass_time(elapsed_ms, beating=[each for each in heard if self.is_known(each)])

    @rule(broker_id=st.none() | broker_ids)
    def new_controller_or_unregistration(self, broker_id: int | None) -> None:
        if broker_id is None:
            self.cluster.activate()
        else:
            self.cluster.ask(UnregisterBrokerRequest(broker_id=broker_id))

    def is_known(self, broker_id: int) -> bool:
        """Whether the process runs and the controller takes it for the one it knows."""
        broker = self.cluster.image.brokers.get(BrokerId(broker_id))
        return broker is not None and self.running.get(broker_id) == broker.epoch

    # -- records and the ISR ---------------------------------------------------------------------------------

    def min_isr(self, partition: PartitionImage) -> int:
        own = self.cluster.image.topic_config("t").get("min.insync.replicas", "2")
        return min(int(own), len(partition.replicas))

    def serves(self, partition: PartitionImage) -> bool:
        return partition.has_leader and self.is_known(partition.leader)

    @rule()
    def write(self) -> None:
        """To every partition that takes writes."""
        for index, replicas in enumerate(self.replicas):
            partition = self.cluster.partition(index=index)
            if not self.serves(partition) or len(partition.isr) < self.min_isr(partition):
                continue
            in_sync = dict.fromkeys(partition.isr)
            if index in self.pending and self.pending[index].is_current(partition):
                # A leader counts those that it has proposed, since they may be in the ISR already.
                in_sync |= {BrokerId(each.broker_id): None for each in self.pending[index].isr}
            if all(self.is_known(each) for each in in_sync):
                replicas.committed += 1
                for each in in_sync:
                    replicas.held[each] = replicas.committed

    @rule(index=indexes, data=st.data(), is_delayed=st.booleans())
    def propose(self, index: int, data: st.DataObject, is_delayed: bool) -> None:
        partition = self.cluster.partition(index=index)
        if not self.serves(partition):
            return
        if index in self.pending and self.pending[index].is_current(partition):
            self.deliver(self.pending[index])
            return
        able = self.followers(partition)
        others = data.draw(st.lists(st.sampled_from(able), unique=True)) if able else []
        self.prepare(index, partition, others)
        if not is_delayed:
            self.deliver(self.pending[index])

    def followers(self, partition: PartitionImage) -> list[BrokerId]:
        return [each for each in partition.replicas if self.is_known(each) and each != partition.leader]

    def prepare(self, index: int, partition: PartitionImage, others: list[BrokerId]) -> None:
        replicas = self.replicas[index]
        for each in others:
            replicas.held[each] = replicas.held[partition.leader]
            self.empty.discard((index, each))
        isr = [
            BrokerState(broker_id=each, broker_epoch=self.running[each])
            for each in (partition.leader, *others)
        ]
        proposal = Proposal(index, partition.leader, isr, partition.leader_epoch, partition.partition_epoch)
        self.pending[index] = proposal
        self.proposals.append(proposal)

    def deliver(self, proposal: Proposal) -> int:
        index = proposal.partition
        if BrokerId(proposal.leader) not in self.cluster.image.brokers:
            return ErrorCode.STALE_BROKER_EPOCH
        before = self.cluster.partition(index=index)
        result = self.cluster.propose(
            [],
            index=index,
            broker_id=proposal.leader,
            new_isr_with_epochs=proposal.isr,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
        )
        if not proposal.is_current(before):
            assert result.error_code not in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED)
            assert self.cluster.partition(index=index) == before
        if self.pending.get(index) == proposal:
            del self.pending[index]
        return result.error_code

    @rule(index=indexes, broker_id=broker_ids)
    def lag_and_catch_up(self, index: int, broker_id: int) -> None:
        """A follower leaves the ISR and would be let in again; that proposal is still under way."""
        partition = self.cluster.partition(index=index)
        followers = self.followers(partition)
        if not self.serves(partition) or broker_id not in followers or index in self.pending:
            return
        self.prepare(index, partition, [each for each in followers if each != broker_id])
        if self.deliver(self.pending[index]) == ErrorCode.NONE:
            self.every_change_is_sound()
            self.write()
            partition = self.cluster.partition(index=index)
            self.prepare(index, partition, self.followers(partition))

    @precondition(lambda self: self.proposals)
    @rule(data=st.data())
    def an_old_proposal_arrives(self, data: st.DataObject) -> None:
        self.deliver(data.draw(st.sampled_from(self.proposals)))

    @rule()
    def heal(self) -> None:
        """All brokers run, and all replicas are in sync."""
        self.cluster.pass_time(9_000, beating=[each for each in BROKERS if self.is_known(each)])
        for broker_id in BROKERS:
            self.start(broker_id, wiped=False)
            if self.is_known(broker_id):
                self.cluster.beat(broker_id)
        self.every_change_is_sound()
        for index in range(PARTITIONS):
            partition = self.cluster.partition(index=index)
            if index in self.pending:
                self.deliver(self.pending.pop(index))
                self.every_change_is_sound()
                partition = self.cluster.partition(index=index)
            if self.serves(partition):
                self.prepare(index, partition, self.followers(partition))
                self.deliver(self.pending[index])
        self.write()

    # -- administration --------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(ElectionType))
    def elect(self, kind: ElectionType) -> None:
        wanted = [TopicPartitions(topic="t", partitions=list(range(PARTITIONS)))]
        self.asked_unclean = kind is ElectionType.UNCLEAN
        self.cluster.ask(ElectLeadersRequest(election_type=kind, topic_partitions=wanted))

    @rule(index=indexes, wanted=st.none() | st.lists(broker_ids, unique=True, min_size=1, max_size=3))
    def reassign(self, index: int, wanted: list[int] | None) -> None:
        partition = ReassignablePartition(partition_index=index, replicas=wanted)
        topic = ReassignableTopic(name="t", partitions=[partition])
        self.cluster.ask(AlterPartitionReassignmentsRequest(topics=[topic]))

    @rule(min_isr=st.none() | st.sampled_from(["1", "2", "3"]), is_allowed=st.booleans())
    def configure(self, min_isr: str | None, is_allowed: bool) -> None:
        if min_isr is None:
            self.set_config("unclean.leader.election.enable", str(is_allowed).lower())
            self.allows_unclean = is_allowed
        else:
            self.set_config("min.insync.replicas", min_isr)

    def set_config(self, name: str, value: str) -> None:
        change = IncrementalAlterConfigsAlterableConfig(name=name, config_operation=0, value=value)
        resource = IncrementalAlterConfigsResource(resource_type=2, resource_name="t", configs=[change])
        self.cluster.ask(IncrementalAlterConfigsRequest(resources=[resource]))

    # -- judgement -------------------------------------------------------------------------------------------

    @invariant()
    def every_change_is_sound(self) -> None:
        """Looks at the records that the last step wrote, one by one, with the state before and after each."""
        delta = MetadataDelta(self.judged_image())
        for record in self.cluster.log[self.judged :]:
            index = getattr(record, "partition_id", None)
            before = delta.apply().partition("t", index) if index is not None else None
            delta.replay(decode_record(encode_record(record)))
            image = delta.apply()
            if isinstance(record, PartitionChangeRecord) and before is not None and index is not None:
                after = image.partition("t", index)
                assert after is not None
                self.check_change(index, before, after)
        self.judged = len(self.cluster.log)
        self._image = delta.apply()
        assert self._image == self.cluster.image
        self.asked_unclean = False

    def judged_image(self) -> MetadataImage:
        return self._image if self.judged else MetadataImage()

    def check_change(self, index: int, before: PartitionImage, after: PartitionImage) -> None:
        assert after.partition_epoch == before.partition_epoch + 1
        is_bumped = after.leader_epoch != before.leader_epoch
        if after.leader != before.leader or not set(before.replicas) <= set(after.replicas):
            assert is_bumped
        assert after.leader_epoch == before.leader_epoch + (1 if is_bumped else 0)
        if after.has_leader:
            assert self.leaders.setdefault((index, after.leader_epoch), after.leader) == after.leader
        for each in BROKERS:
            # A replica that is taken away is deleted, and one that is made begins empty.
            if each not in after.replicas or each not in before.replicas:
                self.replicas[index].held[each] = 0
        # The ISR that completes a reassignment may bring its new leader with it.
        is_moved = before.has_leader and before.is_reassigned and not after.is_reassigned
        is_elected = after.has_leader and is_bumped and not is_moved
        is_unclean = is_elected and after.leader not in (*before.isr, *before.elr)
        if is_unclean:
            assert after.leader_recovery_state == RECOVERING
            assert after.isr == (after.leader,)
            assert self.allows_unclean or self.asked_unclean or (index, after.leader) not in self.empty
            # The change that empties the ELR may itself find the last known leader alive.
            is_last_known = before.last_known_elr == (after.leader,) and not before.isr and not after.elr
            is_sole = is_last_known and after.replicas == (after.leader,)
            assert is_sole or self.allows_unclean or self.asked_unclean
            # From here on its records are the log, however few they are.
            self.empty.discard((index, after.leader))
            replicas = self.replicas[index]
            replicas.committed = replicas.held[after.leader]
            for each in BROKERS:
                replicas.held[each] = min(replicas.held[each], replicas.committed)

    @invariant()
    def leaders_hold_what_was_committed(self) -> None:
        if "t" not in self.cluster.image.topics_by_name:
            return
        for index, replicas in enumerate(self.replicas):
            partition = self.cluster.partition(index=index)
            if self.serves(partition):
                assert replicas.held[partition.leader] == replicas.committed
            for each in (*partition.isr, *partition.elr):
                # A broker that has crashed since still counts as in sync. No write succeeds until its session ends.
                if self.is_known(each) or self.is_stopped(each):
                    assert replicas.held[each] == replicas.committed

    def is_stopped(self, broker_id: int) -> bool:
        broker = self.cluster.image.brokers.get(BrokerId(broker_id))
        return broker is not None and self.stopped.get(broker_id) == broker.epoch

    @invariant()
    def only_active_brokers_are_in_sync(self) -> None:
        image = self.cluster.image
        for topic in image.topics_by_id.values():
            for partition in topic.partitions:
                assert all(image.brokers[each].is_active for each in partition.isr)
                assert partition.has_leader == bool(partition.isr)


PartitionLife.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestPartitionLife = PartitionLife.TestCase
