"""AlterPartition (56): a leader proposes the ISR of its partitions.

A proposal carries the epochs that the leader knows. One with older epochs than the controller's is refused. So is one
that names a replica which may not be in sync. Its broker is fenced, is shutting down, or has registered again since its
last fetch (KIP-903) and may have returned with an empty disk. Newer epochs mean that the controller is out of date.

The leader of a decommissioned partition that is empty proposes an ISR of no broker: the partition is removed (decision
18). In the place of a broker epoch that ISR has the end of the log.
"""

from __future__ import annotations

from tidemill.controller.delta import merge_change
from tidemill.controller.image import MetadataImage, PartitionImage, TopicImage
from tidemill.controller.partitions.partition_changes import RECOVERED, RECOVERING
from tidemill.controller.partitions.replication import Replication
from tidemill.controller.records import Record
from tidemill.controller.topics.fewer_partitions import is_removable, removal_records
from tidemill.errors import ErrorCode
from tidemill.machine import Decision
from tidemill.protocol.api.brokers import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
    BrokerState,
)
from tidemill.types import NO_BROKER, BrokerId, TopicId

# A follower whose broker epoch the leader does not know, as in requests before version 3.
_UNKNOWN_EPOCH = -1


def alter_partition(
    replication: Replication, request: AlterPartitionRequest
) -> Decision[Record, AlterPartitionResponse]:
    image = replication.image
    leader = image.broker_in_epoch(request.broker_id, request.broker_epoch)
    records: list[Record] = []
    response = AlterPartitionResponse()
    for wanted in request.topics:
        topic = image.topics_by_id.get(TopicId(wanted.topic_id))
        answer = AlterPartitionResponseTopicData(topic_id=wanted.topic_id)
        decided: set[int] = set()
        for proposal in wanted.partitions:
            if topic is None:
                result = _refused(proposal, ErrorCode.UNKNOWN_TOPIC_ID)
            elif proposal.partition_index in decided:
                result = _refused(proposal, ErrorCode.INVALID_REQUEST)
            else:
                result = _alter(replication, topic, leader.id, proposal, records)
            decided.add(proposal.partition_index)
            answer.partitions.append(result)
        response.topics.append(answer)
    return Decision(records, response)


def _alter(
    replication: Replication,
    topic: TopicImage,
    leader: BrokerId,
    proposal: AlterPartitionRequestPartitionData,
    records: list[Record],
) -> AlterPartitionResponsePartitionData:
    index = proposal.partition_index
    if not 0 <= index < len(topic.partitions):
        return _refused(proposal, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = topic.partitions[index]
    isr = proposal.new_isr_with_epochs or [
        BrokerState(broker_id=each, broker_epoch=_UNKNOWN_EPOCH) for each in proposal.new_isr
    ]
    is_removal = _is_of_no_broker(isr) and is_removable(replication.image, topic, index)
    error = _stale(partition, leader, proposal)
    if error is ErrorCode.NONE and not is_removal:
        error = _objection(replication.image, partition, leader, proposal, isr)
    if error is not ErrorCode.NONE:
        return _refused(proposal, error)
    if is_removal:
        records += removal_records(replication.image, topic, index, isr[0].broker_epoch, records)
        return AlterPartitionResponsePartitionData(partition_index=index, leader_id=NO_BROKER)
    change = replication.change(topic, index)
    change.isr = tuple(BrokerId(each.broker_id) for each in isr)
    change.leader_recovery_state = proposal.leader_recovery_state
    record = change.record()
    if record is not None:
        records.append(record)
        partition = merge_change(partition, record)
        if partition.leader != leader:
            # The change completed a reassignment that takes the leader's own replica away.
            return _refused(proposal, ErrorCode.NEW_LEADER_ELECTED)
    return AlterPartitionResponsePartitionData(
        partition_index=index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=[*partition.isr],
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )


def _is_of_no_broker(isr: list[BrokerState]) -> bool:
    return len(isr) == 1 and isr[0].broker_id == NO_BROKER and isr[0].broker_epoch >= 0


def _refused(
    proposal: AlterPartitionRequestPartitionData, code: ErrorCode
) -> AlterPartitionResponsePartitionData:
    return AlterPartitionResponsePartitionData(partition_index=proposal.partition_index, error_code=code)


def _stale(
    partition: PartitionImage, leader: BrokerId, proposal: AlterPartitionRequestPartitionData
) -> ErrorCode:
    """Returns the error of a proposal with other epochs; NONE otherwise. The order of the checks is Kafka's."""
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if proposal.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if leader != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if proposal.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return ErrorCode.NONE


def _objection(
    image: MetadataImage,
    partition: PartitionImage,
    leader: BrokerId,
    proposal: AlterPartitionRequestPartitionData,
    isr: list[BrokerState],
) -> ErrorCode:
    """Returns the error of an ISR that is refused; NONE otherwise. The order of the checks is Kafka's."""
    ids = [each.broker_id for each in isr]
    if len(set(ids)) != len(ids) or leader not in ids or not set(ids) <= set(partition.replicas):
        return ErrorCode.INVALID_REQUEST
    if proposal.leader_recovery_state not in (RECOVERED, RECOVERING):
        return ErrorCode.INVALID_REQUEST
    if proposal.leader_recovery_state == RECOVERING and (
        len(isr) > 1 or partition.leader_recovery_state == RECOVERED
    ):
        return ErrorCode.INVALID_REQUEST
    if not all(_is_eligible(image, each) for each in isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _is_eligible(image: MetadataImage, replica: BrokerState) -> bool:
    broker = image.brokers.get(BrokerId(replica.broker_id))
    if broker is None or not broker.is_active:
        return False
    return replica.broker_epoch in (_UNKNOWN_EPOCH, broker.epoch)
