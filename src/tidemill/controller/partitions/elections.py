"""ElectLeaders (43): elections on request.

A *preferred* election gives a partition back to its first replica, if that one is in sync. An *unclean* one elects a
leader for a partition without one. If no replica is in sync it takes one that is not, so records may be lost. The
request is the consent to that.
"""

from __future__ import annotations

from enum import IntEnum

from tidemill.controller.image import PartitionImage
from tidemill.controller.partitions.partition_changes import Election
from tidemill.controller.partitions.replication import Replication
from tidemill.controller.records import Record
from tidemill.errors import ApiError, ErrorCode
from tidemill.machine import Decision
from tidemill.protocol.api.metadata import PartitionChangeRecord
from tidemill.protocol.api.replicas import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


_ELECTIONS = {ElectionType.PREFERRED: Election.PREFERRED, ElectionType.UNCLEAN: Election.UNCLEAN}
_UNAVAILABLE = {
    ElectionType.PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ElectionType.UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}


def elect_leaders(
    replication: Replication, request: ElectLeadersRequest
) -> Decision[Record, ElectLeadersResponse]:
    if request.election_type not in ElectionType.__members__.values():
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    kind = ElectionType(request.election_type)
    image = replication.image
    wants_all = request.topic_partitions is None
    if request.topic_partitions is None:
        wanted = [(topic.name, list(range(len(topic.partitions)))) for topic in image.topics_by_name.values()]
    else:
        wanted = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    records: list[Record] = []
    response = ElectLeadersResponse()
    elected: set[tuple[str, int]] = set()
    for name, indexes in wanted:
        results = ReplicaElectionResult(topic=name)
        for index in indexes:
            result = PartitionResult(partition_id=index)
            try:
                # A partition that is named twice needs no second election.
                if (name, index) in elected:
                    raise ApiError(ErrorCode.ELECTION_NOT_NEEDED)
                records.append(_elect(replication, name, index, kind))
                elected.add((name, index))
            except ApiError as error:
                if wants_all and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                result.error_code, result.error_message = error.code, error.message
            results.partition_result.append(result)
        response.replica_election_results.append(results)
    return Decision(records, response)


def _elect(replication: Replication, name: str, index: int, kind: ElectionType) -> PartitionChangeRecord:
    topic = replication.image.topics_by_name.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'")
    if not 0 <= index < len(topic.partitions):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' has no partition {index}")
    if not _is_needed(topic.partitions[index], kind):
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED)
    record = replication.change(topic, index, election=_ELECTIONS[kind]).record()
    if record is None:
        raise ApiError(_UNAVAILABLE[kind])
    return record


def _is_needed(partition: PartitionImage, kind: ElectionType) -> bool:
    if kind is ElectionType.PREFERRED:
        return partition.leader != partition.replicas[0]
    return not partition.has_leader
