"""Connections before authentication: limits of number and time."""

from __future__ import annotations

import logging

import pytest

from tidemill.broker.net.setups import Setups
from tidemill.tls.refusals import RefusalLog


class Peers:
    def __init__(self, count_max: int = 3) -> None:
        self.setups = Setups(count_max, 10.0)
        self.given_up: list[str] = []

    def begin(self, name: str, ip: str = "a", now_s: float = 0.0) -> int:
        return self.setups.begin(ip, now_s, lambda _reason: self.given_up.append(name))


def test_the_oldest_of_the_busiest_address_makes_room() -> None:
    peers = Peers()
    peers.begin("quiet", ip="b")
    peers.begin("first")
    peers.begin("second")
    peers.begin("third")
    assert peers.given_up == ["first"]
    peers.begin("other", ip="c")
    assert peers.given_up == ["first", "second"]
    assert peers.setups.take_given_up_count() == 2
    assert peers.setups.take_given_up_count() == 0


def test_a_setup_that_ended_is_not_given_up() -> None:
    peers = Peers()
    number = peers.begin("done")
    peers.setups.end(number)
    peers.setups.end(number)
    assert len(peers.setups) == 0
    peers.setups.expire(100.0)
    assert peers.given_up == []


def test_a_setup_is_given_up_when_its_time_is_over() -> None:
    peers = Peers()
    peers.begin("early", now_s=0.0)
    peers.begin("late", now_s=5.0)
    peers.setups.expire(9.9)
    assert peers.given_up == []
    peers.setups.expire(10.0)
    assert peers.given_up == ["early"]
    peers.setups.close()
    assert peers.given_up == ["early", "late"]


def test_a_flood_of_refusals_is_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    refusals = RefusalLog(logging.getLogger("refusals"))
    for number in range(1000):
        refusals.tell(f"refused {number}", 1.0)
    assert len(caplog.messages) == 10
    refusals.tell("refused again", 2.0)
    assert caplog.messages[10:] == ["refused 990 more connections before this", "refused again"]
