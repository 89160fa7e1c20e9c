"""Random histories of transactions that commit offsets of the same two partitions.

Commits inside and outside of transactions, markers, deletions and expiry come in any order, writes fail, and the
coordinator moves. After every step the offsets are those that the ledger reads from the log. A request for stable
offsets is refused exactly while one is pending. A machine that knows only the log up to there is the same.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.offset_ledger import Ledger, committed_offsets
from tests.scenarios.groups_world import World
from tests.thoroughness import examples
from tests.unit.coordinator.drive import answer_of
from tidemill.config import GroupsConfig
from tidemill.coordinator.groups.group import TopicsChanged
from tidemill.errors import ErrorCode
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.api.groups import DeleteGroupsRequest
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tidemill.protocol.api.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

PARTITIONS = 2
RETENTION_MS = 60_000

_PARTITION = st.integers(0, PARTITIONS - 1)
_PRODUCER = st.integers(1, 3)
_OFFSET = st.integers(0, 99)
# Transactions are what it is about: they come more often than what disturbs them.
STEPS = st.one_of(
    st.tuples(st.just("commit_in_transaction"), _PRODUCER, _PARTITION, _OFFSET),
    st.tuples(st.just("commit_in_transaction"), _PRODUCER, _PARTITION, _OFFSET),
    st.tuples(st.just("end"), _PRODUCER, st.booleans()),
    st.tuples(st.just("end"), _PRODUCER, st.booleans()),
    st.tuples(st.just("commit"), _PARTITION, _OFFSET),
    st.tuples(st.just("delete_offset"), _PARTITION),
    st.sampled_from([("delete_group",), ("recreate_topic",), ("move",), ("fail_next",)]),
    st.tuples(st.just("advance"), st.sampled_from([1_000, RETENTION_MS])),
)


class History:
    def __init__(self) -> None:
        config = GroupsConfig(
            offsets_retention_ms=RETENTION_MS, offsets_retention_check_interval_ms=RETENTION_MS // 2
        )
        self.world = World(config=config)
        self.world.topics.create("t", PARTITIONS)

    def commit(self, partition: int, offset: int) -> None:
        wanted = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        topics = [OffsetCommitRequestTopic(name="t", partitions=[wanted])]
        answer_of(self.world, "c", OffsetCommitRequest(group_id="g", topics=topics), 9)

    def commit_in_transaction(self, producer_id: int, partition: int, offset: int) -> None:
        wanted = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            group_id="g",
            producer_id=producer_id,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[wanted])],
        )
        answer_of(self.world, "t", request, 5)

    def end(self, producer_id: int, is_commit: bool) -> None:
        end = TransactionEnd(producer_id, producer_epoch=0, coordinator_epoch=0, is_commit=is_commit)
        self.world.end_transaction(end)

    def delete_offset(self, partition: int) -> None:
        wanted = OffsetDeleteRequestPartition(partition_index=partition)
        topics = [OffsetDeleteRequestTopic(name="t", partitions=[wanted])]
        answer_of(self.world, "admin", OffsetDeleteRequest(group_id="g", topics=topics))

    def delete_group(self) -> None:
        answer_of(self.world, "admin", DeleteGroupsRequest(groups_names=["g"]))

    def recreate_topic(self) -> None:
        topic_id = self.world.topics.delete("t")
        self.world.topics.create("t", PARTITIONS)
        self.world.tell(TopicsChanged(deleted={"t": topic_id}))

    def move(self) -> None:
        self.world.move_coordinator()

    def fail_next(self) -> None:
        self.world.log.refuse_with = ErrorCode.NOT_ENOUGH_REPLICAS

    def advance(self, duration_ms: int) -> None:
        self.world.advance(duration_ms)

    def unstable(self) -> set[int]:
        topics = [OffsetFetchRequestTopics(name="t", partition_indexes=list(range(PARTITIONS)))]
        groups = [OffsetFetchRequestGroup(group_id="g", topics=topics)]
        answer = answer_of(self.world, "reader", OffsetFetchRequest(groups=groups, require_stable=True), 9)
        return {
            each.partition_index
            for each in answer.groups[0].topics[0].partitions
            if each.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        }

    def check(self) -> None:
        ledger = Ledger(self.world.log.records)
        assert committed_offsets(self.world) == ledger.committed
        assert self.unstable() == {partition for _, _, partition in ledger.pending}
        assert self.world.rebuilt().replicated_state() == self.world.groups.replicated_state()


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(STEPS, min_size=3, max_size=25))
def test_offsets_are_what_the_log_says(steps: list[tuple[object, ...]]) -> None:
    history = History()
    for name, *arguments in steps:
        getattr(history, str(name))(*arguments)
        if name != "fail_next":
            history.world.log.refuse_with = None
        history.check()
