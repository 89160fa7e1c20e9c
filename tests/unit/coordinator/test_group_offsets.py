"""Offsets across the versions of their APIs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scenarios.groups_world import FakeTopics, World
from tests.unit.coordinator.drive import answer_of, commit, fetch
from tidemill.coordinator.groups.group import TopicsChanged
from tidemill.errors import ErrorCode
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tidemill.protocol.api.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidemill.protocol.coordinator_responses import error_response
from tidemill.protocol.schema import decode, encode
from tidemill.types import TopicId

VERSIONS = range(OffsetFetchRequest.versions.min, OffsetFetchRequest.versions.max + 1)


@pytest.fixture
def world() -> World:
    world = World()
    world.topics.create("t", 2)
    assert commit(world, 42, metadata="m") == 0
    return world


def fetch_request(
    version: int, world: World, topics: dict[str, list[int]] | None, **fields: Any
) -> OffsetFetchRequest:
    if version < 8:
        old = None
        if topics is not None:
            old = [
                OffsetFetchRequestTopic(name=name, partition_indexes=each) for name, each in topics.items()
            ]
        return OffsetFetchRequest(group_id="g", topics=old)
    new = None
    if topics is not None:
        new = [
            OffsetFetchRequestTopics(
                name=name, topic_id=world.topics.id_of(name) or b"?" * 16, partition_indexes=each
            )
            for name, each in topics.items()
        ]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=new, **fields)])


def fetched(response: Any, version: int, world: World) -> dict[tuple[str, int], tuple[int, str, int]]:
    """Offset, metadata and error by partition, of the response as a client of that version reads it."""
    response = decode(type(response), version, encode(response, version))
    answers = {}
    for topic in response.topics if version < 8 else response.groups[0].topics:
        name = topic.name if version < 10 else world.topics.name_of(topic.topic_id) or "?"
        for each in topic.partitions:
            answers[name, each.partition_index] = (each.committed_offset, each.metadata, each.error_code)
    return answers


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_by_partition(version: int, world: World) -> None:
    request = fetch_request(version, world, {"t": [0, 1]})
    response = answer_of(world, "c", request, version)
    assert fetched(response, version, world) == {("t", 0): (42, "m", 0), ("t", 1): (-1, "", 0)}


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= 2])
def test_fetch_of_all_topics(version: int, world: World) -> None:
    response = answer_of(world, "c", fetch_request(version, world, None), version)
    assert fetched(response, version, world) == {("t", 0): (42, "m", 0)}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_that_never_was(version: int, world: World) -> None:
    response = answer_of(world, "c", fetch_request(version, world, {"never": [0]}), version)
    error = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.NONE
    assert list(fetched(response, version, world).values()) == [(-1, "", error)]


def test_with_topic_ids_a_topic_that_is_gone_cannot_be_named(world: World) -> None:
    world.topics.delete("t")
    by_name = answer_of(world, "c", fetch_request(9, world, None), 9)
    assert fetched(by_name, 9, world) == {("t", 0): (42, "m", 0)}
    by_id = answer_of(world, "c", fetch_request(10, world, None), 10)
    assert fetched(by_id, 10, world) == {}


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_in_every_version(version: int, world: World) -> None:
    partition = OffsetCommitRequestPartition(
        partition_index=1, committed_offset=7, committed_leader_epoch=3 if version >= 6 else -1
    )
    topic = OffsetCommitRequestTopic(partitions=[partition])
    if version >= 10:
        topic.topic_id = world.topics.id_of("t") or b""
    else:
        topic.name = "t"
    response = answer_of(world, "c", OffsetCommitRequest(group_id="g", topics=[topic]), version)
    encode(response, version)
    assert response.topics[0].partitions[0].error_code == 0
    stored = world.groups.offsets.of_group("g")["t"][1]
    assert (stored.offset, stored.leader_epoch) == (7, 3 if version >= 6 else -1)
    assert stored.topic_id == world.topics.id_of("t")
    world.move_coordinator()
    assert world.groups.offsets.of_group("g")["t"][1] == stored


def test_partitions_that_do_not_exist_are_refused_whatever_the_group_says(world: World) -> None:
    partitions = [OffsetCommitRequestPartition(partition_index=index) for index in (-1, 0, 2)]
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=5,
        member_id="stranger",
        topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)],
    )
    response = answer_of(world, "c", request, 9)
    assert [each.error_code for each in response.topics[0].partitions] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_an_empty_commit_is_no_error(world: World) -> None:
    assert answer_of(world, "c", OffsetCommitRequest(group_id="never"), 9).topics == []
    assert "never" not in world.groups.groups


def txn_commit(world: World, producer_id: int, offset: int) -> None:
    wanted = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = TxnOffsetCommitRequest(
        group_id="g",
        producer_id=producer_id,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[wanted])],
    )
    assert answer_of(world, "t", request, 5).topics[0].partitions[0].error_code == 0


def end(world: World, producer_id: int) -> None:
    world.end_transaction(TransactionEnd(producer_id, 0, 0, is_commit=True))
    assert world.ended.pop() is ErrorCode.NONE


@pytest.mark.parametrize("version", range(7, OffsetFetchRequest.versions.max + 1))
def test_stable_offsets_in_every_version_that_can_ask_for_them(version: int, world: World) -> None:
    txn_commit(world, 1, 50)
    request = fetch_request(version, world, {"t": [0, 1]})
    assert fetched(answer_of(world, "c", request, version), version, world)["t", 0] == (42, "m", 0)
    request.require_stable = True
    unstable = (-1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert fetched(answer_of(world, "c", request, version), version, world) == {
        ("t", 0): unstable,
        ("t", 1): (-1, "", 0),
    }
    everything = fetch_request(version, world, None)
    everything.require_stable = True
    assert fetched(answer_of(world, "c", everything, version), version, world) == {("t", 0): unstable}
    end(world, 1)
    assert fetched(answer_of(world, "c", request, version), version, world)["t", 0] == (50, "", 0)


def test_offsets_of_a_partition_that_was_removed_go_with_it(world: World) -> None:
    assert commit(world, 7) == ErrorCode.NONE
    world.tell(TopicsChanged(frozenset({"t"}), removed={"t": frozenset({1}), "u": frozenset({0})}))
    assert fetch(world) == 7
    world.tell(TopicsChanged(frozenset({"t"}), removed={"t": frozenset({0, 1})}))
    assert fetch(world) == -1


def test_offset_of_a_partition_that_is_gone_is_not_shown_by_a_coordinator_that_missed_the_removal(
    world: World,
) -> None:
    assert commit(world, 7) == ErrorCode.NONE
    world.topics.set_partitions("t", 0)
    assert fetch(world) == -1


def commit_in_epoch(world: World, epoch: int) -> ErrorCode:
    committed = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=160, committed_leader_epoch=epoch
    )
    topic = OffsetCommitRequestTopic(name="t", partitions=[committed])
    answer = answer_of(world, "c", OffsetCommitRequest(group_id="g", topics=[topic]), 9)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def add_again(world: World) -> None:
    world.topics.former_epochs["t", 0] = 3
    world.topics.set_partitions("t", 2)


def test_offset_of_a_former_partition_is_not_shown_for_the_one_that_was_added_with_its_index(
    world: World,
) -> None:
    assert commit_in_epoch(world, 2) is ErrorCode.NONE
    world.topics.set_partitions("t", 0)
    # The coordinator misses the removal.
    add_again(world)
    assert fetch(world) == -1
    assert commit_in_epoch(world, 4) is ErrorCode.NONE
    assert fetch(world) == 160


@pytest.mark.parametrize("epoch", [2, -1])
def test_tombstones_of_a_removed_partition_are_written_again_until_they_are_in_the_log(
    world: World, epoch: int
) -> None:
    assert commit_in_epoch(world, epoch) is ErrorCode.NONE
    world.log.refuse_with = ErrorCode.NOT_ENOUGH_REPLICAS
    world.topics.set_partitions("t", 0)
    world.tell(TopicsChanged(frozenset({"t"}), removed={"t": frozenset({0, 1})}))
    add_again(world)
    assert fetch(world) == -1
    world.advance(5_000)
    world.log.refuse_with = None
    world.advance(5_000)
    world.move_coordinator()
    assert fetch(world) == -1


def test_tombstones_that_are_written_again_spare_a_commit_for_the_new_partition(world: World) -> None:
    assert commit_in_epoch(world, -1) is ErrorCode.NONE
    world.log.refuse_with = ErrorCode.NOT_ENOUGH_REPLICAS
    world.tell(TopicsChanged(frozenset({"t"}), removed={"t": frozenset({0, 1})}))
    world.log.refuse_with = None
    add_again(world)
    assert commit(world, 7) == ErrorCode.NONE
    world.advance(60_000)
    assert fetch(world) == 7


def test_coordinator_that_missed_a_removal_removes_the_offsets_when_it_is_loaded(world: World) -> None:
    assert commit_in_epoch(world, -1) is ErrorCode.NONE
    world.topics.set_partitions("t", 0)
    world.move_coordinator()
    world.advance(0)
    add_again(world)
    assert fetch(world) == -1


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (4, ErrorCode.NONE),
        (-1, ErrorCode.NONE),
    ],
)
def test_position_in_a_partition_that_is_gone_is_not_committed_for_the_one_with_its_index(
    world: World, epoch: int, code: ErrorCode
) -> None:
    world.topics.former_epochs["t", 0] = 3
    assert commit_in_epoch(world, epoch) is code
    assert fetch(world) == (42 if code else 160), "42 was committed before"


def test_a_late_word_of_a_deletion_spares_what_is_pending_for_the_new_topic(world: World) -> None:
    old_id = world.topics.delete("t")
    world.topics.create("t", 2)
    txn_commit(world, 1, 7)
    world.tell(TopicsChanged(deleted={"t": old_id}))
    end(world, 1)
    assert fetch(world) == 7


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (5, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_old_producers_get_another_error_while_the_coordinator_loads(version: int, told: ErrorCode) -> None:
    wanted = [TxnOffsetCommitRequestPartition(partition_index=each) for each in (0, 3)]
    request = TxnOffsetCommitRequest(topics=[TxnOffsetCommitRequestTopic(name="t", partitions=wanted)])
    response = error_response(request, version, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert isinstance(response, TxnOffsetCommitResponse)
    assert [(each.partition_index, each.error_code) for each in response.topics[0].partitions] == [
        (0, told),
        (3, told),
    ]


TOPICS, PARTITIONS = 100, 20


class CountingTopics(FakeTopics):
    """Counts the offsets that are compared with their topics."""

    def __init__(self) -> None:
        super().__init__()
        self.compared = 0

    def id_of(self, name: str) -> TopicId | None:
        self.compared += 1
        return super().id_of(name)

    def take_compared(self) -> int:
        compared, self.compared = self.compared, 0
        return compared


def world_of_many_offsets() -> tuple[World, CountingTopics]:
    topics = CountingTopics()
    world = World(topics=topics)
    committed = [OffsetCommitRequestPartition(partition_index=index) for index in range(PARTITIONS)]
    for number in range(TOPICS):
        topics.create(f"t{number}", PARTITIONS)
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(name=f"t{number}", partitions=committed) for number in range(TOPICS)
        ],
    )
    answer_of(world, "committer", request, 9)
    topics.take_compared()
    return world, topics


def compared_by_ticks(world: World, topics: CountingTopics) -> list[int]:
    """How many offsets each tick compares, as long as one is due at once."""
    compared = []
    while world.shard.deadline_ms is not None and world.shard.deadline_ms <= world.steady_ms:
        world.shard.tick(world.steady_ms)
        compared.append(topics.take_compared())
    return compared


def test_the_offsets_of_a_loaded_shard_are_compared_with_their_topics_some_at_a_time() -> None:
    world, topics = world_of_many_offsets()
    topics.delete("t99")
    topics.create("t99", PARTITIONS)
    world.move_coordinator()
    assert topics.take_compared() == 0, "a load compares nothing by itself"
    compared = compared_by_ticks(world, topics)
    assert max(compared) <= 400
    assert sum(compared) >= TOPICS * PARTITIONS
    left = world.groups.offsets.of_group("g")
    assert sorted(left) == sorted(f"t{number}" for number in range(99))


def test_expired_offsets_of_a_large_group_go_some_at_a_time_and_the_group_with_the_last() -> None:
    world, topics = world_of_many_offsets()
    compared_by_ticks(world, topics)
    begins_ms = world.config.offsets_retention_ms + world.config.offsets_retention_check_interval_ms
    world.advance(world.config.offsets_retention_ms - 1)
    assert "g" in world.groups.groups
    before = len(world.log.records)
    topics.take_compared()
    world.steady_ms = begins_ms
    compared = compared_by_ticks(world, topics)
    assert max(compared) <= 400
    assert len(world.log.records) == before + TOPICS * PARTITIONS + 1, "a tombstone for each, and the group's"
    assert "g" not in world.groups.groups
    world.groups.check_invariants()
