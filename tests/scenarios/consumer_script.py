"""The commands of consumer group transcripts, beside those of groups_script.py.

`join848 c1 group=g topics=a,b` joins, `hb c1` is a heartbeat in which only what is named has changed, `leave848` and
`away` end a membership for good or for now. A client reports the partitions that it holds in every heartbeat, unless
`owned=` says otherwise (`owned=none` leaves them out); it takes what it is given, unless `lost=yes` drops the response.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.scenarios.consumer_world import ConsumerWorld, Owned, to_owned, to_topic_partitions
from tests.scenarios.groups_script import Client, Script, duration_ms, show_answer, show_record, show_written
from tests.scenarios.groups_world import Asked
from tests.scenarios.transcripts import Command
from tidemill.config import GroupsConfig
from tidemill.coordinator.consumer_groups.embedded import decode_assignment, encode_assignment
from tidemill.coordinator.consumer_groups.member import MemberState
from tidemill.coordinator.records import decode
from tidemill.errors import ErrorCode
from tidemill.protocol.api.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
)
from tidemill.protocol.api.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tidemill.types import TopicId


class Consumer848(Client):
    def __init__(self) -> None:
        super().__init__()
        self.owned: Owned = set()
        self.loses_response = False


class ConsumerScript(Script):
    def __init__(self) -> None:
        super().__init__()
        self.world: ConsumerWorld = ConsumerWorld(steady_ms=1)

    def do_config(self, command: Command) -> None:
        values: dict[str, Any] = {}
        for name, text in command.options.items():
            values[name.replace(".", "_")] = int(text) if text.isdecimal() else text
        self.world = ConsumerWorld(config=GroupsConfig(**values), steady_ms=1)

    def do_group_config(self, command: Command) -> None:
        self.world.group_configs[command.words[0]] = dict(command.options)

    def do_grow(self, command: Command) -> None:
        self.world.grow(command.words[0], int(command.options["partitions"]))

    # ConsumerGroupHeartbeat

    def _consumer(self, command: Command) -> Consumer848:
        name = command.words[0]
        if name not in self.clients:
            self.clients[name] = Consumer848()
            self.clients[name].member_id = name
        client = self._client(command)
        assert isinstance(client, Consumer848)
        client.loses_response = command.options.get("lost") == "yes"
        return client

    def do_join848(self, command: Command) -> list[str]:
        client = self._consumer(command)
        client.owned = set()
        command.options.setdefault("epoch", "0")
        command.options.setdefault("rebalance", "300s")
        if "regex" not in command.options:
            command.options.setdefault("topics", "orders")
        return self.do_hb(command)

    def do_hb(self, command: Command) -> list[str]:
        client = self._consumer(command)
        options = command.options
        request = ConsumerGroupHeartbeatRequest(
            group_id=client.group,
            member_id=client.member_id,
            member_epoch=int(options.get("epoch", client.generation)),
            instance_id=client.instance,
            rack_id=options.get("rack"),
            rebalance_timeout_ms=duration_ms(options["rebalance"]) if "rebalance" in options else -1,
            subscribed_topic_regex=options.get("regex"),
            server_assignor=options.get("assignor"),
            topic_partitions=to_topic_partitions(client.owned),
        )
        if "topics" in options:
            request.subscribed_topic_names = [name for name in options["topics"].split(",") if name]
        if options.get("owned") == "none":
            request.topic_partitions = None
        elif "owned" in options:
            request.topic_partitions = to_topic_partitions(self._parse_owned(options["owned"]))
        options.setdefault("v", "1")
        return self._ask(command, request)

    def _parse_owned(self, text: str) -> Owned:
        """`orders-0,orders-3`"""
        owned: Owned = set()
        for each in filter(None, text.split(",")):
            topic, _, partition = each.rpartition("-")
            owned.add((self.world.topics.id_of(topic) or TopicId(b"?" * 16), int(partition)))
        return owned

    def do_sync(self, command: Command) -> list[str]:
        """As in groups_script.py, but a leader assigns partitions: `assign=c1:orders-0,orders-1;c2:orders-2`."""
        client = self._client(command)
        request = SyncGroupRequest(
            group_id=client.group,
            generation_id=int(command.options.get("generation", client.generation)),
            member_id=client.member_id,
            group_instance_id=client.instance,
            protocol_type=client.protocol[0],
            protocol_name=client.protocol[1],
        )
        for part in filter(None, command.options.get("assign", "").split(";")):
            name, _, partitions = part.partition(":")
            owned: dict[TopicId, list[int]] = {}
            for topic_id, partition in sorted(self._parse_owned(partitions)):
                owned.setdefault(topic_id, []).append(partition)
            assignment = encode_assignment(owned, self.world.topics, 1)
            member_id = self.clients[name].member_id
            request.assignments.append(SyncGroupRequestAssignment(member_id=member_id, assignment=assignment))
        return self._ask(command, request)

    def do_leave848(self, command: Command) -> list[str]:
        command.options["epoch"] = "-1"
        return self.do_hb(command)

    def do_away(self, command: Command) -> list[str]:
        command.options["epoch"] = "-2"
        return self.do_hb(command)

    def do_describe848(self, command: Command) -> list[str]:
        return self._ask(
            command, ConsumerGroupDescribeRequest(group_ids=command.options["groups"].split(","))
        )

    def _ask(self, command: Command, request: Any) -> list[str]:
        if isinstance(request, ConsumerGroupHeartbeatRequest | ConsumerGroupDescribeRequest):
            version = int(command.options.get("v", "1"))
            self.world.ask(command.words[0], request, version)
            return []
        return super()._ask(command, request)

    # Output.

    def _news(self) -> list[str]:
        lines = [f"rebalance: {event}" for event in self.world.reported]
        self.world.reported.clear()
        for raw in self.world.log.records[self._records_shown :]:
            lines.append("wrote: " + show_written(raw, self._show_record))
        self._records_shown = len(self.world.log.records)
        lines += self._markers_answered()
        for asked, response in self.world.take_answers():
            self._remember(asked, response)
            lines += self._show_answer(asked, response)
        return lines

    def _remember(self, asked: Asked, response: Any) -> None:
        super()._remember(asked, response)
        client = self.clients.get(asked.client)
        if isinstance(response, ConsumerGroupHeartbeatResponse) and isinstance(client, Consumer848):
            if response.error_code or client.loses_response:
                return
            client.member_id = response.member_id or client.member_id
            client.generation = response.member_epoch
            owned = to_owned(response)
            client.owned = client.owned if owned is None else owned

    def _show_answer(self, asked: Asked, response: Any) -> list[str]:
        head = f"{asked.client} "
        if isinstance(response, ConsumerGroupHeartbeatResponse):
            return [head + "hb: " + self._show_heartbeat(response)]
        if isinstance(asked.request, ConsumerGroupDescribeRequest):
            return [
                f"{head}describe: {line}" for group in response.groups for line in self._show_group(group)
            ]
        if isinstance(asked.request, SyncGroupRequest) and response.assignment:
            partitions = decode_assignment(response.assignment).assigned_partitions
            held = [f"{each.topic}-{index}" for each in partitions for index in each.partitions]
            return [f"{head}sync: ok, assigned {', '.join(held) or '(nothing)'}"]
        return show_answer(asked, response)

    def _show_heartbeat(self, response: ConsumerGroupHeartbeatResponse) -> str:
        if response.error_code:
            return f"{ErrorCode(response.error_code).name} ({response.error_message})"
        text = f"{response.member_id} epoch {response.member_epoch}"
        if response.heartbeat_interval_ms not in (0, 5_000):
            text += f", next in {response.heartbeat_interval_ms} ms"
        if response.assignment is not None:
            text += f", assigned {self._show_partitions(response.assignment.topic_partitions)}"
        return text

    def _show_partitions(self, topics: Iterable[Any]) -> str:
        shown = [
            f"{self.world.topics.name_of(each.topic_id) or '(deleted)'}-{partition}"
            for each in topics
            for partition in each.partitions
        ]
        return ", ".join(shown) or "(nothing)"

    def _show_group(self, group: Any) -> list[str]:
        if group.error_code:
            return [f"{group.group_id} {ErrorCode(group.error_code).name} ({group.error_message})"]
        lines = [
            f"{group.group_id} {group.group_state}, epoch {group.group_epoch}, "
            f"assigned for {group.assignment_epoch} by {group.assignor_name}"
        ]
        for member in group.members:
            kind = "classic" if member.member_type == 0 else "consumer"
            static = f" ({member.instance_id})" if member.instance_id else ""
            subscribed = ",".join(member.subscribed_topic_names)
            if member.subscribed_topic_regex:
                subscribed += f" `{member.subscribed_topic_regex}`"
            lines.append(
                f"  {member.member_id}{static} {kind} epoch {member.member_epoch}, subscribed {subscribed}, "
                f"holds {self._show_partitions(member.assignment.topic_partitions)}, "
                f"target {self._show_partitions(member.target_assignment.topic_partitions)}"
            )
        return lines

    def _show_record(self, key: bytes, value: bytes | None) -> str:
        record = decode(key, value)
        assert record is not None
        if isinstance(record.key, OffsetCommitKey):
            return show_record(key, value)
        if isinstance(record.key, GroupMetadataKey):
            return self._show_classic_record(record.key, record.value)
        what = type(record.key).__name__.removeprefix("ConsumerGroup").removesuffix("Key")
        names = [getattr(record.key, name, "") for name in ("member_id", "regular_expression")]
        head = " ".join(filter(None, [what, record.key.group_id, *names]))  # type: ignore[attr-defined]
        return f"{head} {'deleted' if record.value is None else self._show_value(record.value)}"

    def _show_classic_record(self, key: GroupMetadataKey, value: Any) -> str:
        if value is None:
            return f"classic group {key.group} deleted"
        assert isinstance(value, GroupMetadataValue)
        members = []
        for each in value.members:
            held = [
                f"{topic.topic}-{partition}"
                for topic in decode_assignment(each.assignment).assigned_partitions
                for partition in topic.partitions
            ]
            members.append(f"{each.member_id}={','.join(held) or '(nothing)'}")
        return (
            f"classic group {key.group} generation {value.generation}: {'; '.join(members) or 'no members'}"
        )

    def _show_value(self, value: Any) -> str:
        if isinstance(value, ConsumerGroupMetadataValue):
            return f"epoch {value.epoch}"
        if isinstance(value, ConsumerGroupMemberMetadataValue):
            regex = f" `{value.subscribed_topic_regex}`" if value.subscribed_topic_regex else ""
            kind = "" if value.classic_member_metadata is None else ", classic"
            return f"subscribed {','.join(value.subscribed_topic_names) or '(no names)'}{regex}{kind}"
        if isinstance(value, ConsumerGroupTargetAssignmentMetadataValue):
            return f"epoch {value.assignment_epoch} at {value.assignment_timestamp} ms"
        if isinstance(value, ConsumerGroupTargetAssignmentMemberValue):
            return self._show_partitions(value.topic_partitions)
        if isinstance(value, ConsumerGroupRegularExpressionValue):
            return f"matches {','.join(value.topics) or '(nothing)'}"
        assert isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
        text = f"epoch {value.member_epoch} {MemberState(value.state).name}, holds "
        text += self._show_partitions(value.assigned_partitions)
        if value.partitions_pending_revocation:
            text += f", gives up {self._show_partitions(value.partitions_pending_revocation)}"
        return text
