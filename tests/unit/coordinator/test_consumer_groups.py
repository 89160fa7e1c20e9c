"""Consumer groups where a transcript would not show the point: settings, batching, conversions, records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scenarios.consumer_world import ClassicConsumer, Consumer, ConsumerWorld
from tidemill.config import GroupsConfig, ShareGroupsConfig
from tidemill.coordinator.consumer_groups.machine import ConsumerGroup
from tidemill.coordinator.consumer_groups.member import ConsumerMember, MemberState
from tidemill.coordinator.consumer_groups.records import target_epoch_record
from tidemill.coordinator.groups.classic import ClassicGroup
from tidemill.coordinator.groups.group import Committer, GroupType
from tidemill.coordinator.records import Record
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentTopicPartitions,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
)
from tidemill.protocol.api.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerProtocolSubscription,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from tidemill.protocol.schema import encode
from tidemill.protocol.wire import INT16
from tidemill.types import TopicId

# The epoch of the first member of a new group, as in Kafka.
FIRST_EPOCH = 2


def world_with(partitions: int = 4, **settings: object) -> ConsumerWorld:
    world = ConsumerWorld(config=GroupsConfig(**settings), steady_ms=1)  # type: ignore[arg-type]
    world.topics.create("orders", partitions)
    return world


def consumers(world: ConsumerWorld, count: int) -> list[Consumer]:
    return [Consumer(world, f"m{index}", ["orders"]) for index in range(count)]


def settle(world: ConsumerWorld, members: list[Consumer], rounds: int = 4) -> None:
    for _ in range(rounds):
        world.advance(1_500)
        for member in members:
            assert member.heartbeat() is ErrorCode.NONE


def settle_classic(world: ConsumerWorld, members: list[ClassicConsumer], rounds: int = 10) -> None:
    for _ in range(rounds):
        world.advance(1_500)
        _deliver(world, members)
        for member in members:
            member.step()
            _deliver(world, members)


def _deliver(world: ConsumerWorld, members: list[ClassicConsumer]) -> None:
    for asked, response in world.take_answers():
        next(each for each in members if each.name == asked.client).hear(response)


def test_many_members_that_start_together_cost_two_assignments() -> None:
    world = world_with(partitions=600)
    members = consumers(world, 200)
    for member in members:
        member.heartbeat()
    assert world.group().assignment_epoch == FIRST_EPOCH
    assert len(members[0].owned) == 600
    settle(world, members)
    assert world.group().assignment_epoch == world.group().group_epoch == FIRST_EPOCH + 199
    assert {len(member.owned) for member in members} == {3}
    assert world.group().state == "Stable"


def test_shorter_assignment_interval_of_the_broker_counts_for_groups_that_are_there() -> None:
    world = world_with(2, group_consumer_assignment_interval_ms=15_000)
    first, second = consumers(world, 2)
    settle(world, [first], rounds=2)
    settle(world, [first, second], rounds=2)
    assert len(second.owned) == 0
    shorter = replace(world.config, group_consumer_assignment_interval_ms=0)
    world.groups.reconfigure(shorter, ShareGroupsConfig())
    settle(world, [first, second], rounds=4)
    assert [len(each.owned) for each in (first, second)] == [1, 1]


def test_heartbeat_without_changes_writes_no_records() -> None:
    world = world_with()
    members = consumers(world, 3)
    settle(world, members)
    written = len(world.log.records)
    settle(world, members)
    assert len(world.log.records) == written


def test_the_preferred_assignor_is_the_one_most_members_ask_for() -> None:
    world = world_with(partitions=2)
    world.topics.create("payments", 2)
    members = [Consumer(world, f"m{index}", ["orders", "payments"], assignor="range") for index in range(2)]
    members.append(Consumer(world, "m9", [], assignor="uniform"))
    settle(world, members)
    described = world.groups.consumer.describe("g")  # type: ignore[union-attr]
    assert described.assignor_name == "range"
    for member in members[:2]:
        assert {partition for _topic, partition in member.owned} in ({0}, {1})


@pytest.mark.parametrize(("text", "expected_ms"), [("50000", 50_000), ("1", 45_000), ("99999999", 60_000)])
def test_a_groups_session_timeout_stays_within_the_brokers_bounds(text: str, expected_ms: int) -> None:
    world = world_with()
    world.group_configs["g"] = {"consumer.session.timeout.ms": text}
    consumers(world, 1)[0].heartbeat()
    world.advance(expected_ms - 1)
    assert not world.group().is_empty
    world.advance(1)
    assert world.group().is_empty


def test_a_rolling_restart_of_static_members_causes_no_rebalance() -> None:
    world = world_with(partitions=20)
    members = [Consumer(world, f"m{index}", ["orders"], instance_id=f"i{index}") for index in range(20)]
    settle(world, members)
    epoch, events = world.group().group_epoch, len(world.reported)
    for index, member in enumerate(members):
        held = set(member.owned)
        assert member.leave() is ErrorCode.NONE
        world.advance(5_000)
        member.member_id = f"restarted-{index}"
        for each in members:
            assert each.heartbeat() is ErrorCode.NONE
        assert member.owned == held
    assert world.group().group_epoch == epoch
    assert len(world.reported) == events


def test_a_static_member_may_come_back_with_the_same_member_id() -> None:
    world = world_with()
    member = Consumer(world, "m", ["orders"], instance_id="i")
    member.heartbeat()
    member.leave()
    member.heartbeat()
    assert len(member.owned) == 4
    world.advance(45_000)
    assert world.group().is_empty, "it has a session again"


# Records that other versions wrote.


def test_an_assignment_without_epochs_has_the_members_epoch() -> None:
    topic_id = TopicId(b"t" * 16)
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=7,
        state=MemberState.STABLE,
        assigned_partitions=[
            ConsumerGroupCurrentMemberAssignmentTopicPartitions(topic_id=topic_id, partitions=[2, 3])
        ],
    )
    assert ConsumerMember("m").with_current_assignment(value).assigned == {topic_id: {2: 7, 3: 7}}


def test_a_member_in_a_state_of_a_later_version_begins_from_scratch() -> None:
    world = world_with()
    member = consumers(world, 1)[0]
    member.heartbeat()
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m0")
    world.groups.replay(Record(key, ConsumerGroupCurrentMemberAssignmentValue(member_epoch=1, state=99)))
    world.topics.set_partitions("orders", 5)
    world.advance(2_000)
    assert member.heartbeat() is ErrorCode.FENCED_MEMBER_EPOCH
    assert member.heartbeat() is ErrorCode.NONE
    assert world.group().members["m0"].state is MemberState.STABLE


def test_partition_metadata_of_older_versions_goes_with_the_group() -> None:
    world = world_with()
    consumers(world, 1)[0].heartbeat()
    key = ConsumerGroupPartitionMetadataKey(group_id="g")
    world.groups.replay(Record(key, ConsumerGroupPartitionMetadataValue()))
    assert Record(key, None) in world.group().deletion_records()


def test_tombstones_of_an_unknown_group_are_nothing() -> None:
    world = world_with()
    world.groups.replay(Record(ConsumerGroupMetadataKey(group_id="g"), None))
    world.groups.replay(target_epoch_record("g", 1, 1)._replace(value=None))
    assert world.groups.groups == {}


# Offsets.


def commit_error(group: ConsumerGroup, **who: object) -> ErrorCode:
    defaults = {
        "member_id": "",
        "instance_id": None,
        "generation_or_epoch": -1,
        "is_transactional": False,
        "api_version": 9,
    }
    try:
        group.check_offset_commit(Committer(**{**defaults, **who}))  # type: ignore[arg-type]
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


def test_only_members_of_the_current_epoch_commit() -> None:
    world = world_with()
    consumers(world, 1)[0].heartbeat()
    group = world.group()
    assert commit_error(group) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_error(group, is_transactional=True) is ErrorCode.NONE
    assert commit_error(group, member_id="m0", generation_or_epoch=FIRST_EPOCH) is ErrorCode.NONE
    later = commit_error(group, member_id="m0", generation_or_epoch=FIRST_EPOCH + 1)
    assert later is ErrorCode.STALE_MEMBER_EPOCH
    old = commit_error(group, member_id="m0", generation_or_epoch=FIRST_EPOCH, api_version=8)
    assert old is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        (None, -1, None),
        ("m0", FIRST_EPOCH, None),
        ("m0", FIRST_EPOCH - 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("m0", FIRST_EPOCH + 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", FIRST_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, FIRST_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_only_members_of_the_current_epoch_fetch(
    member_id: str | None, epoch: int, error: ErrorCode | None
) -> None:
    world = world_with()
    consumers(world, 1)[0].heartbeat()
    if error is None:
        world.group().check_offset_fetch(member_id, epoch)
    else:
        with pytest.raises(ApiError) as raised:
            world.group().check_offset_fetch(member_id, epoch)
        assert raised.value.code is error


# Migration.


def joining_error(world: ConsumerWorld) -> str:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="new",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["orders"],
        topic_partitions=[],
    )
    response = world.heartbeat(request)
    assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    return response.error_message or ""


def test_an_upgrade_that_the_policy_forbids() -> None:
    world = world_with(group_consumer_migration_policy="DOWNGRADE")
    settle_classic(world, [ClassicConsumer(world, "old", ["orders"])])
    assert "policy forbids it" in joining_error(world)
    assert isinstance(world.groups.groups["g"], ClassicGroup)


def test_an_upgrade_of_a_group_that_is_too_large() -> None:
    world = world_with(group_consumer_max_size=1)
    settle_classic(world, [ClassicConsumer(world, f"old{index}", ["orders"]) for index in range(2)])
    assert "more members than group.consumer.max.size" in joining_error(world)


def test_an_upgrade_answers_the_joins_that_wait() -> None:
    world = world_with()
    first, second = ClassicConsumer(world, "a", ["orders"]), ClassicConsumer(world, "b", ["orders"])
    settle_classic(world, [first])
    second.step()
    _deliver(world, [first, second])
    second.step()
    assert second.state == "wait"
    Consumer(world, "new", ["orders"]).heartbeat()
    ((asked, response),) = world.take_answers()
    assert asked.client == "b"
    assert isinstance(response, JoinGroupResponse)
    assert response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert set(world.group().members) == {first.member_id, second.member_id, "new"}


def test_refused_member_does_not_disturb_waiting_members() -> None:
    """The upgrade is part of a join that fails: nothing of it may happen."""
    world = world_with()
    first, second = ClassicConsumer(world, "a", ["orders"]), ClassicConsumer(world, "b", ["orders"])
    settle_classic(world, [first])
    second.step()
    _deliver(world, [first, second])
    second.step()
    code = Consumer(world, "new", ["orders"], regex="(").heartbeat()
    assert code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert world.take_answers() == []
    settle_classic(world, [first, second])
    assert {first.state, second.state} == {"heartbeat"}


def test_a_downgrade_that_the_policy_forbids_leaves_a_working_consumer_group() -> None:
    world = world_with(group_consumer_migration_policy="upgrade")
    old, new = ClassicConsumer(world, "old", ["orders"]), Consumer(world, "new", ["orders"])
    settle_classic(world, [old])
    new.heartbeat()
    new.leave()
    settle_classic(world, [old])
    assert world.group().type is GroupType.CONSUMER
    assert len(old.owned) == 4


def test_the_last_leave_makes_the_group_classic_without_a_new_epoch() -> None:
    world = world_with()
    old, new = ClassicConsumer(world, "old", ["orders"]), Consumer(world, "new", ["orders"])
    settle_classic(world, [old])
    for _ in range(4):
        new.heartbeat()
        settle_classic(world, [old], rounds=2)
    assert (len(new.owned), len(old.owned), old.state) == (2, 2, "heartbeat")
    generation = old.generation
    new.leave()
    world.advance(0)
    old.step()
    ((_asked, response),) = world.take_answers()
    assert response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert old.generation == generation
    old.hear(response)
    settle_classic(world, [old])
    assert world.groups.groups["g"].type is GroupType.CLASSIC
    assert len(old.owned) == 4


def test_a_classic_member_that_replaces_the_last_other_one_makes_the_group_classic() -> None:
    world = world_with()
    new = Consumer(world, "new", ["orders"], instance_id="i")
    new.heartbeat()
    metadata = INT16.pack(1) + encode(ConsumerProtocolSubscription(topics=["orders"]), 1)
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        group_instance_id="i",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )
    world.ask("old", request)
    ((_asked, response),) = world.take_answers()
    assert (response.error_code, response.generation_id) == (0, FIRST_EPOCH)
    world.log.refuse_with = ErrorCode.NOT_ENOUGH_REPLICAS
    world.advance(0)
    assert world.group().type is GroupType.CONSUMER
    world.log.refuse_with = None
    world.advance(500)
    group = world.groups.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert [member.instance_id for member in group.members.values()] == ["i"]
    assert new.heartbeat() is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_silent_member_goes_even_if_that_could_not_be_written_at_once() -> None:
    world = world_with()
    consumers(world, 1)[0].heartbeat()
    world.log.refuse_with = ErrorCode.NOT_ENOUGH_REPLICAS
    world.advance(46_000)
    assert not world.group().is_empty
    world.log.refuse_with = None
    world.advance(500)
    assert world.group().is_empty


def test_a_classic_member_that_does_not_join_again_in_time_is_removed() -> None:
    world = world_with()
    old, new = ClassicConsumer(world, "old", ["orders"]), Consumer(world, "new", ["orders"])
    settle_classic(world, [old])
    new.heartbeat()
    for _ in range(7):
        # It goes on with heartbeats, but ignores what they answer.
        old.state = "heartbeat"
        old.step()
        answers = [response for _asked, response in world.take_answers()]
        world.advance(10_000)
        new.heartbeat()
    assert isinstance(answers[-1], HeartbeatResponse)
    assert answers[-1].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert len(new.owned) == 4
    assert any("did not join within 60000 ms" in event.cause for event in world.reported)
