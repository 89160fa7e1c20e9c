"""Clients against the session's broker, each opened once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.brokers import RunningBroker
from tests.interop.clients import Client
from tests.interop.confluent_client import ConfluentClient


@pytest.fixture(scope="session")
def opened(target: RunningBroker) -> Iterator[Callable[[type[Client]], Client]]:
    clients: dict[type[Client], Client] = {}

    def open_once(kind: type[Client]) -> Client:
        if kind not in clients:
            clients[kind] = kind(target.bootstrap)
        return clients[kind]

    yield open_once
    for client in clients.values():
        client.close()


@pytest.fixture
def client(request: pytest.FixtureRequest, opened: Callable[[type[Client]], Client]) -> Client:
    """The client of this row of the table."""
    return opened(request.param)


@pytest.fixture
def other(opened: Callable[[type[Client]], Client]) -> Client:
    """Does the other half of a behaviour: sets up what the client under test reads, reads what it wrote."""
    return opened(ConfluentClient)
