"""The quota of controller mutations (KIP-599): partitions that a client has created or deleted.

Each topic of a request is counted by itself, in order. Clients that know THROTTLING_QUOTA_EXCEEDED get it for the topics
over the quota; the mutations of older ones are carried out, and their connection is muted. The broker counts that the client
is connected to.
"""

from __future__ import annotations

from typing import Any

from tidemill.broker.requests.quotas import RequestUsage
from tidemill.controller.image import MetadataImage
from tidemill.errors import ErrorCode
from tidemill.protocol.api.admin import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
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


def within_quota(
    image: MetadataImage, default_partitions: int, usage: RequestUsage, version: int, request: Request
) -> tuple[Request | None, Response | None]:
    """The part of the request that is within the quota, and the refusal of the rest; None where there is nothing."""
    field = "topics"
    if isinstance(request, DeleteTopicsRequest) and version < _DELETES_BY_STATE_SINCE:
        field = "topic_names"
    is_strict = version >= _STRICT_SINCE[type(request)]
    admitted: list[Any] = []
    refused: list[Any] = []
    for entry in getattr(request, field):
        partitions = _partitions(image, default_partitions, entry)
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
    """How many partitions come or go. 0 for a topic that the controller will refuse."""
    if isinstance(entry, CreatableTopic):
        if entry.name in image.topics_by_name:
            return 0
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
