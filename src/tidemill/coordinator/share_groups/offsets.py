"""Handles what administrators do to the state of a share group, and the outcomes of initialisations.

Offsets of a share group are start offsets in the share coordinator. To alter them is to initialise the partitions
anew, and to delete them is to delete their state; both need a group without members. Where there is state already, a
larger group epoch goes with it as the state epoch, so that a leader with the old state is fenced.

Each takes two steps. The first writes down what is about to happen and says what is to be done in the share coordinator.
The second writes down the outcome. A coordinator that takes over between them finds the first step in its log, and the
request or the next heartbeat repeats what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidemill.coordinator.groups.assignors import Partitions
from tidemill.coordinator.groups.group import Decision, Environment, Registry
from tidemill.coordinator.share_groups.group import ShareGroup
from tidemill.coordinator.share_groups.partition_states import TopicPartitions
from tidemill.coordinator.share_groups.records import epoch_record, states_record
from tidemill.coordinator.share_groups.state_requests import (
    GroupDeletion,
    InitializedPartitions,
    InitializeState,
    OffsetsToAlter,
    ShareEvent,
    StateDeleted,
    StateInitialized,
    StateToDelete,
)
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponseTopic,
)
from tidemill.types import TopicId

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Initialization(NamedTuple):
    """A request to initialise a partition's state that is under way."""

    state_epoch: int
    sent_at_ms: int


class ShareGroupOffsets:
    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.environment: Environment = registry.environment
        # Soft: what this coordinator has begun to initialise, by group, topic and partition. The outcome is not known yet.
        self._initializations: dict[str, dict[tuple[TopicId, int], Initialization]] = {}

    def find(self, group_id: str, *, creates: bool = False) -> ShareGroup:
        """Returns the share group; with `creates` a new one, which exists when its first record is replayed."""
        group = self.registry.groups.get(group_id)
        if group is None and creates:
            return ShareGroup(group_id, self.environment)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
        if not isinstance(group, ShareGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} is not a share group")
        return group

    def handle(self, event: ShareEvent) -> Decision:
        if isinstance(event, StateInitialized):
            return self._initialized(event)
        if isinstance(event, StateDeleted):
            return self._state_deleted(event)
        if isinstance(event, GroupDeletion):
            return self._begin_group_deletion(event)
        return self._partitions(event)

    # Initialisations.

    def _initialized(self, event: StateInitialized) -> Decision:
        group = self.registry.groups.get(event.group_id)
        if not isinstance(group, ShareGroup):
            return Decision(reply=None)
        done = self._take(group, event.done, event.state_epoch)
        failed = self._take(group, event.failed, event.state_epoch)
        states = group.states.with_initialized(done).without_initializing(failed)
        if states == group.states:
            return Decision(reply=None)
        return Decision([states_record(group.group_id, states)], None)

    def _take(
        self, group: ShareGroup, partitions: Partitions, state_epoch: int
    ) -> dict[TopicId, TopicPartitions]:
        """Removes initialisations of that epoch from those under way. An earlier one has no say: a later is under way."""
        taken = {}
        under_way = self.initializations_of(group)
        for topic_id, indexes in partitions.items():
            topic = group.states.initializing.get(topic_id)
            if topic is None:
                continue
            mine = {
                index
                for index in indexes & topic.partitions
                if (begun := under_way.get((topic_id, index))) is not None
                and begun.state_epoch == state_epoch
            }
            for index in mine:
                del under_way[topic_id, index]
            if mine:
                taken[topic_id] = TopicPartitions(topic.name, frozenset(mine))
        return taken

    def initializations_of(self, group: ShareGroup) -> dict[tuple[TopicId, int], Initialization]:
        """Returns the initialisations under way. A new group has them before its first record is replayed."""
        return self._initializations.setdefault(group.group_id, {})

    def begin_initialization(self, group: ShareGroup, initialize: InitializeState, steady_ms: int) -> None:
        begun = Initialization(initialize.state_epoch, steady_ms)
        for topic_id, offsets in initialize.start_offsets.items():
            for partition in offsets:
                self.initializations_of(group)[topic_id, partition] = begun

    def forget_initialization(self, group: ShareGroup, initialize: InitializeState) -> None:
        """The records of the decision could not be written, so nothing is initialised."""
        under_way = self.initializations_of(group)
        for topic_id, offsets in initialize.start_offsets.items():
            for partition in offsets:
                begun = under_way.get((topic_id, partition))
                if begun is not None and begun.state_epoch == initialize.state_epoch:
                    del under_way[topic_id, partition]

    def forget_group(self, group_id: str) -> None:
        self._initializations.pop(group_id, None)

    # AlterShareGroupOffsets

    def alter_offsets(self, request: AlterShareGroupOffsetsRequest, steady_ms: int) -> Decision:
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        group = self.find(request.group_id, creates=True)
        group.check_delete()
        response = AlterShareGroupOffsetsResponse()
        start_offsets: dict[TopicId, dict[int, int]] = {}
        names: dict[TopicId, str] = {}
        for topic in request.topics:
            topic_id = self.environment.topics.id_of(topic.topic_name)
            found = {} if topic_id is None else self._known_offsets(topic)
            response.responses.append(_altered(topic, topic_id, found))
            if topic_id is not None and found:
                names[topic_id] = topic.topic_name
                start_offsets.setdefault(topic_id, {}).update(found)
        epoch = group.group_epoch + _has_state(group, start_offsets)
        initialize = InitializeState(group.group_id, epoch, start_offsets)
        if not start_offsets:
            return Decision(reply=OffsetsToAlter(response, initialize))
        self.begin_initialization(group, initialize, steady_ms)
        states = group.states.with_initializing(
            {
                topic_id: TopicPartitions(names[topic_id], frozenset(offsets))
                for topic_id, offsets in start_offsets.items()
            }
        )
        records = [states_record(group.group_id, states)]
        if epoch != group.group_epoch:
            records.insert(0, epoch_record(group.group_id, epoch, group.metadata_hash))
        return Decision(
            records,
            OffsetsToAlter(response, initialize),
            on_failed=lambda _error: self.forget_initialization(group, initialize),
        )

    def _known_offsets(self, topic: AlterShareGroupOffsetsRequestTopic) -> dict[int, int]:
        count = self.environment.topics.partitions_of(topic.topic_name) or 0
        return {
            each.partition_index: each.start_offset
            for each in topic.partitions
            if 0 <= each.partition_index < count
        }

    # DeleteShareGroupOffsets

    def delete_offsets(self, request: DeleteShareGroupOffsetsRequest) -> Decision:
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        group = self.find(request.group_id)
        group.check_delete()
        names: dict[TopicId, str] = {}
        partitions: dict[TopicId, frozenset[int]] = {}
        refused = []
        for topic in request.topics:
            topic_id = self.environment.topics.id_of(topic.topic_name)
            found = (
                frozenset[int]() if topic_id is None else self._deletable(group, topic_id, topic.topic_name)
            )
            if topic_id is not None and found:
                names[topic_id], partitions[topic_id] = topic.topic_name, found
            else:
                text = _UNKNOWN.message if topic_id is None else "There is no offset information to delete."
                refused.append(
                    DeleteShareGroupOffsetsResponseTopic(
                        topic_name=topic.topic_name, error_code=_UNKNOWN, error_message=text
                    )
                )
        states = group.states.with_deleting(names)
        records = [] if states == group.states else [states_record(group.group_id, states)]
        return Decision(records, StateToDelete(partitions, names, tuple(refused)))

    def _deletable(self, group: ShareGroup, topic_id: TopicId, name: str) -> frozenset[int]:
        """Returns the partitions with state. A deletion that did not end is repeated for all of them."""
        initialized = group.states.initialized.get(topic_id)
        if initialized is not None:
            return initialized.partitions
        if topic_id in group.states.deleting:
            return frozenset(range(self.environment.topics.partitions_of(name) or 0))
        return frozenset()

    def _state_deleted(self, event: StateDeleted) -> Decision:
        group = self.registry.groups.get(event.group_id)
        if not isinstance(group, ShareGroup):
            return Decision(reply=None)
        states = group.states.without_deleting(event.topic_ids)
        records = [] if states == group.states else [states_record(group.group_id, states)]
        return Decision(records, None)

    # DeleteGroups

    def _begin_group_deletion(self, event: GroupDeletion) -> Decision:
        group = self.registry.groups.get(event.group_id)
        if not isinstance(group, ShareGroup):
            return Decision(reply=None)
        group.check_delete()
        partitions: dict[TopicId, frozenset[int]] = dict(group.states.all_partitions())
        for topic_id, name in group.states.deleting.items():
            count = self.environment.topics.partitions_of(name)
            if count is not None and self.environment.topics.id_of(name) == topic_id:
                partitions[topic_id] = frozenset(range(count))
        states = group.states.with_all_deleting()
        records = [] if states == group.states else [states_record(group.group_id, states)]
        return Decision(records, StateToDelete(partitions))

    # DescribeShareGroupOffsets

    def _partitions(self, event: InitializedPartitions) -> Decision:
        group = self.registry.groups.get(event.group_id)
        partitions = group.states.assignable if isinstance(group, ShareGroup) else {}
        return Decision(reply=partitions)


def _has_state(group: ShareGroup, partitions: Mapping[TopicId, Mapping[int, int]]) -> bool:
    """Whether the share coordinator has, or may still have, state of one of the partitions."""
    known = group.states.all_partitions()
    return any(
        topic_id in group.states.deleting or not known.get(topic_id, frozenset()).isdisjoint(indexes)
        for topic_id, indexes in partitions.items()
    )


def _altered(
    topic: AlterShareGroupOffsetsRequestTopic, topic_id: TopicId | None, known: Mapping[int, int]
) -> AlterShareGroupOffsetsResponseTopic:
    answer = AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name)
    if topic_id is not None:
        answer.topic_id = topic_id
    for each in topic.partitions:
        answer.partitions.append(
            AlterShareGroupOffsetsResponsePartition(partition_index=each.partition_index)
            if each.partition_index in known
            else AlterShareGroupOffsetsResponsePartition(
                partition_index=each.partition_index,
                error_code=_UNKNOWN,
                error_message=_UNKNOWN.message,
            )
        )
    return answer
