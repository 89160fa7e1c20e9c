"""Share groups (KIP-932): ShareGroupHeartbeat, ShareGroupDescribe, the offsets APIs, and groups of the wrong kind."""

from __future__ import annotations

from typing import Any

from bench.diff.cases.groups_consumer import new_group_of_topic
from bench.diff.members import OK, new_group, subscription
from bench.diff.messages import Tree
from bench.diff.script import Script, Topic, case

LEAVES = -1
HEARTBEAT, DESCRIBE = "share_group_heartbeat", "share_group_describe"
ALTER, DELETE, OFFSETS = (
    "alter_share_group_offsets",
    "delete_share_group_offsets",
    "describe_share_group_offsets",
)


def _joining(group: str, member: str, *topics: str, **more: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": member,
        "member_epoch": 0,
        "subscribed_topic_names": list(topics),
        **more,
    }


def _beat(group: str, member: str, epoch: int, **more: Any) -> dict[str, Any]:
    """A heartbeat without news."""
    return {"group_id": group, "member_id": member, "member_epoch": epoch, **more}


def _until_assigned(s: Script, group: str, member: str, epoch: int, partitions: int) -> Tree:
    """Heartbeats until the member has that many partitions: they are assigned when their state is initialised."""
    last = {"epoch": epoch}

    def look() -> Tree:
        tree = s.tell(_beat(group, member, last["epoch"]), api=HEARTBEAT, version=1)
        if tree["error_code"] == OK:
            last["epoch"] = tree["member_epoch"]
        return tree

    return s.await_answer(look, lambda tree: tree["error_code"] != OK or _count(tree) == partitions)


def _count(tree: Tree) -> int:
    given = tree["assignment"]
    return sum(len(each["partitions"]) for each in given["topic_partitions"]) if given else -1


def _without_epochs(tree: dict[str, Any]) -> dict[str, Any]:
    """How often the epoch grows depends on how long initialisation takes."""
    groups = [
        {
            **group,
            "group_epoch": None,
            "assignment_epoch": None,
            "members": sorted(
                ({**member, "member_epoch": None} for member in group["members"]),
                key=lambda member: str(member["member_id"]),
            ),
        }
        for group in tree["groups"]
    ]
    return {**tree, "groups": groups}


def _working_group(s: Script, topic: Topic, partitions: int, member: str = "m") -> str:
    group = new_group_of_topic(s, topic)
    epoch = s.tell(_joining(group, member, topic.name), api=HEARTBEAT, version=1)["member_epoch"]
    _until_assigned(s, group, member, epoch, partitions)
    return group


@case(HEARTBEAT)
def share_heartbeat_refused(s: Script) -> None:
    group, topic = new_group(s), s.topic("t")

    def ask(label: str, request: dict[str, Any], **changes: Any) -> None:
        s.ask(label, request | changes)

    good = _joining(group, "m", topic.name)
    ask("empty group", good, group_id="")
    ask("blank group", good, group_id=" ")
    ask("empty member", good, member_id="")
    ask("blank member", good, member_id=" ")
    ask("empty rack", good, rack_id="")
    ask("blank rack", good, rack_id=" ")
    ask("epoch too low", good, member_epoch=-2)
    ask("null topics", good, subscribed_topic_names=None)
    ask("no topics", good, subscribed_topic_names=[])
    ask("unknown group", _beat(group, "m", 3))
    ask("leaves an unknown group", _beat(group, "m", LEAVES))
    ask("unknown topic", good, subscribed_topic_names=[s.name("missing")])
    ask("leaves", _beat(group, "m", LEAVES))


@case(HEARTBEAT)
def a_share_consumer_alone(s: Script) -> None:
    topic = s.topic("t", 3)
    group = new_group_of_topic(s, topic)
    epoch = s.ask("joins", _joining(group, "m", topic.name))["member_epoch"]
    s.ask("unknown member", _beat(group, "nobody", epoch))
    s.ask("epoch too high", _beat(group, "m", epoch + 7))
    given = _until_assigned(s, group, "m", epoch, 3)
    s.note("gets all", {**given, "member_epoch": None, "assignment": _count(given)})
    epoch = given["member_epoch"]
    s.ask("nothing new", _beat(group, "m", epoch))
    s.ask("epoch far too low", _beat(group, "m", 1))
    again = s.ask(
        "the same topics", _beat(group, "m", epoch, subscribed_topic_names=[topic.name]), keep=_shape
    )
    s.ask("a rack", _beat(group, "m", again["member_epoch"], rack_id="r1"), keep=_shape)
    s.ask("joins again", _joining(group, "m", topic.name), keep=_shape)
    s.ask("described", {"group_ids": [group]}, api=DESCRIBE, keep=_without_epochs)
    s.ask("described as a classic group", {"groups": [group]}, api="describe_groups", version=5)
    s.ask("described as a classic group, v6", {"groups": [group]}, api="describe_groups", version=6)
    described = {"group_ids": [group]}
    s.ask("described as a consumer group", described, api="consumer_group_describe", version=1)
    listed = s.tell({"types_filter": ["share"], "states_filter": []}, api="list_groups", version=5)
    s.note("listed", [each for each in listed["groups"] if each["group_id"] == group])
    s.ask("deleted while in use", {"groups_names": [group]}, api="delete_groups", version=2)
    s.ask("leaves", _beat(group, "m", LEAVES))
    s.ask("described, empty", {"group_ids": [group]}, api=DESCRIBE, keep=_without_epochs)
    s.ask("leaves again", _beat(group, "m", LEAVES))
    s.ask("deleted", {"groups_names": [group]}, api="delete_groups", version=2)
    s.ask("described, gone", {"group_ids": [group]}, api=DESCRIBE)
    s.ask("deleted again", {"groups_names": [group]}, api="delete_groups", version=2)


def _shape(tree: dict[str, Any]) -> dict[str, Any]:
    return {**tree, "member_epoch": None, "assignment": _count(tree)}


@case(HEARTBEAT)
def two_share_consumers(s: Script) -> None:
    """One partition for both of them; and of two partitions, one for each."""
    for label, partitions in (("one", 1), ("two", 2)):
        topic = s.topic(label, partitions)
        group = _working_group(s, topic, partitions, "a")
        epoch = s.ask(f"b joins, {label}", _joining(group, "b", topic.name), keep=_shape)["member_epoch"]
        given = _until_assigned(s, group, "b", epoch, 1)
        s.note(f"b has one, {label}", _shape(given))
        s.tell(_beat(group, "b", LEAVES))
        s.tell(_beat(group, "a", LEAVES))


@case(HEARTBEAT)
def a_share_group_is_no_other_group(s: Script) -> None:
    topic = s.topic("t")
    group = _working_group(s, topic, 1)
    for label in ("in use", "empty"):
        join = {
            "group_id": group,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription(topic.name)}],
        }
        s.ask(f"classic member, {label}", join, api="join_group", version=3)
        beat = {"group_id": group, "generation_id": 1, "member_id": "m"}
        s.ask(f"classic heartbeat, {label}", beat, api="heartbeat", version=4)
        consumer = {
            "group_id": group,
            "member_id": "c",
            "member_epoch": 0,
            "rebalance_timeout": 30_000,
            "subscribed_topic_names": [topic.name],
            "topic_partitions": [],
        }
        s.ask(f"consumer, {label}", consumer, api="consumer_group_heartbeat", version=1)
        where = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
        commit = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": topic.name, "topic_id": topic.id, "partitions": [where]}],
        }
        for version in (2, 8, 9):
            s.ask(f"commit v{version}, {label}", commit, api="offset_commit", version=version)
        groups = [{"group_id": group, "topics": [{"name": topic.name, "partition_indexes": [0]}]}]
        s.ask(f"committed offsets, {label}", {"groups": groups}, api="offset_fetch", version=8)
        remove = {"group_id": group, "topics": [{"name": topic.name, "partitions": [{"partition_index": 0}]}]}
        s.ask(f"delete offsets, {label}", remove, api="offset_delete", version=0)
        s.tell(_beat(group, "m", LEAVES))


@case(HEARTBEAT)
def another_group_is_no_share_group(s: Script) -> None:
    topic = s.topic("t")
    group = new_group_of_topic(s, topic)
    consumer = {
        "group_id": group,
        "member_id": "c",
        "member_epoch": 0,
        "rebalance_timeout": 30_000,
        "subscribed_topic_names": [topic.name],
        "topic_partitions": [],
    }
    s.tell(consumer, api="consumer_group_heartbeat", version=1)
    altered = {
        "group_id": group,
        "topics": [{"topic_name": topic.name, "partitions": [{"partition_index": 0, "start_offset": 1}]}],
    }
    for label in ("in use", "empty"):
        s.ask(f"joins, {label}", _joining(group, "m", topic.name))
        s.ask(f"beats, {label}", _beat(group, "m", 3))
        s.ask(f"leaves, {label}", _beat(group, "m", LEAVES))
        s.ask(f"described, {label}", {"group_ids": [group]}, api=DESCRIBE)
        s.ask(f"offsets altered, {label}", altered, api=ALTER, version=0)
        removed = {"group_id": group, "topics": [{"topic_name": topic.name}]}
        s.ask(f"offsets deleted, {label}", removed, api=DELETE, version=0)
        s.ask(f"offsets, {label}", {"groups": [{"group_id": group, "topics": None}]}, api=OFFSETS, version=0)
        gone = consumer | {"member_epoch": LEAVES, "rebalance_timeout": -1, "topic_partitions": None}
        s.tell(gone, api="consumer_group_heartbeat", version=1)


@case(DESCRIBE)
def share_groups_described(s: Script) -> None:
    topic = s.topic("t")
    group = _working_group(s, topic, 1)
    s.ask("unknown", {"group_ids": [s.name("missing")]})
    s.ask("none", {"group_ids": []})
    s.ask("empty id", {"group_ids": [""]})
    s.ask("twice", {"group_ids": [group, group]}, keep=_without_epochs)
    s.ask(
        "with operations", {"group_ids": [group], "include_authorized_operations": True}, keep=_without_epochs
    )
    s.tell(_beat(group, "m", LEAVES), api=HEARTBEAT, version=1)


def _offsets(group: str, topic: str, *partitions: int) -> dict[str, Any]:
    return {
        "groups": [{"group_id": group, "topics": [{"topic_name": topic, "partitions": list(partitions)}]}]
    }


def _all_offsets(group: str) -> dict[str, Any]:
    return {"groups": [{"group_id": group, "topics": None}]}


def _altering(group: str, topic: str, **offsets: int) -> dict[str, Any]:
    partitions = [{"partition_index": int(p[1:]), "start_offset": o} for p, o in offsets.items()]
    return {"group_id": group, "topics": [{"topic_name": topic, "partitions": partitions}]}


def _sorted_offsets(tree: dict[str, Any]) -> dict[str, Any]:
    groups = [
        {
            **group,
            "topics": [
                {**topic, "partitions": sorted(topic["partitions"], key=lambda p: p["partition_index"])}
                for topic in group["topics"]
            ],
        }
        for group in tree["groups"]
    ]
    return {**tree, "groups": groups}


@case(OFFSETS)
def offsets_of_share_groups(s: Script) -> None:
    topic = s.topic("t", 2)
    s.fill(topic)
    group = _working_group(s, topic, 2)
    s.ask("all", _all_offsets(group), keep=_sorted_offsets)
    s.ask("one", _offsets(group, topic.name, 0))
    s.ask("unknown partition", _offsets(group, topic.name, 7))
    s.ask("unknown topic", _offsets(group, s.name("missing"), 0))
    s.ask("unknown group", _offsets(s.name("nobody"), topic.name, 0))
    s.ask("all of an unknown group", _all_offsets(s.name("nobody")))
    s.ask("empty group", _all_offsets(""))
    s.ask("nothing", {"groups": []})
    s.tell(_beat(group, "m", LEAVES), api=HEARTBEAT, version=1)
    s.tell(_altering(group, topic.name, p0=4, p1=0), api=ALTER, version=0)
    s.ask("after they were altered", _all_offsets(group), keep=_sorted_offsets)


@case(ALTER)
def share_offsets_altered(s: Script) -> None:
    topic = s.topic("t", 2)
    s.fill(topic)
    group = _working_group(s, topic, 2)
    s.ask("in use", _altering(group, topic.name, p0=1))
    s.tell(_beat(group, "m", LEAVES), api=HEARTBEAT, version=1)
    look = {"api": OFFSETS, "version": 0, "keep": _sorted_offsets}
    s.ask("empty", _altering(group, topic.name, p0=1))
    s.ask("afterwards", _all_offsets(group), **look)
    s.ask("again", _altering(group, topic.name, p0=3))
    s.ask("again, afterwards", _all_offsets(group), **look)
    s.ask("beyond the end", _altering(group, topic.name, p1=1_000))
    s.ask("unknown partition", _altering(group, topic.name, p0=2, p9=2))
    s.ask("unknown topic", _altering(group, s.name("missing"), p0=2))
    s.ask("no topics", {"group_id": group, "topics": []})
    s.ask("no group", _altering("", topic.name, p0=2))
    new = new_group_of_topic(s, topic, "new")
    s.ask("new group", _altering(new, topic.name, p0=2))
    s.ask("new group, afterwards", _all_offsets(new), **look)
    s.ask("new group, described", {"group_ids": [new]}, api=DESCRIBE, version=1)
    s.ask("described after all", _all_offsets(group), **look)


@case(DELETE)
def share_offsets_deleted(s: Script) -> None:
    topic = s.topic("t", 2)
    group = _working_group(s, topic, 2)

    def deleting(*topics: str) -> dict[str, Any]:
        return {"group_id": group, "topics": [{"topic_name": each} for each in topics]}

    s.ask("in use", deleting(topic.name))
    s.tell(_beat(group, "m", LEAVES), api=HEARTBEAT, version=1)
    s.ask("unknown topic", deleting(s.name("missing")))
    s.ask("no topics", deleting())
    s.ask("deleted", deleting(topic.name))
    s.ask("afterwards", _all_offsets(group), api=OFFSETS, version=0, keep=_sorted_offsets)
    s.ask("again", deleting(topic.name))
    s.ask("unknown group", {**deleting(topic.name), "group_id": s.name("nobody")})
    s.ask("no group", {**deleting(topic.name), "group_id": ""})
    s.ask("joins again", _joining(group, "m", topic.name), api=HEARTBEAT, version=1, keep=_shape)
