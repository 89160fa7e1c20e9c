"""The error responses of the APIs that a test may have rejected.

`protocol/error_responses.py` knows where each API carries its error. Fetch and AddPartitionsToTxn carry it per
partition here, although they also have a top-level error. A Metadata response must still name the brokers, so the
broker answers it and only the topics are replaced (`refused_metadata`).

The module also finds the topics that a request names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tidemill.errors import ErrorCode
from tidemill.protocol import api as apis
from tidemill.protocol.api import cluster, data, transactions
from tidemill.protocol.declarations import Struct
from tidemill.protocol.error_responses import error_response
from tidemill.protocol.frames import LENGTH_BYTES, parse_response, response_frame
from tidemill.protocol.schema import NO_UUID, Request, Response

NameOf = Callable[[bytes], str | None]

# The fields of requests that list topics.
_TOPIC_FIELDS = ("topics", "topic_data", "topic_names", "v3_and_below_topics", "groups", "transactions")
_CANNOT_BE_REFUSED = ("ApiVersions", "SaslHandshake", "SaslAuthenticate")


def topics_of(request: Request, name_of: NameOf) -> set[str]:
    """The names of the topics in a request; topic ids are looked up."""
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


def refusal(request: Request, version: int, code: ErrorCode) -> Response:
    """The response that rejects the whole request with an error."""
    build = _BUILDERS.get(type(request))
    if build is not None:
        return build(request, int(code))
    # A request without partitions gets an empty response.
    return error_response(request, version, code, code.message) or apis.RESPONSES[request.api_key]()


def refused_metadata(answer: bytes, version: int, topic: str | None, code: ErrorCode) -> bytes:
    """The frame of a Metadata response in which a topic, or every topic, has only an error."""
    correlation_id, response = parse_response(
        cluster.MetadataResponse, version, memoryview(answer)[LENGTH_BYTES:]
    )
    for each in response.topics:
        if topic in (None, each.name):
            each.error_code = int(code)
            each.partitions = []
    return response_frame(response, version, correlation_id)


def api_key_of(name: str) -> int:
    """The key of an API by its name in Kafka's documentation. Raises `ValueError` for one that cannot be rejected."""
    for key, known in apis.API_NAMES.items():
        if known.lower() == name.lower():
            return key
    raise ValueError(f"{name!r} is no API of Kafka's; examples: Produce, Fetch, JoinGroup, OffsetCommit")


def check_refusable(api_key: int) -> None:
    name = apis.API_NAMES[api_key]
    if name in _CANNOT_BE_REFUSED:
        raise ValueError(
            f"{name} has no answer that is just an error; slow it down or lose its answer instead"
        )


def _fetch(request: Any, code: int) -> Response:
    # An incremental fetch names only changed partitions; its session knows the others.
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


_BUILDERS: dict[type[Request], Callable[[Any, int], Response]] = {
    data.FetchRequest: _fetch,
    transactions.AddPartitionsToTxnRequest: _add_partitions,
}
