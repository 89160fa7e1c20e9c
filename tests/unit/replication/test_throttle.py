"""The limit on bytes per second."""

from __future__ import annotations

from tidemill.replication.throttle import RateLimit


def test_unlimited_rate_never_waits() -> None:
    limit = RateLimit()
    limit.charge(1 << 60, 0)
    assert limit.wait_ms(0) == 0


def test_rate_holds_over_time() -> None:
    limit = RateLimit(1_000)
    steady_ms, sent = 1, 0
    while steady_ms < 60_000:
        wait_ms = limit.wait_ms(steady_ms)
        if wait_ms:
            steady_ms += wait_ms
        else:
            limit.charge(700, steady_ms)
            sent += 700
    assert 59_000 <= sent <= 61_700


def test_unused_bytes_add_up_to_one_second() -> None:
    limit = RateLimit(1_000)
    assert limit.wait_ms(3_600_000) == 0
    limit.charge(1_500, 3_600_000)
    assert 500 <= limit.wait_ms(3_600_000) <= 502


def test_wait_ms_changes_nothing() -> None:
    asked, silent = RateLimit(1_000), RateLimit(1_000)
    for limit in (asked, silent):
        limit.charge(5_000, 1_000)
    for steady_ms in (1_000, 2_000, 3_000):
        asked.wait_ms(steady_ms)
    assert asked.wait_ms(3_500) == silent.wait_ms(3_500) > 0


def test_rate_of_zero_stops_everything() -> None:
    limit = RateLimit(0)
    assert limit.wait_ms(1) > 0
    assert limit.wait_ms(1_000_000) > 0
