"""The interface of groups of all kinds, and the environment that they share.

A `Group` is one entry of the registry in machine.py. Its kind (classic, consumer or share group) owns its members and its
rebalances. offsets.py calls it to check commits, fetches and expiry; machine.py calls it for listing and deletion. Only
`replay` changes the replicated state. Everything else (timers, waiting requests, joins in progress) is soft and is lost
when the coordinator moves.

The groups of a shard share one `Environment`: settings, the cluster's topics, timers, new ids, events. It has no clock;
every call passes `steady_ms`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from tidemill import machine
from tidemill.config import GroupsConfig, ShareGroupsConfig
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
from tidemill.protocol.api.share import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribedGroup,
    ShareGroupHeartbeatRequest,
)
from tidemill.protocol.schema import Request
from tidemill.types import TopicId

if TYPE_CHECKING:
    Decision = machine.Decision[Record, Any]
else:  # Calling a subscripted class costs twice what calling the class does.
    Decision = machine.Decision
Answer = machine.Answer

# The number of rebalances that are kept for each group.
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
    """The cluster's topics, as far as groups need them."""

    def partitions_of(self, name: str) -> int | None:
        """The number of partitions; None when there is no such topic."""

    def former_epoch(self, name: str, partition: int) -> int:
        """The last leader epoch of the partition that had this index before; -1 when none had."""

    def id_of(self, name: str) -> TopicId | None: ...

    def name_of(self, topic_id: TopicId) -> str | None: ...

    def names(self) -> Iterable[str]: ...


@dataclass(frozen=True, slots=True)
class GroupCall:
    """A request as the shard passes it to the groups machine."""

    request: Request
    caller: Caller


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """The cluster's metadata changed: topics were created, got partitions, or were deleted (with the id that they had).

    `removed` are the partitions that topics have lost, by topic.
    """

    names: frozenset[str] = frozenset()
    deleted: Mapping[str, TopicId] = field(default_factory=dict)
    removed: Mapping[str, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RebalanceEvent:
    """A rebalance of a group, with its cause. `generation` is the group epoch in a consumer group."""

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
    """The environment that the groups of one shard share."""

    def __init__(
        self, config: GroupsConfig, topics: Topics, new_member_id: Callable[[str | None], str]
    ) -> None:
        """`new_member_id(prefix)` returns the prefix, a dash and a unique text; only the unique text for None."""
        self.config = config
        self.topics = topics
        self.new_member_id = new_member_id
        self.timers: Timers[Decision | None] = Timers()
        # The settings of single groups (ConfigResource GROUP), as text. The shell sets this view.
        self.group_configs: Callable[[str], Mapping[str, str]] = lambda _group_id: {}
        self._events: dict[str, deque[RebalanceEvent]] = {}

    def record_event(self, event: RebalanceEvent) -> RebalanceEvent:
        """Store the event for `events_of`. The caller also returns it as an effect of its decision."""
        self._events.setdefault(event.group_id, deque(maxlen=EVENTS_PER_GROUP_MAX)).append(event)
        return event

    def events_of(self, group_id: str) -> Sequence[RebalanceEvent]:
        """The last rebalances, oldest first."""
        return tuple(self._events.get(group_id, ()))

    def forget_events(self, group_id: str) -> None:
        self._events.pop(group_id, None)


@dataclass(frozen=True, slots=True)
class Committer:
    """The sender of a commit of offsets, as the request names it."""

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
    # Whether an empty group is removed when it has no offsets left.
    may_expire = True

    def __init__(self, group_id: str, environment: Environment) -> None:
        self.group_id = group_id
        self.environment = environment

    @property
    @abstractmethod
    def state(self) -> str:
        """The name of the group's state in ListGroups."""

    @property
    @abstractmethod
    def protocol_type(self) -> str: ...

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether the group has no members."""

    @abstractmethod
    def check_offset_commit(self, committer: Committer) -> None:
        """Raise ApiError when the committer may not commit."""

    def check_offset_commit_partition(
        self, _member_id: str, _epoch: int, _topic_id: TopicId | None, _partition: int
    ) -> ErrorCode:
        """Returns the error of one partition, for a committer that `check_offset_commit` has accepted."""
        return ErrorCode.NONE

    @abstractmethod
    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise ApiError for a member of another epoch. An admin client fetches with None and -1."""

    @abstractmethod
    def check_offset_delete(self) -> None:
        """Raise ApiError when no offset of the group may be deleted in its present state."""

    @abstractmethod
    def subscribes_to(self, topic: str) -> bool:
        """Whether members are known to consume the topic. Its offsets are then neither deleted nor expired."""

    def consumed_topics(self) -> Iterable[str]:
        """Returns the topics of which members commit offsets, as far as they are known."""
        return ()

    @abstractmethod
    def offset_expires_from_ms(self, commit_timestamp_ms: int) -> int | None:
        """Returns when the retention of an offset begins; None while it may not expire."""

    def check_delete(self) -> None:
        """Raise ApiError when the group may not be deleted."""
        if not self.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    @abstractmethod
    def deletion_records(self) -> list[Record]:
        """Returns the tombstones that remove the group, without its offsets."""

    @abstractmethod
    def cancel_timers(self) -> None: ...

    @abstractmethod
    def start_timers(self, steady_ms: int) -> None:
        """Start the sessions of all members of a group that a replay created (a load or a conversion)."""

    def waiting_tokens(self) -> list[int]:
        """Returns the tokens of the requests that wait in this group."""
        return []

    @abstractmethod
    def describe(self) -> DescribeGroupsDescribedGroup | None:
        """Returns the description for DescribeGroups; None when the kind has its own API."""

    @abstractmethod
    def replicated_state(self) -> object:
        """Returns the replicated state as a comparable value. It is equal for live and replayed groups."""

    @abstractmethod
    def check_invariants(self) -> None:
        """Raise AssertionError when the group contradicts itself."""


class Registry(Protocol):
    """The registry of a shard's groups, as the kinds of groups use it."""

    environment: Environment
    groups: dict[str, Group]

    def add(self, group: Group) -> None:
        """A replay created the group. Its `start_timers` is called before the next decision."""

    def forget(self, group: Group) -> None:
        """A replay removed the group."""


class ConsumerProtocol(Protocol):
    """The interface of `consumer_groups/protocol.py` to machine.py.

    The classic methods are for members that use the classic protocol in a consumer group (online migration).
    machine.py calls them for groups of type CONSUMER only. An empty one that a classic member joins is converted there.
    A `heartbeat` may name a classic group, which is then converted, or the request is refused.
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

    def topics_changed(self, change: TopicsChanged) -> None: ...


class ShareProtocol(Protocol):
    """The interface of `share_groups/protocol.py` to machine.py."""

    # The key messages whose records belong to share groups.
    record_keys: frozenset[type]

    def reconfigure(self, brokers: ShareGroupsConfig) -> None: ...

    def replay(self, record: Record) -> None: ...

    def heartbeat(self, request: ShareGroupHeartbeatRequest, caller: Caller, steady_ms: int) -> Decision: ...

    def describe(self, group_id: str) -> DescribedGroup: ...

    def alter_offsets(self, request: AlterShareGroupOffsetsRequest, steady_ms: int) -> Decision: ...

    def delete_offsets(self, request: DeleteShareGroupOffsetsRequest) -> Decision: ...

    def handle(self, event: Any) -> Decision:
        """Handles an event or a request of the shell, one of `share_groups/state_requests.py`."""

    def topics_changed(self, change: TopicsChanged) -> list[Record]: ...
