"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: single requests, right and wrong, in every state of a group."""

from __future__ import annotations

from typing import Any

from bench.diff.members import (
    BATCHED_LEAVE_SINCE,
    Member,
    await_members,
    await_state,
    members,
    new_group,
    stabilise,
)
from bench.diff.script import Script, case

STATIC_JOIN_SINCE = 5
STATIC_SINCE = 3
# Sessions below what the brokers are started with, and above what Kafka allows.
SESSION_TOO_SHORT_MS, SESSION_TOO_LONG_MS = 499, 1_800_001
LEAST_SESSION_MS = 500


@case("join_group")
def refused(s: Script) -> None:
    group = new_group(s)
    (m,) = members(s, group, "a")

    def ask(label: str, **more: Any) -> None:
        s.ask(label, m.join_request(**more))

    ask("empty group", group_id="")
    ask("session too short", session_timeout=SESSION_TOO_SHORT_MS)
    ask("session too long", session_timeout=SESSION_TOO_LONG_MS)
    ask("session negative", session_timeout=-1)
    ask("unknown member of an unknown group", member_id="nobody")
    ask("unknown member of an unknown group, session too short", member_id="nobody", session_timeout=1)
    ask("no protocols", protocols=[])
    ask("no protocol type", protocol_type="")
    s.ask("still unknown", {"groups": [group]}, api="describe_groups", version=5)
    stabilise([m])
    newcomer = {"member_id": ""}
    ask("other protocol type", **newcomer, protocol_type="connect")
    ask("other protocol", **newcomer, protocols=[{"name": "sticky", "metadata": b""}])
    ask("no protocols, group with members", **newcomer, protocols=[])
    ask("no protocol type, group with members", **newcomer, protocol_type="")
    ask("unknown member", member_id="nobody")
    ask("unknown member with another protocol", member_id="nobody", protocols=[])
    m.heartbeat("the member lives")


@case("join_group", since=STATIC_JOIN_SINCE)
def refused_static(s: Script) -> None:
    group = new_group(s)
    (m,) = members(s, group, "a", instance_id="one")

    def ask(label: str, **more: Any) -> None:
        s.ask(label, m.join_request(**more))

    ask("unknown instance of an unknown group", member_id="nobody")
    stabilise([m])
    ask("fenced", member_id="nobody")
    ask("unknown instance", member_id="nobody", group_instance_id="two")
    ask("known member, unknown instance", group_instance_id="two")
    m.heartbeat("the member lives")
    for label, instance_id in {"empty": "", "invalid": "a b", "long": "x" * 250}.items():
        (other,) = members(s, new_group(s, label), label, instance_id=instance_id)
        other.join(f"{label} instance")


@case("join_group")
def alone(s: Script) -> None:
    (m,) = members(s, new_group(s), "a", protocols=(("range", b"1"), ("roundrobin", b"2")))
    m.join("first")
    s.ask("again while completing", m.join_request())
    m.begin_sync({m.member_id: b"mine"})
    m.end_sync("synced")
    m.join("again as leader")
    m.begin_sync({m.member_id: b"mine"})
    m.end_sync("synced again")
    m.protocols = (("roundrobin", b"3"),)
    m.join("with other protocols")
    m.begin_sync({})
    m.end_sync("synced without an assignment")
    m.rebalance_ms, m.session_ms = 1000, 10_000
    m.join("with other timeouts")
    m.leave("leaves")
    m.member_id = ""
    m.join("a new life")


@case("join_group")
def a_follower_again(s: Script) -> None:
    first, second = members(s, new_group(s), "a", "b")
    stabilise([first, second])
    second.join("in a stable group")
    second.heartbeat("heartbeat")
    second.protocols = (("range", b"other"),)
    second.begin_join()
    await_state(s, first.group, "PreparingRebalance")
    first.heartbeat("the leader gets the rebalance")
    first.join("the leader joins")
    second.end_join("with other metadata")
    second.join("while completing")
    first.join("the leader while completing")


@case("join_group", only=(1, 4, 9))
def a_join_while_another_waits(s: Script) -> None:
    group = new_group(s)
    first, second = members(s, group, "a", "b")
    stabilise([first, second])
    (again,) = members(s, group, "a again", member_id=first.member_id, protocols=(("range", b"new"),))
    first.protocols = (("range", b"old"),)
    first.begin_join()
    await_state(s, group, "PreparingRebalance")
    again.begin_join()
    first.end_unanswered("the first")
    second.begin_join()
    again.end_join("the second")
    second.end_join()


@case("join_group", since=4)
def a_member_with_an_id_only(s: Script) -> None:
    """It is waited for until its session ends."""
    group = new_group(s)
    (m,) = members(s, group, "a", session_ms=LEAST_SESSION_MS)
    reply = s.ask("asks for an id", m.join_request())
    m.member_id = reply["member_id"]
    await_state(s, group, "Empty")
    s.ask("described", {"groups": [group]}, api="describe_groups", version=5)
    s.ask("heartbeat", {**m.identity(), "generation_id": 0}, api="heartbeat", version=3)
    s.ask("sync", m.sync_request(generation_id=0), api="sync_group", version=3)
    leave = {"group_id": group, "members": [{"member_id": m.member_id}]}
    s.ask("leaves", leave, api="leave_group", version=3)
    s.ask("leaves again", leave, api="leave_group", version=3)
    s.ask("joins after leaving", m.join_request())


@case("join_group", only=(0, 1, 3, 4, 5, 6, 7, 8, 9))
def select_a_protocol(s: Script) -> None:
    """The protocol that all support and most prefer."""
    group = new_group(s)
    a, b, c = members(s, group, "a", "b", "c")
    a.protocols = (("p1", b"a1"), ("p2", b"a2"), ("p3", b"a3"))
    b.protocols = (("p2", b"b2"), ("p3", b"b3"))
    c.protocols = (("p3", b"c3"), ("p2", b"c2"), ("p1", b"c1"))
    stabilise([a, b, c], "start")
    s.ask("described", {"groups": [group]}, api="describe_groups", version=5)


@case("join_group", since=STATIC_JOIN_SINCE)
def a_static_member_returns(s: Script) -> None:
    group = new_group(s)
    leader, follower = members(s, group, "a", "b")
    leader.instance_id, follower.instance_id = "one", "two"
    stabilise([leader, follower], "start")
    (back,) = members(s, group, "b2", instance_id="two")
    back.join("follower")
    back.begin_sync()
    back.end_sync("follower synced")
    follower.heartbeat("the old follower")
    follower.begin_sync()
    follower.end_sync("the old follower syncs")
    follower.join("the old follower joins")
    follower.leave("the old follower leaves")
    back.heartbeat("the new follower")
    (led,) = members(s, group, "a2", instance_id="one")
    led.join("leader")
    led.begin_sync({})
    led.end_sync("leader synced")
    led.heartbeat("the new leader")
    s.ask("described", {"groups": [group]}, api="describe_groups", version=5)
    (other,) = members(s, group, "b3", instance_id="two", protocols=(("range", b"other"),))
    other.join("with other metadata")
    other.heartbeat("the group after that")
    leader.heartbeat("the old leader")


@case("join_group", since=STATIC_JOIN_SINCE)
def a_static_member_changes_the_protocol(s: Script) -> None:
    group = new_group(s)
    both = (("p1", b"1"), ("p2", b"2"))
    leader, follower = members(s, group, "a", "b", protocols=both)
    leader.instance_id, follower.instance_id = "one", "two"
    stabilise([leader, follower], "start")
    (back,) = members(s, group, "b2", instance_id="two", protocols=(("p2", b"2"),))
    back.begin_join()
    await_state(s, group, "PreparingRebalance")
    leader.heartbeat("the leader gets the rebalance")
    leader.begin_join()
    leader.end_join("leader")
    back.end_join("follower")


@case("join_group", since=STATIC_JOIN_SINCE)
def a_static_member_returns_while_its_join_waits(s: Script) -> None:
    group = new_group(s)
    (first,) = members(s, group, "a", instance_id="one")
    first.begin_join()
    await_members(s, group, 1)
    (second,) = members(s, group, "b", instance_id="one")
    second.begin_join()
    first.end_join("the old one")
    second.end_join("the new one")
    (third,) = members(s, group, "c", instance_id="one")
    third.join("while completing")


def _identity(m: Member, **more: Any) -> dict[str, Any]:
    return {**m.identity(), **more}


@case("heartbeat")
def heartbeats(s: Script) -> None:
    group = new_group(s)
    first, second = members(s, group, "a", "b")
    s.ask("unknown group", _identity(first, generation_id=0, member_id="nobody"))
    s.ask("empty group", _identity(first, group_id="", generation_id=0))
    first.begin_join()
    await_members(s, group, 1)
    s.ask("preparing", _identity(first, generation_id=0))
    second.begin_join()
    await_members(s, group, 2)
    first.end_join()
    second.end_join()
    first.heartbeat("completing")
    second.begin_sync()
    first.begin_sync({})
    first.end_sync()
    second.end_sync()
    first.heartbeat("stable")
    s.ask("old generation", _identity(first, generation_id=0))
    s.ask("new generation", _identity(first, generation_id=2))
    s.ask("negative generation", _identity(first, generation_id=-1))
    s.ask("unknown member", _identity(first, member_id="nobody"))
    s.ask("unknown member, wrong generation", _identity(first, member_id="nobody", generation_id=7))
    s.ask("no member", _identity(first, member_id=""))
    second.leave()
    first.heartbeat("preparing again")
    s.ask("preparing again, old generation", _identity(first, generation_id=0))
    first.leave()
    first.heartbeat("empty")


@case("heartbeat", since=STATIC_SINCE)
def static_heartbeats(s: Script) -> None:
    (m,) = members(s, new_group(s), "a", instance_id="one")
    s.ask("unknown group", _identity(m, generation_id=0, member_id="nobody"))
    stabilise([m])
    m.heartbeat("stable")
    s.ask("fenced", _identity(m, member_id="nobody"))
    s.ask("fenced, wrong generation", _identity(m, member_id="nobody", generation_id=9))
    s.ask("unknown instance", _identity(m, group_instance_id="two"))
    s.ask("without the instance", _identity(m, group_instance_id=None))


@case("sync_group")
def syncs(s: Script) -> None:
    group = new_group(s)
    first, second = members(s, group, "a", "b")

    def ask(label: str, given: dict[str, bytes] | None = None, **more: Any) -> None:
        s.ask(label, second.sync_request(given, **{"protocol_name": "range", **more}))

    ask("unknown group", member_id="nobody", generation_id=0)
    ask("empty group", group_id="", generation_id=0)
    first.begin_join()
    await_members(s, group, 1)
    ask("preparing, unknown", member_id="nobody", generation_id=0)
    second.begin_join()
    await_members(s, group, 2)
    first.end_join()
    second.end_join()
    ask("unknown member", member_id="nobody")
    ask("no member", member_id="")
    ask("old generation", generation_id=0)
    ask("new generation", generation_id=5)
    if s.version >= 5:
        ask("no protocol type", protocol_type=None)
        ask("no protocol name", protocol_name=None)
        ask("other protocol type", protocol_type="connect")
        ask("other protocol name", protocol_name="sticky")
    (twice,) = members(s, group, "b again", member_id=second.member_id, generation=1, protocol_name="range")
    second.begin_sync()
    # The two have connections of their own. Nothing shows that the first has arrived; a round trip is time enough.
    await_members(s, group, 2)
    twice.begin_sync()
    second.end_unanswered("replaced by a second sync")
    first.begin_sync({second.member_id: b"yours", "nobody": b"not there"})
    first.end_sync("leader, forgotten by itself")
    twice.end_sync("follower")
    ask("again in a stable group")
    s.ask(
        "leader again with another assignment",
        first.sync_request({first.member_id: b"now", second.member_id: b"now"}),
    )
    ask("again afterwards")
    ask("follower with an assignment", {second.member_id: b"stolen"})
    first.leave()
    second.begin_sync()
    second.end_sync("preparing again")


@case("sync_group", since=STATIC_SINCE)
def static_syncs(s: Script) -> None:
    (m,) = members(s, new_group(s), "a", instance_id="one")
    m.join()
    s.ask("fenced", m.sync_request(member_id="nobody"))
    s.ask("unknown instance", m.sync_request(group_instance_id="two"))
    s.ask("without the instance", m.sync_request({m.member_id: b"x"}, group_instance_id=None))


@case("sync_group", only=(0, 3, 5))
def a_leader_that_is_late(s: Script) -> None:
    """A rebalance that begins while followers wait for their assignment."""
    group = new_group(s)
    first, second, third = members(s, group, "a", "b", "c")
    first.begin_join()
    await_members(s, group, 1)
    second.begin_join()
    await_members(s, group, 2)
    first.end_join()
    second.end_join()
    second.begin_sync()
    third.begin_join()
    second.end_sync("a follower that waited")
    first.begin_sync({})
    first.end_sync("the leader")


def _leaving(group: str, *who: tuple[str, str | None]) -> dict[str, Any]:
    listed = [{"member_id": m, "group_instance_id": i, "reason": "why not"} for m, i in who]
    return {"group_id": group, "members": listed, "member_id": who[0][0] if who else ""}


@case("leave_group")
def leaving(s: Script) -> None:
    group = new_group(s)
    first, second, third = members(s, group, "a", "b", "c")
    s.ask("unknown group", _leaving(group, ("nobody", None)))
    s.ask("empty group", _leaving("", ("nobody", None)))
    first.begin_join()
    await_members(s, group, 1)
    second.begin_join()
    await_members(s, group, 2)
    third.begin_join()
    await_members(s, group, 3)
    s.ask("while its join waits", _leaving(group, (third.member_id, None)))
    third.end_join("its join")
    first.end_join("the leader's join")
    second.end_join()
    s.ask("unknown member", _leaving(group, ("nobody", None)))
    s.ask("no member", _leaving(group, ("", None)))
    second.begin_sync()
    s.ask("the leader while completing", _leaving(group, (first.member_id, None)))
    second.end_sync("a follower that waited")
    s.ask("the leader again", _leaving(group, (first.member_id, None)))
    s.ask("described", {"groups": [group]}, api="describe_groups", version=5)
    second.join("the next leader")
    s.ask("the last", _leaving(group, (second.member_id, None)))
    s.ask("described, empty", {"groups": [group]}, api="describe_groups", version=5)
    s.ask("from the empty group", _leaving(group, (second.member_id, None)))


@case("leave_group", since=BATCHED_LEAVE_SINCE)
def leaving_together(s: Script) -> None:
    group = new_group(s)
    a, b, c, d = members(s, group, "a", "b", "c", "d")
    b.instance_id, c.instance_id, d.instance_id = "two", "three", "four"
    stabilise([a, b, c, d])
    s.ask("nobody", _leaving(group))
    s.ask("unknown instance", _leaving(group, ("", "nine")))
    s.ask("fenced", _leaving(group, ("nobody", "two")))
    s.ask("member of another instance", _leaving(group, (b.member_id, "three")))
    s.ask("instance of a dynamic member", _leaving(group, (a.member_id, "nine")))
    a.heartbeat("no member has left")
    s.ask("by instance", _leaving(group, ("", "two")))
    s.ask(
        "good, unknown and twice",
        _leaving(group, (c.member_id, "three"), ("nobody", None), ("", "three"), (c.member_id, None)),
    )
    s.ask("a static member by its id alone", _leaving(group, (d.member_id, None)))
    s.ask("described", {"groups": [group]}, api="describe_groups", version=5)
    a.join("the one that is left")
    s.ask("the last", _leaving(group, (a.member_id, None)))
