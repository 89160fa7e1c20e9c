"""The quorum's messages, reduced to their one partition: `__cluster_metadata-0`.

These APIs could carry many topics; the quorum has one. `*_part` returns that partition of a message, and None when the
message names anything else. The functions named after a message build one from a partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tidemill.errors import ErrorCode
from tidemill.internal_topics import METADATA_TOPIC, METADATA_TOPIC_ID
from tidemill.protocol.api import data, quorum
from tidemill.raft.log import SnapshotKey
from tidemill.raft.voters import ReplicaKey

PARTITION = 0
NOBODY = -1

Part = TypeVar("Part", covariant=True)


class _Topic(Protocol[Part]):
    """A topic in a message, with its partitions."""

    @property
    def partitions(self) -> Sequence[Part]: ...


def _part(topics: Sequence[_Topic[Part]], names: Sequence[str], indexes: Sequence[int]) -> Part | None:
    if list(names) != [METADATA_TOPIC] or list(indexes) != [PARTITION]:
        return None
    return topics[0].partitions[0]


def wire_leader(leader_id: int | None) -> int:
    return NOBODY if leader_id is None else leader_id


def known_leader(wire_leader_id: int) -> int | None:
    return None if wire_leader_id < 0 else wire_leader_id


# -- votes ---------------------------------------------------------------------------------------------------


def vote_request(
    cluster_id: str | None, voter: ReplicaKey, part: quorum.VoteRequestPartitionData
) -> quorum.VoteRequest:
    part.voter_directory_id = voter.directory_id
    topics = [quorum.VoteRequestTopicData(topic_name=METADATA_TOPIC, partitions=[part])]
    return quorum.VoteRequest(cluster_id=cluster_id, voter_id=voter.id, topics=topics)


def vote_request_part(request: quorum.VoteRequest) -> quorum.VoteRequestPartitionData | None:
    topics = request.topics
    indexes = [part.partition_index for topic in topics for part in topic.partitions]
    return _part(topics, [topic.topic_name for topic in topics], indexes)


def vote_response(
    error: ErrorCode, leader_id: int | None, epoch: int, *, vote_granted: bool = False
) -> quorum.VoteResponse:
    part = quorum.VoteResponsePartitionData(
        error_code=error,
        leader_id=wire_leader(leader_id),
        leader_epoch=epoch,
        vote_granted=vote_granted,
    )
    topics = [quorum.VoteResponseTopicData(topic_name=METADATA_TOPIC, partitions=[part])]
    return quorum.VoteResponse(topics=topics)


def vote_response_part(response: quorum.VoteResponse) -> quorum.VoteResponsePartitionData | None:
    topics = response.topics
    indexes = [part.partition_index for topic in topics for part in topic.partitions]
    return _part(topics, [topic.topic_name for topic in topics], indexes)


# -- epochs --------------------------------------------------------------------------------------------------


def begin_request(
    cluster_id: str | None, voter: ReplicaKey, leader_id: int, epoch: int
) -> quorum.BeginQuorumEpochRequest:
    part = quorum.BeginQuorumEpochRequestPartitionData(
        voter_directory_id=voter.directory_id, leader_id=leader_id, leader_epoch=epoch
    )
    topics = [quorum.BeginQuorumEpochRequestTopicData(topic_name=METADATA_TOPIC, partitions=[part])]
    return quorum.BeginQuorumEpochRequest(cluster_id=cluster_id, voter_id=voter.id, topics=topics)


def begin_request_part(
    request: quorum.BeginQuorumEpochRequest,
) -> quorum.BeginQuorumEpochRequestPartitionData | None:
    topics = request.topics
    indexes = [part.partition_index for topic in topics for part in topic.partitions]
    return _part(topics, [topic.topic_name for topic in topics], indexes)


def begin_response(error: ErrorCode, leader_id: int | None, epoch: int) -> quorum.BeginQuorumEpochResponse:
    part = quorum.BeginQuorumEpochResponsePartitionData(
        error_code=error, leader_id=wire_leader(leader_id), leader_epoch=epoch
    )
    topics = [quorum.BeginQuorumEpochResponseTopicData(topic_name=METADATA_TOPIC, partitions=[part])]
    return quorum.BeginQuorumEpochResponse(topics=topics)


def begin_response_part(
    response: quorum.BeginQuorumEpochResponse,
) -> quorum.BeginQuorumEpochResponsePartitionData | None:
    topics = response.topics
    indexes = [part.partition_index for topic in topics for part in topic.partitions]
    return _part(topics, [topic.topic_name for topic in topics], indexes)


def end_request(
    cluster_id: str | None, leader_id: int, epoch: int, successors: Sequence[ReplicaKey]
) -> quorum.EndQuorumEpochRequest:
    part = quorum.EndQuorumEpochRequestPartitionData(
        leader_id=leader_id,
        leader_epoch=epoch,
        preferred_successors=[key.id for key in successors],
        preferred_candidates=[
            quorum.ReplicaInfo(candidate_id=key.id, candidate_directory_id=key.directory_id)
            for key in successors
        ],
    )
    topics = [quorum.EndQuorumEpochRequestTopicData(topic_name=METADATA_TOPIC, partitions=[part])]
    return quorum.EndQuorumEpochRequest(cluster_id=cluster_id, topics=topics)


def end_request_part(
    request: quorum.EndQuorumEpochRequest,
) -> quorum.EndQuorumEpochRequestPartitionData | None:
    topics = request.topics
    indexes = [part.partition_index for topic in topics for part in topic.partitions]
    return _part(topics, [topic.topic_name for topic in topics], indexes)


def successors_of(part: quorum.EndQuorumEpochRequestPartitionData) -> list[ReplicaKey]:
    if part.preferred_candidates:
        return [ReplicaKey(c.candidate_id, c.candidate_directory_id) for c in part.preferred_candidates]
    return [ReplicaKey(voter_id) for voter_id in part.preferred_successors]


def end_response(error: ErrorCode, leader_id: int | None, epoch: int) -> quorum.EndQuorumEpochResponse:
    part = quorum.EndQuorumEpochResponsePartitionData(
        error_code=error, leader_id=wire_leader(leader_id), leader_epoch=epoch
    )
    topics = [quorum.EndQuorumEpochResponseTopicData(topic_name=METADATA_TOPIC, partitions=[part])]
    return quorum.EndQuorumEpochResponse(topics=topics)


def end_response_part(
    response: quorum.EndQuorumEpochResponse,
) -> quorum.EndQuorumEpochResponsePartitionData | None:
    topics = response.topics
    indexes = [part.partition_index for topic in topics for part in topic.partitions]
    return _part(topics, [topic.topic_name for topic in topics], indexes)


# -- fetches -------------------------------------------------------------------------------------------------


def fetch_request(
    cluster_id: str | None, replica_id: int, part: data.FetchPartition, *, max_wait_ms: int, max_bytes: int
) -> data.FetchRequest:
    return data.FetchRequest(
        cluster_id=cluster_id,
        replica_id=replica_id,
        replica_state=data.ReplicaState(replica_id=replica_id),
        max_wait_ms=max_wait_ms,
        max_bytes=max_bytes,
        topics=[data.FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[part])],
    )


def fetch_request_part(request: data.FetchRequest) -> data.FetchPartition | None:
    """The metadata partition of a Fetch request, by name or, from version 13 on, by topic id."""
    topics = request.topics
    indexes = [part.partition for topic in topics for part in topic.partitions]
    return _part(
        topics, [METADATA_TOPIC if t.topic_id == METADATA_TOPIC_ID else t.topic for t in topics], indexes
    )


def fetching_replica(request: data.FetchRequest, part: data.FetchPartition) -> ReplicaKey:
    replica_id = request.replica_state.replica_id
    return ReplicaKey(request.replica_id if replica_id < 0 else replica_id, part.replica_directory_id)


def fetch_response(part: data.PartitionData) -> data.FetchResponse:
    topic = data.FetchableTopicResponse(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[part])
    return data.FetchResponse(responses=[topic])


def tell_leader_end(part: data.PartitionData, end_offset: int) -> None:
    """Where the leader's log ends. There are no transactions in the metadata log, so that this field is free for it.

    Apache Kafka's controllers leave it at -1, and its followers ignore it.
    """
    part.last_stable_offset = end_offset


def leader_end(part: data.PartitionData) -> int:
    """-1 when the leader does not tell it."""
    return part.last_stable_offset


def fetch_response_part(response: data.FetchResponse) -> data.PartitionData | None:
    topics = response.responses
    indexes = [part.partition_index for topic in topics for part in topic.partitions]
    return _part(
        topics, [METADATA_TOPIC if t.topic_id == METADATA_TOPIC_ID else t.topic for t in topics], indexes
    )


def snapshot_request(
    cluster_id: str | None,
    own: ReplicaKey,
    epoch: int,
    snapshot: SnapshotKey,
    position: int,
    max_bytes: int,
) -> quorum.FetchSnapshotRequest:
    part = quorum.FetchSnapshotRequestPartitionSnapshot(
        current_leader_epoch=epoch,
        snapshot_id=quorum.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        position=position,
        replica_directory_id=own.directory_id,
    )
    topics = [quorum.FetchSnapshotRequestTopicSnapshot(name=METADATA_TOPIC, partitions=[part])]
    return quorum.FetchSnapshotRequest(
        cluster_id=cluster_id, replica_id=own.id, max_bytes=max_bytes, topics=topics
    )


def snapshot_request_part(
    request: quorum.FetchSnapshotRequest,
) -> quorum.FetchSnapshotRequestPartitionSnapshot | None:
    topics = request.topics
    indexes = [part.partition for topic in topics for part in topic.partitions]
    return _part(topics, [topic.name for topic in topics], indexes)


def snapshot_response(
    error: ErrorCode, leader_id: int | None, epoch: int, snapshot: SnapshotKey, position: int = 0
) -> quorum.FetchSnapshotResponse:
    part = quorum.FetchSnapshotResponsePartitionSnapshot(
        error_code=error,
        snapshot_id=quorum.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        current_leader=quorum.LeaderIdAndEpoch(leader_id=wire_leader(leader_id), leader_epoch=epoch),
        position=position,
    )
    topics = [quorum.FetchSnapshotResponseTopicSnapshot(name=METADATA_TOPIC, partitions=[part])]
    return quorum.FetchSnapshotResponse(topics=topics)


def snapshot_response_part(
    response: quorum.FetchSnapshotResponse,
) -> quorum.FetchSnapshotResponsePartitionSnapshot | None:
    topics = response.topics
    indexes = [part.index for topic in topics for part in topic.partitions]
    return _part(topics, [topic.name for topic in topics], indexes)
