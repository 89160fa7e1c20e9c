"""Members of classic groups, each on a connection of its own, and the groups they form.

A member remembers what it was told (its id, its generation, the leader), so that a script reads as the life of a
group. Join and sync come in halves, because their answers wait for the other members. Whatever is given a
label is recorded. The versions of the APIs go together as they do in clients: a script runs for the
versions of one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.diff.messages import Tree
from bench.diff.script import REPLY_SECONDS, SILENT_SECONDS, Pending, Script, SetupError

# Long enough for a slow machine; scripts about sessions that end give their own.
SESSION_MS = 30_000
REBALANCE_MS = 30_000
CONSUMER = "consumer"
# JoinGroup's version -> those of the other three that clients of the time used.
COMPANIONS = {
    0: {"sync_group": 0, "heartbeat": 0, "leave_group": 0},
    1: {"sync_group": 0, "heartbeat": 0, "leave_group": 0},
    2: {"sync_group": 1, "heartbeat": 1, "leave_group": 1},
    3: {"sync_group": 2, "heartbeat": 2, "leave_group": 2},
    4: {"sync_group": 2, "heartbeat": 2, "leave_group": 2},
    5: {"sync_group": 3, "heartbeat": 3, "leave_group": 3},
    6: {"sync_group": 4, "heartbeat": 4, "leave_group": 4},
    7: {"sync_group": 5, "heartbeat": 4, "leave_group": 4},
    8: {"sync_group": 5, "heartbeat": 4, "leave_group": 5},
    9: {"sync_group": 5, "heartbeat": 4, "leave_group": 5},
}
BATCHED_LEAVE_SINCE = 3
PREFERRED = 9
REQUIRED = "MEMBER_ID_REQUIRED(79)"
OK = "NONE(0)"


def subscription(*topics: str) -> bytes:
    """A consumer's protocol metadata: version 0, topics, no user data."""
    data = b"\0\0" + len(topics).to_bytes(4, "big")
    for topic in topics:
        data += len(topic).to_bytes(2, "big") + topic.encode()
    return data + b"\xff\xff\xff\xff"


@dataclass
class Member:
    script: Script
    group: str
    # The name of its connection.
    name: str
    instance_id: str | None = None
    protocols: Sequence[tuple[str, bytes]] = (("range", b"\0\1"),)
    protocol_type: str = CONSUMER
    session_ms: int = SESSION_MS
    rebalance_ms: int = REBALANCE_MS
    join_version: int = PREFERRED
    member_id: str = ""
    generation: int = -1
    leader_id: str = ""
    protocol_name: str | None = None
    _pending: Pending | None = field(default=None, repr=False)

    def join_request(self, **more: Any) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "session_timeout": self.session_ms,
            "rebalance_timeout": self.rebalance_ms,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "protocol_type": self.protocol_type,
            "protocols": [{"name": name, "metadata": data} for name, data in self.protocols],
            "reason": "",
            **more,
        }

    def begin_join(self, label: str | None = None) -> None:
        """Send a join. A member that gets an id joins again with it, and that is recorded."""
        needs_id = self.join_version >= 4 and not self.member_id and self.instance_id is None
        if needs_id:
            tree = self._exchange(
                "join_group", self.join_request(), None if label is None else f"{label}, id"
            )
            if tree["error_code"] != REQUIRED:
                raise SetupError(f"{self.name} was not asked to join with an id: {tree}")
            self.member_id = tree["member_id"]
        self._begin("join_group", self.join_request())

    def end_join(self, label: str | None = None) -> Tree:
        tree = self._end(label)
        self.member_id, self.generation = tree["member_id"], tree["generation_id"]
        self.leader_id, self.protocol_name = tree["leader"], tree["protocol_name"]
        return tree

    def join(self, label: str | None = None) -> Tree:
        self.begin_join(label)
        return self.end_join(label)

    def sync_request(self, assignments: dict[str, bytes] | None = None, **more: Any) -> dict[str, Any]:
        return {
            **self.identity(),
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol_name,
            "assignments": [{"member_id": m, "assignment": data} for m, data in (assignments or {}).items()],
            **more,
        }

    def begin_sync(self, assignments: dict[str, bytes] | None = None) -> None:
        self._begin("sync_group", self.sync_request(assignments))

    def end_sync(self, label: str | None = None) -> Tree:
        return self._end(label)

    def end_unanswered(self, label: str) -> None:
        """Give up a request that Kafka is known to leave unanswered."""
        self._end(label, SILENT_SECONDS)

    def identity(self) -> dict[str, Any]:
        """The fields of a heartbeat, with which every later request starts."""
        return {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }

    def heartbeat(self, label: str | None = None) -> Tree:
        return self._exchange("heartbeat", self.identity(), label)

    def leave(self, label: str | None = None) -> Tree:
        who = {"member_id": self.member_id, "group_instance_id": self.instance_id, "reason": "told to"}
        if self._version("leave_group") < BATCHED_LEAVE_SINCE:
            return self._exchange("leave_group", {"group_id": self.group, "member_id": self.member_id}, label)
        return self._exchange("leave_group", {"group_id": self.group, "members": [who]}, label)

    def _version(self, api: str) -> int:
        if api == self.script.api:
            return self.script.version
        return self.join_version if api == "join_group" else COMPANIONS[self.join_version][api]

    def _exchange(self, api: str, request: dict[str, Any], label: str | None) -> Tree:
        self._begin(api, request)
        return self._end(label)

    def _begin(self, api: str, request: dict[str, Any]) -> None:
        self._pending = self.script.send(request, over=self.name, api=api, version=self._version(api))

    def _end(self, label: str | None, timeout_seconds: float = REPLY_SECONDS) -> Tree:
        if self._pending is None:
            raise SetupError(f"{self.name} waits for nothing")
        pending, self._pending = self._pending, None
        return self.script.receive(pending, label, timeout_seconds)


def new_group(s: Script, label: str = "g") -> str:
    """A group's name, once its coordinator answers; Kafka makes the topic of the groups on first use."""
    group = s.name(label)
    look = {"key": group, "key_type": 0}
    s.await_answer(
        lambda: s.tell(look, api="find_coordinator", version=1), lambda tree: bool(tree["error_code"] == OK)
    )
    s.await_answer(
        lambda: s.tell({"groups": [group]}, api="describe_groups", version=0),
        lambda tree: bool(tree["groups"][0]["error_code"] == OK),
    )
    return group


def await_members(s: Script, group: str, count: int) -> None:
    """Until the group has so many: a join that waits shows only here, and the first to join leads."""
    s.await_answer(
        lambda: s.tell({"groups": [group]}, api="describe_groups", version=0),
        lambda tree: bool(len(tree["groups"][0]["members"]) == count),
    )


def await_state(s: Script, group: str, state: str) -> None:
    s.await_answer(
        lambda: s.tell({"groups": [group]}, api="describe_groups", version=0),
        lambda tree: bool(tree["groups"][0]["group_state"] == state),
    )


def members(s: Script, group: str, *names: str, **settings: Any) -> list[Member]:
    settings.setdefault("join_version", s.version if s.api == "join_group" else PREFERRED)
    return [Member(s, group, name, **settings) for name in names]


def stabilise(group_members: Sequence[Member], label: str | None = None) -> Member:
    """Everybody joins and syncs; each is assigned its own name. Returns the leader."""
    for count, member in enumerate(group_members, 1):
        member.begin_join(label and f"{label}: {member.name} joins")
        await_members(member.script, member.group, count)
    # The leader last, because its response names all others: ids are numbered in the order in which they are seen.
    for member in reversed(group_members):
        member.end_join(label and f"{label}: {member.name} joined")
    return sync_all(group_members, label)


def sync_all(group_members: Sequence[Member], label: str | None = None) -> Member:
    leader = next(m for m in group_members if m.member_id == m.leader_id)
    for member in group_members:
        if member is not leader:
            member.begin_sync()
    leader.begin_sync({member.member_id: member.name.encode() for member in group_members})
    for member in group_members:
        tree = member.end_sync(label and f"{label}: {member.name} synced")
        if tree["error_code"] != OK:
            raise SetupError(f"{member.name} did not get into the group: {tree}")
    return leader
