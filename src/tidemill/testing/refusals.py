"""What an answer looks like that holds nothing but an error, for each API that a test may have refused.

Where the error stands depends on the API: once for all (Heartbeat), per topic (CreateTopics) or per partition (Produce).
For the latter the answer has to name what the request named, or the client waits for what is missing. The answer to Metadata
also tells where the brokers are, without which a client is lost: there the broker answers, and only the topics are struck
out (`refused_metadata`). An API that has no place for an error cannot be refused.

Also here: which topics a request names, however it names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tidemill.errors import ErrorCode
from tidemill.protocol import api as apis
from tidemill.protocol.api import admin, cluster, data, offsets, transactions
from tidemill.protocol.declarations import Struct
from tidemill.protocol.frames import LENGTH_BYTES, parse_response, response_frame
from tidemill.protocol.schema import NO_UUID, Request, Response

NameOf = Callable[[bytes], str | None]

# Fields in which requests list topics, or what lists topics in turn.
_TOPIC_FIELDS = ("topics", "topic_data", "topic_names", "v3_and_below_topics", "groups", "transactions")
_CANNOT_BE_REFUSED = ("ApiVersions", "SaslHandshake", "SaslAuthenticate")


def topics_of(request: Request, name_of: NameOf) -> set[str]:
    """The names of the topics in a request; ids are looked up."""
    return set(_names(request, name_of))


def _names(struct: Struct, name_of: NameOf) -> Iterable[str]:
    for field in _TOPIC_FIELDS:
        for each in getattr(struct, field, None) or ():
            if isinstance(each, str):
                yield each
                continue
            name = getattr(each, "name", None) or getattr(each, "topic", None)
            topic_id = getattr(each, "topic_id", NO_UUID)
            if not name and topic_id != NO_UUID:
                name = name_of(topic_id)
            if isinstance(name, str) and name:
                yield name
            yield from _names(each, name_of)


def refusal(request: Request, code: ErrorCode) -> Response:
    """The answer that carries out nothing and says why."""
    build = _BUILDERS.get(type(request))
    if build is not None:
        return build(request, int(code))
    response: Any = apis.RESPONSES[request.api_key]()
    response.error_code = int(code)
    if hasattr(response, "error_message"):
        response.error_message = code.message
    assert isinstance(response, Response)
    return response


def refused_metadata(answer: bytes, version: int, topic: str | None, code: ErrorCode) -> bytes:
    """The frame of an answer to Metadata, in which a topic, or every one, has nothing but an error."""
    correlation_id, response = parse_response(
        cluster.MetadataResponse, version, memoryview(answer)[LENGTH_BYTES:]
    )
    for each in response.topics:
        if topic in (None, each.name):
            each.error_code = int(code)
            each.partitions = []
    return response_frame(response, version, correlation_id)


def api_key_of(name: str) -> int:
    """The key of an API by its name in Kafka's documentation; `ValueError` for one that cannot be refused."""
    for key, known in apis.API_NAMES.items():
        if known.lower() == name.lower():
            return key
    raise ValueError(f"{name!r} is no API of Kafka's; examples: Produce, Fetch, JoinGroup, OffsetCommit")


def check_refusable(api_key: int) -> None:
    name = apis.API_NAMES[api_key]
    is_known = apis.REQUESTS[api_key] in _BUILDERS or hasattr(apis.RESPONSES[api_key](), "error_code")
    if name in _CANNOT_BE_REFUSED or not is_known:
        raise ValueError(
            f"{name} has no answer that is just an error; slow it down or lose its answer instead"
        )


def _produce(request: Any, code: int) -> Response:
    return data.ProduceResponse(
        responses=[
            data.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    data.PartitionProduceResponse(index=each.index, error_code=code, base_offset=-1)
                    for each in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _fetch(request: Any, code: int) -> Response:
    # An incremental fetch names only what changed: what it is about, its session knows.
    return data.FetchResponse(
        error_code=0 if request.topics else code,
        responses=[
            data.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    data.PartitionData(partition_index=each.partition, error_code=code, high_watermark=-1)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _list_offsets(request: Any, code: int) -> Response:
    return data.ListOffsetsResponse(
        topics=[
            data.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    data.ListOffsetsPartitionResponse(partition_index=each.partition_index, error_code=code)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_commit(request: Any, code: int) -> Response:
    return offsets.OffsetCommitResponse(
        topics=[
            offsets.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    offsets.OffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_fetch(request: Any, code: int) -> Response:
    groups = [
        offsets.OffsetFetchResponseGroup(group_id=each.group_id, error_code=code) for each in request.groups
    ]
    return offsets.OffsetFetchResponse(error_code=code, groups=groups)


def _txn_offset_commit(request: Any, code: int) -> Response:
    return transactions.TxnOffsetCommitResponse(
        topics=[
            transactions.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    transactions.TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _add_partitions(request: Any, code: int) -> Response:
    def results(topics: Any) -> list[transactions.AddPartitionsToTxnTopicResult]:
        return [
            transactions.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    transactions.AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=code
                    )
                    for index in topic.partitions
                ],
            )
            for topic in topics
        ]

    return transactions.AddPartitionsToTxnResponse(
        results_by_transaction=[
            transactions.AddPartitionsToTxnResult(
                transactional_id=each.transactional_id, topic_results=results(each.topics)
            )
            for each in request.transactions
        ],
        results_by_topic_v3_and_below=results(request.v3_and_below_topics),
    )


def _find_coordinator(request: Any, code: int) -> Response:
    message = ErrorCode(code).message
    return cluster.FindCoordinatorResponse(
        error_code=code,
        error_message=message,
        node_id=-1,
        port=-1,
        coordinators=[
            cluster.Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=message)
            for key in request.coordinator_keys
        ],
    )


def _create_topics(request: Any, code: int) -> Response:
    message = ErrorCode(code).message
    return admin.CreateTopicsResponse(
        topics=[
            admin.CreatableTopicResult(name=topic.name, error_code=code, error_message=message)
            for topic in request.topics
        ]
    )


def _delete_topics(request: Any, code: int) -> Response:
    named = [admin.DeletableTopicResult(name=name, error_code=code) for name in request.topic_names]
    listed = [
        admin.DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code)
        for topic in request.topics
    ]
    return admin.DeleteTopicsResponse(responses=named + listed)


_BUILDERS: dict[type[Request], Callable[[Any, int], Response]] = {
    data.ProduceRequest: _produce,
    data.FetchRequest: _fetch,
    data.ListOffsetsRequest: _list_offsets,
    offsets.OffsetCommitRequest: _offset_commit,
    offsets.OffsetFetchRequest: _offset_fetch,
    transactions.TxnOffsetCommitRequest: _txn_offset_commit,
    transactions.AddPartitionsToTxnRequest: _add_partitions,
    cluster.FindCoordinatorRequest: _find_coordinator,
    admin.CreateTopicsRequest: _create_topics,
    admin.DeleteTopicsRequest: _delete_topics,
}
