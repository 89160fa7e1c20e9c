"""A fetch of views whose search fails unexpectedly costs its connection: a client without an answer waits in vain."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.broker.replica_world import FakePeer
from tests.unit.broker.test_delayed_fetch import FakeFetch, FakeLoop
from tidemill.broker.requests.fetching.filtered_fetch import FilteredFetch
from tidemill.protocol.api.data import FetchRequest


def test_search_that_fails_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    loop, connection, submitted = FakeLoop(), FakePeer(), []
    work = SimpleNamespace(submit=lambda _begin, done: submitted.append(done))
    broker = SimpleNamespace(loop=loop, replicas=SimpleNamespace(filtered_work=work))
    call = SimpleNamespace(connection=connection, is_wanted=True)
    fetch = FakeFetch()
    fetch.look_further = lambda _scan_bytes_max: iter(())  # type: ignore[attr-defined]
    request = FetchRequest(min_bytes=1, max_wait_ms=500)
    FilteredFetch(cast(Any, broker), cast(Any, call), request, cast(Any, fetch)).start()
    with caplog.at_level(logging.ERROR):
        submitted.pop()(None, ValueError("a bug"))
    assert connection.is_closed
    assert not fetch.responses
    assert not loop.later
    assert [record.message for record in caplog.records] == ["Fetch of test failed; its connection is closed"]
