"""Administration of the cluster itself: the controller quorum, its brokers, and where replicas are.

Requests go to the broker that Metadata names as controller; any broker passes them on. An answer for many
partitions is handed back whole: some of them may have gone well, and the caller says which did not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from tidemill.client.cluster import Cluster, check, known_code
from tidemill.errors import ApiError, ErrorCode
from tidemill.internal_topics import METADATA_TOPIC
from tidemill.protocol.api.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    Listener,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    ReplicaState,
)
from tidemill.protocol.api.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from tidemill.types import TopicPartition

T = TypeVar("T")


class Quorum(NamedTuple):
    """The controller quorum as its leader sees it; `addresses` is empty when the leader does not send them."""

    leader_id: int
    epoch: int
    high_watermark: int
    voters: list[ReplicaState]
    observers: list[ReplicaState]
    addresses: dict[int, str]


class Reassignment(NamedTuple):
    """A partition on its way: `replicas` has those that are added and those that will be removed."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


class Refusal(NamedTuple):
    code: ErrorCode
    message: str


class ClusterAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._timeout_ms = int(cluster.timeout_s * 1000)

    # --- the quorum ---

    def quorum(self) -> Quorum:
        return self.cluster.retrying(self.quorum_now)

    def quorum_now(self) -> Quorum:
        """As `quorum`, in one attempt, for callers that do not wait for a leader."""
        topic = DescribeQuorumRequestTopicData(
            topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
        )
        message = DescribeQuorumRequest(topics=[topic])
        response = self.cluster.controller().request(message, DescribeQuorumResponse)
        check(response.error_code, response.error_message)
        partition = response.topics[0].partitions[0]
        check(partition.error_code, partition.error_message)
        return Quorum(
            partition.leader_id,
            partition.leader_epoch,
            partition.high_watermark,
            partition.current_voters,
            partition.observers,
            {
                node.node_id: f"{node.listeners[0].host}:{node.listeners[0].port}"
                for node in response.nodes
                if node.listeners
            },
        )

    def add_voter(
        self, voter_id: int, directory_id: bytes, listeners: Sequence[Listener], cluster_id: str | None = None
    ) -> None:
        message = AddRaftVoterRequest(
            cluster_id=cluster_id,
            timeout_ms=self._timeout_ms,
            voter_id=voter_id,
            voter_directory_id=directory_id,
            listeners=list(listeners),
        )

        def attempt() -> None:
            response = self.cluster.controller().request(message, AddRaftVoterResponse)
            check(response.error_code, response.error_message)

        self.cluster.retrying(attempt, is_repeatable=False)

    def remove_voter(self, voter_id: int, directory_id: bytes, cluster_id: str | None = None) -> None:
        message = RemoveRaftVoterRequest(
            cluster_id=cluster_id, voter_id=voter_id, voter_directory_id=directory_id
        )

        def attempt() -> None:
            response = self.cluster.controller().request(message, RemoveRaftVoterResponse)
            check(response.error_code, response.error_message)

        self.cluster.retrying(attempt, is_repeatable=False)

    # --- brokers ---

    def unregister_broker(self, broker_id: int) -> None:
        message = UnregisterBrokerRequest(broker_id=broker_id)

        def attempt() -> None:
            response = self.cluster.controller().request(message, UnregisterBrokerResponse)
            check(response.error_code, response.error_message)

        self.cluster.retrying(attempt)

    # --- replicas ---

    def elect_leaders(
        self, kind: ElectionType, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Refusal | None]:
        """Returns the outcome of each partition. None elects for all, and returns only those that needed an election."""
        wanted = None
        if partitions is not None:
            grouped = _by_topic(dict.fromkeys(partitions))
            wanted = [TopicPartitions(topic=topic, partitions=list(each)) for topic, each in grouped.items()]
        message = ElectLeadersRequest(
            election_type=kind, topic_partitions=wanted, timeout_ms=self._timeout_ms
        )

        def attempt() -> dict[TopicPartition, Refusal | None]:
            response = self.cluster.controller().request(message, ElectLeadersResponse)
            check(response.error_code)
            return {
                TopicPartition(result.topic, each.partition_id): _refusal(each.error_code, each.error_message)
                for result in response.replica_election_results
                for each in result.partition_result
            }

        return self.cluster.retrying(attempt)

    def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, Refusal | None]:
        """Begins to move partitions to the replicas given; None takes back a move that is under way."""
        topics = [
            ReassignableTopic(
                name=topic,
                partitions=[
                    ReassignablePartition(
                        partition_index=index, replicas=None if replicas is None else list(replicas)
                    )
                    for index, replicas in each.items()
                ],
            )
            for topic, each in _by_topic(targets).items()
        ]
        message = AlterPartitionReassignmentsRequest(timeout_ms=self._timeout_ms, topics=topics)

        def attempt() -> dict[TopicPartition, Refusal | None]:
            response = self.cluster.controller().request(message, AlterPartitionReassignmentsResponse)
            check(response.error_code, response.error_message)
            return {
                TopicPartition(topic.name, each.partition_index): _refusal(
                    each.error_code, each.error_message
                )
                for topic in response.responses
                for each in topic.partitions
            }

        return self.cluster.retrying(attempt)

    def reassignments(self) -> dict[TopicPartition, Reassignment]:
        """Every move that is under way."""
        message = ListPartitionReassignmentsRequest(timeout_ms=self._timeout_ms, topics=None)

        def attempt() -> dict[TopicPartition, Reassignment]:
            response = self.cluster.controller().request(message, ListPartitionReassignmentsResponse)
            check(response.error_code, response.error_message)
            return {
                TopicPartition(topic.name, each.partition_index): Reassignment(
                    each.replicas, each.adding_replicas, each.removing_replicas
                )
                for topic in response.topics
                for each in topic.partitions
            }

        return self.cluster.retrying(attempt)


def raise_first_refusal(refusals: Mapping[TopicPartition, Refusal | None]) -> None:
    for partition, refusal in refusals.items():
        if refusal is not None:
            raise ApiError(refusal.code, f"{partition}: {refusal.message}")


def _refusal(error_code: int, message: str | None) -> Refusal | None:
    if not error_code:
        return None
    code = known_code(error_code)
    return Refusal(code, message or code.message)


def _by_topic(values: Mapping[TopicPartition, T]) -> dict[str, dict[int, T]]:
    topics: dict[str, dict[int, T]] = {}
    for (topic, index), value in values.items():
        topics.setdefault(topic, {})[index] = value
    return topics
