"""The queue of due times and the compact sets of offsets, against lists and sets."""

from __future__ import annotations

import random

import pytest

from tidemill.delays.due_queue import RUN_ENTRIES, DueQueue
from tidemill.delays.offsets import FrozenArrays, HiddenOffsets, PendingOffsets


@pytest.mark.parametrize("seed", range(5))
def test_entries_come_out_in_the_order_of_due_time_and_offset(seed: int) -> None:
    rng = random.Random(seed)
    queue, model = DueQueue(), list[tuple[int, int]]()
    wall_ms = offset = 0
    for _ in range(300):
        for _ in range(rng.randint(0, 60)):
            offset += 1
            entry = (rng.randint(0, 5000) + rng.choice((0, wall_ms)), offset)
            queue.add(*entry)
            model.append(entry)
        # The clock may go back.
        wall_ms = max(0, wall_ms + rng.randint(-200, 500))
        limit = rng.choice((1, 7, 1000))
        expected = sorted(entry for entry in model if entry[0] <= wall_ms)[:limit]
        assert queue.pop_due(wall_ms, limit) == expected
        model = sorted(set(model) - set(expected))
        assert len(queue) == len(model)
        assert sorted(queue) == model
        assert queue.next_due_ms == (model[0][0] if model else None)


def test_clock_that_jumps_a_century_delivers_all_at_once_and_nothing_twice() -> None:
    queue = DueQueue()
    for offset in range(3000):
        queue.add(offset * 1000, offset)
    assert queue.pop_due(-(10**13), 10) == []
    assert [offset for _, offset in queue.pop_due(10**13, 10_000)] == list(range(3000))
    assert queue.pop_due(10**13, 10) == []
    assert queue.next_due_ms is None


def test_few_long_delays_do_not_keep_many_runs() -> None:
    queue = DueQueue()
    for offset in range(100 * RUN_ENTRIES):
        is_long = offset % 100 == 0
        queue.add(10**9 if is_long else offset, offset)
    assert len(queue.pop_due(10**8, 10**9)) == 99 * RUN_ENTRIES
    assert len(list(queue.freeze())) <= 4


def test_sweep_and_stale_heads_remove_what_is_not_live() -> None:
    queue = DueQueue()
    for offset in range(10 * RUN_ENTRIES):
        queue.add(offset // 2, offset)
    live = set(range(0, 10 * RUN_ENTRIES, 3))
    for _ in range(40):
        queue.sweep(lambda _, offset: offset in live)
    assert sorted(offset for _, offset in queue) == sorted(live)
    queue.drop_stale_heads(lambda _, offset: offset >= 30, 5)
    assert sorted(offset for _, offset in queue) == sorted(live)[5:]


@pytest.mark.parametrize("seed", range(5))
def test_pending_offsets_are_a_sorted_map(seed: int) -> None:
    rng = random.Random(seed)
    pending, model = PendingOffsets(), dict[int, int]()
    for step in range(20_000):
        offset = rng.choice((step, rng.randint(0, 20_000)))
        if rng.random() < 0.6 - 0.3 * (step > 10_000):
            pending.set(offset, step)
            model[offset] = step
        else:
            assert pending.pop(offset) == model.pop(offset, None)
        assert pending.get(offset) == model.get(offset)
    expected = sorted(model.items())
    assert pending.first_from(0, 10**6) == pending.first_below(10**6, 10**6) == expected
    assert len(pending) == len(model)
    assert pending.first == expected[0][0]
    middle = expected[len(expected) // 2][0]
    assert pending.first_below(middle, 10**6) == [entry for entry in expected if entry[0] < middle]
    assert pending.first_from(middle, 3) == [entry for entry in expected if entry[0] >= middle][:3]
    again = PendingOffsets()
    for offsets, due_times in pending.freeze():
        again.append_block(offsets, due_times)
    assert again.first_from(0, 10**6) == expected
    assert len(again) == len(expected)


@pytest.mark.parametrize("seed", range(5))
def test_hidden_offsets_are_a_set_that_is_cut_at_both_ends(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr("tidemill.delays.offsets._BLOCK_RUNS", rng.choice((1, 7, 4096)))
    hidden, model, end = HiddenOffsets(), set[int](), 0
    for _ in range(400):
        for _ in range(rng.randint(0, 8)):
            if rng.random() < 0.6:
                hidden.append(end)
                model.add(end)
            end += 1
        if rng.random() < 0.1:
            end = rng.randint(max(0, end - 20), end)
            hidden.truncate(end)
            model = {offset for offset in model if offset < end}
        if rng.random() < 0.1:
            start = rng.randint(max(0, end - 300), end)
            hidden.trim(start)
            model = {offset for offset in model if offset >= start}
        first = rng.randint(0, end)
        last = rng.randint(first, end)
        runs = hidden.between(first, last)
        assert [offset for run in runs for offset in range(*run)] == sorted(model & set(range(first, last)))
        assert (first in hidden) == (first in model)
        assert hidden.first_from(first) == min((each for each in model if each >= first), default=None)
        assert hidden.run_end(first) == next(each for each in range(first, end + 1) if each not in model)
        again = HiddenOffsets()
        blocks = list(hidden.freeze())
        hidden.thaw()
        for starts, lengths in blocks:
            again.extend(starts[:], lengths[:])
        assert again.between(0, end) == hidden.between(0, end)
        assert again.run_count == hidden.run_count == sum(len(starts) for starts, _ in blocks)


def _contents(frozen: FrozenArrays) -> list[tuple[list[int], list[int]]]:
    return [(first.tolist(), second.tolist()) for first, second in frozen]


@pytest.mark.parametrize("seed", range(5))
def test_frozen_arrays_stay_as_they_are_while_everything_changes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr("tidemill.delays.offsets._BLOCK_ENTRIES", 8)
    monkeypatch.setattr("tidemill.delays.offsets._BLOCK_RUNS", 8)
    pending, queue, hidden = PendingOffsets(), DueQueue(), HiddenOffsets()
    end = start = 0
    for _ in range(20):
        frozen = [each.freeze() for each in (pending, queue, hidden)]
        before = [_contents(each) for each in frozen]
        for _ in range(rng.randint(1, 300)):
            end += rng.randint(1, 2)
            hidden.append(end)
            pending.set(rng.choice((end, rng.randint(start, end))), rng.randint(0, 1000))
            pending.pop(rng.randint(start, end))
            for _ in range(rng.randint(1, 9)):
                queue.add(rng.randint(0, 1000), end)
            queue.pop_due(rng.randint(0, 1000), rng.randint(0, 8))
            if rng.random() < 0.05:
                queue.sweep(lambda due_ms, _: due_ms % 3 > 0)
            if rng.random() < 0.05:
                start = rng.randint(start, end)
                hidden.trim(start)
            if rng.random() < 0.05:
                end = rng.randint(start, end)
                hidden.truncate(end + 1)
        assert [_contents(each) for each in frozen] == before
        for each in (pending, queue, hidden):
            each.thaw()
