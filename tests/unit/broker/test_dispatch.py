"""The response when a handler refuses, fails, or returns a response that cannot be encoded."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tidemill.broker.requests import handlers
from tidemill.broker.requests.api_table import TABLE, Scope
from tidemill.broker.requests.dispatch import Dispatcher
from tidemill.broker.requests.quotas import ClientQuotas
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol import api as apis
from tidemill.protocol.api import admin, quorum
from tidemill.protocol.api.cluster import DescribeClusterRequest, DescribeClusterResponse, MetadataRequest
from tidemill.protocol.frames import LENGTH_BYTES, parse_response, request_frame
from tidemill.protocol.schema import Request, Response
from tidemill.security.principals import ANONYMOUS

assert handlers  # importing them fills the dispatch table

LISTENER = "PLAINTEXT"
NOBODY = ApiError(ErrorCode.REQUEST_TIMED_OUT, "no active controller answered in time")
TOO_LONG = "x" * 40_000


class _Series:
    def observe(self, seconds: float) -> None: ...


class _Metrics:
    is_watched = False

    def request(self, _key: int) -> _Series:
        return _Series()


class _Lanes:
    def __init__(self) -> None:
        self.claims: list[object] = []

    def claim(self, connection: object, _hosts: object) -> None:
        self.claims.append(connection)


class _Broker:
    metrics = _Metrics()
    authorizer = None
    quotas: ClientQuotas | None = None

    def __init__(self) -> None:
        self.lanes = _Lanes()


class _Reply:
    def __init__(self, sent: list[bytes]) -> None:
        self._sent = sent

    def send(self, parts: Sequence[bytes]) -> None:
        self._sent.append(b"".join(parts))


class _Peer:
    peer = "10.0.0.1:5000"
    listener_name = LISTENER
    principal = ANONYMOUS
    local_address = ("10.0.0.2", 9092)
    received_s = 0.0

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed_because: str | None = None
        self.close_callbacks: list[Callable[[], None]] = []

    @property
    def is_closed(self) -> bool:
        return self.closed_because is not None

    def mark_as_node(self) -> None:
        raise AssertionError("a request proves nothing")

    def add_kept_bytes(self, count: int) -> None: ...

    def expect_reply(self) -> Any:
        return _Reply(self.sent)

    def close(self, reason: str | None) -> None:
        self.closed_because = reason


async def asked(
    monkeypatch: pytest.MonkeyPatch, request: Request, handler: Callable[..., Any], version: int
) -> _Peer:
    """The connection after `handler` has dealt with the request."""
    api = dataclasses.replace(TABLE[request.api_key], handler=handler)
    monkeypatch.setitem(TABLE, request.api_key, api)
    broker: Any = _Broker()
    dispatcher = Dispatcher(broker, {LISTENER: Scope.BOTH})
    peer: Any = _Peer()
    dispatcher.dispatch(peer, memoryview(request_frame(request, version, 7))[LENGTH_BYTES:])
    await dispatcher.drain(30.0)
    assert isinstance(peer, _Peer)
    return peer


def answer(peer: _Peer, request: Request, version: int) -> Any:
    (sent,) = peer.sent
    correlation_id, response = parse_response(
        apis.RESPONSES[request.api_key], version, memoryview(sent)[LENGTH_BYTES:]
    )
    assert correlation_id == 7
    return response


def raises(error: Exception, *, later: bool) -> Callable[..., Any]:
    def at_once(*_: Any) -> Response:
        raise error

    async def after_a_while(*_: Any) -> Response:
        await asyncio.sleep(0)
        raise error

    return after_a_while if later else at_once


def returns(response: Response, *, later: bool) -> Callable[..., Any]:
    async def after_a_while(*_: Any) -> Response:
        await asyncio.sleep(0)
        return response

    return after_a_while if later else lambda *_: response


pytestmark = pytest.mark.parametrize("later", [False, True])


async def test_each_entry_gets_the_error(monkeypatch: pytest.MonkeyPatch, later: bool) -> None:
    request = admin.CreateTopicsRequest(topics=[admin.CreatableTopic(name=name) for name in "ab"])
    response = answer(await asked(monkeypatch, request, raises(NOBODY, later=later), 7), request, 7)
    told = [(each.name, each.error_code, each.error_message) for each in response.topics]
    assert told == [("a", NOBODY.code, NOBODY.message), ("b", NOBODY.code, NOBODY.message)]


async def test_error_of_the_whole_request_is_at_the_top(monkeypatch: pytest.MonkeyPatch, later: bool) -> None:
    request = DescribeClusterRequest()
    response = answer(await asked(monkeypatch, request, raises(NOBODY, later=later), 1), request, 1)
    assert (response.error_code, response.error_message) == (NOBODY.code, NOBODY.message)


async def test_error_without_a_field_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    peer = await asked(monkeypatch, MetadataRequest(topics=None), raises(NOBODY, later=later), 12)
    assert peer.sent == []
    assert peer.closed_because is not None
    assert "REQUEST_TIMED_OUT" in peer.closed_because


async def test_bug_is_logged_and_answered_without_details(
    monkeypatch: pytest.MonkeyPatch, later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    request = DescribeClusterRequest()
    bug = raises(RuntimeError("internal detail"), later=later)
    response = answer(await asked(monkeypatch, request, bug, 1), request, 1)
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "internal detail" not in response.error_message
    assert "internal detail" in caplog.text


async def test_an_answer_that_cannot_be_encoded_becomes_an_error(
    monkeypatch: pytest.MonkeyPatch, later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    request = admin.DeleteTopicsRequest(topic_names=["a"])
    result = admin.DeletableTopicResult(name="a", error_message=TOO_LONG)
    handler = returns(admin.DeleteTopicsResponse(responses=[result]), later=later)
    response = answer(await asked(monkeypatch, request, handler, 5), request, 5)
    assert [(each.name, each.error_code) for each in response.responses] == [
        ("a", ErrorCode.UNKNOWN_SERVER_ERROR)
    ]
    assert "DeleteTopics" in caplog.text


async def test_error_with_a_long_message_is_sent(monkeypatch: pytest.MonkeyPatch, later: bool) -> None:
    request = DescribeClusterRequest()
    refused = raises(ApiError(ErrorCode.INVALID_REQUEST, TOO_LONG), later=later)
    response = answer(await asked(monkeypatch, request, refused, 1), request, 1)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.error_message.startswith("xxx")


async def test_an_answer_is_not_encoded_for_a_client_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    def handler(_broker: Any, call: Any, _request: Any) -> Any:
        call.connection.close("gone")
        return returns(DescribeClusterResponse(), later=later)()

    peer = await asked(monkeypatch, DescribeClusterRequest(), handler, 1)
    assert peer.sent == []


async def test_request_of_nodes_does_not_prove_a_node(monkeypatch: pytest.MonkeyPatch, later: bool) -> None:
    handler = returns(quorum.VoteResponse(), later=later)
    peer = await asked(monkeypatch, quorum.VoteRequest(), handler, 2)
    assert len(peer.sent) == 1
