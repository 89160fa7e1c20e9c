"""Share groups: heartbeats, epochs, assignments, and the state of partitions that is initialised for them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.scenarios.consumer_world import Consumer
from tests.scenarios.share_world import ShareConsumer, ShareWorld
from tidemill.config import ShareGroupsConfig
from tidemill.config.share_groups import Limited
from tidemill.coordinator.share_groups.protocol import INITIALIZE_RETRY_MS
from tidemill.coordinator.share_groups.state_requests import (
    GroupDeletion,
    InitializedPartitions,
    OffsetsToAlter,
    StateDeleted,
    StateToDelete,
)
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.groups import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    ListGroupsRequest,
)
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
)
from tidemill.protocol.api.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from tidemill.types import TopicId

# The epoch of the first member of a new group, as in Kafka.
FIRST_EPOCH = 2


def world_with(partitions: int = 4, **settings: object) -> ShareWorld:
    world = ShareWorld(share_groups=ShareGroupsConfig(**settings), steady_ms=1)  # type: ignore[arg-type]
    world.topics.create("orders", partitions)
    return world


def orders_of(world: ShareWorld) -> TopicId:
    topic_id = world.topics.id_of("orders")
    assert topic_id is not None
    return topic_id


def consumers(world: ShareWorld, count: int) -> list[ShareConsumer]:
    return [ShareConsumer(world, f"m{index:04}", ["orders"]) for index in range(count)]


def settle(world: ShareWorld, members: list[ShareConsumer], rounds: int = 3) -> None:
    for _ in range(rounds):
        world.advance(1_500)
        world.initialize()
        for member in members:
            assert member.heartbeat() is ErrorCode.NONE, member.last


def test_partitions_are_assigned_when_their_state_is_initialised() -> None:
    world = world_with(partitions=3)
    member = ShareConsumer(world, "m", ["orders"])
    assert member.heartbeat() is ErrorCode.NONE
    assert (member.epoch, member.held) == (FIRST_EPOCH, set())
    (wanted,) = world.wanted
    assert wanted.state_epoch == FIRST_EPOCH
    assert [dict(offsets) for offsets in wanted.start_offsets.values()] == [{0: -1, 1: -1, 2: -1}]
    world.advance(5_000)
    assert member.heartbeat() is ErrorCode.NONE
    assert member.held == set()
    world.initialize()
    assert member.heartbeat() is ErrorCode.NONE
    assert (member.epoch, member.held) == (FIRST_EPOCH + 1, {("orders", 0), ("orders", 1), ("orders", 2)})
    assert world.wanted == []


def test_an_assignment_while_partitions_are_initialised_leaves_them_out() -> None:
    world = world_with(partitions=2)
    first, second = consumers(world, 2)
    first.heartbeat()
    world.advance(5_000)
    second.heartbeat()
    first.heartbeat()
    assert world.share_group().assignment_epoch == world.share_group().group_epoch
    assert (first.held, second.held) == (set(), set())


def test_heartbeats_without_news_write_nothing_and_repeat_no_assignment() -> None:
    world = world_with()
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    written = len(world.log.records)
    for _ in range(3):
        world.advance(5_000)
        assert member.heartbeat() is ErrorCode.NONE
        assert member.last.assignment is None
    assert len(world.log.records) == written
    assert member.heartbeat(full=True) is ErrorCode.NONE
    assert member.last.assignment is not None
    assert len(world.log.records) == written


def test_only_the_partitions_whose_initialisation_succeeded_are_assigned_and_the_others_are_tried_again() -> (
    None
):
    world = world_with(partitions=3)
    member = ShareConsumer(world, "m", ["orders"])
    member.heartbeat()
    world.initialize(fails=lambda _topic, index: index == 1)
    world.advance(5_000)
    member.heartbeat()
    assert member.held == {("orders", 0), ("orders", 2)}
    (again,) = world.wanted
    assert [dict(offsets) for offsets in again.start_offsets.values()] == [{1: -1}]
    settle(world, [member])
    assert member.held == {("orders", index) for index in range(3)}


def test_a_repeated_initialisation_has_a_later_epoch_and_the_late_answer_of_the_first_counts_for_nothing() -> (
    None
):
    world = world_with(partitions=1)
    member = ShareConsumer(world, "m", ["orders"])
    member.heartbeat()
    (first,) = world.wanted
    for _ in range(INITIALIZE_RETRY_MS // 10_000):
        world.advance(10_000)
        member.heartbeat()
    _, second = world.wanted
    assert second.state_epoch > first.state_epoch
    world.initialize(first)
    member.heartbeat()
    assert world.share_group().states.initialized == {}
    world.initialize(second)
    world.advance(1_500)
    member.heartbeat()
    assert member.held == {("orders", 0)}


def test_a_coordinator_that_takes_over_repeats_initialisations_without_an_outcome() -> None:
    world = world_with(partitions=1)
    member = ShareConsumer(world, "m", ["orders"])
    member.heartbeat()
    (first,) = world.wanted
    world.move_coordinator()
    assert member.heartbeat() is ErrorCode.NONE
    assert world.wanted[-1].state_epoch > first.state_epoch
    settle(world, [member])
    assert member.held == {("orders", 0)}


def test_failure_28_an_assignment_under_a_clock_ahead_does_not_hold_back_the_next_one() -> None:
    world = world_with(partitions=2)
    world.steady_ms = 3_600_000
    first, second = consumers(world, 2)
    settle(world, [first])
    assert len(first.held) == 2
    world.steady_ms = 1
    world.move_coordinator()
    settle(world, [first, second])
    assert [len(each.held) for each in (first, second)] == [1, 1]


def test_initialisations_are_sent_again_when_their_records_could_not_be_written() -> None:
    world = world_with(partitions=1)
    member = ShareConsumer(world, "m", ["orders"])
    world.log.refuse_with = ErrorCode.NOT_ENOUGH_REPLICAS
    assert member.heartbeat() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.wanted == []
    world.log.refuse_with = None
    assert member.heartbeat() is ErrorCode.NONE
    assert len(world.wanted) == 1


@pytest.mark.parametrize(("partitions", "members"), [(4, 2), (3, 6), (2, 3), (1, 7), (5, 5), (7, 3)])
def test_all_members_get_work_and_no_two_differ_by_more_than_one_partition(
    partitions: int, members: int
) -> None:
    world = world_with(partitions)
    sharing = consumers(world, members)
    for each in sharing:
        each.heartbeat()
    settle(world, sharing, rounds=4)
    loads = sorted(len(each.held) for each in sharing)
    assert loads[-1] - loads[0] <= 1
    assert loads[0] >= 1
    holders = [sum(("orders", index) in each.held for each in sharing) for index in range(partitions)]
    assert min(holders) >= 1
    assert max(holders) - min(holders) <= 1


def test_1000_members_share_the_partitions_and_the_next_one_is_refused() -> None:
    world = world_with(partitions=3, max_size=1_000)
    members = consumers(world, 1_000)
    for each in members:
        assert each.heartbeat() is ErrorCode.NONE
    settle(world, members)
    assert {len(each.held) for each in members} <= {1, 2}
    assert ShareConsumer(world, "late", ["orders"]).heartbeat() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert members[0].heartbeat() is ErrorCode.NONE
    members[1].leave()
    assert ShareConsumer(world, "late", ["orders"]).heartbeat() is ErrorCode.NONE


def test_members_that_start_together_cost_few_assignments() -> None:
    world = world_with(partitions=200)
    members = consumers(world, 100)
    for member in members:
        member.heartbeat()
    assert world.share_group().assignment_epoch == FIRST_EPOCH
    settle(world, members)
    assert {len(member.held) for member in members} == {2}


def test_shorter_assignment_interval_of_the_broker_counts_for_groups_that_are_there() -> None:
    world = world_with(partitions=2, assignment_interval_ms=Limited(15_000, 0, 15_000))
    first, second = consumers(world, 2)
    settle(world, [first])
    settle(world, [first, second], rounds=2)
    assert len(second.held) == 0
    world.groups.reconfigure(world.config, ShareGroupsConfig(assignment_interval_ms=Limited(0, 0, 15_000)))
    settle(world, [first, second], rounds=1)
    settle(world, [first, second], rounds=1)
    assert [len(each.held) for each in (first, second)] == [1, 1]


def test_partitions_of_a_member_that_is_silent_go_to_the_others() -> None:
    world = world_with(partitions=2)
    stays, falls_silent = consumers(world, 2)
    settle(world, [stays, falls_silent], rounds=4)
    assert len(stays.held) == len(falls_silent.held) == 1
    for _ in range(10):
        world.advance(5_000)
        stays.heartbeat()
    assert list(world.share_group().members) == [stays.member_id]
    assert stays.held == {("orders", 0), ("orders", 1)}
    assert falls_silent.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert falls_silent.epoch == 0


def test_the_end_of_a_session_is_tried_again_when_it_cannot_be_written() -> None:
    world = world_with()
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    world.log.refuse_with = ErrorCode.NOT_ENOUGH_REPLICAS
    world.advance(50_000)
    assert world.share_group().members
    world.log.refuse_with = None
    world.advance(1_000)
    assert not world.share_group().members


def test_a_group_that_is_empty_stays_and_keeps_its_state() -> None:
    world = world_with()
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    assert member.leave() is ErrorCode.NONE
    assert (member.last.member_id, member.last.member_epoch) == ("m", -1)
    world.advance(30 * 24 * 3600 * 1000)
    group = world.share_group()
    assert (group.state, len(group.states.initialized)) == ("Empty", 1)
    assert member.leave() is ErrorCode.UNKNOWN_MEMBER_ID


def test_new_partitions_are_initialised_and_then_assigned() -> None:
    world = world_with(partitions=1)
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    world.grow("orders", 3)
    world.advance(1_500)
    member.heartbeat()
    (wanted,) = world.wanted
    assert [sorted(offsets) for offsets in wanted.start_offsets.values()] == [[1, 2]]
    assert member.held == {("orders", 0)}
    settle(world, [member])
    assert member.held == {("orders", 0), ("orders", 1), ("orders", 2)}


def test_a_topic_that_is_created_after_the_subscription_is_assigned() -> None:
    world = world_with()
    member = ShareConsumer(world, "m", ["later"])
    settle(world, [member])
    assert member.held == set()
    world.grow("later", 2)
    settle(world, [member])
    assert member.held == {("later", 0), ("later", 1)}


def test_a_deleted_topic_leaves_assignment_and_state_and_its_successor_is_initialised_anew() -> None:
    world = world_with(partitions=1)
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    old_id = world.topics.id_of("orders")
    world.drop("orders")
    assert world.share_group().states.initialized == {}
    settle(world, [member])
    assert member.held == set()
    new_id = world.topics.create("orders", 2)
    world.grow("orders", 2)
    world.advance(1_500)
    member.heartbeat()
    assert [*world.wanted[-1].start_offsets] == [new_id] != [old_id]
    settle(world, [member])
    assert member.held == {("orders", 0), ("orders", 1)}


def test_a_removed_partition_leaves_assignment_and_state_and_its_successor_is_initialised_anew() -> None:
    world = world_with(partitions=4)
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    world.shrink("orders", 2)
    (initialized,) = world.share_group().states.initialized.values()
    assert initialized.partitions == {0, 1}
    settle(world, [member])
    assert member.held == {("orders", 0), ("orders", 1)}
    world.grow("orders", 3)
    world.advance(1_500)
    member.heartbeat()
    assert world.wanted[-1].start_offsets == {orders_of(world): {2: -1}}
    settle(world, [member])
    assert member.held == {("orders", 0), ("orders", 1), ("orders", 2)}


def test_an_outcome_for_a_topic_that_was_deleted_meanwhile_changes_nothing() -> None:
    world = world_with(partitions=1)
    member = ShareConsumer(world, "m", ["orders"])
    member.heartbeat()
    world.drop("orders")
    world.initialize()
    assert world.share_group().states.initialized == {}


def test_members_with_other_topics_get_those_only() -> None:
    world = world_with(partitions=2)
    world.topics.create("bills", 2)
    both = ShareConsumer(world, "a", ["orders", "bills"])
    one = ShareConsumer(world, "b", ["orders"])
    settle(world, [both, one], rounds=5)
    assert {topic for topic, _ in one.held} == {"orders"}
    assert {("bills", 0), ("bills", 1)} <= both.held
    one.topics = ["bills"]
    assert one.heartbeat(full=True) is ErrorCode.NONE
    assert {topic for topic, _ in one.held} <= {"bills"}


def test_the_previous_epoch_is_accepted_and_others_are_fenced() -> None:
    world = world_with()
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    epoch = member.epoch
    world.grow("orders", 5)
    world.advance(1_500)
    assert member.heartbeat(loses_response=True) is ErrorCode.NONE
    assert member.heartbeat() is ErrorCode.NONE
    assert member.epoch > epoch
    for stale in (member.epoch + 1, epoch - 1):
        request = ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=stale)
        assert world.request(request).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_that_joins_again_gets_its_assignment_at_once() -> None:
    world = world_with()
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    again = ShareConsumer(world, "m", ["orders"])
    assert again.heartbeat() is ErrorCode.NONE
    assert again.held == member.held


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": []}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"group_id": "g" * 32_767}, ErrorCode.NONE),
        ({"member_id": "m" * 32_767}, ErrorCode.NONE),
    ],
)
def test_bad_heartbeats_get_the_protocols_errors(fields: dict[str, object], error: ErrorCode) -> None:
    world = world_with()
    request = ShareGroupHeartbeatRequest(
        **{"group_id": "g", "member_id": "m", "subscribed_topic_names": ["orders"], **fields}  # type: ignore[arg-type]
    )
    assert world.request(request).error_code == error


def test_an_unknown_member_of_a_group_is_refused() -> None:
    world = world_with()
    settle(world, [ShareConsumer(world, "m", ["orders"])])
    request = ShareGroupHeartbeatRequest(group_id="g", member_id="other", member_epoch=3)
    assert world.request(request).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def _join(group_id: str = "g", member_id: str = "c-1") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def test_a_share_group_is_no_group_of_another_kind_even_when_it_is_empty() -> None:
    world = world_with()
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    for _ in range(2):
        assert world.request(_join()).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert Consumer(world, "c", ["orders"]).heartbeat() is ErrorCode.GROUP_ID_NOT_FOUND
        beat = HeartbeatRequest(group_id="g", member_id="c-1", generation_id=1)
        assert world.request(beat).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        described = world.request(ConsumerGroupDescribeRequest(group_ids=["g"]))
        assert described.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
        classic = world.request(DescribeGroupsRequest(groups=["g"]))
        assert classic.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
        commit = OffsetCommitRequest(
            group_id="g",
            topics=[
                OffsetCommitRequestTopic(
                    topic_id=orders_of(world),
                    partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
                )
            ],
        )
        answer = world.request(commit).topics[0].partitions[0]
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        deleted = world.request(OffsetDeleteRequest(group_id="g"))
        assert deleted.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        member.leave()


def test_a_group_of_another_kind_is_no_share_group_even_when_it_is_empty() -> None:
    world = world_with()
    consumer = Consumer(world, "c", ["orders"])
    assert consumer.heartbeat() is ErrorCode.NONE
    assert ShareConsumer(world, "m", ["orders"]).heartbeat() is ErrorCode.GROUP_ID_NOT_FOUND
    world.ask("classic", _join("classic", member_id=""), api_version=3)
    joining = ShareConsumer(world, "m", ["orders"], group_id="classic")
    assert joining.heartbeat() is ErrorCode.GROUP_ID_NOT_FOUND
    described = world.request(ShareGroupDescribeRequest(group_ids=["g", "classic", "none", ""]))
    assert [group.error_code for group in described.groups] == [
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_GROUP_ID,
    ]
    altered = world.request(_alter({0: 5}))
    assert altered.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_deleted_group_of_one_kind_may_come_back_as_another() -> None:
    world = world_with()
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    member.leave()
    assert world.request(DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == ErrorCode.NONE
    assert "g" not in world.groups.groups
    consumer = Consumer(world, "c", ["orders"])
    assert consumer.heartbeat() is ErrorCode.NONE
    assert world.groups.replicated_state() == world.rebuilt().replicated_state()


def test_share_groups_are_listed_and_described() -> None:
    world = world_with(partitions=1)
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    (listed,) = world.request(ListGroupsRequest(types_filter=["SHARE"], states_filter=["stable"])).groups
    assert (listed.group_id, listed.group_type, listed.protocol_type, listed.group_state) == (
        "g",
        "share",
        "share",
        "Stable",
    )
    (group,) = world.request(ShareGroupDescribeRequest(group_ids=["g"])).groups
    assert (group.group_state, group.assignor_name, group.group_epoch) == ("Stable", "simple", member.epoch)
    (shown,) = group.members
    assert (shown.member_id, shown.subscribed_topic_names) == ("m", ["orders"])
    (topic,) = shown.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == ("orders", [0])


def test_settings_of_a_group_decide_its_session_and_heartbeat_interval() -> None:
    world = world_with()
    world.group_configs["g"] = {
        "share.heartbeat.interval.ms": "7000",
        "share.session.timeout.ms": "60000",
    }
    member = ShareConsumer(world, "m", ["orders"])
    member.heartbeat()
    assert member.last.heartbeat_interval_ms == 7_000
    world.advance(59_000)
    assert world.share_group().members
    world.advance(1_001)
    assert not world.share_group().members


def test_a_replayed_log_gives_the_live_state() -> None:
    world = world_with(partitions=3)
    members = consumers(world, 4)
    settle(world, members)
    members[0].leave()
    world.grow("orders", 5)
    settle(world, members[1:])
    members[1].leave()
    assert world.groups.replicated_state() == world.rebuilt().replicated_state()


def _alter(
    offsets: dict[int, int], topic: str = "orders", group_id: str = "g"
) -> AlterShareGroupOffsetsRequest:
    return AlterShareGroupOffsetsRequest(
        group_id=group_id,
        topics=[
            AlterShareGroupOffsetsRequestTopic(
                topic_name=topic,
                partitions=[
                    AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
                    for index, offset in offsets.items()
                ],
            )
        ],
    )


def test_altered_offsets_are_initialised_anew_and_need_an_empty_group() -> None:
    world = world_with(partitions=2)
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    assert world.request(_alter({0: 5})).error_code == ErrorCode.NON_EMPTY_GROUP
    member.leave()
    wanted = world.request(_alter({0: 5, 7: 1}))
    assert isinstance(wanted, OffsetsToAlter)
    errors = [each.error_code for each in wanted.response.responses[0].partitions]
    assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [dict(offsets) for offsets in wanted.initialize.start_offsets.values()] == [{0: 5}]
    assert wanted.initialize.state_epoch == world.share_group().group_epoch
    world.initialize(wanted.initialize)
    states = world.share_group().states
    assert (states.initializing, [topic.partitions for topic in states.initialized.values()]) == (
        {},
        [frozenset({0, 1})],
    )


def test_altered_offsets_have_a_larger_state_epoch_each_time() -> None:
    world = world_with(partitions=1)
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    member.leave()
    epochs = [world.share_group().group_epoch]
    for _ in range(2):
        wanted = world.request(_alter({0: 5}))
        world.initialize(wanted.initialize)
        epochs.append(wanted.initialize.state_epoch)
        assert world.share_group().group_epoch == epochs[-1]
    # Also when the outcome of the first is not known, and when the state is being deleted.
    epochs += [world.request(_alter({0: 5})).initialize.state_epoch for _ in range(2)]
    world.request(_delete("orders"))
    epochs.append(world.request(_alter({0: 5})).initialize.state_epoch)
    assert all(earlier < later for earlier, later in pairwise(epochs))
    assert world.groups.replicated_state() == world.rebuilt().replicated_state()


def test_offsets_of_a_group_that_does_not_exist_create_it() -> None:
    world = world_with(partitions=1)
    wanted = world.request(_alter({0: 3}))
    world.initialize(wanted.initialize)
    assert world.share_group().state == "Empty"
    member = ShareConsumer(world, "m", ["orders"])
    member.heartbeat()
    assert member.held == {("orders", 0)}
    assert world.wanted == []
    assert world.groups.replicated_state() == world.rebuilt().replicated_state()


def test_offsets_of_unknown_topics_and_of_no_group_are_refused() -> None:
    world = world_with()
    assert world.request(_alter({0: 1}, group_id="")).error_code == ErrorCode.INVALID_GROUP_ID
    wanted = world.request(_alter({0: 1}, topic="none"))
    answer = wanted.response.responses[0].partitions[0]
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wanted.initialize.start_offsets == {}
    assert "g" not in world.groups.groups


def _delete(*topics: str) -> DeleteShareGroupOffsetsRequest:
    return DeleteShareGroupOffsetsRequest(
        group_id="g", topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
    )


def test_deleted_offsets_are_initialised_again_by_the_next_member() -> None:
    world = world_with(partitions=2)
    assert world.request(_delete("orders")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    assert world.request(_delete("orders")).error_code == ErrorCode.NON_EMPTY_GROUP
    member.leave()
    wanted = world.request(_delete("orders", "none"))
    assert isinstance(wanted, StateToDelete)
    topic_id = orders_of(world)
    assert wanted.partitions == {topic_id: frozenset({0, 1})}
    assert [(each.topic_name, each.error_code) for each in wanted.refused] == [
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ]
    assert [*world.share_group().states.deleting] == [topic_id]
    # The deletion did not end: a second one repeats it.
    assert world.request(_delete("orders")).partitions == wanted.partitions
    world.tell(StateDeleted("g", frozenset({topic_id})))
    assert not world.share_group().states.deleting
    assert world.request(_delete("orders")).refused
    member.heartbeat()
    assert [*world.wanted[-1].start_offsets] == [topic_id]


def test_a_topic_whose_state_is_made_again_is_no_longer_being_deleted() -> None:
    world = world_with(partitions=2)
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    member.leave()
    world.request(_delete("orders"))
    assert world.share_group().states.deleting
    settle(world, [member])
    assert world.share_group().states.deleting == {}
    assert member.held == {("orders", 0), ("orders", 1)}


def test_a_group_is_deleted_with_all_of_its_state() -> None:
    world = world_with(partitions=2)
    asked = _Replies(world)
    assert asked(GroupDeletion("g")) is None
    member = ShareConsumer(world, "m", ["orders"])
    settle(world, [member])
    refused = asked(GroupDeletion("g"))
    assert isinstance(refused, ApiError)
    assert refused.code is ErrorCode.NON_EMPTY_GROUP
    member.leave()
    topic_id = orders_of(world)
    assert asked(InitializedPartitions("g")) == {topic_id: frozenset({0, 1})}
    assert asked(GroupDeletion("g")) == StateToDelete({topic_id: frozenset({0, 1})})
    # It is repeated until the state is gone.
    assert asked(GroupDeletion("g")) == StateToDelete({topic_id: frozenset({0, 1})})
    assert asked(InitializedPartitions("g")) == {}
    world.request(DeleteGroupsRequest(groups_names=["g"]))
    assert "g" not in world.groups.groups


class _Replies:
    """Replies to events that the shell sends."""

    def __init__(self, world: ShareWorld) -> None:
        self._world = world

    def __call__(self, event: object) -> object:
        replies: list[object] = []
        world = self._world
        respond, world.shard._respond = world.shard._respond, lambda _token, reply: replies.append(reply)
        try:
            world.tell(event)
        finally:
            world.shard._respond = respond
        (reply,) = replies
        return reply


def test_epochs_only_grow() -> None:
    world = world_with()
    members = consumers(world, 3)
    epochs = []
    for member in members:
        member.heartbeat()
        epochs.append(world.share_group().group_epoch)
    for member in members:
        member.leave()
        epochs.append(world.share_group().group_epoch)
    assert all(earlier < later for earlier, later in pairwise(epochs))
