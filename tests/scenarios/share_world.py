"""A groups machine that knows the share protocol, and share consumers that behave as KIP-932 requires.

The world stands in for the shell: it keeps what the machine wants initialised until `initialize` says how it went.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.scenarios.consumer_world import ConsumerWorld
from tidemill.config import ShareGroupsConfig
from tidemill.coordinator.consumer_groups.protocol import ConsumerGroupProtocol
from tidemill.coordinator.groups.group import Environment
from tidemill.coordinator.groups.machine import Groups
from tidemill.coordinator.share_groups.group import ShareGroup
from tidemill.coordinator.share_groups.protocol import ShareGroupProtocol
from tidemill.coordinator.share_groups.state_requests import InitializeState, StateInitialized
from tidemill.errors import ErrorCode
from tidemill.protocol.api.share import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tidemill.protocol.schema import Request
from tidemill.types import TopicId

Held = set[tuple[str, int]]

_FENCED = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}


@dataclass
class ShareWorld(ConsumerWorld):
    share_groups: ShareGroupsConfig = field(default_factory=ShareGroupsConfig)
    # What the machine has asked to initialise, in order.
    wanted: list[InitializeState] = field(default_factory=list)

    def _new_machine(self) -> Groups:
        environment = Environment(self.config, self.topics, self._new_member_id)
        environment.group_configs = lambda group_id: self.group_configs.get(group_id, {})
        return Groups(
            environment,
            ConsumerGroupProtocol,
            lambda groups: ShareGroupProtocol(groups, self.share_groups),
        )

    def _settle(self) -> None:
        super()._settle()
        reported: list[Any] = list(self.reported)
        self.wanted += [each for each in reported if isinstance(each, InitializeState)]
        self.reported[:] = [each for each in reported if not isinstance(each, InitializeState)]

    def initialize(
        self, wanted: InitializeState | None = None, fails: Callable[[TopicId, int], bool] | None = None
    ) -> None:
        """The share coordinators have answered: to one request, or to all so far."""
        answered = [wanted] if wanted is not None else self.wanted
        if wanted is None:
            self.wanted = []
        for each in answered:
            done, failed = {}, {}
            for topic_id, offsets in each.start_offsets.items():
                refused = frozenset(
                    index for index in offsets if fails is not None and fails(topic_id, index)
                )
                done[topic_id], failed[topic_id] = frozenset(offsets) - refused, refused
            self.tell(StateInitialized(each.group_id, each.state_epoch, done, failed))

    def request(self, request: Request) -> Any:
        """Returns the answer to a request that is answered at once."""
        token = self.ask("client", request)
        assert token not in self.asked, "the machine answers at once"
        return self.answered.pop()[1]

    def share_group(self, group_id: str = "g") -> ShareGroup:
        group = self.groups.groups[group_id]
        assert isinstance(group, ShareGroup)
        return group


@dataclass
class ShareConsumer:
    world: ShareWorld
    member_id: str
    topics: list[str]
    group_id: str = "g"
    epoch: int = 0
    held: Held = field(default_factory=set)
    last: ShareGroupHeartbeatResponse = field(default_factory=ShareGroupHeartbeatResponse)

    def heartbeat(self, *, full: bool = False, loses_response: bool = False) -> ErrorCode:
        request = ShareGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=self.epoch
        )
        if full or self.epoch == 0:
            request.subscribed_topic_names = list(self.topics)
        return self.send(request, loses_response=loses_response)

    def leave(self) -> ErrorCode:
        return self.send(
            ShareGroupHeartbeatRequest(group_id=self.group_id, member_id=self.member_id, member_epoch=-1)
        )

    def send(self, request: ShareGroupHeartbeatRequest, *, loses_response: bool = False) -> ErrorCode:
        response = self.last = self.world.request(request)
        code = ErrorCode(response.error_code)
        if code in _FENCED or request.member_epoch == -1:
            self.epoch, self.held = 0, set()
        elif code is ErrorCode.NONE and not loses_response:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.held = {
                    (self.world.topics.name_of(TopicId(each.topic_id)) or "?", partition)
                    for each in response.assignment.topic_partitions
                    for partition in each.partitions
                }
        return code
