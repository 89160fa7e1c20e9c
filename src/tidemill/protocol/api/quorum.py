"""The metadata quorum: votes, epochs, snapshots, changes of the voter set, and the control records in its
log.
"""

from __future__ import annotations

from typing import Annotated

from tidemill.protocol.schema import (
    NO_UUID,
    Bool,
    DataMessage,
    Int16,
    Int32,
    Int64,
    Records,
    Request,
    Response,
    Since,
    String,
    Struct,
    Tag,
    UInt16,
    Until,
    Uuid,
    field,
)


class VoteRequestPartitionData(Struct):
    partition_index: Int32 = 0
    replica_epoch: Int32 = 0
    replica_id: Int32 = 0
    replica_directory_id: Annotated[Uuid, Since(1)] = NO_UUID
    voter_directory_id: Annotated[Uuid, Since(1)] = NO_UUID
    last_offset_epoch: Int32 = 0
    last_offset: Int64 = 0
    pre_vote: Annotated[Bool, Since(2)] = False


class VoteRequestTopicData(Struct):
    topic_name: String = ""
    partitions: list[VoteRequestPartitionData] = field(default_factory=list)


class VoteRequest(Request, api_key=52, versions=(0, 2), flexible=0):
    cluster_id: String | None = None
    voter_id: Annotated[Int32, Since(1)] = -1
    topics: list[VoteRequestTopicData] = field(default_factory=list)


class VoteResponsePartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    vote_granted: Bool = False


class VoteResponseTopicData(Struct):
    topic_name: String = ""
    partitions: list[VoteResponsePartitionData] = field(default_factory=list)


class NodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: UInt16 = 0


class VoteResponse(Response, api_key=52, versions=(0, 2), flexible=0):
    error_code: Int16 = 0
    topics: list[VoteResponseTopicData] = field(default_factory=list)
    node_endpoints: Annotated[list[NodeEndpoint], Since(1), Tag(0)] = field(default_factory=list)


class BeginQuorumEpochRequestPartitionData(Struct):
    partition_index: Int32 = 0
    voter_directory_id: Annotated[Uuid, Since(1)] = NO_UUID
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class BeginQuorumEpochRequestTopicData(Struct):
    topic_name: String = ""
    partitions: list[BeginQuorumEpochRequestPartitionData] = field(default_factory=list)


class LeaderEndpoint(Struct):
    name: String = ""
    host: String = ""
    port: UInt16 = 0


class BeginQuorumEpochRequest(Request, api_key=53, versions=(0, 1), flexible=1):
    cluster_id: String | None = None
    voter_id: Annotated[Int32, Since(1)] = -1
    topics: list[BeginQuorumEpochRequestTopicData] = field(default_factory=list)
    leader_endpoints: Annotated[list[LeaderEndpoint], Since(1)] = field(default_factory=list)


class BeginQuorumEpochResponsePartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class BeginQuorumEpochResponseTopicData(Struct):
    topic_name: String = ""
    partitions: list[BeginQuorumEpochResponsePartitionData] = field(default_factory=list)


class BeginQuorumEpochResponse(Response, api_key=53, versions=(0, 1), flexible=1):
    error_code: Int16 = 0
    topics: list[BeginQuorumEpochResponseTopicData] = field(default_factory=list)
    node_endpoints: Annotated[list[NodeEndpoint], Since(1), Tag(0)] = field(default_factory=list)


class ReplicaInfo(Struct):
    candidate_id: Int32 = 0
    candidate_directory_id: Uuid = NO_UUID


class EndQuorumEpochRequestPartitionData(Struct):
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    preferred_successors: Annotated[list[Int32], Until(0)] = field(default_factory=list)
    preferred_candidates: Annotated[list[ReplicaInfo], Since(1)] = field(default_factory=list)


class EndQuorumEpochRequestTopicData(Struct):
    topic_name: String = ""
    partitions: list[EndQuorumEpochRequestPartitionData] = field(default_factory=list)


class EndQuorumEpochRequest(Request, api_key=54, versions=(0, 1), flexible=1):
    cluster_id: String | None = None
    topics: list[EndQuorumEpochRequestTopicData] = field(default_factory=list)
    leader_endpoints: Annotated[list[LeaderEndpoint], Since(1)] = field(default_factory=list)


class EndQuorumEpochResponsePartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class EndQuorumEpochResponseTopicData(Struct):
    topic_name: String = ""
    partitions: list[EndQuorumEpochResponsePartitionData] = field(default_factory=list)


class EndQuorumEpochResponse(Response, api_key=54, versions=(0, 1), flexible=1):
    error_code: Int16 = 0
    topics: list[EndQuorumEpochResponseTopicData] = field(default_factory=list)
    node_endpoints: Annotated[list[NodeEndpoint], Since(1), Tag(0)] = field(default_factory=list)


class DescribeQuorumRequestPartitionData(Struct):
    partition_index: Int32 = 0


class DescribeQuorumRequestTopicData(Struct):
    topic_name: String = ""
    partitions: list[DescribeQuorumRequestPartitionData] = field(default_factory=list)


class DescribeQuorumRequest(Request, api_key=55, versions=(0, 2), flexible=0):
    topics: list[DescribeQuorumRequestTopicData] = field(default_factory=list)


class ReplicaState(Struct):
    replica_id: Int32 = 0
    replica_directory_id: Annotated[Uuid, Since(2)] = NO_UUID
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Annotated[Int64, Since(1)] = -1
    last_caught_up_timestamp: Annotated[Int64, Since(1)] = -1


class DescribeQuorumResponsePartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[String | None, Since(2)] = None
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: list[ReplicaState] = field(default_factory=list)
    observers: list[ReplicaState] = field(default_factory=list)


class DescribeQuorumResponseTopicData(Struct):
    topic_name: String = ""
    partitions: list[DescribeQuorumResponsePartitionData] = field(default_factory=list)


class Listener(Struct):
    name: String = ""
    host: String = ""
    port: UInt16 = 0


class Node(Struct):
    node_id: Int32 = 0
    listeners: list[Listener] = field(default_factory=list)


class DescribeQuorumResponse(Response, api_key=55, versions=(0, 2), flexible=0):
    error_code: Int16 = 0
    error_message: Annotated[String | None, Since(2)] = None
    topics: list[DescribeQuorumResponseTopicData] = field(default_factory=list)
    nodes: Annotated[list[Node], Since(2)] = field(default_factory=list)


class SnapshotId(Struct):
    end_offset: Int64 = 0
    epoch: Int32 = 0


class FetchSnapshotRequestPartitionSnapshot(Struct):
    partition: Int32 = 0
    current_leader_epoch: Int32 = 0
    snapshot_id: SnapshotId = field(default_factory=SnapshotId)
    position: Int64 = 0
    replica_directory_id: Annotated[Uuid, Since(1), Tag(0)] = NO_UUID


class FetchSnapshotRequestTopicSnapshot(Struct):
    name: String = ""
    partitions: list[FetchSnapshotRequestPartitionSnapshot] = field(default_factory=list)


class FetchSnapshotRequest(Request, api_key=59, versions=(0, 1), flexible=0):
    cluster_id: Annotated[String | None, Tag(0)] = None
    replica_id: Int32 = -1
    max_bytes: Int32 = 0x7FFFFFFF
    topics: list[FetchSnapshotRequestTopicSnapshot] = field(default_factory=list)


class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class FetchSnapshotResponsePartitionSnapshot(Struct):
    index: Int32 = 0
    error_code: Int16 = 0
    snapshot_id: SnapshotId = field(default_factory=SnapshotId)
    current_leader: Annotated[LeaderIdAndEpoch, Tag(0)] = field(default_factory=LeaderIdAndEpoch)
    size: Int64 = 0
    position: Int64 = 0
    unaligned_records: Records = b""


class FetchSnapshotResponseTopicSnapshot(Struct):
    name: String = ""
    partitions: list[FetchSnapshotResponsePartitionSnapshot] = field(default_factory=list)


class FetchSnapshotResponse(Response, api_key=59, versions=(0, 1), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[FetchSnapshotResponseTopicSnapshot] = field(default_factory=list)
    node_endpoints: Annotated[list[NodeEndpoint], Since(1), Tag(0)] = field(default_factory=list)


class AddRaftVoterRequest(Request, api_key=80, versions=(0, 1), flexible=0):
    cluster_id: String | None = None
    timeout_ms: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = NO_UUID
    listeners: list[Listener] = field(default_factory=list)
    ack_when_committed: Annotated[Bool, Since(1)] = True


class AddRaftVoterResponse(Response, api_key=80, versions=(0, 1), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class RemoveRaftVoterRequest(Request, api_key=81, versions=(0, 0), flexible=0):
    cluster_id: String | None = None
    voter_id: Int32 = 0
    voter_directory_id: Uuid = NO_UUID


class RemoveRaftVoterResponse(Response, api_key=81, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class KRaftVersionFeature(Struct):
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


class UpdateRaftVoterRequest(Request, api_key=82, versions=(0, 0), flexible=0):
    cluster_id: String | None = None
    current_leader_epoch: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = NO_UUID
    listeners: list[Listener] = field(default_factory=list)
    k_raft_version_feature: KRaftVersionFeature = field(default_factory=KRaftVersionFeature)


class CurrentLeader(Struct):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    host: String = ""
    port: Int32 = 0


class UpdateRaftVoterResponse(Response, api_key=82, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    current_leader: Annotated[CurrentLeader, Tag(0)] = field(default_factory=CurrentLeader)


class LeaderChangeMessageVoter(Struct):
    voter_id: Int32 = 0
    voter_directory_id: Annotated[Uuid, Since(1)] = NO_UUID


class LeaderChangeMessage(DataMessage, versions=(0, 1), flexible=0):
    version: Int16 = 0
    leader_id: Int32 = 0
    voters: list[LeaderChangeMessageVoter] = field(default_factory=list)
    granting_voters: list[LeaderChangeMessageVoter] = field(default_factory=list)


class SnapshotHeaderRecord(DataMessage, versions=(0, 0), flexible=0):
    version: Int16 = 0
    last_contained_log_timestamp: Int64 = 0


class SnapshotFooterRecord(DataMessage, versions=(0, 0), flexible=0):
    version: Int16 = 0


class KRaftVersionRecord(DataMessage, versions=(0, 0), flexible=0):
    version: Int16 = 0
    k_raft_version: Int16 = 0


class Endpoint(Struct):
    name: String = ""
    host: String = ""
    port: UInt16 = 0


class VotersVoter(Struct):
    voter_id: Int32 = 0
    voter_directory_id: Uuid = NO_UUID
    endpoints: list[Endpoint] = field(default_factory=list)
    k_raft_version_feature: KRaftVersionFeature = field(default_factory=KRaftVersionFeature)


class VotersRecord(DataMessage, versions=(0, 0), flexible=0):
    version: Int16 = 0
    voters: list[VotersVoter] = field(default_factory=list)
