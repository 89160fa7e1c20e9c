"""Fetch sessions: ownership and limits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from tests.unit.broker.replica_world import World
from tidemill.broker.requests.fetch_sessions import FetchSession, FetchSessions, ReplicaSession
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import FetchRequest

_VERSION = 12


def _sessions() -> FetchSessions:
    return FetchSessions(1_000, count(1).__next__)


def _opened(sessions: FetchSessions, replica_id: int) -> FetchSession:
    session = sessions.resolve(FetchRequest(replica_id=replica_id, session_epoch=0), _VERSION, 0)
    assert isinstance(session, FetchSession)
    return session


def test_follower_cannot_use_session_of_consumer() -> None:
    sessions = _sessions()
    session = _opened(sessions, -1)
    as_follower = FetchRequest(replica_id=2, session_id=session.id, session_epoch=1)
    assert sessions.resolve(as_follower, _VERSION, 0) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    as_consumer = FetchRequest(replica_id=-1, session_id=session.id, session_epoch=1)
    assert sessions.resolve(as_consumer, _VERSION, 0) is session


def test_consumer_cannot_use_session_of_follower() -> None:
    sessions = _sessions()
    session = _opened(sessions, 2)
    assert isinstance(session, ReplicaSession)
    as_consumer = FetchRequest(replica_id=-1, session_id=session.id, session_epoch=1)
    assert sessions.resolve(as_consumer, _VERSION, 0) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_fetch_of_follower_confirms_the_time_of_the_fetch_before() -> None:
    """The latest may have been under way for long: it was sent after the answer to the one before, and no more is known."""
    sessions = _sessions()
    opening = FetchRequest(replica_id=2, session_epoch=0)
    session = sessions.resolve(opening, _VERSION, 1_000)
    assert isinstance(session, ReplicaSession)
    assert session.confirmed_ms < 0
    going_on = FetchRequest(replica_id=2, session_id=session.id, session_epoch=1)
    assert sessions.resolve(going_on, _VERSION, 30_000) is session
    assert (session.replica_id, session.confirmed_ms) == (2, 1_000)


def test_many_follower_sessions_do_not_evict_one_in_use() -> None:
    """And they do not add up without end."""
    sessions = _sessions()
    session = _opened(sessions, 2)
    for number in range(5_000):
        _opened(sessions, 3)
        if number % 100 == 0:
            going_on = FetchRequest(replica_id=2, session_id=session.id, session_epoch=session.epoch)
            assert sessions.resolve(going_on, _VERSION, 0) is session
    assert len(sessions) <= 1_000


def test_jump_of_wall_clock_evicts_no_session(make_world: Callable[..., World]) -> None:
    world = make_world(1)
    world.start()
    broker = world[1].broker
    broker.fetch_sessions = FetchSessions(1, count(1).__next__)
    opening = FetchRequest(session_epoch=0)
    assert world.ask(1, opening).response.session_id == 1
    broker.wall.skew_ms += 3_600_000
    assert world.ask(1, opening).response.session_id == 0
    going_on = FetchRequest(session_id=1, session_epoch=1)
    assert world.ask(1, going_on).response.error_code == ErrorCode.NONE
