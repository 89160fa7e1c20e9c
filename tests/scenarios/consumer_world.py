"""A groups machine that knows the consumer protocol, and consumers that behave as KIP-848 requires.

A `Consumer` holds what the coordinator gave it. It gives partitions up as soon as a response revokes them, says so in
its next heartbeat, and drops everything when it is fenced. A response can get lost on its way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.scenarios.groups_world import World
from tidemill.coordinator.consumer_groups.embedded import (
    by_topic_id,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from tidemill.coordinator.consumer_groups.machine import ConsumerGroup
from tidemill.coordinator.consumer_groups.protocol import ConsumerGroupProtocol
from tidemill.coordinator.groups.group import Environment, TopicsChanged
from tidemill.coordinator.groups.machine import Groups
from tidemill.errors import ErrorCode
from tidemill.protocol.api.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatTopicPartitions,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidemill.protocol.schema import encode
from tidemill.protocol.wire import INT16
from tidemill.types import TopicId

Owned = set[tuple[TopicId, int]]

_FENCED = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}


@dataclass
class ConsumerWorld(World):
    group_configs: dict[str, dict[str, str]] = field(default_factory=dict)

    def _new_machine(self) -> Groups:
        environment = Environment(self.config, self.topics, self._new_member_id)
        environment.group_configs = lambda group_id: self.group_configs.get(group_id, {})
        return Groups(environment, ConsumerGroupProtocol)

    def _new_member_id(self, prefix: str | None) -> str:
        return super()._new_member_id(prefix or "new")

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: str = "client", api_version: int = 1
    ) -> ConsumerGroupHeartbeatResponse:
        token = self.ask(client, request, api_version)
        assert token not in self.asked, "a heartbeat never waits"
        index = next(index for index, (asked, _) in enumerate(self.answered) if asked.request is request)
        response = self.answered.pop(index)[1]
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        return response

    def group(self, group_id: str = "g") -> ConsumerGroup:
        group = self.groups.groups[group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    def grow(self, topic: str, partitions: int) -> None:
        self.topics.set_partitions(topic, partitions)
        self.tell(TopicsChanged(names=frozenset({topic})))

    def shrink(self, topic: str, partitions: int) -> None:
        """The topic loses the partitions from that number on."""
        gone = frozenset(range(partitions, self.topics.partitions_of(topic) or 0))
        self.topics.set_partitions(topic, partitions)
        self.tell(TopicsChanged(names=frozenset({topic}), removed={topic: gone}))

    def drop(self, topic: str) -> None:
        self.tell(TopicsChanged(deleted={topic: self.topics.delete(topic)}))


def to_owned(response: ConsumerGroupHeartbeatResponse) -> Owned | None:
    if response.assignment is None:
        return None
    return {
        (TopicId(each.topic_id), partition)
        for each in response.assignment.topic_partitions
        for partition in each.partitions
    }


def to_topic_partitions(owned: Owned) -> list[ConsumerGroupHeartbeatTopicPartitions]:
    topics: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(owned):
        topics.setdefault(topic_id, []).append(partition)
    return [
        ConsumerGroupHeartbeatTopicPartitions(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in topics.items()
    ]


@dataclass
class Consumer:
    world: ConsumerWorld
    member_id: str
    topics: list[str]
    group_id: str = "g"
    instance_id: str | None = None
    regex: str | None = None
    assignor: str | None = None
    rebalance_timeout_ms: int = 300_000
    epoch: int = 0
    owned: Owned = field(default_factory=set)
    heard_at_ms: int = 0
    # It does not know the coordinator's state, so it sends all fields and requests a full response.
    is_unsure: bool = False

    def heartbeat(self, *, full: bool = False, loses_response: bool = False) -> ErrorCode:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            topic_partitions=to_topic_partitions(self.owned),
        )
        if full or self.is_unsure or self.epoch == 0:
            request.rebalance_timeout_ms = self.rebalance_timeout_ms
            request.subscribed_topic_names = list(self.topics)
            request.subscribed_topic_regex = self.regex
            request.server_assignor = self.assignor
        response = self.world.heartbeat(request, self.member_id)
        code = ErrorCode(response.error_code)
        self.is_unsure = loses_response or code is not ErrorCode.NONE
        if code in _FENCED:
            # Also when the answer is lost: the member that the coordinator knew is gone.
            self.owned, self.epoch = set(), 0
        elif code is ErrorCode.NONE:
            self.heard_at_ms = self.world.steady_ms
            if not loses_response:
                self.epoch = response.member_epoch
                assigned = to_owned(response)
                self.owned = self.owned if assigned is None else assigned
        return code

    def leave(self) -> ErrorCode:
        """Leave for good. A static member announces that it will return."""
        epoch = -1 if self.instance_id is None else -2
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
        )
        code = ErrorCode(self.world.heartbeat(request, self.member_id).error_code)
        if code is ErrorCode.NONE or code in _FENCED:
            self.owned, self.epoch = set(), 0
        return code


@dataclass
class ClassicConsumer:
    """A consumer of the classic protocol with an eager assignor: it gives up everything before it joins again."""

    world: ConsumerWorld
    name: str
    topics: list[str]
    group_id: str = "g"
    member_id: str = ""
    generation: int = -1
    owned: Owned = field(default_factory=set)
    heard_at_ms: int = 0
    # The next step: join, sync, heartbeat, or wait for the response to one of them.
    state: str = "join"
    _members: list[JoinGroupResponseMember] = field(default_factory=list)

    def step(self) -> None:
        if self.state == "join":
            self.owned = set()
            metadata = INT16.pack(1) + encode(ConsumerProtocolSubscription(topics=self.topics), 1)
            self._ask(
                JoinGroupRequest(
                    group_id=self.group_id,
                    session_timeout_ms=45_000,
                    rebalance_timeout_ms=60_000,
                    member_id=self.member_id,
                    protocol_type="consumer",
                    protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
                )
            )
        elif self.state == "sync":
            self._ask(
                SyncGroupRequest(
                    group_id=self.group_id,
                    generation_id=self.generation,
                    member_id=self.member_id,
                    protocol_type="consumer",
                    protocol_name="range",
                    assignments=self._assign(),
                )
            )
        elif self.state == "heartbeat":
            self._ask(
                HeartbeatRequest(
                    group_id=self.group_id, generation_id=self.generation, member_id=self.member_id
                )
            )

    def _ask(self, request: JoinGroupRequest | SyncGroupRequest | HeartbeatRequest) -> None:
        self.state = "wait"
        self.world.ask(self.name, request)

    def _assign(self) -> list[SyncGroupRequestAssignment]:
        """As the leader, assign each partition to one of its topic's subscribers, in turn."""
        topics = self.world.topics
        held: dict[str, dict[TopicId, list[int]]] = {each.member_id: {} for each in self._members}
        for name in sorted(topics.names()):
            subscribers = [
                each.member_id for each in self._members if name in decode_subscription(each.metadata).topics
            ]
            topic_id = topics.id_of(name)
            for partition in range(topics.partitions_of(name) or 0):
                if subscribers and topic_id is not None:
                    member_id = subscribers[partition % len(subscribers)]
                    held[member_id].setdefault(topic_id, []).append(partition)
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(owned, topics, 1))
            for member_id, owned in held.items()
        ]

    def hear(self, response: object) -> None:
        assert isinstance(response, JoinGroupResponse | SyncGroupResponse | HeartbeatResponse)
        code = ErrorCode(response.error_code)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.owned, self.state = set(), "join"
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
        elif code is not ErrorCode.NONE:
            self.state = "join"
            if isinstance(response, JoinGroupResponse) and code is ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id
        elif isinstance(response, JoinGroupResponse):
            self.member_id, self.generation = response.member_id, response.generation_id
            self._members = list(response.members)
            self.state = "sync"
        elif isinstance(response, SyncGroupResponse):
            assigned = decode_assignment(response.assignment).assigned_partitions
            by_topic = by_topic_id(assigned, self.world.topics)
            self.owned = {(topic_id, p) for topic_id, partitions in by_topic.items() for p in partitions}
            self.state = "heartbeat"
        else:
            self.state = "heartbeat"
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self.heard_at_ms = self.world.steady_ms
