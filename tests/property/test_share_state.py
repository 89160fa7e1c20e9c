"""Share state against dumb twins: merging offset by offset, and random histories of the machine.

After every step the machine equals one that replays the log from where it was pruned. No state that was answered is
lost, however the requests are repeated, delayed and mixed with failovers.
"""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.coordinator.share_states import KEY, World
from tidemill.coordinator.share_state.batches import combined
from tidemill.coordinator.share_state.machine import Initialize, Read, Write
from tidemill.errors import ErrorCode
from tidemill.protocol.share_state import NO_START_OFFSET, ShareState, ShareStateChange, StateBatch

Twin = dict[int, tuple[int, int]]


@st.composite
def batches(draw: st.DrawFn) -> list[StateBatch]:
    found = []
    for _ in range(draw(st.integers(0, 6))):
        first = draw(st.integers(0, 30))
        last = first + draw(st.integers(0, 8))
        found.append(StateBatch(first, last, draw(st.sampled_from((0, 2, 4))), draw(st.integers(1, 3))))
    return found


def merge(twin: Twin, added: list[StateBatch], start_offset: int) -> Twin:
    """Offset by offset, the larger count and then the larger state."""
    after = dict(twin)
    for batch in added:
        for offset in range(batch.first_offset, batch.last_offset + 1):
            state = (batch.delivery_count, batch.delivery_state)
            after[offset] = max(after.get(offset, state), state)
    return {offset: state for offset, state in after.items() if offset >= start_offset}


def spread(found: tuple[StateBatch, ...]) -> Twin:
    twin: Twin = {}
    for batch in found:
        for offset in range(batch.first_offset, batch.last_offset + 1):
            assert offset not in twin, "two states of one offset"
            twin[offset] = (batch.delivery_count, batch.delivery_state)
    return twin


@given(st.lists(st.tuples(batches(), st.integers(-1, 20)), max_size=5))
def test_merging_equals_merging_offset_by_offset(writes: list[tuple[list[StateBatch], int]]) -> None:
    found: tuple[StateBatch, ...] = ()
    twin: Twin = {}
    for added, start_offset in writes:
        found, twin = combined(found, added, start_offset), merge(twin, added, start_offset)
        assert spread(found) == twin
        assert list(found) == sorted(found)
        for before, after in itertools.pairwise(found):
            is_neighbour = before.last_offset + 1 == after.first_offset
            assert not (is_neighbour and before[2:] == after[2:]), "neighbours with the same state"


_STEPS = st.one_of(
    st.tuples(st.just("write"), batches(), st.integers(-1, 20), st.integers(0, 2)),
    st.tuples(st.just("read"), st.integers(0, 1)),
    st.tuples(st.just("again"), st.integers(0, 10)),
    st.tuples(st.just("initialize"), st.sampled_from((0, 1)), st.sampled_from((-1, 0, 7))),
    st.tuples(st.just("pass"), st.sampled_from((100, 400_000))),
    st.tuples(st.just("hold")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("fail over")),
)


@settings(max_examples=150)
@given(st.lists(_STEPS, max_size=25), st.sampled_from((0, 2, 500)))
def test_live_state_equals_replay_and_keeps_what_was_answered(steps: list[Any], per_snapshot: int) -> None:
    world = World(snapshot_update_records_per_snapshot=per_snapshot)
    world.ask(Initialize(KEY, 0, NO_START_OFFSET))
    sent: list[Write] = []
    leader_epoch = fenced_epoch = 0
    # Of the current state epoch: what was answered, and the largest start offset.
    answered: Twin = {}
    start_offset = state_epoch = 0

    def took(write: Write, reply: Any) -> None:
        nonlocal answered, start_offset
        if reply is None and write.change.state_epoch == state_epoch:
            start_offset = max(start_offset, write.change.start_offset)
            answered = merge(answered, list(write.change.batches), start_offset)

    for step in steps:
        match step:
            case ("write", added, start, age):
                epoch = max(0, leader_epoch - age)
                write = Write(KEY, ShareStateChange(state_epoch, epoch, start, tuple(added)))
                sent.append(write)
                reply = world.ask(write)
                assert epoch >= fenced_epoch or reply in (ErrorCode.FENCED_LEADER_EPOCH, "waits")
                took(write, reply)
            case ("read", newer):
                leader_epoch += newer
                if world.ask(Read(KEY, leader_epoch)) != "waits":
                    fenced_epoch = leader_epoch
            case ("again", number) if sent:
                write = sent[number % len(sent)]
                took(write, world.ask(write))
            case ("initialize", newer, start):
                world.commit()
                before = world.machine.states[KEY]
                state_epoch += newer
                assert world.ask(Initialize(KEY, state_epoch, start)) is None
                if newer or start not in (before.start_offset, NO_START_OFFSET):
                    answered, start_offset = {}, max(start, 0)
            case ("pass", duration_ms):
                world.pass_time(duration_ms)
            case ("hold",):
                world.is_holding = True
            case ("commit",):
                world.commit()
            case ("fail over",):
                world.fail_over()
        world.check_replay()
    world.commit()
    state = world.ask(Read(KEY, leader_epoch))
    assert isinstance(state, ShareState)
    assert state.start_offset >= start_offset or state.start_offset == NO_START_OFFSET
    held = spread(state.batches)
    for offset, known in answered.items():
        assert offset < state.start_offset or held[offset] >= known
