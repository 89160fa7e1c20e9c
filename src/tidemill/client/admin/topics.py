"""Administration of topics, configurations, offsets and brokers. Groups are in `groups`.

One resource per request: then a retry repeats only what failed, and a failure has one reason. What a broker answers
is handed on as the protocol's own message where that says it all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum

from tidemill.client.cluster import Cluster, PartitionAnswer, check
from tidemill.client.connections.connection import Connection
from tidemill.client.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, FoundOffset, list_offsets
from tidemill.client.retry import UnknownTopic
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.admin import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from tidemill.protocol.api.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataResponseTopic,
)
from tidemill.protocol.api.data import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidemill.protocol.api.replicas import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from tidemill.protocol.isolation import READ_UNCOMMITTED
from tidemill.types import TopicPartition


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class _Operation(IntEnum):
    SET = 0
    DELETE = 1


class Admin:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._timeout_ms = int(cluster.timeout_s * 1000)

    # --- topics ---

    def topics(self) -> list[MetadataResponseTopic]:
        """Every topic, internal ones too, by name."""
        response = self.cluster.retrying(lambda: self.cluster.load_metadata(None))
        return sorted(response.topics, key=lambda topic: topic.name or "")

    def topic(self, name: str) -> MetadataResponseTopic:
        def attempt() -> MetadataResponseTopic:
            self.cluster.forget()
            return self.cluster.topic(name)

        return self.cluster.retrying(attempt)

    def existing_topics(self, names: Sequence[str]) -> dict[str, MetadataResponseTopic]:
        """Returns those of the names that are topics.

        A topic that this client may not see is an error, not a missing one.
        """
        response = self.cluster.retrying(lambda: self.cluster.load_metadata(list(names)))
        for topic in response.topics:
            if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                check(topic.error_code, f"topic {topic.name}: {ErrorCode.TOPIC_AUTHORIZATION_FAILED.message}")
        return {topic.name: topic for topic in response.topics if topic.name and not topic.error_code}

    def create_topic(
        self,
        name: str,
        *,
        partition_count: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str | None] | None = None,
        assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> CreatableTopicResult:
        """Returns when the topic has its leaders; -1 leaves a number to the broker.

        `assignments` are the replicas of each partition, instead of the two numbers. `validate_only` creates nothing.
        """
        wanted = CreatableTopic(
            name=name,
            num_partitions=partition_count,
            replication_factor=replication_factor,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
                for index, replicas in (assignments or {}).items()
            ],
        )
        message = CreateTopicsRequest(
            topics=[wanted], timeout_ms=self._timeout_ms, validate_only=validate_only
        )

        def attempt() -> CreatableTopicResult:
            (result,) = self.cluster.controller().request(message, CreateTopicsResponse).topics
            check(result.error_code, result.error_message)
            return result

        created = self.cluster.retrying(attempt, is_repeatable=validate_only)
        if not validate_only:
            self._await_leaders(name)
        return created

    def _await_leaders(self, name: str) -> None:
        def attempt() -> None:
            self.cluster.forget()
            try:
                self.cluster.leaders(self.cluster.partitions_of(name))
            except UnknownTopic as error:
                # The broker that was asked has not heard of it yet.
                raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, error.message) from None

        self.cluster.retrying(attempt)

    def delete_topic(self, name: str) -> None:
        message = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=self._timeout_ms
        )

        def attempt() -> None:
            (result,) = self.cluster.controller().request(message, DeleteTopicsResponse).responses
            check(result.error_code, result.error_message)

        self.cluster.retrying(attempt, is_repeatable=False)
        self.cluster.forget()

    def create_partitions(self, name: str, total: int) -> None:
        """Grows the topic to `total` partitions."""
        message = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=total, assignments=None)],
            timeout_ms=self._timeout_ms,
        )

        def attempt() -> None:
            (result,) = self.cluster.controller().request(message, CreatePartitionsResponse).results
            check(result.error_code, result.error_message)

        self.cluster.retrying(attempt, is_repeatable=False)
        self._await_leaders(name)

    # --- configurations ---

    def describe_configs(
        self, resource: ResourceType, name: str, *, include_synonyms: bool = False
    ) -> list[DescribeConfigsResourceResult]:
        wanted = DescribeConfigsResource(resource_type=resource, resource_name=name, configuration_keys=None)
        message = DescribeConfigsRequest(resources=[wanted], include_synonyms=include_synonyms)

        def attempt() -> list[DescribeConfigsResourceResult]:
            connection = self._connection_of(resource, name)
            (result,) = connection.request(message, DescribeConfigsResponse).results
            check(result.error_code, result.error_message)
            return result.configs

        return self.cluster.retrying(attempt)

    def topic_values(self, names: Sequence[str], key: str) -> dict[str, str | None]:
        """The value in force of one key, for each of the topics that exist."""
        resources = [
            DescribeConfigsResource(
                resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=[key]
            )
            for name in names
        ]

        def attempt() -> dict[str, str | None]:
            message = DescribeConfigsRequest(resources=resources)
            response = self.cluster.any_broker().request(message, DescribeConfigsResponse)
            return {
                result.resource_name: result.configs[0].value
                for result in response.results
                if not result.error_code and result.configs
            }

        return self.cluster.retrying(attempt)

    def alter_configs(
        self,
        resource: ResourceType,
        name: str,
        *,
        changes: Mapping[str, str | None],
        validate_only: bool = False,
    ) -> None:
        """Sets each key to its value; None takes the setting away, so that the default counts again."""
        configs = [
            IncrementalAlterConfigsAlterableConfig(
                name=key,
                config_operation=_Operation.DELETE if value is None else _Operation.SET,
                value=value,
            )
            for key, value in changes.items()
        ]
        wanted = IncrementalAlterConfigsResource(resource_type=resource, resource_name=name, configs=configs)
        message = IncrementalAlterConfigsRequest(resources=[wanted], validate_only=validate_only)

        def attempt() -> None:
            connection = self._connection_of(resource, name)
            (result,) = connection.request(message, IncrementalAlterConfigsResponse).responses
            check(result.error_code, result.error_message)

        self.cluster.retrying(attempt)

    def _connection_of(self, resource: ResourceType, name: str) -> Connection:
        """A broker answers for itself, a group's coordinator for the group; topics are known everywhere.

        Before there is a group, any broker knows as much of its settings: a coordinator is not made for that.
        """
        if resource in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and name:
            return self.cluster.broker(int(name))
        if resource is ResourceType.GROUP and self.cluster.has_groups():
            return self.cluster.coordinator(name)
        return self.cluster.controller()

    # --- records ---

    def list_offsets(
        self, timestamps_ms: Mapping[TopicPartition, int], isolation_level: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, FoundOffset]:
        """The first offset at or after each timestamp; LATEST_TIMESTAMP and EARLIEST_TIMESTAMP are the ends."""
        return list_offsets(self.cluster, timestamps_ms, isolation_level)

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        found = self.list_offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
        return {partition: each.offset for partition, each in found.items()}

    def end_offsets(
        self, partitions: Sequence[TopicPartition], isolation_level: int = READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        """Returns the offsets at which consumers stop: high watermarks, or last stable offsets for `read_committed`."""
        found = self.list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP), isolation_level)
        return {partition: each.offset for partition, each in found.items()}

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset at or after the timestamp; the end where no record is as young."""
        found = self.list_offsets(dict.fromkeys(partitions, timestamp_ms))
        ends = self.end_offsets([partition for partition, each in found.items() if each.offset < 0])
        return {partition: ends.get(partition, each.offset) for partition, each in found.items()}

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Deletes what lies before the offsets and returns the new start offsets."""

        def ask(connection: Connection, partitions: list[TopicPartition]) -> Iterator[PartitionAnswer[int]]:
            topics: dict[str, DeleteRecordsTopic] = {}
            for topic, index in partitions:
                topics.setdefault(topic, DeleteRecordsTopic(name=topic)).partitions.append(
                    DeleteRecordsPartition(partition_index=index, offset=before[TopicPartition(topic, index)])
                )
            message = DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=self._timeout_ms)
            for answered in connection.request(message, DeleteRecordsResponse).topics:
                for each in answered.partitions:
                    partition = TopicPartition(answered.name, each.partition_index)
                    yield PartitionAnswer(partition, each.error_code, each.low_watermark)

        return self.cluster.per_leader(before, ask)

    # --- brokers ---

    def describe_cluster(self) -> DescribeClusterResponse:
        def attempt() -> DescribeClusterResponse:
            message = DescribeClusterRequest(include_fenced_brokers=True)
            response = self.cluster.any_broker().request(message, DescribeClusterResponse)
            check(response.error_code, response.error_message)
            return response

        return self.cluster.retrying(attempt)

    def log_dirs(
        self, broker_id: int, partitions: Iterable[TopicPartition] | None = None
    ) -> list[DescribeLogDirsResult]:
        """The directories of one broker, with the size of every partition in them, or of those asked for."""
        wanted = None if partitions is None else list(partitions)
        return self.cluster.retrying(lambda: self.log_dirs_now(broker_id, wanted))

    def log_dirs_now(
        self, broker_id: int, partitions: Iterable[TopicPartition] | None = None
    ) -> list[DescribeLogDirsResult]:
        """As `log_dirs`, in one attempt, for callers that do not wait for a broker."""
        topics: dict[str, DescribableLogDirTopic] = {}
        for topic, index in partitions or ():
            topics.setdefault(topic, DescribableLogDirTopic(topic=topic)).partitions.append(index)
        message = DescribeLogDirsRequest(topics=None if partitions is None else list(topics.values()))
        response = self.cluster.broker(broker_id).request(message, DescribeLogDirsResponse)
        check(response.error_code)
        return response.results
