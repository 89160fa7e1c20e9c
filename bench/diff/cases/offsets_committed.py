"""OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from bench.diff.cases.groups import by_group
from bench.diff.members import Member, await_members, members, new_group, stabilise, subscription
from bench.diff.script import Script, Topic, case

NO_ID = uuid.UUID(int=0)
UNKNOWN_ID = uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
TOPIC_IDS_SINCE = 10
BATCHED_FETCH_SINCE = 8
EVERY_TOPIC_SINCE = 2
METADATA_BYTES_MAX = 4096


def _offset(offset: int, partition: int = 0, epoch: int = -1, metadata: str | None = "") -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": epoch,
        "committed_metadata": metadata,
    }


def commit(group: str, topic: Topic, *offsets: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [{"name": topic.name, "topic_id": topic.id, "partitions": list(offsets)}],
        **more,
    }


def _as_member(m: Member) -> dict[str, Any]:
    return {
        "generation_id_or_member_epoch": m.generation,
        "member_id": m.member_id,
        "group_instance_id": m.instance_id,
    }


def _fetched(s: Script, label: str, group: str) -> None:
    """What is committed, seen through one version whatever the script's."""
    request = {"groups": [{"group_id": group, "topics": None}]}
    s.ask(f"{label}, afterwards", request, api="offset_fetch", version=8, keep=_by_topic(s))


def _by_topic(s: Script) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Topics and partitions of 'all offsets' come out of hash maps in Kafka."""

    def name_of(topic: dict[str, Any]) -> str:
        return str(topic.get("name") or s.facts.topic_names.get(topic.get("topic_id", NO_ID)))

    def sort(tree: dict[str, Any]) -> dict[str, Any]:
        if "groups" in tree:
            return {**tree, "groups": [sort(group) for group in by_group(tree)["groups"]]}
        topics = [
            {**topic, "partitions": sorted(topic["partitions"], key=lambda p: int(p["partition_index"]))}
            for topic in tree["topics"]
        ]
        return {**tree, "topics": sorted(topics, key=name_of)}

    return sort


@case("offset_commit")
def by_a_simple_consumer(s: Script) -> None:
    group, topic = new_group(s), s.topic("t", 3)

    def ask(label: str, *offsets: dict[str, Any], **more: Any) -> None:
        s.ask(label, commit(group, topic, *offsets, **more))
        _fetched(s, label, group)

    ask("first", _offset(5, metadata="why"))
    ask("lower", _offset(2))
    ask("null metadata", _offset(3, metadata=None))
    ask("several partitions", _offset(1, 0), _offset(2, 1), _offset(3, 2))
    ask("the same partition twice", _offset(8), _offset(9))
    ask("leader epoch", _offset(4, epoch=7))
    ask("negative offset", _offset(-1))
    ask("very negative offset", _offset(-77))
    ask("largest offset", _offset(2**63 - 1))
    ask("negative leader epoch", _offset(4, epoch=-9))
    ask("metadata at the limit", _offset(6, metadata="x" * METADATA_BYTES_MAX))
    ask("metadata above the limit", _offset(7, metadata="x" * (METADATA_BYTES_MAX + 1)))
    ask("two-byte characters at the limit", _offset(7, metadata="é" * METADATA_BYTES_MAX))
    ask("good and bad", _offset(11, 0, metadata="x" * (METADATA_BYTES_MAX + 1)), _offset(12, 1))
    ask("unknown partition", _offset(1, 9))
    ask("negative partition", _offset(1, -1))
    ask("no partitions")
    s.ask("no topics", commit(group, topic) | {"topics": []})
    s.ask("empty group", commit("", topic, _offset(1)))
    s.ask("as a group without members", {"groups": [group]}, api="describe_groups", version=5)


@case("offset_commit")
def for_unknown_topics(s: Script) -> None:
    group, topic = new_group(s), s.topic("t")
    missing = Topic(s.name("missing"), UNKNOWN_ID)
    good = commit(group, topic, _offset(1))["topics"]
    s.ask("missing", commit(group, missing, _offset(1)))
    s.ask("good and missing", commit(group, missing, _offset(1)) | {"topics": good + _topics(missing)})
    s.ask("missing and good", commit(group, missing, _offset(1)) | {"topics": _topics(missing) + good})
    s.ask("invalid name, no id", commit(group, Topic("not a name", NO_ID), _offset(1)))
    s.ask("empty name, no id", commit(group, Topic("", NO_ID), _offset(1)))
    s.ask("the same topic twice", commit(group, topic) | {"topics": good + good})
    s.ask("missing, by a member of nothing", commit(group, missing, _offset(1), member_id="nobody"))
    s.ask("missing, no partitions", commit(group, missing))
    s.ask("known and no partitions", commit(group, topic) | {"topics": good + commit(group, topic)["topics"]})
    _fetched(s, "all", group)


def _topics(topic: Topic) -> list[dict[str, Any]]:
    topics: list[dict[str, Any]] = commit("", topic, _offset(1))["topics"]
    return topics


@case("offset_commit")
def by_members(s: Script) -> None:
    group, topic = new_group(s), s.topic("t")
    a, b = members(s, group, "a", "b")

    def ask(label: str, **more: Any) -> None:
        s.ask(label, commit(group, topic, _offset(5), **more))

    nobody = {"member_id": "nobody", "generation_id_or_member_epoch": 0}
    ask("unknown group", **nobody)
    ask("unknown group, generation only", generation_id_or_member_epoch=3)
    ask("unknown group, member only", member_id="nobody")
    a.begin_join()
    await_members(s, group, 1)
    ask("preparing for the first time", member_id="nobody", generation_id_or_member_epoch=0)
    ask("preparing, simple consumer")
    b.begin_join()
    await_members(s, group, 2)
    b.end_join()
    a.end_join()
    ask("completing", **_as_member(a))
    ask("completing, simple consumer")
    b.begin_sync()
    a.begin_sync({})
    a.end_sync()
    b.end_sync()
    ask("stable", **_as_member(a))
    ask("stable, simple consumer")
    ask("old generation", **_as_member(a) | {"generation_id_or_member_epoch": 0})
    ask("later generation", **_as_member(a) | {"generation_id_or_member_epoch": 9})
    ask("no generation", **_as_member(a) | {"generation_id_or_member_epoch": -1})
    ask("unknown member", **_as_member(a) | {"member_id": "nobody"})
    ask("no member", **_as_member(a) | {"member_id": ""})
    ask("unknown instance", **_as_member(a) | {"group_instance_id": "one"})
    s.ask("empty group name", commit("", topic, _offset(5), **_as_member(a)))
    s.ask("unknown topic", commit(group, Topic(s.name("missing"), UNKNOWN_ID), _offset(5), **_as_member(a)))
    b.leave()
    ask("preparing again", **_as_member(a))
    ask("preparing again, one that left", **_as_member(b))
    a.leave()
    ask("empty", **_as_member(a))
    ask("empty, simple consumer")
    _fetched(s, "empty", group)


@case("offset_commit", since=7)
def by_static_members(s: Script) -> None:
    group, topic = new_group(s), s.topic("t")
    (a,) = members(s, group, "a", instance_id="one")
    stabilise([a])

    def ask(label: str, **more: Any) -> None:
        s.ask(label, commit(group, topic, _offset(5), **_as_member(a) | more))

    ask("good")
    ask("without the instance", group_instance_id=None)
    ask("fenced", member_id="nobody")
    ask("fenced, wrong generation", member_id="nobody", generation_id_or_member_epoch=7)
    ask("unknown instance", group_instance_id="two")
    ask("instance only", member_id="", generation_id_or_member_epoch=-1)


@case("offset_commit", until=4)
def with_a_retention_of_its_own(s: Script) -> None:
    group, topic = new_group(s), s.topic("t")
    for label, retention in {"an hour": 3_600_000, "none": 0, "default": -1, "negative": -5}.items():
        s.ask(label, commit(group, topic, _offset(5, epoch=3), retention_time=retention))
        _fetched(s, label, group)


@case("offset_commit", since=TOPIC_IDS_SINCE)
def by_topic_id(s: Script) -> None:
    group, topic = new_group(s), s.topic("t")
    s.ask("name instead of an id", commit(group, Topic(topic.name, NO_ID), _offset(1)))
    s.ask("unknown id", commit(group, Topic(topic.name, UNKNOWN_ID), _offset(1)))
    s.ask("id without a name", commit(group, Topic("", topic.id), _offset(1)))
    s.ask("unknown partition", commit(group, topic, _offset(1, 7)))
    _fetched(s, "all", group)


def fetch(s: Script, group: str, topics: list[tuple[Topic, list[int]]] | None, **more: Any) -> dict[str, Any]:
    """The request of the script's version: one group before batches, a list of one after."""
    wanted = (
        None
        if topics is None
        else [{"name": t.name, "topic_id": t.id, "partition_indexes": indexes} for t, indexes in topics]
    )
    stable = {"require_stable": more.pop("require_stable", False)}
    if s.version >= BATCHED_FETCH_SINCE:
        return {"groups": [{"group_id": group, "topics": wanted, "member_epoch": -1, **more}], **stable}
    named = wanted and [{k: v for k, v in topic.items() if k != "topic_id"} for topic in wanted]
    return {"group_id": group, "topics": named, **stable}


@case("offset_fetch")
def committed(s: Script) -> None:
    group, topic, other = new_group(s), s.topic("t", 3), s.topic("u")
    missing = Topic(s.name("missing"), UNKNOWN_ID)

    def ask(label: str, topics: list[tuple[Topic, list[int]]] | None, **more: Any) -> None:
        s.ask(label, fetch(s, group, topics, **more), keep=_by_topic(s) if topics is None else None)

    ask("of an unknown group", [(topic, [0])])
    if s.version >= EVERY_TOPIC_SINCE:
        ask("all of an unknown group", None)
    first = commit(group, topic, _offset(5, 0, 3, "why"), _offset(6, 1))
    second = commit(group, other, _offset(9, metadata=None))
    s.tell({**first, "topics": first["topics"] + second["topics"]}, api="offset_commit", version=8)
    if s.version >= EVERY_TOPIC_SINCE:
        ask("all", None)
        ask("all, stable ones", None, require_stable=True)
    ask("one", [(topic, [0])])
    ask("one that is not committed", [(topic, [2])])
    ask("several", [(topic, [1, 0, 2]), (other, [0])])
    ask("unknown partition", [(topic, [9])])
    ask("negative partition", [(topic, [-1])])
    ask("unknown topic", [(missing, [0, 1])])
    ask("known and unknown topic", [(missing, [0]), (topic, [0])])
    ask("invalid name, no id", [(Topic("not a name", NO_ID), [0])])
    ask("no topics", [])
    ask("no partitions", [(topic, [])])
    ask("the same topic twice", [(topic, [0]), (topic, [1])])
    ask("the same partition twice", [(topic, [0, 0])])
    ask("stable ones", [(topic, [0])], require_stable=True)
    s.ask("empty group", fetch(s, "", [(topic, [0])]))
    (a,) = members(s, group, "a")
    a.join()
    ask("while members are completing", [(topic, [0])])
    s.tell({"topics": [{"name": other.name}], "timeout": 10000}, api="delete_topics", version=6)
    everything = {"groups": [{"group_id": group, "topics": None}]}
    s.await_answer(
        lambda: s.tell(everything, api="offset_fetch", version=8),
        lambda tree: len(tree["groups"][0]["topics"]) == 1,
    )
    ask("of a deleted topic", [(other, [0])])


@case("offset_fetch", since=BATCHED_FETCH_SINCE)
def of_several_groups(s: Script) -> None:
    first, second, topic = new_group(s, "a"), new_group(s, "b"), s.topic("t")
    s.tell(commit(first, topic, _offset(1)), api="offset_commit", version=8)
    s.tell(commit(second, topic, _offset(2)), api="offset_commit", version=8)
    some = [{"name": topic.name, "topic_id": topic.id, "partition_indexes": [0]}]

    def ask(label: str, *groups: tuple[str, Any]) -> None:
        wanted = [{"group_id": name, "topics": topics, "member_epoch": -1} for name, topics in groups]
        s.ask(label, {"groups": wanted}, keep=_by_topic(s))

    ask("two", (first, some), (second, some))
    ask("two, all of one", (first, None), (second, some))
    ask("known and unknown", (s.name("missing"), some), (second, some))
    ask("the same twice", (first, some), (first, None))
    ask("none")
    ask("empty name", ("", some), (first, some))


@case("offset_fetch", since=9)
def with_a_member_epoch(s: Script) -> None:
    """Epochs are of the consumer protocol; a classic group lets everybody read."""
    group, topic = new_group(s), s.topic("t")
    s.ask("unknown group", fetch(s, group, [(topic, [0])], member_id="m", member_epoch=4))
    (a,) = members(s, group, "a")
    stabilise([a])
    for label, member_id, epoch in (
        ("its own", a.member_id, a.generation),
        ("old", a.member_id, 0),
        ("member only", a.member_id, -1),
        ("epoch only", None, 1),
        ("unknown", "nobody", 1),
    ):
        s.ask(label, fetch(s, group, [(topic, [0])], member_id=member_id, member_epoch=epoch))


def _delete(group: str, *topics: tuple[str, list[int]]) -> dict[str, Any]:
    listed = [{"name": n, "partitions": [{"partition_index": i} for i in p]} for n, p in topics]
    return {"group_id": group, "topics": listed}


@case("offset_delete")
def delete_offsets(s: Script) -> None:
    group, topic, other = new_group(s), s.topic("t", 2), s.topic("u")
    s.ask("unknown group", _delete(group, (topic.name, [0])))
    s.ask("empty group", _delete("", (topic.name, [0])))
    s.ask("unknown group, unknown topic", _delete(group, (s.name("missing"), [0])))
    s.ask("unknown group, good and unknown", _delete(group, (s.name("missing"), [0]), (topic.name, [0])))
    s.ask("unknown group, nothing", _delete(group))
    s.ask("empty group, nothing", _delete(""))
    both = commit(group, topic, _offset(1, 0), _offset(2, 1))
    both["topics"] += commit(group, other, _offset(3))["topics"]

    def refill() -> None:
        s.tell(both, api="offset_commit", version=8)

    def ask(label: str, *topics: tuple[str, list[int]]) -> None:
        s.ask(label, _delete(group, *topics))
        _fetched(s, label, group)

    refill()
    ask("one", (topic.name, [0]))
    ask("again", (topic.name, [0]))
    ask("unknown partition", (topic.name, [9]))
    ask("unknown topic", (s.name("missing"), [0]))
    ask("invalid topic", ("not a name", [0]))
    ask("good and unknown", (s.name("missing"), [0]), (topic.name, [1]))
    ask("no partitions", (topic.name, []))
    ask("nothing")
    ask("the last one", (other.name, [0]))
    s.ask("the group then", {"groups": [group]}, api="describe_groups", version=5)


@case("offset_delete")
def delete_offsets_in_use(s: Script) -> None:
    topic, other = s.topic("t"), s.topic("u")
    data = subscription(topic.name)
    for label, kind, metadata in (
        ("consumers", "consumer", data),
        ("consumers of no known format", "consumer", b"\1"),
        ("others", "connect", data),
    ):
        group = new_group(s, label)
        (a,) = members(s, group, label, protocol_type=kind, protocols=(("range", metadata),))
        a.join()
        wanted = _delete(group, (topic.name, [0]), (other.name, [0]))
        s.ask(f"{label}, completing", wanted)
        a.begin_sync({a.member_id: b""})
        a.end_sync()
        for each in (topic, other):
            s.tell(commit(group, each, _offset(1), **_as_member(a)), api="offset_commit", version=8)
        s.ask(label, wanted)
        _fetched(s, label, group)
        a.leave()
        s.ask(f"{label}, left", wanted)
        _fetched(s, f"{label}, left", group)
