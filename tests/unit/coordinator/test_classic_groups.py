"""The most important behaviours of classic groups, one test each. The transcripts cover the rest."""

from __future__ import annotations

import sys

import pytest

from tests.scenarios.groups_world import World
from tests.unit.coordinator.drive import (
    answer_of,
    commit,
    fetch,
    heartbeat,
    join_request,
    stable_group,
    sync_request,
)
from tidemill.config import GroupsConfig
from tidemill.coordinator.groups.classic import ClassicGroup
from tidemill.coordinator.groups.group import EVENTS_PER_GROUP_MAX, TopicsChanged
from tidemill.errors import ErrorCode
from tidemill.protocol.api.groups import (
    ConsumerProtocolSubscription,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequestAssignment,
)
from tidemill.protocol.coordinator_responses import in_version
from tidemill.protocol.schema import encode


def classic(world: World) -> ClassicGroup:
    group = world.groups.groups["g"]
    assert isinstance(group, ClassicGroup)
    return group


def test_a_rolling_restart_of_20_static_members_causes_no_rebalance() -> None:
    world = World()
    names = [f"s{number}" for number in range(20)]
    joined = stable_group(world, *names, static=True)
    member_ids = {name: response.member_id for name, response in joined.items()}
    generation = joined["s0"].generation_id
    world.reported.clear()
    for name in names:
        # Away for less than its session, while the others go on.
        for _second in range(8):
            world.advance(1_000)
            for other, member_id in member_ids.items():
                if other != name:
                    assert heartbeat(world, other, member_id, generation) == ErrorCode.NONE
        response = answer_of(world, name, join_request(group_instance_id=name))
        assert (response.error_code, response.generation_id) == (0, generation)
        member_ids[name] = response.member_id
        sync = sync_request(response, group_instance_id=name)
        assert answer_of(world, name, sync).assignment == name.encode()
    assert len(set(member_ids.values())) == 20
    assert world.reported == []
    assert classic(world).state == "Stable"
    # Nor after a move of the coordinator.
    world.move_coordinator()
    for name, member_id in member_ids.items():
        assert heartbeat(world, name, member_id, generation) == ErrorCode.NONE


def test_failure_21_offsets_of_a_deleted_topic_are_not_those_of_its_successor() -> None:
    world = World()
    world.topics.create("t", 1)
    assert commit(world, 100) == 0
    # The deletion reaches the coordinator only after the new topic exists.
    old_id = world.topics.delete("t")
    world.topics.create("t", 1)
    assert fetch(world) == -1
    assert commit(world, 3) == 0
    world.tell(TopicsChanged(deleted={"t": old_id}))
    assert fetch(world) == 3
    world.move_coordinator()
    assert fetch(world) == 3


def test_failure_21_an_orphaned_offset_goes_with_the_next_round_of_expiry() -> None:
    world = World()
    world.topics.create("t", 1)
    assert commit(world, 100) == 0
    world.topics.delete("t")
    world.topics.create("t", 1)
    world.advance(world.config.offsets_retention_check_interval_ms)
    assert world.groups.offsets.of_group("g") == {}


def test_failure_22_a_commit_that_overlaps_a_rebalance_leaves_the_group_able_to_go_on() -> None:
    world = World()
    world.topics.create("t", 1)
    joined = stable_group(world, "a")["a"]
    world.ask("b", join_request(), 3)
    # Join phase: the old generation still owns its partitions and may commit.
    assert commit(world, 1, member_id=joined.member_id, generation=joined.generation_id) == 0
    world.ask("a", join_request(member_id=joined.member_id))
    answers = {asked.client: response for asked, response in world.take_answers()}
    again = answers["a"]
    # Sync phase: neither generation may commit. The error tells the member how to continue.
    for generation, error in ((1, ErrorCode.ILLEGAL_GENERATION), (2, ErrorCode.REBALANCE_IN_PROGRESS)):
        assert commit(world, 2, member_id=joined.member_id, generation=generation) == error
    assert fetch(world) == 1
    assignments = [SyncGroupRequestAssignment(member_id=answers["b"].member_id, assignment=b"t-0")]
    sync = sync_request(again, assignments=assignments)
    assert answer_of(world, "a", sync).error_code == 0
    assert commit(world, 2, member_id=again.member_id, generation=again.generation_id) == 0
    assert fetch(world) == 2


def subscription(*topics: str) -> list[JoinGroupRequestProtocol]:
    metadata = b"\x00\x00" + encode(ConsumerProtocolSubscription(topics=list(topics)), 0)
    return [JoinGroupRequestProtocol(name="range", metadata=metadata)]


def test_a_group_rebalances_when_a_topic_that_it_reads_loses_partitions() -> None:
    world = World()
    world.topics.create("t", 2)
    world.ask("a", join_request(protocols=subscription("t")), 3)
    world.advance(world.config.group_initial_rebalance_delay_ms * 2)
    ((_, joined),) = world.take_answers()
    assert isinstance(joined, JoinGroupResponse)
    assert answer_of(world, "a", sync_request(joined, assignments=[])).error_code == 0
    # Topics that it does not read, and partitions that are added, are none of its business.
    world.tell(TopicsChanged(frozenset({"u"}), removed={"u": frozenset({1})}))
    world.tell(TopicsChanged(frozenset({"t"})))
    assert heartbeat(world, "a", joined.member_id, joined.generation_id) == ErrorCode.NONE
    world.tell(TopicsChanged(frozenset({"t"}), removed={"t": frozenset({1})}))
    error = heartbeat(world, "a", joined.member_id, joined.generation_id)
    assert error == ErrorCode.REBALANCE_IN_PROGRESS
    request = join_request(member_id=joined.member_id, protocols=subscription("t"))
    assert answer_of(world, "a", request).generation_id == joined.generation_id + 1
    assert "t has fewer partitions" in world.groups.events_of("g")[-1].cause


def calls_for_members(count: int) -> int:
    """Function calls for a group of `count` members to form at once and to rebalance once more."""
    world = World()
    calls = 0

    def count_call(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    # The world's own checks look at every member after every request.
    world.groups.check_invariants = lambda: None  # type: ignore[method-assign]
    sys.setprofile(count_call)
    try:
        stable_group(world, *(f"c{number}" for number in range(count)))
    finally:
        sys.setprofile(None)
    world.groups.__class__.check_invariants(world.groups)
    assert len(classic(world).members) == count
    return calls


def test_the_work_of_joining_grows_with_the_members_and_not_with_their_square() -> None:
    few, many = calls_for_members(100), calls_for_members(800)
    assert many < 10 * few


def test_5000_members_join_at_once() -> None:
    world = World(config=GroupsConfig(group_initial_rebalance_delay_ms=1_000))
    world.groups.check_invariants = lambda: None  # type: ignore[method-assign]
    joined = stable_group(world, *(f"c{number}" for number in range(5_000)))
    leaders = {response.leader for response in joined.values()}
    assert len(leaders) == 1
    assert len(classic(world).members) == 5_000
    assert len(world.reported) == 1
    assert len(str(world.reported[0])) < 300
    # The empty group and the assignment; no record for each member.
    assert len(world.log.records) == 2


def test_events_are_kept_for_the_last_rebalances_only() -> None:
    world = World()
    joined = stable_group(world, "a")["a"]
    for _time in range(EVENTS_PER_GROUP_MAX + 5):
        world.ask("a", join_request(member_id=joined.member_id))
        (answer,) = [response for _asked, response in world.take_answers()]
        answer_of(world, "a", sync_request(answer))
    events = world.groups.events_of("g")
    assert len(events) == EVENTS_PER_GROUP_MAX
    assert events[-1].generation == EVENTS_PER_GROUP_MAX + 6
    assert world.groups.events_of("other") == ()


@pytest.mark.parametrize("version", [0, 4, 6, 7, 9])
def test_every_join_answer_can_be_encoded_in_its_version(version: int) -> None:
    world = World(config=GroupsConfig(group_initial_rebalance_delay_ms=0))
    refused = [
        join_request(group_id=""),
        join_request(session_timeout_ms=1),
        join_request(member_id="nobody"),
        join_request(protocols=[]),
    ]
    for request in refused:
        response = answer_of(world, "c", request, version)
        assert response.error_code
        encode(in_version(response, version), version)
    stable_group(world, "a", static=True)
    fenced = answer_of(world, "x", join_request(member_id="x", group_instance_id="a"), version)
    assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID
    encode(in_version(fenced, version), version)
    # A waiting join that is fenced by its successor.
    world.ask("b1", join_request(group_instance_id="b"), version)
    world.ask("b2", join_request(group_instance_id="b"), version)
    ((asked, response),) = world.take_answers()
    assert (asked.client, response.error_code) == ("b1", ErrorCode.FENCED_INSTANCE_ID)
    encode(in_version(response, version), version)


def test_subscriptions_that_do_not_parse_do_no_harm() -> None:
    world = World()
    world.topics.create("t", 1)
    garbage = [JoinGroupRequestProtocol(name="range", metadata=b"\x00\x00\xff\xff\xff")]
    world.ask("a", join_request(protocols=garbage), 3)
    world.advance(10_000)
    ((_asked, response),) = world.take_answers()
    assert isinstance(response, JoinGroupResponse)
    assert response.error_code == 0
    # Not knowing its topics, the group is taken to use them all: nothing of it is deleted or expires.
    assert classic(world).subscribes_to("t")
    assert classic(world).offset_expires_from_ms(0) is None
    world.move_coordinator()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic": "gone"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"metadata": "x" * 4097}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger", "generation": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_refused_commit_leaves_the_group_healthy(fields: dict[str, object], error: ErrorCode) -> None:
    world = World()
    world.topics.create("t", 1)
    joined = stable_group(world, "a")["a"]
    mine = {"member_id": joined.member_id, "generation": joined.generation_id}
    is_own = "topic" in fields or "metadata" in fields
    assert commit(world, 5, **{**(mine if is_own else {}), **fields}) == error  # type: ignore[arg-type]
    assert fetch(world) == -1
    assert commit(world, 5, **mine) == 0  # type: ignore[arg-type]
    assert fetch(world) == 5
    assert heartbeat(world, "a", joined.member_id, joined.generation_id) == ErrorCode.NONE


def test_an_assignment_of_any_bytes_is_passed_on_as_it_is() -> None:
    world = World()
    world.ask("a", join_request(), 3)
    world.advance(10_000)
    ((_asked, joined),) = world.take_answers()
    illegal = bytes(range(256)) * 40
    assignments = [
        SyncGroupRequestAssignment(member_id=joined.member_id, assignment=illegal),
        SyncGroupRequestAssignment(member_id="not a member", assignment=b"?"),
    ]
    sync = sync_request(joined, assignments=assignments)
    assert answer_of(world, "a", sync).assignment == illegal
    world.move_coordinator()
    assert answer_of(world, "a", sync).assignment == illegal
    assert set(classic(world).members) == {joined.member_id}
