"""FindCoordinator, DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

import time
from typing import Any

from bench.diff.members import CONSUMER, Member, await_members, members, new_group, stabilise, subscription
from bench.diff.messages import Tree
from bench.diff.script import Script, case

GROUP, TRANSACTION, SHARE = 0, 1, 2
BATCHED_SINCE = 4
CREATION_SECONDS_MAX = 5.0
ZERO_SHARE_KEY = "g:AAAAAAAAAAAAAAAAAAAAAA:0"


def _keys(kind: int, *keys: str) -> dict[str, Any]:
    return {"key": keys[0] if keys else "", "key_type": kind, "coordinator_keys": list(keys)}


@case("find_coordinator")
def of_a_group(s: Script) -> None:
    group = new_group(s)
    s.ask("one", _keys(GROUP, group))
    s.ask("empty key", _keys(GROUP, ""))
    s.ask("strange key", _keys(GROUP, "a b/ü:\n"))


@case("find_coordinator", since=BATCHED_SINCE)
def of_several_groups(s: Script) -> None:
    new_group(s)
    s.ask("two", _keys(GROUP, s.name("a"), s.name("b")))
    s.ask("none", _keys(GROUP))
    s.ask("the same twice", _keys(GROUP, s.name("a"), s.name("a")))
    s.ask("empty among others", _keys(GROUP, s.name("a"), ""))


@case("find_coordinator", since=1)
def of_other_types(s: Script) -> None:
    for label, kind in {"undefined 3": 3, "undefined 77": 77, "negative": -1}.items():
        s.ask(label, _keys(kind, s.name("x")))
    s.ask("share group, not a share key", _keys(SHARE, s.name("x")))


@case("find_coordinator", since=1, only_ends=True)
def of_a_transaction(s: Script) -> None:
    _once_there(s, _keys(TRANSACTION, "t"))


@case("find_coordinator", since=6)
def of_a_share_group(s: Script) -> None:
    _once_there(s, _keys(SHARE, ZERO_SHARE_KEY))


def _once_there(s: Script, request: dict[str, Any]) -> None:
    """What is answered once the topic of that coordinator exists, which Kafka creates on first use."""
    deadline = time.monotonic() + CREATION_SECONDS_MAX
    tree: Tree = None
    while time.monotonic() < deadline:
        tree = s.tell(request)
        found = tree["coordinators"][0] if "coordinators" in tree else tree
        if found["error_code"] != "COORDINATOR_NOT_AVAILABLE(15)":
            break
        time.sleep(CREATION_SECONDS_MAX / 20)
    s.note("one", tree, request)


def by_group(tree: dict[str, Any]) -> dict[str, Any]:
    """Kafka answers in the order in which the partitions of the groups did."""
    return {**tree, "groups": sorted(tree["groups"], key=lambda g: str(g["group_id"]))}


def _described(s: Script, label: str, *groups: str, **more: Any) -> None:
    s.ask(label, {"groups": list(groups), **more}, keep=by_group)


@case("describe_groups")
def describe(s: Script) -> None:
    group = new_group(s)
    _described(s, "unknown", group)
    _described(s, "empty name", "")
    _described(s, "none")
    _described(s, "the same twice", group, group)
    _described(s, "operations of an unknown one", group, include_authorized_operations=True)
    first, second = members(s, group, "a", "b", protocols=(("range", b"r"), ("roundrobin", b"rr")))
    first.begin_join()
    await_members(s, group, 1)
    _described(s, "preparing", group)
    second.begin_join()
    await_members(s, group, 2)
    first.end_join()
    second.end_join()
    _described(s, "completing", group)
    second.begin_sync()
    first.begin_sync({first.member_id: b"one", second.member_id: b"two"})
    first.end_sync()
    second.end_sync()
    _described(s, "stable", group)
    _described(s, "stable and unknown", group, s.name("missing"))
    _described(s, "operations", group, include_authorized_operations=True)
    first.leave()
    _described(s, "preparing again", group)
    second.leave()
    _described(s, "empty", group)
    simple = new_group(s, "simple")
    _commit(s, simple)
    _described(s, "of a simple consumer", simple)


def _commit(s: Script, group: str) -> None:
    topic = s.topic("t")
    which = {"partition_index": 0, "committed_offset": 3, "committed_metadata": "m"}
    request = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": topic.name, "partitions": [which]}],
    }
    s.tell(request, api="offset_commit", version=8)


@case("list_groups")
def listing(s: Script) -> None:
    def own(tree: dict[str, Any]) -> dict[str, Any]:
        mine = [g for g in tree["groups"] if g["group_id"].startswith(s.facts.prefix)]
        return by_group({**tree, "groups": mine})

    def ask(label: str, **filters: Any) -> None:
        s.ask(label, filters, keep=own)

    names = ("stable", "preparing", "completing", "empty", "other-type")
    groups = {name: new_group(s, name) for name in names}
    stabilise(members(s, groups["stable"], "a"))
    (left,) = members(s, groups["empty"], "b")
    stabilise([left])
    left.leave()
    (completing,) = members(s, groups["completing"], "c")
    completing.join()
    stabilise(members(s, groups["other-type"], "d", protocol_type="connect"))
    simple = new_group(s, "simple")
    _commit(s, simple)
    (first,) = members(s, groups["preparing"], "e")
    stabilise([first])
    (second,) = members(s, groups["preparing"], "f")
    second.begin_join()
    await_members(s, groups["preparing"], 2)

    ask("all")
    for state in ("Stable", "stable", "STABLE", "Empty", "PreparingRebalance", "CompletingRebalance"):
        ask(f"state {state}", states_filter=[state])
    for state in ("Dead", "Unknown", "Assigning", "Reconciling", "NoSuchState", ""):
        ask(f"state {state or 'without a name'}", states_filter=[state])
    ask("two states", states_filter=["Stable", "Empty"])
    ask("known and unknown state", states_filter=["Stable", "NoSuchState"])
    for kind in ("classic", "Classic", "consumer", "share", "streams", "Unknown", "nosuchtype", ""):
        ask(f"type {kind or 'without a name'}", types_filter=[kind])
    ask("two types", types_filter=["classic", "consumer"])
    ask("known and unknown type", types_filter=["classic", "nosuchtype"])
    ask("state and type", states_filter=["Empty"], types_filter=["classic"])


@case("delete_groups")
def delete(s: Script) -> None:
    def ask(label: str, *groups: str) -> None:
        s.ask(label, {"groups_names": list(groups)}, keep=_sorted_results)

    empty, full, simple = new_group(s, "empty"), new_group(s, "full"), new_group(s, "simple")
    (left,) = members(s, empty, "a")
    stabilise([left])
    left.leave()
    (stays,) = members(s, full, "b")
    stabilise([stays])
    _commit(s, simple)
    ask("none")
    ask("unknown", s.name("missing"))
    ask("empty name", "")
    ask("with members", full)
    ask("several", empty, full, s.name("missing"))
    ask("again", empty)
    ask("of a simple consumer", simple)
    ask("the same twice", simple, simple)
    s.ask("gone", {"groups": [empty, simple]}, api="describe_groups", version=5, keep=by_group)
    stays.heartbeat("the other lives")
    fetch = {"groups": [{"group_id": simple, "topics": None}]}
    s.ask("its offsets", fetch, api="offset_fetch", version=8)
    (again,) = members(s, empty, "c")
    again.join("a new one of the name")
    ask("completing", empty)
    (pending,) = members(s, new_group(s, "pending"), "d", join_version=4)
    s.tell(pending.join_request(), api="join_group", version=4)
    ask("with a member that has an id only", pending.group)


def _sorted_results(tree: dict[str, Any]) -> dict[str, Any]:
    return {**tree, "results": sorted(tree["results"], key=lambda r: str(r["group_id"]))}


@case("describe_groups", only_ends=True)
def describe_subscriptions(s: Script) -> None:
    """Metadata that is a consumer's, and metadata that only looks like it."""
    topic = s.topic("t", 2)
    group = new_group(s)
    first = Member(s, group, "a", protocols=(("range", subscription(topic.name)),), protocol_type=CONSUMER)
    stabilise([first])
    s.ask("a consumer's", {"groups": [group]})
