"""TxnOffsetCommit, and OffsetFetch of offsets that a transaction has not decided yet."""

from __future__ import annotations

from typing import Any

from bench.diff.cases.offsets_committed import commit, fetch
from bench.diff.members import Member, members, new_group
from bench.diff.script import Script, Topic, case
from bench.diff.transactions import (
    TransactionalProducer,
    in_every_state,
    new_producer,
    offsets_request,
    settled,
)

ADDING_SINCE = 5
MEMBERS_SINCE = 3
NEVER_GIVEN_OUT = 987_654_321
METADATA_BYTES_MAX = 4096


def _producer(s: Script, name: str = "tx") -> TransactionalProducer:
    return new_producer(s, name, is_newer=s.version >= ADDING_SINCE)


def _begin(p: TransactionalProducer, group: str) -> None:
    """The offsets' partition is in the transaction: the client or the broker has added it, by version."""
    if not p.is_newer:
        p.add_offsets(group)


def _fetched(s: Script, label: str, group: str, *, wait: bool = False) -> None:
    """Both views; `wait` until the transaction is over in the partition of the offsets, too."""
    request = {"groups": [{"group_id": group, "topics": None}]}
    if wait:
        s.await_answer(
            lambda: s.tell(request | {"require_stable": True}, api="offset_fetch", version=8),
            lambda tree: "UNSTABLE_OFFSET_COMMIT(88)" not in str(tree),
        )
    s.ask(f"{label}, fetched", request, api="offset_fetch", version=8)
    s.ask(f"{label}, stable", request | {"require_stable": True}, api="offset_fetch", version=8)


@case("txn_offset_commit")
def commit_in_a_transaction(s: Script) -> None:
    t = s.topic("t", 2)
    for is_commit, name in ((True, "commit"), (False, "abort")):
        group = new_group(s, name)
        p = _producer(s, name)
        _begin(p, group)
        p.commit_offsets(group, t, 5, f"{name}: first")
        p.commit_offsets(group, t, 7, f"{name}: again")
        _fetched(s, f"{name}: pending", group)
        p.end(is_commit)
        p.await_end(is_commit)
        _fetched(s, f"{name}: ended", group, wait=True)
        _begin(p, group)
        p.commit_offsets(group, t, 9, f"{name}: next")
        p.end(not is_commit)
        p.await_end(not is_commit)
        _fetched(s, f"{name}: next, ended", group, wait=True)
        s.ask(f"{name}: the group", {"groups": [group]}, api="describe_groups", version=5)


@case("txn_offset_commit")
def commit_what_is_wrong(s: Script) -> None:
    t, group = s.topic("t"), new_group(s)
    p = _producer(s)
    _begin(p, group)

    def ask(label: str, request: dict[str, Any]) -> None:
        settled(s, {**request, **p.identity()}, label)

    ask("unknown topic", offsets_request(group, Topic(s.name("missing"), t.id), 5))
    ask("unknown partition", offsets_request(group, t, 5, partition=9))
    ask("negative partition", offsets_request(group, t, 5, partition=-1))
    ask("negative offset", offsets_request(group, t, -5))
    ask("no topics", offsets_request(group, t, 5) | {"topics": []})
    ask("no partitions", offsets_request(group, t, 5) | {"topics": [{"name": t.name, "partitions": []}]})
    large = offsets_request(group, t, 5)
    large["topics"][0]["partitions"][0]["committed_metadata"] = "x" * (METADATA_BYTES_MAX + 1)
    ask("too much metadata", large)
    known, unknown = offsets_request(group, t, 6), offsets_request(group, Topic(s.name("missing"), t.id), 6)
    ask("good and unknown", known | {"topics": known["topics"] + unknown["topics"]})
    ask("empty group", offsets_request("", t, 5))
    _fetched(s, "all", group)


@case("txn_offset_commit")
def commit_by_the_wrong_producer(s: Script) -> None:
    t, group = s.topic("t"), new_group(s)
    p = _producer(s)
    p.init()
    for state in ("empty", "ongoing"):
        if state == "ongoing":
            _begin(p, group)
            p.commit_offsets(group, t, 3)
        wrong: dict[str, dict[str, Any]] = {
            "stale epoch": {"producer_epoch": p.epoch - 1},
            "future epoch": {"producer_epoch": p.epoch + 1},
            "another id": {"producer_id": NEVER_GIVEN_OUT},
            "negative id": {"producer_id": -1, "producer_epoch": -1},
            "unknown transactional id": {"transactional_id": s.name("unknown")},
            "empty transactional id": {"transactional_id": ""},
            "another group": {"group_id": s.name("other")},
        }
        for label, more in wrong.items():
            p.commit_offsets(group, t, 5, f"{state}, {label}", **more)
    p.describe("described")
    _fetched(s, "in the end", group)


@case("txn_offset_commit")
def commit_in_states(s: Script) -> None:
    t = s.topic("t")
    for label, p in in_every_state(s, t, is_newer=s.version >= ADDING_SINCE):
        group = new_group(s, label)
        p.commit_offsets(group, t, 5, f"{label}, not added")
        p.add_offsets(group, f"{label}, adding")
        p.commit_offsets(group, t, 6, f"{label}, added")
        _fetched(s, label, group)


def _as_member(m: Member) -> dict[str, Any]:
    return {
        "generation_id": m.generation,
        "member_id": m.member_id,
        "group_instance_id": m.instance_id,
    }


@case("txn_offset_commit", since=MEMBERS_SINCE)
def commit_by_members(s: Script) -> None:
    t, group = s.topic("t"), new_group(s)
    p = _producer(s)
    _begin(p, group)

    def ask(label: str, **more: Any) -> None:
        p.commit_offsets(group, t, 5, label, **more)

    ask("no group, unknown member", member_id="nobody", generation_id=1)
    ask("no group, generation only", generation_id=3)
    ask("no group, member only", member_id="nobody")
    (a,) = members(s, group, "a", instance_id="one")
    a.join()
    ask("completing", **_as_member(a))
    ask("completing, without a member")
    a.begin_sync({})
    a.end_sync()
    ask("stable", **_as_member(a))
    ask("without a member")
    ask("old generation", **_as_member(a) | {"generation_id": 0})
    ask("later generation", **_as_member(a) | {"generation_id": 9})
    ask("no generation", **_as_member(a) | {"generation_id": -1})
    ask("unknown member", **_as_member(a) | {"member_id": "nobody", "group_instance_id": None})
    ask("no member", **_as_member(a) | {"member_id": "", "group_instance_id": None})
    ask("without the instance", **_as_member(a) | {"group_instance_id": None})
    ask("unknown instance", **_as_member(a) | {"group_instance_id": "two"})
    ask("fenced instance", **_as_member(a) | {"member_id": "nobody"})
    a.leave()
    ask("after it left", **_as_member(a))
    ask("after it left, without a member")
    p.end()
    p.await_end()
    _fetched(s, "in the end", group, wait=True)


@case("txn_offset_commit", since=MEMBERS_SINCE)
def commit_by_members_of_the_consumer_protocol(s: Script) -> None:
    """Their generation is the member's epoch (KIP-848)."""
    t, group = s.topic("t"), new_group(s)
    joining = {
        "group_id": group,
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout": 30_000,
        "subscribed_topic_names": [t.name],
        "topic_partitions": [],
    }
    epoch = s.tell(joining, api="consumer_group_heartbeat", version=1)["member_epoch"]
    p = _producer(s)
    _begin(p, group)
    for label, member, generation in (
        ("right", "m", epoch),
        ("old epoch", "m", epoch - 1),
        ("later epoch", "m", epoch + 1),
        ("no epoch", "m", -1),
        ("unknown member", "nobody", epoch),
        ("without a member", "", -1),
        ("epoch only", "", epoch),
    ):
        p.commit_offsets(group, t, 5, label, member_id=member, generation_id=generation)


@case("offset_fetch")
def pending_offsets(s: Script) -> None:
    t, group = s.topic("t", 3), new_group(s)

    def ask(label: str, partitions: list[int] | None = None) -> None:
        topics = None if partitions is None else [(t, partitions)]
        if partitions is None and s.version < 2:
            return
        s.ask(label, fetch(s, group, topics))
        s.ask(f"{label}, stable", fetch(s, group, topics, require_stable=True))

    s.tell(commit(group, t, *_committed(4, 0), *_committed(4, 1)), api="offset_commit", version=8)
    p = new_producer(s)
    p.add_offsets(group)
    p.commit_offsets(group, t, 5)
    ask("pending", [0])
    ask("beside a pending one", [0, 1])
    ask("another partition", [1])
    ask("never committed", [2])
    ask("all")
    s.tell(commit(group, t, *_committed(8, 0)), api="offset_commit", version=8)
    ask("committed in between", [0])
    p.end()
    p.await_end()
    s.await_answer(
        lambda: s.tell(
            {
                "group_id": group,
                "topics": [{"name": t.name, "partition_indexes": [0]}],
                "require_stable": True,
            },
            api="offset_fetch",
            version=7,
        ),
        lambda tree: "UNSTABLE" not in str(tree),
    )
    ask("ended", [0])
    ask("ended, all")
    s.tell(commit(group, t, *_committed(9, 0)), api="offset_commit", version=8)
    ask("committed afterwards", [0])


def _committed(offset: int, partition: int) -> list[dict[str, Any]]:
    return [
        {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
    ]


@case("offset_delete")
def delete_pending_offsets(s: Script) -> None:
    t, group = s.topic("t", 2), new_group(s)
    s.tell(commit(group, t, *_committed(4, 0), *_committed(4, 1)), api="offset_commit", version=8)
    p = new_producer(s)
    p.add_offsets(group)
    p.commit_offsets(group, t, 5)
    request = {"group_id": group, "topics": [{"name": t.name, "partitions": [{"partition_index": 0}]}]}
    s.ask("pending", request)
    _fetched(s, "deleted", group)
    p.end()
    p.await_end()
    _fetched(s, "ended", group, wait=True)


@case("delete_groups")
def delete_a_group_with_pending_offsets(s: Script) -> None:
    t, group = s.topic("t"), new_group(s)
    s.tell(commit(group, t, *_committed(4, 0)), api="offset_commit", version=8)
    p = new_producer(s)
    p.add_offsets(group)
    p.commit_offsets(group, t, 5)
    s.ask("pending", {"groups_names": [group]})
    _fetched(s, "deleted", group)
    p.end()
    p.await_end()
    _fetched(s, "ended", group, wait=True)
    s.ask("the group", {"groups": [group]}, api="describe_groups", version=5)
