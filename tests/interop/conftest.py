"""Clients against the session's broker, each opened once."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.brokers import RunningBroker, start_broker
from tests.conftest import BOOTSTRAP
from tests.interop.clients import Client
from tests.interop.confluent_client import ConfluentClient
from tests.interop.group_consumers import GroupConsumer, MemberSettings
from tests.interop.group_table import GROUP_SETTINGS
from tests.interop.members import Member

_group_numbers = itertools.count(1)


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


@pytest.fixture(scope="session")
def group_target(target: RunningBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker whose groups rebalance soon: short sessions, no initial delay.

    Apache Kafka in its place needs the same settings: `--set` each of `GROUP_SETTINGS`.
    """
    if BOOTSTRAP:
        yield target
        return
    with start_broker(tmp_path_factory.mktemp("groups") / "data", settings=GROUP_SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="session")
def group_clients(group_target: RunningBroker) -> Iterator[Callable[[type[Client]], Client]]:
    clients: dict[type[Client], Client] = {}

    def open_once(kind: type[Client]) -> Client:
        if kind not in clients:
            clients[kind] = kind(group_target.bootstrap)
        return clients[kind]

    yield open_once
    for client in clients.values():
        client.close()


@pytest.fixture
def admin(group_clients: Callable[[type[Client]], Client]) -> Client:
    """Creates topics, writes and looks, beside the members under test."""
    return group_clients(ConfluentClient)


@pytest.fixture
def tool(request: pytest.FixtureRequest, group_clients: Callable[[type[Client]], Client]) -> Client:
    """The admin client of this row of the table."""
    return group_clients(request.param)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return f"g{os.getpid()}-{next(_group_numbers)}-{request.function.__name__[:60]}"


Join = Callable[..., Member]


@pytest.fixture
def join(group_target: RunningBroker, group: str, topic: str) -> Iterator[Join]:
    """Starts members of the test's own group, subscribed to its own topic by default."""
    with ExitStack() as members:

        def start(kind: type[GroupConsumer], **settings: Any) -> Member:
            if "pattern" not in settings:
                settings.setdefault("topics", (topic,))
            wanted = MemberSettings(**{"group": group, **settings})
            return members.enter_context(Member(kind, group_target.bootstrap, wanted))

        yield start
