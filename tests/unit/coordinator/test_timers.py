from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.coordinator.timers import Timers


def run_due(timers: Timers[str], steady_ms: int) -> list[str]:
    ran = []
    while (run := timers.pop_due(steady_ms)) is not None:
        ran.append(run(steady_ms))
    return ran


def test_timers_run_once_in_the_order_of_their_times() -> None:
    timers: Timers[str] = Timers()
    timers.set("b", 20, lambda steady_ms: f"b at {steady_ms}")
    timers.set("a", 10, lambda steady_ms: f"a at {steady_ms}")
    assert timers.deadline_ms == 10
    assert run_due(timers, 9) == []
    assert run_due(timers, 25) == ["a at 25", "b at 25"]
    assert run_due(timers, 99) == []
    assert timers.deadline_ms is None


def test_setting_a_timer_again_moves_it_either_way() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10, lambda _: "first")
    timers.set("a", 30, lambda _: "later")
    assert run_due(timers, 29) == []
    timers.set("a", 29, lambda _: "earlier")
    assert run_due(timers, 29) == ["earlier"]
    assert run_due(timers, 30) == []


def test_a_cancelled_timer_does_not_run() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10, lambda _: "a")
    timers.cancel("a")
    timers.cancel("unknown")
    assert timers.deadline_ms is None
    assert run_due(timers, 10) == []


def test_the_heap_stays_small_when_timers_are_set_and_cancelled_for_ever() -> None:
    timers: Timers[str] = Timers()
    for at_ms in range(10_000, 0, -1):
        timers.set("moved earlier", at_ms, lambda _: "a")
        timers.set(("once", at_ms), at_ms, lambda _: "b")
        timers.cancel(("once", at_ms))
    assert len(timers) == 1
    assert len(timers._heap) < 200


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 50))), st.integers(0, 60))
def test_against_a_dictionary(steps: list[tuple[int, int | None]], steady_ms: int) -> None:
    timers: Timers[str] = Timers()
    expected: dict[int, int] = {}
    for key, at_ms in steps:
        expected.pop(key, None)
        if at_ms is None:
            timers.cancel(key)
        else:
            expected[key] = at_ms
            timers.set(key, at_ms, lambda _, key=key: str(key))  # type: ignore[misc]
    earliest_ms = min(expected.values(), default=None)
    deadline_ms = timers.deadline_ms
    assert (deadline_ms is None) == (earliest_ms is None)
    if deadline_ms is not None and earliest_ms is not None:
        assert deadline_ms <= earliest_ms
    due = sorted((at_ms, key) for key, at_ms in expected.items() if at_ms <= steady_ms)
    assert sorted(run_due(timers, steady_ms)) == sorted(str(key) for _, key in due)
