"""A connection logs in again before its session ends (KIP-368), also between requests that are under way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemill.client.connections.connection import Address, Connection, ConnectionLost
from tidemill.client.connections.sasl import AuthenticationFailed
from tidemill.protocol import frames
from tidemill.protocol.api.cluster import MetadataRequest, MetadataResponse
from tidemill.testing import InProcessBroker, Security

SESSION_S = 3600


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    settings = {"connections.max.reauth.ms": SESSION_S * 1000}
    with InProcessBroker(settings, security=Security("SASL_PLAINTEXT", users=["alice"])) as broker:
        broker.create_topic("orders")
        yield broker


class Clock:
    """Of the connection. The broker's moves with it."""

    def __init__(self, broker: InProcessBroker) -> None:
        self._broker = broker
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._broker.clock.advance(seconds=seconds)
        self._now_s += seconds


@pytest.fixture
def clock(broker: InProcessBroker) -> Clock:
    return Clock(broker)


@pytest.fixture
def connection(broker: InProcessBroker, clock: Clock) -> Iterator[Connection]:
    security = broker.client_options("alice").security
    with Connection(Address("127.0.0.1", broker.port), security=security, clock=clock) as connection:
        yield connection


def topics(connection: Connection) -> list[str | None]:
    return [each.name for each in connection.request(MetadataRequest(topics=None), MetadataResponse).topics]


def test_connection_outlives_its_session(connection: Connection, clock: Clock) -> None:
    for _ in range(3):
        assert topics(connection) == ["orders"]
        clock.advance(0.9 * SESSION_S)
    assert topics(connection) == ["orders"]


def test_responses_under_way_are_kept_over_a_login(connection: Connection, clock: Clock) -> None:
    version = connection.version_of(MetadataRequest)
    posted = [connection.post(MetadataRequest(topics=None), version) for _ in range(3)]
    clock.advance(0.9 * SESSION_S)
    posted += [connection.post(MetadataRequest(topics=None), version) for _ in range(2)]
    for correlation_id in posted:
        frame = connection.take(correlation_id)
        assert frames.parse_response(MetadataResponse, version, frame)[1].topics[0].name == "orders"
    assert connection.is_usable()


def test_session_that_was_left_to_expire_ends_the_connection(
    broker: InProcessBroker, connection: Connection
) -> None:
    broker.clock.advance(seconds=2 * SESSION_S)
    with pytest.raises(ConnectionLost):
        topics(connection)


def test_changed_password_ends_the_session_at_its_renewal(
    broker: InProcessBroker, connection: Connection, clock: Clock
) -> None:
    broker.set_password("alice", "another")
    assert topics(connection) == ["orders"]
    clock.advance(0.9 * SESSION_S)
    with pytest.raises(AuthenticationFailed):
        topics(connection)
    assert connection.is_closed
