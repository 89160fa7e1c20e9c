"""The quota of controller mutations (KIP-599): partitions that a client has created or deleted.

Each topic of a request is counted by itself, in order. Clients that know THROTTLING_QUOTA_EXCEEDED get it for the topics
over the quota; the mutations of older ones are carried out, and their connection is muted. The broker counts that the client
is connected to. A topic that the controller refuses costs nothing, as in Kafka: the controller is asked by a trial first.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from tidemill.broker.requests.quotas import RequestUsage
from tidemill.controller.image import MetadataImage
from tidemill.errors import ErrorCode
from tidemill.protocol.api.admin import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tidemill.protocol.error_responses import error_response
from tidemill.protocol.schema import Request, Response, replace
from tidemill.types import TopicId

_STRICT_SINCE: dict[type[Request], int] = {
    CreateTopicsRequest: 6,
    CreatePartitionsRequest: 3,
    DeleteTopicsRequest: 5,
}
_DELETES_BY_STATE_SINCE = 6


def trial_of(request: Request) -> Request | None:
    """The request that shows which topics the controller refuses, and changes nothing; None for deletions."""
    if isinstance(request, CreateTopicsRequest | CreatePartitionsRequest):
        return replace(request, validate_only=True)
    return None


def refused_topics(answer: Response) -> frozenset[str]:
    """The topics that the answer to a trial refuses."""
    results: Sequence[CreatableTopicResult | CreatePartitionsTopicResult] = ()
    if isinstance(answer, CreateTopicsResponse):
        results = answer.topics
    elif isinstance(answer, CreatePartitionsResponse):
        results = answer.results
    return frozenset(each.name for each in results if each.error_code)


def within_quota(
    image: MetadataImage,
    default_partitions: int,
    usage: RequestUsage,
    version: int,
    request: Request,
    refused_anyway: Set[str] = frozenset(),
) -> tuple[Request | None, Response | None]:
    """The part of the request that is within the quota, and the refusal of the rest; None where there is nothing.

    `refused_anyway` has the topics that the controller refuses, with which the quota has nothing to do.
    """
    field = "topics"
    if isinstance(request, DeleteTopicsRequest) and version < _DELETES_BY_STATE_SINCE:
        field = "topic_names"
    is_strict = version >= _STRICT_SINCE[type(request)]
    admitted: list[Any] = []
    refused: list[Any] = []
    for entry in getattr(request, field):
        is_refused = not isinstance(entry, str) and entry.name in refused_anyway
        partitions = 0 if is_refused else _partitions(image, default_partitions, entry)
        is_admitted = partitions <= 0 or usage.mutated(partitions, is_strict=is_strict)
        (admitted if is_admitted else refused).append(entry)
    if not refused:
        return request, None
    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    refusal = error_response(
        replace(request, **{field: refused}), version, code, code.message, in_entries=True
    )
    return (replace(request, **{field: admitted}) if admitted else None), refusal


def _partitions(
    image: MetadataImage,
    default_partitions: int,
    entry: CreatableTopic | CreatePartitionsTopic | DeleteTopicState | str,
) -> int:
    """Returns how many partitions are created or deleted."""
    if isinstance(entry, CreatableTopic):
        asked = len(entry.assignments) or entry.num_partitions
        return default_partitions if asked == -1 else asked
    if isinstance(entry, DeleteTopicState) and entry.name is None:
        topic = image.topics_by_id.get(TopicId(entry.topic_id))
    else:
        name = entry if isinstance(entry, str) else entry.name
        topic = image.topics_by_name.get(name) if name is not None else None
    if topic is None:
        return 0
    existing = len(topic.partitions)
    return entry.count - existing if isinstance(entry, CreatePartitionsTopic) else existing
