"""Reassignments: AlterPartitionReassignments (45), ListPartitionReassignments (46), and more replicas for internal topics.

A reassignment first makes the partition's replicas the union of the old and the new ones, marked as *adding* and
*removing*. It is complete when every added replica is in sync, which the leader's next AlterPartition shows. One that
adds nothing may be complete at once. A cancelled reassignment restores the old replicas.

An internal topic is created when the first client needs it, with at most as many replicas as there are brokers. When
more brokers join, it gets the replicas that its configuration requires.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tidemill.config import BrokerConfig
from tidemill.controller.image import MetadataImage, PartitionImage, TopicImage, only_directory
from tidemill.controller.partitions.partition_changes import Election
from tidemill.controller.partitions.replication import Replication
from tidemill.controller.records import Record
from tidemill.controller.topics.placement import UsableBroker, extend_replicas
from tidemill.errors import ApiError, ErrorCode
from tidemill.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tidemill.machine import Decision
from tidemill.protocol.api.metadata import PartitionChangeRecord
from tidemill.protocol.api.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from tidemill.types import BrokerId

# The number of partitions that one decision starts to move. Internal topics are small, but all copies start at once.
GROWTH_PER_DECISION = 100


def alter_partition_reassignments(
    replication: Replication, request: AlterPartitionReassignmentsRequest
) -> Decision[Record, AlterPartitionReassignmentsResponse]:
    records: list[Record] = []
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change
    )
    seen: set[tuple[str, int]] = set()
    for topic in request.topics:
        results = ReassignableTopicResponse(name=topic.name)
        for wanted in topic.partitions:
            result = ReassignablePartitionResponse(partition_index=wanted.partition_index)
            try:
                if (topic.name, wanted.partition_index) in seen:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "The request names the partition twice")
                seen.add((topic.name, wanted.partition_index))
                record = _alter(
                    replication, topic.name, wanted, may_resize=request.allow_replication_factor_change
                )
            except ApiError as error:
                result.error_code, result.error_message = error.code, error.message
            else:
                records += [record] if record is not None else []
            results.partitions.append(result)
        response.responses.append(results)
    return Decision(records, response)


def _alter(
    replication: Replication, name: str, wanted: ReassignablePartition, *, may_resize: bool
) -> PartitionChangeRecord | None:
    topic = replication.image.topics_by_name.get(name)
    index = wanted.partition_index
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'")
    if not 0 <= index < len(topic.partitions):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' has no partition {index}")
    if wanted.replicas is None:
        return _cancel(replication, topic, index)
    target = tuple(BrokerId(each) for each in wanted.replicas)
    _check_target(replication.image, topic.partitions[index], target, may_resize=may_resize)
    return reassign(replication, topic, index, target)


def _check_target(
    image: MetadataImage, partition: PartitionImage, target: Sequence[BrokerId], *, may_resize: bool
) -> None:
    if not target:
        raise _bad_assignment("The list of replicas is empty")
    for broker_id in sorted(target):
        if broker_id not in image.brokers:
            raise _bad_assignment(f"The list of replicas has broker {broker_id}, which is not registered")
        if target.count(broker_id) > 1:
            raise _bad_assignment(f"The list of replicas has broker {broker_id} more than once")
    current = len(original_replicas(partition))
    if not may_resize and len(target) != current:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor would change from {current} to {len(target)}, which the request forbids",
        )


def _bad_assignment(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def original_replicas(partition: PartitionImage) -> tuple[BrokerId, ...]:
    """The replicas that a partition has after its reassignment is cancelled."""
    return tuple(each for each in partition.replicas if each not in partition.adding_replicas)


def reassign(
    replication: Replication, topic: TopicImage, index: int, target: tuple[BrokerId, ...]
) -> PartitionChangeRecord | None:
    """Returns the record that starts the reassignment; None when the partition has these replicas already."""
    partition = topic.partitions[index]
    # A replica that an earlier reassignment was adding is removed like any other when the target lacks it.
    removing = tuple(sorted(each for each in partition.replicas if each not in target))
    adding = tuple(sorted(each for each in target if each not in partition.replicas))
    still_adding = tuple(each for each in partition.adding_replicas if each in target)
    # Never an unclean election here: the new replicas are still empty.
    change = replication.change(topic, index, election=Election.ONLINE)
    change.replicas = (*target, *removing)
    change.removing_replicas = removing
    change.adding_replicas = tuple(sorted((*adding, *still_adding)))
    for replica in adding:
        change.directories[replica] = only_directory(replication.image.brokers[replica].log_dirs)
    return change.record()


def _cancel(replication: Replication, topic: TopicImage, index: int) -> PartitionChangeRecord | None:
    partition = topic.partitions[index]
    if not partition.is_reassigned:
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    change = replication.change(topic, index)
    change.replicas = original_replicas(partition)
    change.isr = tuple(each for each in partition.isr if each in change.replicas)
    change.adding_replicas = change.removing_replicas = ()
    if not change.isr and not replication.allows_unclean(topic):
        raise _bad_assignment(
            f"Partition {index} of topic '{topic.name}' cannot return to its former replicas: none of them is in sync, "
            "and unclean elections are not allowed"
        )
    return change.record()


def list_partition_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    wanted: Iterable[tuple[str, Iterable[int] | None]]
    if request.topics is None:
        wanted = [(name, None) for name in image.topics_by_name]
    else:
        wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
    topics = []
    for name, indexes in wanted:
        topic = image.topics_by_name.get(name)
        ongoing = [] if topic is None else _ongoing(topic, indexes)
        if ongoing:
            topics.append(OngoingTopicReassignment(name=name, partitions=ongoing))
    return ListPartitionReassignmentsResponse(topics=topics)


def _ongoing(topic: TopicImage, indexes: Iterable[int] | None) -> list[OngoingPartitionReassignment]:
    found = []
    for index in range(len(topic.partitions)) if indexes is None else indexes:
        if 0 <= index < len(topic.partitions) and topic.partitions[index].is_reassigned:
            partition = topic.partitions[index]
            found.append(
                OngoingPartitionReassignment(
                    partition_index=index,
                    replicas=[*partition.replicas],
                    adding_replicas=[*partition.adding_replicas],
                    removing_replicas=[*partition.removing_replicas],
                )
            )
    return found


def grow_internal_topics(
    image: MetadataImage, config: BrokerConfig
) -> list[tuple[TopicImage, int, tuple[BrokerId, ...]]]:
    """Returns the partitions of internal topics that need more replicas, with their targets, as many as one decision may
    move.
    """
    brokers = [
        UsableBroker(broker.id, broker.rack, broker.is_active)
        for broker in image.brokers.values()
        if broker.is_active
    ]
    growths: list[tuple[TopicImage, int, tuple[BrokerId, ...]]] = []
    for name, factor in _internal_topics(config):
        topic = image.topics_by_name.get(name)
        if topic is None:
            continue
        load = Counter(replica for partition in topic.partitions for replica in partition.replicas)
        seed = int.from_bytes(topic.id, "big")
        for index, partition in enumerate(topic.partitions):
            if partition.is_reassigned or len(partition.replicas) >= min(factor, len(brokers)):
                continue
            racks = {broker.id: broker.rack for broker in image.brokers.values()}
            replicas = extend_replicas(brokers, partition.replicas, racks, factor, seed, index, load)
            if replicas != partition.replicas:
                growths.append((topic, index, replicas))
            if len(growths) >= GROWTH_PER_DECISION:
                return growths
    return growths


def _internal_topics(config: BrokerConfig) -> list[tuple[str, int]]:
    return [
        (OFFSETS_TOPIC, config.offsets_topic.replication_factor),
        (TRANSACTIONS_TOPIC, config.transactions.transaction_state_log_replication_factor),
    ]
