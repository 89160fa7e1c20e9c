"""The commands of group transcripts, and how answers, records and rebalances read in them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from tests.scenarios.groups_world import Asked, World, Written
from tests.scenarios.transcripts import Command
from tidemill.config import GroupsConfig
from tidemill.coordinator.groups.group import TopicsChanged
from tidemill.coordinator.records import decode
from tidemill.errors import ErrorCode
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.api.coordinator_records import GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from tidemill.protocol.api.groups import (
    ConsumerProtocolSubscription,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tidemill.protocol.api.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidemill.protocol.schema import encode
from tidemill.types import TopicId, uuid_text


class Client:
    def __init__(self) -> None:
        self.group = ""
        self.member_id = ""
        self.generation = -1
        self.instance: str | None = None
        self.protocol: tuple[str | None, str | None] = ("consumer", "range")


def duration_ms(text: str) -> int:
    for unit, factor in (("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)):
        if text.endswith(unit) and text[: -len(unit)].isdecimal():
            return int(text[: -len(unit)]) * factor
    return int(text)


def subscription(topics: list[str]) -> bytes:
    return struct.pack(">h", 1) + encode(ConsumerProtocolSubscription(topics=topics), 1)


class Script:
    """Executes commands on a world and prints everything that each one causes."""

    def __init__(self) -> None:
        self.world = World()
        self.clients: dict[str, Client] = {}
        self._records_shown = 0

    def execute(self, command: Command) -> list[str]:
        method: Callable[[Command], list[str] | None] = getattr(self, "do_" + command.name.replace("-", "_"))
        return [*(method(command) or []), *self._news()]

    def _news(self) -> list[str]:
        lines = [f"rebalance: {event}" for event in self.world.reported]
        self.world.reported.clear()
        for raw in self.world.log.records[self._records_shown :]:
            lines.append("wrote: " + show_written(raw, show_record))
        self._records_shown = len(self.world.log.records)
        lines += self._markers_answered()
        for asked, response in self.world.take_answers():
            self._remember(asked, response)
            lines += show_answer(asked, response)
        return lines

    def _markers_answered(self) -> list[str]:
        lines = [f"marker: {_error(code)}" for code in self.world.ended]
        self.world.ended.clear()
        return lines

    def _remember(self, asked: Asked, response: Any) -> None:
        if isinstance(response, JoinGroupResponse):
            assert isinstance(asked.request, JoinGroupRequest)
            client = self.clients[asked.client]
            if response.member_id:
                client.member_id = response.member_id
            if not response.error_code:
                client.generation = response.generation_id
                if asked.api_version >= 7:
                    client.protocol = (response.protocol_type, response.protocol_name)
                else:
                    client.protocol = (asked.request.protocol_type, response.protocol_name)

    def _client(self, command: Command) -> Client:
        client = self.clients.setdefault(command.words[0], Client())
        client.group = command.options.get("group", client.group)
        client.instance = command.options.get("instance", client.instance)
        client.member_id = command.options.get("member", client.member_id)
        return client

    def _ask(self, command: Command, request: Any) -> list[str]:
        version = command.options.get("v")
        name = command.words[0]
        token = self.world.ask(name, request, None if version is None else int(version))
        return [f"{name} {_verb(request)}: waits"] if token in self.world.asked else []

    # The world.

    def do_config(self, command: Command) -> None:
        values = {name.replace(".", "_"): int(text) for name, text in command.options.items()}
        assert not self.clients, "config comes first"
        self.world = World(config=GroupsConfig(**values))  # type: ignore[arg-type]

    def do_topic(self, command: Command) -> None:
        self.world.topics.create(command.words[0], int(command.options.get("partitions", "1")))

    def do_delete_topic(self, command: Command) -> None:
        name = command.words[0]
        topic_id = self.world.topics.delete(name)
        if command.options.get("told", "yes") == "yes":
            self.world.tell(TopicsChanged(deleted={name: topic_id}))

    def do_advance(self, command: Command) -> None:
        self.world.advance(duration_ms(command.words[0]))

    def do_append(self, command: Command) -> None:
        text = command.options["error"]
        self.world.log.refuse_with = None if text == "none" else ErrorCode[text]

    def do_commits(self, command: Command) -> None:
        if command.words[0] == "hold":
            self.world.holds_commits = True
        else:
            self.world.release_commits()

    def do_move(self, _command: Command) -> None:
        self.world.move_coordinator()

    def do_events(self, command: Command) -> list[str]:
        events = self.world.groups.events_of(command.words[0])
        return [f"at {event.at_ms} ms: {event}" for event in events]

    def do_state(self, command: Command) -> list[str]:
        group = self.world.groups.groups.get(command.words[0])
        return ["no such group" if group is None else group.state]

    # Membership.

    def do_join(self, command: Command) -> list[str]:
        client = self._client(command)
        topics = command.options.get("topics", "orders").split(",")
        names = [name for name in command.options.get("protocols", "range").split(",") if name]
        request = JoinGroupRequest(
            group_id=client.group,
            session_timeout_ms=duration_ms(command.options.get("session", "10s")),
            rebalance_timeout_ms=duration_ms(command.options.get("rebalance", "60s")),
            member_id=client.member_id,
            group_instance_id=client.instance,
            protocol_type=command.options.get("type", "consumer"),
            protocols=[JoinGroupRequestProtocol(name=name, metadata=subscription(topics)) for name in names],
            reason=command.options.get("reason"),
        )
        return self._ask(command, request)

    def do_sync(self, command: Command) -> list[str]:
        client = self._client(command)
        assignments = []
        for part in filter(None, command.options.get("assign", "").split(";")):
            name, assignment = part.split(":")
            member_id = self.clients[name].member_id if name in self.clients else name
            assignments.append(
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment.encode())
            )
        request = SyncGroupRequest(
            group_id=client.group,
            generation_id=int(command.options.get("generation", client.generation)),
            member_id=client.member_id,
            group_instance_id=client.instance,
            protocol_type=command.options.get("type", client.protocol[0]) or None,
            protocol_name=command.options.get("protocol", client.protocol[1]) or None,
            assignments=assignments,
        )
        return self._ask(command, request)

    def do_heartbeat(self, command: Command) -> list[str]:
        client = self._client(command)
        request = HeartbeatRequest(
            group_id=client.group,
            generation_id=int(command.options.get("generation", client.generation)),
            member_id=client.member_id,
            group_instance_id=client.instance,
        )
        return self._ask(command, request)

    def do_leave(self, command: Command) -> list[str]:
        """`leave c1`, or `leave admin group=g instances=a,b`, or `leave c1 members=x,y`."""
        client = self._client(command)
        request = LeaveGroupRequest(group_id=client.group, member_id=client.member_id)
        if "instances" in command.options:
            names = command.options["instances"].split(",")
            request.members = [MemberIdentity(group_instance_id=name) for name in names]
        elif "members" in command.options:
            names = command.options["members"].split(",")
            ids = [self.clients[name].member_id if name in self.clients else name for name in names]
            request.members = [MemberIdentity(member_id=member_id) for member_id in ids]
        else:
            request.members = [
                MemberIdentity(
                    member_id=client.member_id,
                    group_instance_id=client.instance,
                    reason=command.options.get("reason"),
                )
            ]
        return self._ask(command, request)

    # Offsets.

    def _partitions(self, command: Command) -> dict[str, dict[int, int]]:
        """`orders-0:5 orders-1:7` after the client's name; an offset may be left out."""
        partitions: dict[str, dict[int, int]] = {}
        for word in command.words[1:]:
            where, _, offset = word.partition(":")
            topic, _, index = where.rpartition("-")
            partitions.setdefault(topic, {})[int(index)] = int(offset or -1)
        return partitions

    def do_commit(self, command: Command) -> list[str]:
        client = self._client(command)
        by_id = int(command.options.get("v", "9")) >= 10
        request = OffsetCommitRequest(
            group_id=client.group,
            generation_id_or_member_epoch=int(command.options.get("generation", client.generation)),
            member_id=client.member_id,
            group_instance_id=client.instance,
            retention_time_ms=duration_ms(command.options.get("retention", "-1")),
        )
        for topic, partitions in self._partitions(command).items():
            topic_id = self.world.topics.id_of(topic) or TopicId(b"?" * 16)
            wanted = OffsetCommitRequestTopic(name="" if by_id else topic)
            if by_id:
                wanted.topic_id = topic_id
            for index, offset in partitions.items():
                wanted.partitions.append(
                    OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=int(command.options.get("epoch", "-1")),
                        committed_metadata=command.options.get("metadata"),
                    )
                )
            request.topics.append(wanted)
        command.options.setdefault("v", "9")
        return self._ask(command, request)

    def do_fetch(self, command: Command) -> list[str]:
        client = self._client(command)
        wanted = None
        if len(command.words) > 1:
            wanted = [
                OffsetFetchRequestTopics(name=topic, partition_indexes=list(partitions))
                for topic, partitions in self._partitions(command).items()
            ]
        groups = [
            OffsetFetchRequestGroup(group_id=group_id, topics=wanted) for group_id in client.group.split(",")
        ]
        command.options.setdefault("v", "9")
        require_stable = command.options.get("stable", "no") == "yes"
        if int(command.options["v"]) >= 8:
            return self._ask(command, OffsetFetchRequest(groups=groups, require_stable=require_stable))
        topics = None
        if wanted is not None:
            topics = [
                OffsetFetchRequestTopic(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in wanted
            ]
        old = OffsetFetchRequest(group_id=client.group, topics=topics, require_stable=require_stable)
        return self._ask(command, old)

    def do_txn_commit(self, command: Command) -> list[str]:
        """`txn-commit c1 orders-0:5 producer=7`: in the transaction of that producer."""
        client = self._client(command)
        request = TxnOffsetCommitRequest(
            transactional_id="t",
            group_id=client.group,
            producer_id=int(command.options["producer"]),
            producer_epoch=int(command.options.get("epoch", "0")),
            generation_id_or_member_epoch=int(command.options.get("generation", client.generation)),
            member_id=client.member_id,
            group_instance_id=client.instance,
        )
        for topic, partitions in self._partitions(command).items():
            wanted = [
                TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offset,
                    committed_metadata=command.options.get("metadata"),
                )
                for index, offset in partitions.items()
            ]
            request.topics.append(TxnOffsetCommitRequestTopic(name=topic, partitions=wanted))
        command.options.setdefault("v", "5")
        return self._ask(command, request)

    def do_end(self, command: Command) -> list[str]:
        """`end commit producer=7`, or `end abort producer=7`: the marker of the transaction."""
        end = TransactionEnd(
            producer_id=int(command.options["producer"]),
            producer_epoch=int(command.options.get("epoch", "0")),
            coordinator_epoch=0,
            is_commit=command.words[0] == "commit",
        )
        self.world.end_transaction(end)
        return [] if self.world.ended else ["marker: waits"]

    def do_delete_offsets(self, command: Command) -> list[str]:
        client = self._client(command)
        topics = [
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in partitions],
            )
            for topic, partitions in self._partitions(command).items()
        ]
        return self._ask(command, OffsetDeleteRequest(group_id=client.group, topics=topics))

    # Administration.

    def do_describe(self, command: Command) -> list[str]:
        return self._ask(command, DescribeGroupsRequest(groups=command.options["groups"].split(",")))

    def do_list(self, command: Command) -> list[str]:
        states = [state for state in command.options.get("states", "").split(",") if state]
        types = [type_ for type_ in command.options.get("types", "").split(",") if type_]
        return self._ask(command, ListGroupsRequest(states_filter=states, types_filter=types))

    def do_delete_groups(self, command: Command) -> list[str]:
        return self._ask(command, DeleteGroupsRequest(groups_names=command.options["groups"].split(",")))


def _verb(request: Any) -> str:
    names = {
        "JoinGroupRequest": "join",
        "SyncGroupRequest": "sync",
        "HeartbeatRequest": "heartbeat",
        "LeaveGroupRequest": "leave",
        "OffsetCommitRequest": "commit",
        "TxnOffsetCommitRequest": "txn-commit",
        "OffsetFetchRequest": "fetch",
        "OffsetDeleteRequest": "delete-offsets",
        "DescribeGroupsRequest": "describe",
        "ListGroupsRequest": "list",
        "DeleteGroupsRequest": "delete-groups",
    }
    return names[type(request).__name__]


def show_answer(asked: Asked, response: Any) -> list[str]:
    head = f"{asked.client} {_verb(asked.request)}: "
    return [head + line for line in _ANSWERS[_verb(asked.request)](response, asked)]


def _error(code: int) -> str:
    return "ok" if code == 0 else ErrorCode(code).name


def _show_join(response: Any, _asked: Asked) -> list[str]:
    if response.error_code:
        return [f"{_error(response.error_code)}, member {response.member_id or '(none)'}"]
    text = f"generation {response.generation_id} of {response.protocol_name}, member {response.member_id}, "
    text += f"leader {response.leader}"
    if response.members:
        names = [
            each.member_id
            if each.group_instance_id is None
            else f"{each.member_id} ({each.group_instance_id})"
            for each in response.members
        ]
        text += f", members {', '.join(names)}"
    return [text + (", skip the assignment" if response.skip_assignment else "")]


def _show_sync(response: Any, _asked: Asked) -> list[str]:
    if response.error_code:
        return [_error(response.error_code)]
    return [f"ok, assigned {response.assignment.decode() or '(nothing)'}"]


def _show_plain(response: Any, _asked: Asked) -> list[str]:
    return [_error(response.error_code)]


def _show_leave(response: Any, _asked: Asked) -> list[str]:
    if response.error_code or not response.members:
        return [_error(response.error_code)]
    return [
        f"{each.member_id or '(no id)'}{f' ({each.group_instance_id})' if each.group_instance_id else ''} "
        f"{_error(each.error_code)}"
        for each in response.members
    ]


def _show_partitions(topics: Any, show: Callable[[Any], str]) -> list[str]:
    return [
        f"{topic.name or uuid_text(topic.topic_id)}-{each.partition_index} {show(each)}"
        for topic in topics
        for each in topic.partitions
    ]


def _show_commit(response: Any, _asked: Asked) -> list[str]:
    return _show_partitions(response.topics, lambda each: _error(each.error_code)) or ["(no topics)"]


def _show_txn_commit(response: Any, _asked: Asked) -> list[str]:
    return _show_partitions(response.topics, lambda each: _error(each.error_code)) or ["(no topics)"]


def _show_fetched(each: Any) -> str:
    if each.error_code:
        return _error(each.error_code)
    text = f"{each.committed_offset}"
    if each.committed_leader_epoch != -1:
        text += f" epoch {each.committed_leader_epoch}"
    return text + (f" metadata {each.metadata}" if each.metadata else "")


def _show_fetch(response: Any, asked: Asked) -> list[str]:
    if asked.api_version < 8:
        return _show_partitions(response.topics, _show_fetched) or ["no offsets"]
    lines = []
    for group in response.groups:
        shown = _show_partitions(group.topics, _show_fetched) or [
            _error(group.error_code) if group.error_code else "no offsets"
        ]
        lines += [f"{group.group_id} {line}" for line in shown]
    return lines


def _show_delete_offsets(response: Any, _asked: Asked) -> list[str]:
    if response.error_code:
        return [_error(response.error_code)]
    return _show_partitions(response.topics, lambda each: _error(each.error_code))


def _show_describe(response: Any, _asked: Asked) -> list[str]:
    lines = []
    for group in response.groups:
        code = f", {_error(group.error_code)}" if group.error_code else ""
        lines.append(
            f"{group.group_id} {group.group_state}, type {group.protocol_type or '(none)'}, "
            f"protocol {group.protocol_data or '(none)'}{code}"
        )
        for member in group.members:
            static = f" ({member.group_instance_id})" if member.group_instance_id else ""
            lines.append(
                f"  {member.member_id}{static} of {member.client_id} at {member.client_host}, "
                f"metadata of {len(member.member_metadata)} bytes, "
                f"assigned {member.member_assignment.decode() or '(nothing)'}"
            )
    return lines


def _show_list(response: Any, _asked: Asked) -> list[str]:
    return [
        f"{group.group_id} {group.group_state}, {group.group_type}, type {group.protocol_type or '(none)'}"
        for group in response.groups
    ] or ["no groups"]


def _show_delete_groups(response: Any, _asked: Asked) -> list[str]:
    return [f"{each.group_id} {_error(each.error_code)}" for each in response.results]


_ANSWERS: dict[str, Callable[[Any, Asked], list[str]]] = {
    "join": _show_join,
    "sync": _show_sync,
    "heartbeat": _show_plain,
    "leave": _show_leave,
    "commit": _show_commit,
    "txn-commit": _show_txn_commit,
    "fetch": _show_fetch,
    "delete-offsets": _show_delete_offsets,
    "describe": _show_describe,
    "list": _show_list,
    "delete-groups": _show_delete_groups,
}


def show_written(written: Written, show: Callable[[bytes, bytes | None], str]) -> str:
    if written.end is not None:
        what = "commit" if written.end.is_commit else "abort"
        return f"{what} of producer {written.end.producer_id} epoch {written.end.producer_epoch}"
    assert written.record is not None
    shown = show(*written.record)
    if written.writer is not None:
        shown += f", pending for producer {written.writer.producer_id} epoch {written.writer.producer_epoch}"
    return shown


def show_record(key: bytes, value: bytes | None) -> str:
    record = decode(key, value)
    assert record is not None
    if isinstance(record.key, OffsetCommitKey):
        what = f"offset {record.key.group} {record.key.topic}-{record.key.partition}"
        if record.value is None:
            return what + " deleted"
        assert isinstance(record.value, OffsetCommitValue)
        return f"{what} = {record.value.offset}"
    what = f"group {record.key.group}"  # type: ignore[attr-defined]
    if record.value is None:
        return what + " deleted"
    assert isinstance(record.value, GroupMetadataValue)
    members = ", ".join(f"{m.member_id}={m.assignment.decode() or '(nothing)'}" for m in record.value.members)
    return f"{what} generation {record.value.generation}: {members or 'no members'}"
