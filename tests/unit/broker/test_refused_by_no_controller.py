"""What a client hears of each thing it asked for when no controller is there to decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidemill.broker.handlers import controller as handlers
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api import admin
from tidemill.protocol.api.replicas import UnregisterBrokerRequest
from tidemill.protocol.schema import Request

NOBODY = ApiError(ErrorCode.REQUEST_TIMED_OUT, "no active controller answered in time")

CASES: list[tuple[Request, Callable[[Any], list[Any]]]] = [
    (
        admin.CreateTopicsRequest(topics=[admin.CreatableTopic(name="a"), admin.CreatableTopic(name="b")]),
        lambda response: response.topics,
    ),
    (admin.DeleteTopicsRequest(topic_names=["a", "b"]), lambda response: response.responses),
    (
        admin.DeleteTopicsRequest(
            topics=[admin.DeleteTopicState(name="a"), admin.DeleteTopicState(name="b")]
        ),
        lambda response: response.responses,
    ),
    (
        admin.CreatePartitionsRequest(
            topics=[admin.CreatePartitionsTopic(name="a"), admin.CreatePartitionsTopic(name="b")]
        ),
        lambda response: response.results,
    ),
]


class _NoController:
    async def ask(self, request: Request, version: int) -> Any:
        raise NOBODY


class _Broker:
    controller = _NoController()

    def is_controller_listener(self, name: str) -> bool:
        return name == "CONTROLLER"


class _Connection:
    listener_name = "PLAINTEXT"


class _Call:
    connection = _Connection()
    version = 0


async def refused(request: Request) -> Any:
    return await handlers.ask(_Broker(), _Call(), request)


@pytest.mark.parametrize(("request_", "items"), CASES)
async def test_each_item_gets_the_error(request_: Request, items: Callable[[Any], list[Any]]) -> None:
    told = [(item.name, item.error_code, item.error_message) for item in items(await refused(request_))]
    assert told == [("a", 7, str(NOBODY)), ("b", 7, str(NOBODY))]


@pytest.mark.parametrize("kind", [admin.AlterConfigsRequest, admin.IncrementalAlterConfigsRequest])
async def test_each_resource_gets_the_error(kind: type[Request]) -> None:
    request: Any = kind()
    resource_type = {
        admin.AlterConfigsRequest: admin.AlterConfigsAlterConfigsResource,
        admin.IncrementalAlterConfigsRequest: admin.IncrementalAlterConfigsResource,
    }[kind]
    request.resources = [resource_type(resource_type=2, resource_name=name) for name in "ab"]
    response = await refused(request)
    assert type(response).api_key == kind.api_key
    told = [(each.resource_type, each.resource_name, each.error_code) for each in response.responses]
    assert told == [(2, "a", 7), (2, "b", 7)]


async def test_a_response_with_an_error_of_its_own_has_it_there() -> None:
    response = await refused(UnregisterBrokerRequest(broker_id=1))
    assert (response.error_code, response.error_message) == (7, str(NOBODY))
