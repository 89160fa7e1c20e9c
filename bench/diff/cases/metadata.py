"""Metadata: all topics, some, none; by name and by id; auto-creation; authorised operations."""

from __future__ import annotations

import uuid
from typing import Any

from bench.diff.cases.topics import UNKNOWN_ID
from bench.diff.script import Script, case

NO_OPERATIONS = -2147483648


def by_name(*names: str | None, auto_create: bool = False, **more: Any) -> dict[str, Any]:
    return {"topics": [{"name": n} for n in names], "allow_auto_topic_creation": auto_create, **more}


def by_id(*ids: uuid.UUID) -> dict[str, Any]:
    return {"topics": [{"topic_id": i, "name": None} for i in ids]}


@case("metadata")
def some(s: Script) -> None:
    """A version below 4 creates what it asks for, so the unknown are asked for in another script."""
    one, three = s.topic("one"), s.topic("three", 3)
    s.ask("by name", by_name(three.name, one.name))
    s.ask("twice", by_name(one.name, one.name))
    s.ask("no topics" if s.version else "empty list is all in v0", {"topics": []}, keep=lambda t: _own(s, t))


@case("metadata")
def everything(s: Script) -> None:
    """Null means all, but v0 has no null. Topics of other scripts are taken out; their order is free."""
    s.topic("a"), s.topic("b", 2)
    s.ask("all", {"topics": None if s.version else []}, keep=lambda t: _own(s, t))


def _own(s: Script, tree: dict[str, Any]) -> dict[str, Any]:
    own = [t for t in tree["topics"] if t["name"].startswith(s.name(""))]
    return {**tree, "topics": sorted(own, key=lambda t: str(t["name"]))}


@case("metadata", since=4)
def unknown(s: Script) -> None:
    good = s.topic("good")
    s.ask("missing", by_name(s.name("missing")))
    s.ask("missing beside good", by_name(s.name("missing"), good.name))
    for label, name in {"empty": "", "dot": ".", "space": "a b", "too long": "x" * 250}.items():
        s.ask(f"invalid name: {label}", by_name(name))
        s.ask(f"invalid name with auto-create: {label}", by_name(name, auto_create=True))


@case("metadata")
def auto_create(s: Script) -> None:
    """The first answer may say LEADER_NOT_AVAILABLE; what the topic looks like afterwards is the question."""
    request = by_name(s.name("new"), auto_create=True)
    s.ask("first answer", request)
    s.await_topic(s.name("new"), 1)
    s.ask("once it is there", request)
    s.ask("dot and underscore", by_name(s.name("a.b"), auto_create=True))
    s.await_topic(s.name("a.b"), 1)
    s.ask("colliding name", by_name(s.name("a_b"), auto_create=True))


@case("metadata", since=10)
def ids(s: Script) -> None:
    t = s.topic("x")
    if s.version < 12:
        # Topic ids stand in the request from v10, but a broker accepts them from v12 only.
        s.ask("id", {"topics": [{"topic_id": t.id, "name": t.name}]})
        return
    s.ask("id", by_id(t.id))
    s.ask("unknown id", by_id(UNKNOWN_ID))
    s.ask("both", {"topics": [{"topic_id": t.id, "name": t.name}]})
    s.ask("zero id and no name", {"topics": [{"name": None}]})
    s.ask("one id, one name", {"topics": [{"topic_id": t.id, "name": None}, {"name": t.name}]})
    s.ask("id twice", by_id(t.id, t.id))


@case("metadata", since=8)
def authorized_operations(s: Script) -> None:
    t = s.topic("x")
    s.ask("of topics", by_name(t.name, include_topic_authorized_operations=True))
    if s.version <= 10:
        s.ask("of the cluster", by_name(t.name, include_cluster_authorized_operations=True))
