"""Administration of topics, configurations, quotas and features.

CreateTopics reaches down to version 0, which old clients send before they know what the broker supports.
"""

from __future__ import annotations

from typing import Annotated

from tidemill.protocol.schema import (
    NO_UUID,
    Bool,
    Float64,
    Int8,
    Int16,
    Int32,
    NullableSince,
    Request,
    Response,
    Since,
    String,
    Struct,
    Tag,
    Until,
    Uuid,
    field,
)


class CreatableReplicaAssignment(Struct):
    partition_index: Int32 = 0
    broker_ids: list[Int32] = field(default_factory=list)


class CreatableTopicConfig(Struct):
    name: String = ""
    value: String | None = None


class CreatableTopic(Struct):
    name: String = ""
    # -1 with an empty assignment means the broker's default.
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = field(default_factory=list)
    configs: list[CreatableTopicConfig] = field(default_factory=list)


class CreateTopicsRequest(Request, api_key=19, versions=(0, 7), flexible=5):
    topics: list[CreatableTopic] = field(default_factory=list)
    timeout_ms: Int32 = 60000
    validate_only: Annotated[Bool, Since(1)] = False


class CreatableTopicConfigs(Struct):
    name: String = ""
    value: String | None = None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False


class CreatableTopicResult(Struct):
    name: String = ""
    topic_id: Annotated[Uuid, Since(7)] = NO_UUID
    error_code: Int16 = 0
    error_message: Annotated[String | None, Since(1)] = None
    topic_config_error_code: Annotated[Int16, Since(5), Tag(0)] = 0
    num_partitions: Annotated[Int32, Since(5)] = -1
    replication_factor: Annotated[Int16, Since(5)] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, Since(5)] = field(default_factory=list)


class CreateTopicsResponse(Response, api_key=19, versions=(0, 7), flexible=5):
    throttle_time_ms: Annotated[Int32, Since(2)] = 0
    topics: list[CreatableTopicResult] = field(default_factory=list)


class DeleteTopicState(Struct):
    name: String | None = None
    topic_id: Uuid = NO_UUID


class DeleteTopicsRequest(Request, api_key=20, versions=(1, 6), flexible=4):
    topics: Annotated[list[DeleteTopicState], Since(6)] = field(default_factory=list)
    topic_names: Annotated[list[String], Until(5)] = field(default_factory=list)
    timeout_ms: Int32 = 0


class DeletableTopicResult(Struct):
    name: Annotated[String | None, NullableSince(6)] = ""
    topic_id: Annotated[Uuid, Since(6)] = NO_UUID
    error_code: Int16 = 0
    error_message: Annotated[String | None, Since(5)] = None


class DeleteTopicsResponse(Response, api_key=20, versions=(1, 6), flexible=4):
    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult] = field(default_factory=list)


class CreatePartitionsAssignment(Struct):
    broker_ids: list[Int32] = field(default_factory=list)


class CreatePartitionsTopic(Struct):
    name: String = ""
    count: Int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = field(default_factory=list)


class CreatePartitionsRequest(Request, api_key=37, versions=(0, 3), flexible=2):
    topics: list[CreatePartitionsTopic] = field(default_factory=list)
    timeout_ms: Int32 = 0
    validate_only: Bool = False


class CreatePartitionsTopicResult(Struct):
    name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


class CreatePartitionsResponse(Response, api_key=37, versions=(0, 3), flexible=2):
    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = field(default_factory=list)


class DescribeConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: list[String] | None = field(default_factory=list)


class DescribeConfigsRequest(Request, api_key=32, versions=(1, 4), flexible=4):
    resources: list[DescribeConfigsResource] = field(default_factory=list)
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, Since(3)] = False


class DescribeConfigsSynonym(Struct):
    name: String = ""
    value: String | None = None
    source: Int8 = 0


class DescribeConfigsResourceResult(Struct):
    name: String = ""
    value: String | None = None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: list[DescribeConfigsSynonym] = field(default_factory=list)
    config_type: Annotated[Int8, Since(3)] = 0
    documentation: Annotated[String | None, Since(3)] = None


class DescribeConfigsResult(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribeConfigsResourceResult] = field(default_factory=list)


class DescribeConfigsResponse(Response, api_key=32, versions=(1, 4), flexible=4):
    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = field(default_factory=list)


class AlterConfigsAlterableConfig(Struct):
    name: String = ""
    value: String | None = None


class AlterConfigsAlterConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterConfigsAlterableConfig] = field(default_factory=list)


class AlterConfigsRequest(Request, api_key=33, versions=(0, 2), flexible=2):
    resources: list[AlterConfigsAlterConfigsResource] = field(default_factory=list)
    validate_only: Bool = False


class AlterConfigsResourceResponse(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""


class AlterConfigsResponse(Response, api_key=33, versions=(0, 2), flexible=2):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = field(default_factory=list)


class IncrementalAlterConfigsAlterableConfig(Struct):
    name: String = ""
    config_operation: Int8 = 0
    value: String | None = None


class IncrementalAlterConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[IncrementalAlterConfigsAlterableConfig] = field(default_factory=list)


class IncrementalAlterConfigsRequest(Request, api_key=44, versions=(0, 1), flexible=1):
    resources: list[IncrementalAlterConfigsResource] = field(default_factory=list)
    validate_only: Bool = False


class IncrementalAlterConfigsResponse(Response, api_key=44, versions=(0, 1), flexible=1):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = field(default_factory=list)


class ListConfigResourcesRequest(Request, api_key=74, versions=(0, 1), flexible=0):
    resource_types: Annotated[list[Int8], Since(1)] = field(default_factory=list)


class ConfigResource(Struct):
    resource_name: String = ""
    resource_type: Annotated[Int8, Since(1)] = 16


class ListConfigResourcesResponse(Response, api_key=74, versions=(0, 1), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = field(default_factory=list)


class ComponentData(Struct):
    entity_type: String = ""
    match_type: Int8 = 0
    match: String | None = None


class DescribeClientQuotasRequest(Request, api_key=48, versions=(0, 1), flexible=1):
    components: list[ComponentData] = field(default_factory=list)
    strict: Bool = False


class EntityData(Struct):
    entity_type: String = ""
    entity_name: String | None = None


class ValueData(Struct):
    key: String = ""
    value: Float64 = 0.0


class DescribeClientQuotasEntryData(Struct):
    entity: list[EntityData] = field(default_factory=list)
    values: list[ValueData] = field(default_factory=list)


class DescribeClientQuotasResponse(Response, api_key=48, versions=(0, 1), flexible=1):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    entries: list[DescribeClientQuotasEntryData] | None = field(default_factory=list)


class OpData(Struct):
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


class AlterClientQuotasRequestEntryData(Struct):
    entity: list[EntityData] = field(default_factory=list)
    ops: list[OpData] = field(default_factory=list)


class AlterClientQuotasRequest(Request, api_key=49, versions=(0, 1), flexible=1):
    entries: list[AlterClientQuotasRequestEntryData] = field(default_factory=list)
    validate_only: Bool = False


class AlterClientQuotasResponseEntryData(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    entity: list[EntityData] = field(default_factory=list)


class AlterClientQuotasResponse(Response, api_key=49, versions=(0, 1), flexible=1):
    throttle_time_ms: Int32 = 0
    entries: list[AlterClientQuotasResponseEntryData] = field(default_factory=list)


class FeatureUpdateKey(Struct):
    feature: String = ""
    max_version_level: Int16 = 0
    allow_downgrade: Annotated[Bool, Until(0)] = False
    upgrade_type: Annotated[Int8, Since(1)] = 1


class UpdateFeaturesRequest(Request, api_key=57, versions=(0, 2), flexible=0):
    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = field(default_factory=list)
    validate_only: Annotated[Bool, Since(1)] = False


class UpdatableFeatureResult(Struct):
    feature: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


class UpdateFeaturesResponse(Response, api_key=57, versions=(0, 2), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    results: Annotated[list[UpdatableFeatureResult], Until(1)] = field(default_factory=list)
