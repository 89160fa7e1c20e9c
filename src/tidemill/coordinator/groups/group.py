"""What groups of all kinds have in common, and what they stand on.

A `Group` is one entry of the registry in groups.py. Its kind (classic.py, consumer.py) owns its members and its
rebalances; offsets.py asks it who may commit, fetch and expire offsets; groups.py asks it what to list and when it may be
deleted. `replay` alone changes what is replicated: everything else a group remembers (timers, requests that
wait, joins under way) is soft and is lost when the coordinator moves.

`Environment` is what every group of a shard shares: settings, the cluster's topics, timers, new ids, events. It
has no clock; `steady_ms` comes with every call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from tidemill import machine
from tidemill.config import GroupsConfig
from tidemill.coordinator.records import Record
from tidemill.coordinator.shard import Caller
from tidemill.coordinator.timers import Timers
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.groups import (
    ConsumerGroupDescribeDescribedGroup,
    ConsumerGroupHeartbeatRequest,
    DescribeGroupsDescribedGroup,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from tidemill.protocol.schema import Request
from tidemill.types import TopicId

if TYPE_CHECKING:
    Decision = machine.Decision[Record, Any]
else:  # Calling a subscripted class costs twice what calling the class does.
    Decision = machine.Decision
Answer = machine.Answer

# A group remembers this many of its last rebalances.
EVENTS_PER_GROUP_MAX = 50
NO_MEMBER_ID = ""
CONSUMER_PROTOCOL_TYPE = "consumer"


class GroupType(Enum):
    """The values are the names in ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class Topics(Protocol):
    """What groups may know of the cluster's topics."""

    def partitions_of(self, name: str) -> int | None:
        """The number of partitions, None when there is no such topic."""

    def id_of(self, name: str) -> TopicId | None: ...

    def name_of(self, topic_id: TopicId) -> str | None: ...

    def names(self) -> Iterable[str]: ...


@dataclass(frozen=True, slots=True)
class GroupCall:
    """A request as the shard hands it to the groups machine."""

    request: Request
    caller: Caller


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """The cluster's metadata changed: topics were created or grew, or deleted (then with the id they had)."""

    names: frozenset[str] = frozenset()
    deleted: Mapping[str, TopicId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RebalanceEvent:
    """Why a group's partitions were handed out anew. `generation` is the group epoch in a consumer group."""

    group_id: str
    generation: int
    at_ms: int
    cause: str
    members_before: int
    members_after: int

    def __str__(self) -> str:
        return (
            f"group {self.group_id} rebalances to generation {self.generation} "
            f"({self.members_before} -> {self.members_after} members): {self.cause}"
        )


class Environment:
    """What the groups of one shard share."""

    def __init__(
        self, config: GroupsConfig, topics: Topics, new_member_id: Callable[[str | None], str]
    ) -> None:
        """`new_member_id(prefix)` gives `prefix` something unique, with a dash between; or that alone for None."""
        self.config = config
        self.topics = topics
        self.new_member_id = new_member_id
        self.timers: Timers[Decision | None] = Timers()
        # What was set for a group by name (ConfigResource GROUP), as text; the shell puts its view here.
        self.group_configs: Callable[[str], Mapping[str, str]] = lambda _group_id: {}
        self._events: dict[str, deque[RebalanceEvent]] = {}

    def record_event(self, event: RebalanceEvent) -> RebalanceEvent:
        """Keeps the event for `events_of`; the caller also returns it as an effect of its decision."""
        self._events.setdefault(event.group_id, deque(maxlen=EVENTS_PER_GROUP_MAX)).append(event)
        return event

    def events_of(self, group_id: str) -> Sequence[RebalanceEvent]:
        """The last rebalances, oldest first."""
        return tuple(self._events.get(group_id, ()))

    def forget_events(self, group_id: str) -> None:
        self._events.pop(group_id, None)


@dataclass(frozen=True, slots=True)
class Committer:
    """Who a commit of offsets says it comes from."""

    member_id: str
    instance_id: str | None
    # The generation of a classic group, the member epoch of a consumer group; -1 for neither.
    generation_or_epoch: int
    is_transactional: bool
    api_version: int

    @property
    def is_simple(self) -> bool:
        """A consumer that manages its partitions itself and uses the group only to store offsets."""
        return self.generation_or_epoch < 0


class Group(ABC):
    """One group of any kind."""

    type: GroupType

    def __init__(self, group_id: str, environment: Environment) -> None:
        self.group_id = group_id
        self.environment = environment

    @property
    @abstractmethod
    def state(self) -> str:
        """As ListGroups names it."""

    @property
    @abstractmethod
    def protocol_type(self) -> str: ...

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Without members."""

    @abstractmethod
    def check_offset_commit(self, committer: Committer) -> None:
        """Raises ApiError when the committer may not commit."""

    def check_offset_commit_partition(
        self, _member_id: str, _epoch: int, _topic_id: TopicId | None, _partition: int
    ) -> ErrorCode:
        """What a committer that `check_offset_commit` let pass may not commit after all."""
        return ErrorCode.NONE

    @abstractmethod
    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raises ApiError for a member of another epoch; an admin tool fetches with None and -1."""

    @abstractmethod
    def check_offset_delete(self) -> None:
        """Raises ApiError when no offset of the group may be deleted in its present state."""

    @abstractmethod
    def subscribes_to(self, topic: str) -> bool:
        """Whether members are known to consume the topic: its offsets are neither deleted nor expired."""

    @abstractmethod
    def offset_expires_from_ms(self, commit_timestamp_ms: int) -> int | None:
        """When the retention of an offset begins; None while it may not expire at all."""

    def check_delete(self) -> None:
        """Raises ApiError when the group may not be deleted."""
        if not self.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    @abstractmethod
    def deletion_records(self) -> list[Record]:
        """The tombstones that remove the group (not its offsets)."""

    @abstractmethod
    def cancel_timers(self) -> None: ...

    @abstractmethod
    def start_timers(self, steady_ms: int) -> None:
        """The group came into being by a replay (a load, a conversion): every member gets a fresh session."""

    def waiting_tokens(self) -> list[int]:
        """The requests that wait in this group."""
        return []

    @abstractmethod
    def describe(self) -> DescribeGroupsDescribedGroup | None:
        """For DescribeGroups; None when the kind is described by an API of its own."""

    @abstractmethod
    def replicated_state(self) -> object:
        """All that `replay` built, comparable: live and replayed groups are equal in it."""

    @abstractmethod
    def check_invariants(self) -> None:
        """Raises AssertionError when the group contradicts itself."""


class Registry(Protocol):
    """The groups of a shard, as a kind of group sees them."""

    environment: Environment
    groups: dict[str, Group]

    def add(self, group: Group) -> None:
        """A replay brought the group into being; its `start_timers` is called before the next decision."""

    def forget(self, group: Group) -> None:
        """A replay ended the group."""


class ConsumerProtocol(Protocol):
    """What consumer.py does for groups.py; it stands on a `Registry`.

    The classic methods are for members that speak the classic protocol in a consumer group (online migration);
    groups.py calls them for groups of type CONSUMER only (an empty one that a classic member joins is theirs to
    convert). A `heartbeat` may name a classic group: then it is converted, or refused.
    """

    # The key messages whose records belong to consumer groups.
    record_keys: frozenset[type]

    def replay(self, record: Record) -> None: ...

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, steady_ms: int
    ) -> Decision: ...

    def describe(self, group_id: str) -> ConsumerGroupDescribeDescribedGroup: ...

    def classic_join(
        self, group: Group, request: JoinGroupRequest, caller: Caller, token: int, steady_ms: int
    ) -> Decision: ...

    def classic_sync(self, group: Group, request: SyncGroupRequest, steady_ms: int) -> Decision: ...

    def classic_heartbeat(self, group: Group, request: HeartbeatRequest, steady_ms: int) -> Decision: ...

    def classic_leave(self, group: Group, request: LeaveGroupRequest, steady_ms: int) -> Decision: ...

    def topics_changed(self, change: TopicsChanged, steady_ms: int) -> Decision: ...
