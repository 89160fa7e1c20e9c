"""One broker for the tests of a module; each test has queues and exchanges of its own. Faults get one of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from kombu import Connection

import tidemill.celery
from tidemill.testing import InProcessBroker

_NUMBERS = itertools.count()


def url_of(broker: InProcessBroker) -> str:
    assert tidemill.celery.Transport.driver_type == "tidemill"
    return f"tidemill://{broker.bootstrap}//"


@pytest.fixture(scope="module")
def shared() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def connection(shared: InProcessBroker) -> Iterator[Connection]:
    with Connection(url_of(shared)) as connection:
        yield connection


@pytest.fixture
def name() -> str:
    """Returns the name of a queue or exchange that no other test uses."""
    return f"q{next(_NUMBERS)}"
