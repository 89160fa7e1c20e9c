"""The requests of the machine of share groups to the share coordinators, and their outcomes.

The machine cannot wait. It returns an effect or a reply with what is to be initialised or deleted. The shell calls the
share coordinators and reports the outcome as one of the events here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.coordinator.groups.assignors import Partitions
from tidemill.protocol.api.share import (
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from tidemill.types import TopicId

# By topic and partition. -1 leaves the choice to `share.auto.offset.reset`.
StartOffsets = Mapping[TopicId, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class InitializeState:
    """An effect: the state of these partitions begins anew, at these offsets."""

    group_id: str
    state_epoch: int
    start_offsets: StartOffsets


@dataclass(frozen=True, slots=True)
class StateInitialized:
    """The event after `InitializeState`. What is neither done nor failed stays under way and is tried again later."""

    group_id: str
    state_epoch: int
    done: Partitions = field(default_factory=dict)
    failed: Partitions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetsToAlter:
    """The reply to AlterShareGroupOffsets: the response if all goes well, and what is to be initialised for it."""

    response: AlterShareGroupOffsetsResponse
    initialize: InitializeState


@dataclass(frozen=True, slots=True)
class StateToDelete:
    """The reply to a request to delete offsets or a group: whose state goes, and what was refused."""

    partitions: Partitions
    names: Mapping[TopicId, str] = field(default_factory=dict)
    refused: tuple[DeleteShareGroupOffsetsResponseTopic, ...] = ()


@dataclass(frozen=True, slots=True)
class StateDeleted:
    """The event after offsets were deleted: these topics have no state any more."""

    group_id: str
    topic_ids: frozenset[TopicId]


@dataclass(frozen=True, slots=True)
class GroupDeletion:
    """A request: the state of an empty share group is about to be deleted. The reply is None for other groups."""

    group_id: str


@dataclass(frozen=True, slots=True)
class InitializedPartitions:
    """A request: the partitions of a share group that have state. The reply is empty for other groups."""

    group_id: str


ShareEvent = StateInitialized | StateDeleted | GroupDeletion | InitializedPartitions
