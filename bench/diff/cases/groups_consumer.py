"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848), and what the other APIs say about such groups."""

from __future__ import annotations

import itertools
from typing import Any

from bench.diff.members import OK, members, new_group, stabilise, subscription
from bench.diff.messages import Tree
from bench.diff.script import Script, Topic, case

# As both brokers create the topic.
OFFSETS_PARTITIONS = 50
LEAVES, LEAVES_FOR_A_WHILE = -1, -2


def _joining(group: str, member: str, *topics: str, **more: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": member,
        "member_epoch": 0,
        "rebalance_timeout": 30_000,
        "subscribed_topic_names": list(topics),
        "topic_partitions": [],
        **more,
    }


def _beat(group: str, member: str, epoch: int, **more: Any) -> dict[str, Any]:
    """A heartbeat without news."""
    return {"group_id": group, "member_id": member, "member_epoch": epoch, "rebalance_timeout": -1, **more}


def _owning(topic: Topic, *partitions: int) -> dict[str, Any]:
    owned = [{"topic_id": topic.id, "partitions": list(partitions)}] if partitions else []
    return {"topic_partitions": owned}


def _sorted(tree: dict[str, Any]) -> dict[str, Any]:
    """Partitions are a set."""
    given = tree.get("assignment")
    if given:
        parts = [{**t, "partitions": sorted(t["partitions"])} for t in given["topic_partitions"]]
        return {**tree, "assignment": {"topic_partitions": parts}}
    return tree


def _java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def new_group_of_topic(s: Script, topic: Topic, label: str = "g") -> str:
    """A group whose coordinator has heard of the topic.

    Kafka informs each partition of `__consumer_offsets` separately, after the rest of the broker. So another group of
    the same partition subscribes to the topic until it gets it.
    """
    group = new_group(s, label)
    home = abs(_java_hash(group)) % OFFSETS_PARTITIONS
    names = (f"{s.name('probe')}-{i}" for i in itertools.count())
    probe = next(name for name in names if abs(_java_hash(name)) % OFFSETS_PARTITIONS == home)

    def look() -> Tree:
        s.tell(_beat(probe, "probe", LEAVES), api="consumer_group_heartbeat", version=1)
        return s.tell(_joining(probe, "probe", topic.name), api="consumer_group_heartbeat", version=1)

    s.await_answer(look, lambda tree: bool(tree["assignment"] and tree["assignment"]["topic_partitions"]))
    return group


def _until_told(s: Script, request: dict[str, Any]) -> Tree:
    """Heartbeats until the member is assigned something else; assignments are not computed for every answer."""
    return s.await_answer(
        lambda: s.tell(request), lambda tree: tree["assignment"] is not None or tree["error_code"] != OK
    )


@case("consumer_group_heartbeat")
def heartbeat_refused(s: Script) -> None:
    group, topic = new_group(s), s.topic("t")

    def ask(label: str, request: dict[str, Any], **changes: Any) -> None:
        s.ask(label, request | changes)

    good = _joining(group, "m", topic.name)
    ask("empty group", good, group_id="")
    ask("blank group", good, group_id=" ")
    ask("epoch too low", good, member_epoch=-3)
    ask("no rebalance timeout", good, rebalance_timeout=-1)
    ask("no topics at all", good, subscribed_topic_names=None)
    ask("no owned partitions", good, topic_partitions=None)
    ask("owns partitions", good, **_owning(topic, 0))
    ask("empty instance", good, instance_id="")
    ask("empty rack", good, rack_id="")
    ask("blank instance", good, instance_id=" ")
    ask("blank rack", good, rack_id=" ")
    ask("blank member", _beat(group, " ", 1))
    ask("empty assignor", good, server_assignor="")
    ask("unknown assignor", good, server_assignor="nosuchassignor")
    ask("static member leaves without an instance", _beat(group, "m", LEAVES_FOR_A_WHILE))
    ask("unknown group", _beat(group, "m", 3))
    ask("leaves an unknown group", _beat(group, "m", LEAVES))
    if s.version >= 1:
        ask("no member id", good, member_id="")
        ask("bad regex", good, subscribed_topic_regex="(")


@case("consumer_group_heartbeat")
def a_consumer_alone(s: Script) -> None:
    topic = s.topic("t", 3)
    group = new_group_of_topic(s, topic)
    epoch = s.ask("joins", _joining(group, "m", topic.name), keep=_sorted)["member_epoch"]
    s.ask("unknown member", _beat(group, "nobody", epoch))
    s.ask("epoch too high", _beat(group, "m", epoch + 7))
    s.ask("epoch too low", _beat(group, "m", epoch - 1))
    s.ask("nothing new", _beat(group, "m", epoch), keep=_sorted)
    s.ask("owns them", _beat(group, "m", epoch, **_owning(topic, 0, 1, 2)), keep=_sorted)
    s.ask("nothing new again", _beat(group, "m", epoch), keep=_sorted)
    s.ask("the same subscription", _beat(group, "m", epoch, subscribed_topic_names=[topic.name]))
    s.ask("joins again", _joining(group, "m", topic.name), keep=_sorted)
    s.ask("described", {"group_ids": [group]}, api="consumer_group_describe", version=1, keep=_sorted_groups)
    s.ask("described as a classic group", {"groups": [group]}, api="describe_groups", version=5)
    s.ask("described as a classic group, v6", {"groups": [group]}, api="describe_groups", version=6)
    s.ask("deleted while in use", {"groups_names": [group]}, api="delete_groups", version=2)
    s.ask("leaves", _beat(group, "m", LEAVES))
    s.ask("described, empty", {"group_ids": [group]}, api="consumer_group_describe", version=1)
    s.ask("leaves again", _beat(group, "m", LEAVES))
    s.ask("deleted", {"groups_names": [group]}, api="delete_groups", version=2)
    s.ask("described, gone", {"group_ids": [group]}, api="consumer_group_describe", version=1)


@case("consumer_group_heartbeat")
def two_consumers(s: Script) -> None:
    topic = s.topic("t", 2)
    group = new_group_of_topic(s, topic)
    a_epoch = s.ask("a joins", _joining(group, "a", topic.name), keep=_sorted)["member_epoch"]
    s.tell(_beat(group, "a", a_epoch, **_owning(topic, 0, 1)))
    b_epoch = s.ask("b joins", _joining(group, "b", topic.name), keep=_sorted)["member_epoch"]
    told = _until_told(s, _beat(group, "a", a_epoch))
    s.note("a has to give one up", {**told, "assignment": _count(told)})
    kept = told["assignment"]["topic_partitions"][0]["partitions"]
    after = s.tell(_beat(group, "a", a_epoch, **_owning(topic, *kept)))
    s.note("a gave it up", {**after, "assignment": None})
    a_epoch = after["member_epoch"]
    given = _until_told(s, _beat(group, "b", b_epoch))
    s.note("b gets it", {**given, "assignment": _count(given)})
    s.ask("b leaves", _beat(group, "b", LEAVES))
    s.note("a has all again", _sorted(_until_told(s, _beat(group, "a", a_epoch))))


def _count(tree: Tree) -> int:
    """Which of two equal partitions moves is the assignor's choice."""
    return sum(len(each["partitions"]) for each in tree["assignment"]["topic_partitions"])


@case("consumer_group_heartbeat")
def static_consumers(s: Script) -> None:
    topic = s.topic("t", 2)
    group = new_group_of_topic(s, topic)
    join = _joining(group, "m", topic.name, instance_id="one")
    epoch = s.ask("joins", join, keep=_sorted)["member_epoch"]
    s.tell(_beat(group, "m", epoch, instance_id="one", **_owning(topic, 0, 1)))
    s.ask("another with its instance", join | {"member_id": "n"})
    s.ask("leaves for a while", _beat(group, "m", LEAVES_FOR_A_WHILE, instance_id="one"))
    away = {"group_ids": [group]}
    s.ask("described, away", away, api="consumer_group_describe", version=1, keep=_sorted_groups)
    back = s.ask("comes back", join | {"member_id": "n"}, keep=_sorted)["member_epoch"]
    s.ask("the old one", _beat(group, "m", epoch, instance_id="one"))
    s.ask("with a wrong instance", _beat(group, "n", back, instance_id="two"))
    s.ask("without the instance", _beat(group, "n", back))
    s.ask("the old one leaves", _beat(group, "m", LEAVES, instance_id="one"))
    s.ask("leaves", _beat(group, "n", LEAVES, instance_id="one"))


@case("consumer_group_heartbeat")
def offsets_of_consumers(s: Script) -> None:
    topic = s.topic("t")
    group = new_group_of_topic(s, topic)
    now = s.tell(_joining(group, "m", topic.name))["member_epoch"]
    s.tell(_beat(group, "m", now, **_owning(topic, 0)))

    def commit(label: str, member: str, epoch: int, version: int) -> None:
        which = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
        request = {
            "group_id": group,
            "generation_id_or_member_epoch": epoch,
            "member_id": member,
            "topics": [{"name": topic.name, "topic_id": topic.id, "partitions": [which]}],
        }
        s.ask(label, request, api="offset_commit", version=version)

    def fetch(label: str, member: str | None, epoch: int) -> None:
        wanted = [{"name": topic.name, "partition_indexes": [0]}]
        groups = [{"group_id": group, "member_id": member, "member_epoch": epoch, "topics": wanted}]
        s.ask(label, {"groups": groups}, api="offset_fetch", version=9)

    commit("commit", "m", now, 9)
    commit("commit by an old client", "m", now, 8)
    commit("commit of an old epoch", "m", now - 1, 9)
    commit("commit of an old epoch by an old client", "m", now - 1, 8)
    commit("commit of a later epoch", "m", now + 9, 9)
    commit("commit of nobody", "nobody", now, 9)
    commit("commit of a simple consumer", "", -1, 9)
    fetch("fetch", "m", now)
    fetch("fetch of an admin", None, -1)
    fetch("fetch of an old epoch", "m", now - 1)
    fetch("fetch of a later epoch", "m", now + 9)
    fetch("fetch of nobody", "nobody", now)
    wanted = [{"name": topic.name, "partitions": [{"partition_index": 0}]}]
    s.ask("delete in use", {"group_id": group, "topics": wanted}, api="offset_delete", version=0)
    s.tell(_beat(group, "m", LEAVES))
    s.ask("delete", {"group_id": group, "topics": wanted}, api="offset_delete", version=0)


@case("consumer_group_heartbeat", since=1)
def by_a_regex(s: Script) -> None:
    """Kafka resolves expressions beside the answers, and gives an epoch to what it found."""
    topic = s.topic("rx")
    s.topic("other")
    group = new_group_of_topic(s, topic)
    join = _joining(group, "m", subscribed_topic_regex=f"{s.facts.prefix}r.*")
    s.tell(join)
    described = s.await_answer(
        lambda: s.tell(join) and s.tell({"group_ids": [group]}, api="consumer_group_describe", version=1),
        lambda tree: bool(tree["groups"][0]["members"][0]["target_assignment"]["topic_partitions"]),
    )
    s.note("described", described)


@case("consumer_group_describe")
def describe_consumers(s: Script) -> None:
    topic = s.topic("t", 2)
    group = new_group_of_topic(s, topic)
    s.ask("unknown", {"group_ids": [group]})
    s.ask("empty name", {"group_ids": [""]})
    s.ask("none", {"group_ids": []})
    (classic,) = members(s, new_group(s, "classic"), "a")
    stabilise([classic])
    s.ask("a classic group", {"group_ids": [classic.group]})
    joining = _joining(group, "m", topic.name, rack_id="r1")
    epoch = s.tell(joining, api="consumer_group_heartbeat", version=1)["member_epoch"]
    s.tell(_beat(group, "m", epoch, **_owning(topic, 0, 1)), api="consumer_group_heartbeat", version=1)
    s.ask("stable", {"group_ids": [group], "include_authorized_operations": True}, keep=_sorted_groups)
    s.tell({**joining, "member_id": "n"}, api="consumer_group_heartbeat", version=1)
    reconciling = {"group_ids": [group]}
    s.ask("reconciling", reconciling, keep=_states)


def _sorted_groups(tree: dict[str, Any]) -> dict[str, Any]:
    for group in tree["groups"]:
        for member in group["members"]:
            for which in ("assignment", "target_assignment"):
                for topic in member[which]["topic_partitions"]:
                    topic["partitions"] = sorted(topic["partitions"])
    return tree


def _states(tree: dict[str, Any]) -> dict[str, Any]:
    """Without the assignments, where the assignor has a choice."""
    for group in tree["groups"]:
        for member in group["members"]:
            member["assignment"] = member["target_assignment"] = None
    return tree


@case("consumer_group_heartbeat")
def classic_members_of_consumer_groups(s: Script) -> None:
    topic = s.topic("t", 2)
    group = new_group_of_topic(s, topic)
    epoch = s.tell(_joining(group, "m", topic.name))["member_epoch"]
    s.tell(_beat(group, "m", epoch, **_owning(topic, 0, 1)))
    (other,) = members(s, group, "other", protocol_type="connect", join_version=9)
    s.ask("joins with another type", other.join_request(), api="join_group", version=9)
    data = subscription(topic.name)
    (old,) = members(s, group, "old", protocols=(("range", data),), join_version=9)
    reply = s.ask("asks for an id", old.join_request(), api="join_group", version=9)
    old.member_id = reply["member_id"]
    s.ask("heartbeat of a stranger", {**old.identity(), "generation_id": 1}, api="heartbeat", version=4)


@case("consumer_group_heartbeat")
def consumers_in_classic_groups(s: Script) -> None:
    topic = s.topic("t", 2)
    group = new_group_of_topic(s, topic)
    (odd,) = members(s, new_group(s, "odd"), "odd", protocol_type="connect")
    stabilise([odd])
    s.ask("a group of another type", _joining(odd.group, "m", topic.name))
    (classic,) = members(s, group, "classic", protocols=(("range", subscription(topic.name)),))
    classic.join()
    classic.begin_sync({classic.member_id: _assignment(topic, 0, 1)})
    classic.end_sync()
    joined = s.tell(_joining(group, "m", topic.name))
    s.note("a consumer joins", {**joined, "assignment": None})
    s.ask("the group then", {"group_ids": [group]}, api="consumer_group_describe", version=1, keep=_states)
    classic.heartbeat("the classic member gets the rebalance")


def _assignment(topic: Topic, *partitions: int) -> bytes:
    """What a leader sends for a member: version 0, one topic, no user data."""
    name = topic.name.encode()
    data = b"\0\0" + (1).to_bytes(4, "big") + len(name).to_bytes(2, "big") + name
    data += len(partitions).to_bytes(4, "big") + b"".join(p.to_bytes(4, "big") for p in partitions)
    return data + b"\xff\xff\xff\xff"
