"""The rules of log-ins alone: which attempts wait, and which sessions are good. Nothing here connects or waits."""

from __future__ import annotations

import base64
import random

import pytest

from tidemill.gateway.login.gate import token_credentials
from tidemill.gateway.login.sessions import Kind, Sessions
from tidemill.gateway.login.throttle import LoginThrottle
from tidemill.gateway.settings import Credentials, LoginLimits

ALICE = Credentials("alice", "a")
HOME, AWAY = "192.0.2.1", "198.51.100.7"


def attempt(throttle: LoginThrottle, address: str, user: str, now_s: float, *, is_success: bool) -> float:
    """Returns how long the attempt had to wait."""
    begun = throttle.begin(address, user, now_s)
    assert begun is not None
    throttle.end(begun, now_s, is_success=is_success)
    return begun.wait_s


def fail(throttle: LoginThrottle, count: int, address: str = AWAY, user: str = "alice") -> list[float]:
    return [attempt(throttle, address, user, 0.0, is_success=False) for _ in range(count)]


# --- the throttle ---


def test_first_failures_cost_nothing_and_later_ones_ever_more_up_to_the_limit() -> None:
    waits = fail(LoginThrottle(5.0), 15)
    assert waits[:5] == [0.0] * 5
    assert waits[5] > 0
    assert waits == sorted(waits)
    assert waits[-1] == 5.0


def test_attempt_on_a_user_under_attack_waits_and_is_never_refused() -> None:
    throttle = LoginThrottle(5.0)
    fail(throttle, 10_000)
    assert attempt(throttle, HOME, "alice", 0.0, is_success=True) == 5.0


def test_user_known_at_an_address_is_not_slowed_by_failures_elsewhere() -> None:
    throttle = LoginThrottle(5.0)
    attempt(throttle, HOME, "alice", 0.0, is_success=True)
    fail(throttle, 100)
    assert attempt(throttle, HOME, "alice", 0.0, is_success=True) == 0.0


def test_guesses_from_the_address_where_a_user_is_known_are_slowed() -> None:
    throttle = LoginThrottle(5.0)
    attempt(throttle, HOME, "alice", 0.0, is_success=True)
    assert fail(throttle, 30, HOME)[-1] == 5.0


def test_address_that_tries_many_users_is_slowed() -> None:
    throttle = LoginThrottle(5.0)
    waits = [attempt(throttle, AWAY, f"user {number}", 0.0, is_success=False) for number in range(40)]
    assert waits[:20] == [0.0] * 20
    assert waits[-1] == 5.0
    assert attempt(throttle, HOME, "user 41", 0.0, is_success=False) == 0.0


def test_addresses_of_one_ipv6_network_count_as_one() -> None:
    throttle = LoginThrottle(5.0)
    for number in range(40):
        wait_s = attempt(throttle, f"2001:db8::{number:x}", f"user {number}", 0.0, is_success=False)
    assert wait_s == 5.0


def test_failures_are_forgotten_after_a_while() -> None:
    throttle = LoginThrottle(5.0)
    fail(throttle, 30)
    assert attempt(throttle, AWAY, "alice", 1000.0, is_success=False) == 0.0


def test_cluster_that_cannot_say_is_no_failure() -> None:
    throttle = LoginThrottle(5.0)
    for _ in range(100):
        begun = throttle.begin(AWAY, "alice", 0.0)
        assert begun is not None
        throttle.end(begun, 0.0, is_success=None)
    assert attempt(throttle, AWAY, "alice", 0.0, is_success=True) == 0.0


def test_attempts_at_the_same_time_are_bounded_and_known_users_find_a_place() -> None:
    throttle = LoginThrottle(5.0)
    attempt(throttle, HOME, "alice", 0.0, is_success=True)
    admitted = [throttle.begin(HOME, f"user {number}", 0.0) for number in range(1000)]
    assert sum(each is not None for each in admitted) == 64
    assert [throttle.begin(HOME, "alice", 0.0) is not None for _ in range(5)] == [True] * 4 + [False]
    spread = [throttle.begin(f"10.0.{number}.1", f"user {number}", 0.0) for number in range(256)]
    assert sum(each is not None for each in spread) == 256 - 64 - 4
    first = next(each for each in admitted if each is not None)
    throttle.end(first, 0.0, is_success=False)
    assert throttle.begin("203.0.113.1", "another", 0.0) is not None


def test_memory_of_the_throttle_is_bounded() -> None:
    throttle = LoginThrottle(5.0)
    for number in range(30_000):
        attempt(
            throttle,
            f"10.{number >> 16}.{(number >> 8) & 255}.{number & 255}",
            f"user {number}",
            0.0,
            is_success=False,
        )
        attempt(throttle, HOME, f"known {number}", 0.0, is_success=True)
    assert len(throttle) <= 30_000


# --- sessions ---


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(
        LoginLimits(session_idle_s=60, session_s_max=300, sessions_max=5, user_sessions_max=3),
        random.Random(7).randbytes,
    )


def test_session_lives_while_it_is_used_and_ends_at_its_age(sessions: Sessions) -> None:
    text = sessions.open(ALICE, Kind.COOKIE, 0.0).text
    for now_s in range(50, 300, 50):
        assert sessions.find(text, Kind.COOKIE, now_s) is not None
    assert sessions.find(text, Kind.COOKIE, 300.0) is None
    assert len(sessions) == 0


def test_session_that_is_not_used_expires(sessions: Sessions) -> None:
    opened = sessions.open(ALICE, Kind.COOKIE, 0.0)
    assert sessions.expire(59.0) == []
    assert sessions.expire(60.0) == [opened]
    assert sessions.find(opened.text, Kind.COOKIE, 60.0) is None


def test_session_in_use_expires_at_its_age(sessions: Sessions) -> None:
    opened = sessions.open(ALICE, Kind.COOKIE, 0.0)
    sessions.open(ALICE, Kind.COOKIE, 280.0)
    assert sessions.find(opened.text, Kind.COOKIE, 50.0) is opened
    for now_s in range(100, 300, 50):
        assert sessions.expire(now_s) == []
        assert sessions.find(opened.text, Kind.COOKIE, now_s) is opened
    assert sessions.find(opened.text, Kind.COOKIE, 299.0) is opened
    assert sessions.expire(300.0) == [opened]
    assert len(sessions) == 1


def test_session_of_another_gateway_is_not_known(sessions: Sessions) -> None:
    other = Sessions(LoginLimits(), random.Random(8).randbytes)
    assert sessions.find(other.open(ALICE, Kind.COOKIE, 0.0).text, Kind.COOKIE, 0.0) is None


def test_user_with_too_many_sessions_loses_its_own_oldest(sessions: Sessions) -> None:
    others = sessions.open(Credentials("bob", "b"), Kind.BEARER, 0.0)
    own = [sessions.open(ALICE, Kind.BEARER, 1.0) for _ in range(4)]
    found = [sessions.find(each.text, Kind.BEARER, 2.0) is not None for each in (others, *own)]
    assert found == [True, False, True, True, True]


def test_sessions_are_bounded(sessions: Sessions) -> None:
    for number in range(50):
        sessions.open(Credentials(f"user {number}", "x"), Kind.BEARER, 0.0)
    assert len(sessions) == 5


def test_same_name_with_another_password_is_another_owner(sessions: Sessions) -> None:
    assert sessions.owner_of(ALICE) == sessions.owner_of(Credentials("alice", "a"))
    owners = {
        sessions.owner_of(Credentials(*each)) for each in (("alice", "b"), ("alic", "ea"), ("", "alicea"))
    }
    assert len(owners | {sessions.owner_of(ALICE)}) == 4


def test_revoking_an_owner_ends_its_sessions_alone(sessions: Sessions) -> None:
    opened = [sessions.open(ALICE, kind, 0.0) for kind in Kind]
    other = sessions.open(Credentials("alice", "another"), Kind.COOKIE, 0.0)
    sessions.revoke_all(opened[0].owner)
    assert all(sessions.find(each.text, each.kind, 0.0) is None for each in opened)
    assert sessions.find(other.text, Kind.COOKIE, 0.0) is other


def test_no_repr_shows_a_secret(sessions: Sessions) -> None:
    opened = sessions.open(Credentials("alice", "hidden"), Kind.COOKIE, 0.0)
    assert "hidden" not in repr(opened)
    assert opened.text not in repr(opened)
    assert opened.csrf_token not in repr(opened)


@pytest.mark.parametrize(
    "payload", [b"[" * 9_000, b"{}", b"\xff", b"7", b'{"sub": null}', b""], ids=lambda each: repr(each[:10])
)
def test_name_in_a_token_that_cannot_be_read_is_no_error(payload: bytes) -> None:
    token = f"a.{base64.urlsafe_b64encode(payload).decode()}.c"
    assert token_credentials(token) == Credentials("the bearer of a token", token)
