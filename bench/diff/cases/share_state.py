"""The share coordinator's APIs as another broker sends them: the life of a state, its fences, and bad requests."""

from __future__ import annotations

import base64
import time
from typing import Any
from uuid import UUID

from bench.diff.messages import Tree
from bench.diff.script import Script, Topic, case

SHARE = 2
FIND_VERSION = 6
CREATION_SECONDS_MAX = 30.0
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
UNKNOWN_TOPIC = UUID(int=77)


class State:
    """The state of one share group's partitions of one topic."""

    def __init__(self, s: Script, partitions: int = 2) -> None:
        self.s = s
        self.topic: Topic = s.topic("t", partitions)
        self.group = s.name("g")
        self._await_coordinator()

    def _await_coordinator(self) -> None:
        """Kafka creates the topic of share states on first use, and loads its shards then."""
        topic_id = base64.urlsafe_b64encode(UUID(str(self.topic.id)).bytes).rstrip(b"=").decode()
        deadline = time.monotonic() + CREATION_SECONDS_MAX
        while time.monotonic() < deadline:
            keys = [f"{self.group}:{topic_id}:{index}" for index in range(2)]
            request = {"key": keys[0], "key_type": SHARE, "coordinator_keys": keys}
            found = self.s.tell(request, api="find_coordinator", version=FIND_VERSION)
            if _codes(found, "coordinators") == {"NONE(0)"}:
                summary = self.s.tell(
                    self.request({"partition": 0, "leader_epoch": 0}, {"partition": 1, "leader_epoch": 0}),
                    api="read_share_group_state_summary",
                    version=0,
                )
                results = summary.get("results", []) if isinstance(summary, dict) else []
                if results and _codes(results[0], "partitions") == {"NONE(0)"}:
                    return
            time.sleep(0.1)

    def request(self, *partitions: dict[str, Any], **more: Any) -> dict[str, Any]:
        topics = [{"topic_id": self.topic.id, "partitions": list(partitions)}]
        return {"group_id": self.group, "topics": topics, **more}

    def initialize(self, label: str, state_epoch: int, start_offset: int, partition: int = 0) -> None:
        entry = {"partition": partition, "state_epoch": state_epoch, "start_offset": start_offset}
        self._ask(label, "initialize_share_group_state", entry)

    def read(self, label: str, leader_epoch: int, partition: int = 0) -> None:
        self._ask(label, "read_share_group_state", {"partition": partition, "leader_epoch": leader_epoch})

    def write(self, label: str, *batches: tuple[int, int, int, int], **more: Any) -> None:
        entry = {
            "partition": 0,
            "state_epoch": 1,
            "leader_epoch": 0,
            "start_offset": -1,
            "delivery_complete_count": 0,
            "state_batches": [
                {"first_offset": first, "last_offset": last, "delivery_state": state, "delivery_count": count}
                for first, last, state, count in batches
            ],
            **more,
        }
        self._ask(label, "write_share_group_state", entry)

    def summary(self, label: str, partition: int = 0) -> None:
        self._ask(label, "read_share_group_state_summary", {"partition": partition, "leader_epoch": 0})

    def delete(self, label: str, partition: int = 0) -> None:
        self._ask(label, "delete_share_group_state", {"partition": partition})

    def _ask(self, label: str, api: str, entry: dict[str, Any]) -> None:
        version = self.s.version if api == self.s.api else 0
        self.s.ask(label, self.request(entry), api=api, version=version)


def _codes(tree: Tree, field: str) -> set[str]:
    entries = tree.get(field, []) if isinstance(tree, dict) else []
    return {str(each["error_code"]) for each in entries}


@case("write_share_group_state")
def life_of_a_state(s: Script) -> None:
    state = State(s)
    state.summary("nothing yet")
    state.read("read, never initialised", 0)
    state.write("write, never initialised", (0, 0, ACKNOWLEDGED, 1))
    state.delete("delete, never initialised")
    state.initialize("initialised", 1, 0)
    state.read("empty", 0)
    state.write("first", (0, 4, ACKNOWLEDGED, 1), (5, 9, AVAILABLE, 1))
    state.write("overlap", (3, 6, ARCHIVED, 2))
    state.write("smaller count", (5, 5, ACKNOWLEDGED, 1))
    state.write("overlap within one", (7, 9, AVAILABLE, 2), (8, 8, ACKNOWLEDGED, 2))
    state.read("merged", 0)
    state.write("start moves", start_offset=4, delivery_complete_count=3)
    state.read("after the start", 0)
    state.summary("summary")
    state.delete("deleted")
    state.summary("gone")
    state.read("read what is gone", 0)


@case("read_share_group_state")
def fences(s: Script) -> None:
    state = State(s)
    state.initialize("initialised", 1, 5)
    state.read("leader 3", 3)
    state.read("leader 2", 2)
    state.read("no leader epoch", -1)
    state.write("write of leader 2", (5, 5, ACKNOWLEDGED, 1), leader_epoch=2)
    state.write("write of leader 3", (5, 5, ACKNOWLEDGED, 1), leader_epoch=3)
    state.write("write without epochs", (6, 6, ACKNOWLEDGED, 1), leader_epoch=-1, state_epoch=-1)
    state.write("write of leader 9", (7, 7, ACKNOWLEDGED, 1), leader_epoch=9)
    state.initialize("older state epoch", 0, 0)
    state.initialize("newer state epoch", 4, 9)
    state.write("write of the older state epoch", (9, 9, ACKNOWLEDGED, 1), leader_epoch=9)
    state.summary("summary")
    state.read("leader 9", 9)


@case("initialize_share_group_state")
def bad_requests(s: Script) -> None:
    state = State(s)
    entry = {"partition": 0, "state_epoch": 1, "start_offset": 0}
    s.ask("no group", state.request(entry, group_id=""))
    s.ask("no topics", {"group_id": state.group, "topics": []})
    s.ask("no partitions", state.request())
    state.initialize("negative partition", 1, 0, partition=-1)
    state.initialize("unknown partition", 1, 0, partition=9)
    unknown = [{"topic_id": UNKNOWN_TOPIC, "partitions": [entry]}]
    s.ask("unknown topic", {"group_id": state.group, "topics": unknown})
    state.summary("negative partition, summary", partition=-1)
    state.delete("unknown partition, delete", partition=9)
