"""One broker for the tests of a module; each test has topics and groups of its own. Faults get a broker of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tidemill import Client
from tidemill.testing import InProcessBroker

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def shared() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def client(shared: InProcessBroker) -> Iterator[Client]:
    # A fetch that waits shorter for nothing makes the end of a topic show sooner.
    with Client(shared.bootstrap, timeout_s=20, fetch_wait_max_ms=50) as client:
        yield client


@pytest.fixture
def name() -> str:
    """Returns the name of a topic or group that no other test uses."""
    return f"sdk-{next(_NUMBERS)}"


@pytest.fixture
def topic(shared: InProcessBroker, name: str) -> str:
    """One partition."""
    return shared.create_topic(name)
