"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37): the controller decides, this only asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.dispatch import Call, serves
from tidemill.errors import ErrorCode
from tidemill.protocol.api.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.context import Broker


@serves(CreateTopicsRequest, versions=(2, 7))
async def create_topics(broker: Broker, call: Call, request: CreateTopicsRequest) -> CreateTopicsResponse:
    return await broker.controller.submit(
        lambda controller: controller.create_topics(request, broker.new_uuid)
    )


@serves(DeleteTopicsRequest)
async def delete_topics(broker: Broker, call: Call, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    if not broker.config.topics.delete_topic_enable:
        code = ErrorCode.INVALID_REQUEST if call.version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        names = [topic.name for topic in request.topics] or request.topic_names
        return DeleteTopicsResponse(
            responses=[DeletableTopicResult(name=name, error_code=code) for name in names]
        )
    return await broker.controller.submit(lambda controller: controller.delete_topics(request))


@serves(CreatePartitionsRequest)
async def create_partitions(
    broker: Broker, call: Call, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    return await broker.controller.submit(lambda controller: controller.create_partitions(request))
