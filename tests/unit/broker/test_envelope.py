"""Requests in an Envelope for the controller: any content gets a response, and none a traceback."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.handlers.controller import envelope
from tidemill.config import SecurityConfig
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from tidemill.protocol.api.brokers import EnvelopeRequest, EnvelopeResponse
from tidemill.protocol.api.data import FetchRequest
from tidemill.protocol.frames import LENGTH_BYTES, parse_response, request_frame
from tidemill.protocol.schema import Request, Response

_LONG = "x" * 40_000


def _enclosed(request: Request, version: int) -> bytes:
    return request_frame(request, version, 7, "broker-2")[LENGTH_BYTES:]


async def _ask(data: bytes, decided: Response | ApiError | None = None) -> EnvelopeResponse:
    async def decide(_request: Request, _version: int) -> Response:
        if isinstance(decided, ApiError):
            raise decided
        assert decided is not None, "this reached the controller"
        return decided

    broker = SimpleNamespace(
        controller=SimpleNamespace(decide=decide),
        is_controller_listener=lambda _name: True,
        authorizer=None,
        quotas=None,
        config=SimpleNamespace(security=SecurityConfig({}, 100, frozenset())),
    )
    call = SimpleNamespace(connection=SimpleNamespace(listener_name="CONTROLLER"))
    answer = await envelope(cast(Broker, broker), cast(Call, call), EnvelopeRequest(request_data=data))
    assert isinstance(answer, EnvelopeResponse)
    return answer


_TOPICS = _enclosed(CreateTopicsRequest(topics=[CreatableTopic(name="a")]), 7)
_MALFORMED = {
    "nothing": b"",
    "no header": b"\0\x13",
    "a client id that is longer than all": b"\0\x13\0\7\0\0\0\1\x7f\xff",
    "a client id that is no text": b"\0\x13\0\7\0\0\0\1\0\2\xff\xfe",
    "no body": _TOPICS[:18],
    "half a body": _TOPICS[:-3],
    "an API that is not the controller's": _enclosed(FetchRequest(), 12),
    "an API that does not exist": b"\x7f\xff" + _TOPICS[2:],
    "a version that does not exist": _TOPICS[:2] + b"\x7f\xff" + _TOPICS[4:],
}


@pytest.mark.parametrize("name", _MALFORMED)
async def test_unreadable_envelope_is_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = await _ask(_MALFORMED[name])
    assert (answer.error_code, answer.response_data) == (ErrorCode.INVALID_REQUEST, None)
    assert not caplog.records


async def test_response_that_cannot_be_encoded_is_refused() -> None:
    answered = DeleteTopicsResponse(responses=[DeletableTopicResult(name=_LONG)])
    answer = await _ask(_enclosed(DeleteTopicsRequest(topic_names=["a"]), 5), answered)
    assert (answer.error_code, answer.response_data) == (ErrorCode.INVALID_REQUEST, None)


async def test_error_is_in_each_entry_of_the_request() -> None:
    """The response of CreateTopics has no error of its own: an empty one would say that all is well."""
    answer = await _ask(_TOPICS, ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "No space left on device"))
    assert answer.response_data is not None
    _, response = parse_response(CreateTopicsResponse, 7, answer.response_data)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("a", ErrorCode.KAFKA_STORAGE_ERROR)
    ]


async def test_node_that_is_not_the_controller_answers_not_controller() -> None:
    answer = await _ask(_TOPICS, ApiError(ErrorCode.NOT_CONTROLLER))
    assert answer.error_code == ErrorCode.NOT_CONTROLLER


@given(st.binary(max_size=60) | st.tuples(st.integers(0, len(_TOPICS) - 1), st.integers(0, 255)))
def test_any_bytes_are_answered(change: bytes | tuple[int, int]) -> None:
    if isinstance(change, bytes):
        data = change
    else:
        position, byte = change
        data = _TOPICS[:position] + bytes([byte]) + _TOPICS[position + 1 :]
    answering: Any = _ask(data, ApiError(ErrorCode.POLICY_VIOLATION))
    with pytest.raises(StopIteration) as ended:
        answering.send(None)
    assert isinstance(ended.value.value, EnvelopeResponse)
