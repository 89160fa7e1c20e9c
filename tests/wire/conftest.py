"""Every test of this folder against the session's broker ends with a health check of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.brokers import RunningBroker
from tests.wire import health
from tests.wire.connection import Connection


@pytest.fixture(autouse=True)
def healthy(request: pytest.FixtureRequest) -> Iterator[None]:
    if "target" not in request.fixturenames:
        yield
        return
    target: RunningBroker = request.getfixturevalue("target")
    before = health.snapshot(target)
    yield
    health.assert_healthy(target, before)


@pytest.fixture
def connection(target: RunningBroker) -> Iterator[Connection]:
    with Connection(target) as connection:
        yield connection
