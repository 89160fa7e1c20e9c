"""Whole lives of classic groups: the answers to members that come, go, fall silent and come back."""

from __future__ import annotations

from typing import Any

from bench.diff.members import (
    COMPANIONS,
    Member,
    await_members,
    await_state,
    members,
    new_group,
    stabilise,
    subscription,
    sync_all,
)
from bench.diff.script import Script, Topic, case

VERSIONS = (0, 2, 4, 5, 7, 9)
# Version 0 has no rebalance timeout of its own.
REBALANCE_TIMEOUT_VERSIONS = (1, 4, 5, 7, 9)
STATIC_VERSIONS = (5, 6, 7, 9)
# The least that the brokers are started with.
SHORT_SESSION_MS = 500
SHORT_REBALANCE_MS = 700


def _commit(s: Script, m: Member, topic: Topic, offset: int, label: str | None = None) -> None:
    which = {"partition_index": 0, "committed_offset": offset, "committed_metadata": m.name}
    request = {
        "group_id": m.group,
        "generation_id_or_member_epoch": m.generation,
        "member_id": m.member_id,
        "group_instance_id": m.instance_id,
        "topics": [{"name": topic.name, "partitions": [which]}],
    }
    if label is None:
        s.tell(request, api="offset_commit", version=8)
    else:
        s.ask(label, request, api="offset_commit", version=8)


def _state(s: Script, group: str, label: str) -> None:
    s.ask(f"{label}: group", {"groups": [group]}, api="describe_groups", version=5)


def _offsets(s: Script, group: str, label: str) -> None:
    wanted: dict[str, Any] = {"groups": [{"group_id": group, "topics": None}]}
    s.ask(f"{label}: offsets", wanted, api="offset_fetch", version=8)


@case("join_group", only=VERSIONS)
def a_life(s: Script) -> None:
    group, topic = new_group(s), s.topic("t")
    a, b, c = members(s, group, "a", "b", "c", protocols=(("range", subscription(topic.name)),))
    stabilise([a, b], "two members")
    _state(s, group, "two members")
    _commit(s, a, topic, 5, "two members: commit")
    for member in (a, b):
        member.heartbeat(f"stable: {member.name}")

    c.begin_join("a third")
    await_members(s, group, 3)
    _state(s, group, "a third waits")
    for member in (a, b):
        member.heartbeat(f"a third waits: heartbeat of {member.name}")
    _commit(s, b, topic, 6, "a third waits: commit of the old generation")
    a.begin_join()
    b.begin_join()
    for member in (c, b, a):
        member.end_join(f"three: {member.name} joined")
    _commit(s, a, topic, 7, "completing: commit")
    leader = sync_all([a, b, c], "three")
    _state(s, group, "three")

    leader.leave("the leader leaves")
    stayed = [member for member in (a, b, c) if member is not leader]
    for member in stayed:
        member.heartbeat(f"the leader left: heartbeat of {member.name}")
    leader.heartbeat("the leader left: its own heartbeat")
    _commit(s, leader, topic, 8, "the leader left: its commit")
    for member in stayed:
        member.begin_join()
    for member in stayed:
        # Which of the two leads is not said: both have waited.
        member.end_join()
    next_leader = sync_all(stayed)
    for member in stayed:
        member.heartbeat(f"two again: {member.name}")
    next_leader.heartbeat("two again: leader")
    for member in stayed:
        member.leave(f"{member.name} leaves")
    _state(s, group, "all left")
    _offsets(s, group, "all left")
    s.ask("deleted", {"groups_names": [group]}, api="delete_groups", version=2)
    _offsets(s, group, "deleted")


@case("join_group", only=VERSIONS)
def a_member_falls_silent(s: Script) -> None:
    group, topic = new_group(s), s.topic("t")
    a, b = members(s, group, "a", "b")
    b.session_ms = SHORT_SESSION_MS
    stabilise([a, b], "start")
    _commit(s, b, topic, 1)
    await_members(s, group, 1)
    b.heartbeat("the silent one")
    a.heartbeat("the other")
    a.join("the other joins")
    sync_all([a], "alone")
    _offsets(s, group, "alone")


@case("join_group", only=VERSIONS)
def everybody_falls_silent(s: Script) -> None:
    group, topic = new_group(s), s.topic("t")
    (a,) = members(s, group, "a", session_ms=SHORT_SESSION_MS)
    stabilise([a], "start")
    _commit(s, a, topic, 4)
    await_state(s, group, "Empty")
    _state(s, group, "empty")
    _offsets(s, group, "empty")
    s.ask("its heartbeat", a.identity(), api="heartbeat", version=COMPANIONS[s.version]["heartbeat"])
    s.ask("its join", a.join_request())
    a.member_id = ""
    a.session_ms = 10_000
    a.join("a new life")


@case("join_group", only=REBALANCE_TIMEOUT_VERSIONS)
def a_member_does_not_rejoin(s: Script) -> None:
    """It heartbeats, so its session goes on, but the others wait for it only as long as the rebalance may take."""
    group = new_group(s)
    a, b, c = members(s, group, "a", "b", "c", rebalance_ms=SHORT_REBALANCE_MS)
    stabilise([a, b])
    c.begin_join()
    await_members(s, group, 3)
    b.heartbeat("gets the rebalance")
    a.begin_join()
    a.end_join("the one that joined")
    c.end_join("the new one")
    b.heartbeat("the one that did not")
    _state(s, group, "two")


@case("join_group", only=REBALANCE_TIMEOUT_VERSIONS)
def a_member_never_syncs(s: Script) -> None:
    group = new_group(s)
    a, b = members(s, group, "a", "b", rebalance_ms=SHORT_REBALANCE_MS)
    a.begin_join()
    await_members(s, group, 1)
    b.begin_join()
    await_members(s, group, 2)
    a.end_join("leader")
    b.end_join("follower")
    a.begin_sync({a.member_id: b"a", b.member_id: b"b"})
    a.end_sync("leader syncs")
    await_members(s, group, 1)
    _state(s, group, "without it")
    b.heartbeat("the one that did not")
    a.heartbeat("the leader gets the rebalance")


@case("join_group", only=REBALANCE_TIMEOUT_VERSIONS)
def a_leader_never_syncs(s: Script) -> None:
    group = new_group(s)
    a, b = members(s, group, "a", "b", rebalance_ms=SHORT_REBALANCE_MS)
    a.begin_join()
    await_members(s, group, 1)
    b.begin_join()
    await_members(s, group, 2)
    a.end_join("leader")
    b.end_join("follower")
    b.begin_sync()
    b.end_sync("follower syncs")
    _state(s, group, "afterwards")
    b.join("the next leader")


@case("join_group", only=tuple(v for v in VERSIONS if v >= 4))
def a_pending_member_is_waited_for(s: Script) -> None:
    """A rebalance waits for one that was given an id, until its session ends."""
    group = new_group(s)
    (a,) = members(s, group, "a")
    stabilise([a])
    (late,) = members(s, group, "late", session_ms=SHORT_SESSION_MS)
    s.ask("an id", late.join_request())
    a.begin_join()
    a.end_join("the leader joins again")
    s.ask("described", {"groups": [group]}, api="describe_groups", version=5)


@case("join_group", only=STATIC_VERSIONS)
def a_static_member_restarts(s: Script) -> None:
    group, topic = new_group(s), s.topic("t")
    a, b = members(s, group, "a", "b")
    a.instance_id, b.instance_id = "one", "two"
    stabilise([a, b], "start")
    _commit(s, b, topic, 3, "commit")
    (again,) = members(s, group, "b again", instance_id="two")
    again.join("restart")
    again.begin_sync()
    again.end_sync("restart, synced")
    a.heartbeat("the other notices nothing")
    _commit(s, b, topic, 4, "commit of the old incarnation")
    _commit(s, again, topic, 5, "commit of the new incarnation")
    _state(s, group, "after the restart")
    _offsets(s, group, "after the restart")


@case("join_group", only=STATIC_VERSIONS)
def a_static_member_stays_away(s: Script) -> None:
    group = new_group(s)
    a, b = members(s, group, "a", "b")
    a.instance_id, b.instance_id = "one", "two"
    b.session_ms = SHORT_SESSION_MS
    stabilise([a, b], "start")
    await_members(s, group, 1)
    a.heartbeat("the other gets the rebalance")
    a.join("the other joins")
    (again,) = members(s, group, "b again", instance_id="two")
    again.begin_join()
    await_members(s, group, 2)
    a.join("the other joins once more")
    again.end_join("it comes back")


@case("join_group", only=VERSIONS)
def eager_to_cooperative(s: Script) -> None:
    """The rolling upgrade: first everybody supports both, then everybody supports the new one only."""
    group, topic = new_group(s), s.topic("t", 2)
    data = subscription(topic.name)
    old = (("range", data),)
    both = (("cooperative-sticky", data), ("range", data))
    new = (("cooperative-sticky", data),)
    (a, b) = members(s, group, "a", "b", protocols=old)
    stabilise([a, b], "eager")

    def bounce(member: Member, other: Member, protocols: Any, label: str) -> None:
        member.leave()
        member.member_id, member.protocols = "", protocols
        member.begin_join()
        await_members(s, group, 2)
        other.begin_join()
        # The leader after both have waited is the choice of a hash map; the rest of both answers is not.
        joined = [each.end_join() for each in (member, other)]
        s.note(f"{label}: protocol", [tree["protocol_name"] for tree in joined])
        s.note(f"{label}: generation", [tree["generation_id"] for tree in joined])
        sync_all([member, other])

    (only_new,) = members(s, group, "c", protocols=new)
    s.ask("the new one too early", only_new.join_request())
    bounce(a, b, both, "first bounce of a")
    bounce(b, a, both, "first bounce of b")
    bounce(a, b, new, "second bounce of a")
    bounce(b, a, new, "second bounce of b")
    (only_old,) = members(s, group, "d", protocols=old)
    s.ask("the old one too late", only_old.join_request())
    a.heartbeat("stable")


@case("join_group", only=(0, 4, 9))
def members_come_one_by_one(s: Script) -> None:
    """The first rebalance goes on while members keep coming."""
    group = new_group(s)
    several = members(s, group, "a", "b", "c", "d")
    stabilise(several, "together")
    s.ask("described", {"groups": [group]}, api="describe_groups", version=5)


@case("join_group", only=(1, 5, 9))
def a_connection_that_closes(s: Script) -> None:
    """A member whose connection closes while its join waits is in the group all the same."""
    group = new_group(s)
    (a,) = members(s, group, "a", rebalance_ms=SHORT_REBALANCE_MS)
    a.begin_join()
    await_members(s, group, 1)
    s.disconnect("a")
    await_state(s, group, "CompletingRebalance")
    _state(s, group, "its generation")
    await_state(s, group, "Empty")
    _state(s, group, "after its sync timed out")
