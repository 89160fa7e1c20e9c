"""A delayed fetch waits for bytes, for its time limit or for the end of its connection; a session remembers what it sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemill.broker.partitions.delayed_operations import Grew
from tidemill.broker.requests.fetch_sessions import CachedPartition
from tidemill.broker.requests.fetching.delayed_fetch import Answer, respond_or_delay
from tidemill.errors import ErrorCode
from tidemill.log.files import FileSlice
from tidemill.protocol.api.data import FetchPartition, FetchRequest
from tidemill.protocol.fetch import Fetched

MIN_BYTES = 100


class FakeFetch:
    def __init__(self) -> None:
        self.found_bytes = 0
        self.is_urgent = False
        self.grew: Grew | None = None
        self.responses = 0
        self.is_abandoned = False

    def read(self) -> tuple[list[Answer[FileSlice]], int, bool]:
        return [], self.found_bytes, self.is_urgent

    def respond(self, answers: list[Answer[FileSlice]]) -> None:
        self.responses += 1

    def listen(self, grew: Grew) -> None:
        self.grew = grew

    def stop_listening(self, grew: Grew) -> None:
        assert self.grew == grew
        self.grew = None

    def abandon(self) -> None:
        self.is_abandoned = True


class FakeLoop:
    """Holds timers and callbacks until the test runs them."""

    def __init__(self) -> None:
        self.soon: list[Any] = []
        self.later: list[Any] = []

    def call_soon(self, callback: Any) -> None:
        self.soon.append(callback)

    def call_later(self, _delay_s: float, callback: Any) -> Any:
        self.later.append(callback)
        return SimpleNamespace(cancel=lambda: self.later.remove(callback))


class Stage:
    def __init__(self, found_bytes: int = 0, *, is_urgent: bool = False) -> None:
        self.fetch = FakeFetch()
        self.fetch.found_bytes, self.fetch.is_urgent = found_bytes, is_urgent
        self.loop = FakeLoop()
        self.connection = SimpleNamespace(close_callbacks=[])
        call = SimpleNamespace(connection=self.connection, is_wanted=True)
        request = FetchRequest(min_bytes=MIN_BYTES, max_wait_ms=500)
        respond_or_delay(cast("Any", self.loop), cast("Any", call), request, self.fetch)

    @property
    def is_listening(self) -> bool:
        return self.fetch.grew is not None


@pytest.mark.parametrize(("found_bytes", "is_urgent"), [(MIN_BYTES, False), (0, True)])
def test_fetch_with_enough_bytes_or_an_error_responds_at_once(found_bytes: int, is_urgent: bool) -> None:
    stage = Stage(found_bytes, is_urgent=is_urgent)
    assert stage.fetch.responses == 1
    assert not stage.loop.later


def test_delayed_fetch_responds_when_the_missing_bytes_came() -> None:
    stage = Stage(found_bytes=40)
    assert stage.fetch.grew is not None
    stage.fetch.grew(59)
    assert not stage.loop.soon
    stage.fetch.grew(1)
    stage.fetch.grew(1)
    (complete,) = stage.loop.soon
    assert stage.fetch.responses == 0, "the ack of the producer goes first"
    complete()
    assert stage.fetch.responses == 1
    assert not stage.is_listening
    assert not stage.loop.later
    assert not stage.connection.close_callbacks


def test_delayed_fetch_responds_when_its_time_is_over() -> None:
    stage = Stage()
    (time_out,) = stage.loop.later
    time_out()
    assert stage.fetch.responses == 1
    assert not stage.connection.close_callbacks


def test_closed_connection_abandons_the_delayed_fetch() -> None:
    stage = Stage()
    assert stage.fetch.grew is not None
    stage.fetch.grew(MIN_BYTES)
    (abandon,) = stage.connection.close_callbacks
    abandon()
    (complete,) = stage.loop.soon
    complete()
    assert (stage.fetch.responses, stage.fetch.is_abandoned, stage.is_listening) == (0, True, False)


def test_session_includes_a_partition_until_its_offsets_were_sent() -> None:
    cached = CachedPartition(FetchPartition())
    fetched = Fetched(0, 0, 5, 5, 1)
    assert cached.must_include(fetched, None)
    assert cached.must_include(fetched, None), "the question remembers nothing"
    cached.remember_sent(fetched)
    assert not cached.must_include(fetched, None)
    assert cached.must_include(fetched._replace(high_watermark=6), None)
    assert cached.must_include(fetched._replace(log_start_offset=2), None)


def test_session_includes_a_partition_after_an_error() -> None:
    cached = CachedPartition(FetchPartition())
    fetched = Fetched(0, 0, 5, 5, 1)
    cached.remember_sent(fetched)
    error = Fetched(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert cached.must_include(error, None)
    cached.remember_sent(error)
    assert cached.must_include(fetched, None)
