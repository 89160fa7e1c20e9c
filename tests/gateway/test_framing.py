"""Requests that a proxy before the gateway could read in another way than the gateway: none of them is taken."""

from __future__ import annotations

import pytest

from tests.gateway.conftest import Gateway, start_gateway
from tests.gateway.raw import RawConnection
from tidemill.gateway.settings import Limits, Settings
from tidemill.testing import InProcessBroker

POST = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status", "words"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400, "several Host"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nhOST: elsewhere\r\n\r\n", 400, "several Host"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400, "no Host"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost, elsewhere\r\n\r\n", 400, "not a host"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost/elsewhere\r\n\r\n", 400, "not a host"),
        (b"GET /healthz HTTP/2.0\r\nHost: localhost\r\n\r\n", 505, "HTTP/1.1"),
        (POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400, "not HTTP"),
        (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "not HTTP"),
        (POST + b"Content-Length: 2, 2\r\n\r\n{}", 400, "not HTTP"),
        (POST + b"Content-Length: +2\r\n\r\n{}", 400, "not HTTP"),
        (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "not HTTP"),
        (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", 400, "not HTTP"),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "chunked"),
        (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501, "chunked"),
        (
            POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "not HTTP",
        ),
        (
            b"POST /healthz HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "HTTP/1.0",
        ),
        (POST + b"X-Folded: a\r\n b\r\n\r\n", 400, "not HTTP"),
        (POST + b"Content-Length : 2\r\n\r\n{}", 400, "not HTTP"),
        (POST + b"X-Bare: a\nContent-Length: 2\r\n\r\n{}", 400, "not HTTP"),
        (POST + b"X-Nul: a\x00b\r\n\r\n", 400, "not HTTP"),
    ],
)
def test_a_request_of_two_meanings_is_refused_and_ends_the_connection(
    gateway: Gateway, request_bytes: bytes, status: int, words: str
) -> None:
    with RawConnection(gateway) as connection:
        connection.send(request_bytes)
        answered, body = connection.response()
        assert (answered, body["error_code"]) == (status, status)
        assert words in str(body["message"])
        assert connection.is_closed_by_the_gateway()


def test_an_absolute_target_says_which_host_is_meant(gateway: Gateway) -> None:
    for target, status in ((b"http://elsewhere.example", 403), (b"http://localhost:8080", 200)):
        with RawConnection(gateway) as connection:
            connection.send(b"GET %s/v3/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n" % target)
            assert connection.response()[0] == status


def test_a_trailer_is_not_a_header(gateway: Gateway) -> None:
    """It would come after the guards, or before them when it is fast."""
    with RawConnection(gateway) as connection:
        head = (
            b"POST /v3/clusters/none/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        body = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nOrigin: https://elsewhere.example\r\n\r\n"
        connection.send(head + body)
        status, answer = connection.response()
        # As a header it would have been refused with 403.
        assert (status, answer["error_code"]) == (404, 404)


@pytest.mark.parametrize("beside", [b"0\r\nX-Endless: ", b"2;extension="])
def test_chunk_extensions_and_trailers_are_bounded(gateway_broker: InProcessBroker, beside: bytes) -> None:
    limits = Limits(header_bytes_max=2048)
    with (
        start_gateway(Settings(bootstrap=gateway_broker.bootstrap, limits=limits), gateway_broker) as gateway,
        RawConnection(gateway) as connection,
    ):
        connection.begin(f"{gateway.v3}/topics", "Transfer-Encoding: chunked")
        connection.send(b"2\r\n{}\r\n")
        connection.send(beside)
        stop = connection.drip(b"x" * 1000, every_s=0.01)
        assert connection.response()[0] == 431
        stop.set()


def test_an_earlier_request_is_answered_before_the_connection_ends_for_a_later_one(gateway: Gateway) -> None:
    """Its caller would take the refusal for its own answer."""
    with RawConnection(gateway) as connection:
        connection.send(b"GET /v3/clusters HTTP/1.1\r\nHost: localhost\r\n\r\nnonsense\r\n\r\n")
        received = connection.rest()
    assert received.startswith(b"HTTP/1.1 200")
    assert received.count(b"HTTP/1.1") == 1
    assert b'"KafkaClusterList"' in received


def test_a_stream_whose_chunks_break_is_not_answered_twice(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    with RawConnection(gateway) as connection:
        connection.begin(f"{gateway.v3}/topics/{topic}/records", "Transfer-Encoding: chunked")
        connection.send(b"2\r\n{}\r\n")
        received = b""
        while b'"offset":0' not in received:
            received += connection.more()
        connection.send(b"nonsense\r\n")
        received += connection.rest()
    assert received.count(b"HTTP/1.1") == 1
