"""Bugs of share groups, planted as in `bugs.py`: acknowledgements that get lost, records that go to two members."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace as replace_
from inspect import signature
from typing import Any

from tests.sim.planted.bugs import ROUGH, Bug, Replace
from tests.unit.broker import test_share_dead_letters as letters
from tests.unit.broker import test_share_fetch as leaders
from tests.unit.broker.replica_world import World
from tests.unit.broker.share_world import StoredStates, configure, share_with
from tests.unit.coordinator import test_share_state as coordinators
from tests.unit.coordinator.share_states import KEY
from tests.unit.coordinator.share_states import World as StateWorld
from tidemill.broker.coordinators.share_state_client import ShareStateClient
from tidemill.broker.share import dead_letters, led_partition
from tidemill.broker.share.dead_letters import DeadLetters
from tidemill.broker.share.led_partition import LedSharePartition
from tidemill.coordinator.share_state import batches, machine
from tidemill.coordinator.share_state.machine import PartitionState, PruneLog, ShareStates
from tidemill.coordinator.share_state.records import ShareRecord, decode
from tidemill.errors import ApiError
from tidemill.protocol.api.coordinator_records import ShareUpdateValue
from tidemill.protocol.share_state import SharePartitionKey, ShareState, ShareStateChange, StateBatch
from tidemill.replication.share_messages import (
    AcknowledgeType,
    Change,
    Dead,
    ShareLimits,
    Write,
)
from tidemill.replication.share_partition import SharePartition
from tidemill.replication.share_ranges import CountState, DeliveryState, Range

SHARES = replace_(ROUGH, duration_s=90.0, has_shares=True, mean_upset_interval_s=10.0)


# -- the share partition at the leader -----------------------------------------------------------------------


def answered_before_it_is_durable(replace: Replace) -> None:
    original = ShareStateClient.write

    async def write(self: ShareStateClient, key: SharePartitionKey, change: ShareStateChange) -> None:
        async def later() -> None:
            with contextlib.suppress(ApiError):
                await original(self, key, change)

        task = asyncio.get_running_loop().create_task(later())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    replace(ShareStateClient, "write", write)


def a_failed_write_counts(replace: Replace) -> None:
    def _failed(self: LedSharePartition, found: SharePartition, write: Write, _failure: Exception) -> None:
        found.written(write, is_durable=True)
        self._answer(write, None)
        self.wake()

    replace(LedSharePartition, "_failed", _failed)


def a_lock_ends_while_its_write_is_under_way(replace: Replace) -> None:
    original = SharePartition.expire

    def expire(self: SharePartition, steady_ms: int) -> bool:
        for each in self._in_flight.ranges:
            if each.state == DeliveryState.ACQUIRED and each.deadline_ms <= steady_ms:
                each.transition = None
                self._earliest_end_ms = 0
        return original(self, steady_ms)

    replace(SharePartition, "expire", expire)


def releases_are_not_counted(replace: Replace) -> None:
    original = SharePartition._change_of

    def _change_of(self: SharePartition, found: Range, kind: int, steady_ms: int) -> Change:
        change = original(self, found, kind, steady_ms)
        if kind == AcknowledgeType.RELEASE:
            found.delivery_count -= 1
        return change

    replace(SharePartition, "_change_of", _change_of)


def locks_that_end_are_not_counted(replace: Replace) -> None:
    original = SharePartition._give_back

    def _give_back(self: SharePartition, ranges: Sequence[Range], *, is_timeout: bool = False) -> bool:
        for each in ranges:
            each.delivery_count -= 1
        return original(self, ranges, is_timeout=is_timeout)

    replace(SharePartition, "_give_back", _give_back)


def what_comes_back_during_a_write_counts_as_written(replace: Replace) -> None:
    original = SharePartition._counts_written

    def _counts_written(self: SharePartition, state: CountState) -> None:
        for each in self._in_flight.ranges:
            if each.count_state is CountState.UNWRITTEN:
                each.count_state = CountState.IN_WRITE
        original(self, state)

    replace(SharePartition, "_counts_written", _counts_written)


def the_limit_archives_nothing(replace: Replace) -> None:
    class Patient(SharePartition):
        def __init__(self, state: ShareState, limits: ShareLimits, *rest: Any) -> None:
            more = replace_(limits, delivery_count_max=limits.delivery_count_max + 2)
            super().__init__(state, more, *rest)

    replace(led_partition, "SharePartition", Patient)


def anybody_may_acknowledge(replace: Replace) -> None:
    def _check_held(_self: SharePartition, _found: Range, _member_id: str) -> None: ...

    replace(SharePartition, "_check_held", _check_held)


def the_start_offset_passes_locked_records(replace: Replace) -> None:
    original = SharePartition.next_write

    def next_write(self: SharePartition) -> Write:
        return original(self)._replace(start_offset=self.end_offset)

    replace(SharePartition, "next_write", next_write)


def a_new_leader_forgets_what_was_acknowledged(replace: Replace) -> None:
    class Forgetful(SharePartition):
        def __init__(self, state: ShareState, limits: ShareLimits, *rest: Any) -> None:
            super().__init__(replace_(state, batches=()), limits, *rest)

    replace(led_partition, "SharePartition", Forgetful)


def a_new_leader_forgets_backoffs(replace: Replace) -> None:
    class Hasty(SharePartition):
        def __init__(self, state: ShareState, limits: ShareLimits, *rest: Any) -> None:
            super().__init__(state, replace_(limits, backoff_ms=0), *rest)
            self.limits = limits

    replace(led_partition, "SharePartition", Hasty)


def the_backoff_does_not_grow(replace: Replace) -> None:
    replace(ShareLimits, "backoff_after", lambda self, _delivery_count: self.backoff_ms)


def a_session_begins_with_the_old_state(replace: Replace) -> None:
    replace(LedSharePartition, "session_began", lambda _self: None)


# -- dead letters --------------------------------------------------------------------------------------------


def a_repeated_letter_has_another_producer(replace: Replace) -> None:
    numbers = itertools.count(1 << 62)

    def producer_id_of(
        _key: SharePartitionKey, _state_epoch: int, _creation_offset: int, _offset: int
    ) -> int:
        return next(numbers)

    replace(dead_letters, "producer_id_of", producer_id_of)


def letters_are_not_written(replace: Replace) -> None:
    async def write(*_: object) -> None: ...

    replace(DeadLetters, "write", write)


def records_are_given_up_one_delivery_early(replace: Replace) -> None:
    class Impatient(SharePartition):
        def __init__(self, state: ShareState, limits: ShareLimits, *rest: Any) -> None:
            fewer = replace_(limits, delivery_count_max=limits.delivery_count_max - 1)
            super().__init__(state, fewer, *rest)

    replace(led_partition, "SharePartition", Impatient)


def the_letter_is_written_before_the_record_is_archived(replace: Replace) -> None:
    original = LedSharePartition._write

    async def _write(self: LedSharePartition) -> None:
        machine = self.machine
        assert machine is not None
        for transition in machine._announced:
            for change in transition.changes:
                if change.state == DeliveryState.ARCHIVING:
                    found = change.changed
                    dead = Dead(
                        found.first_offset, found.end_offset, found.delivery_count, change.is_rejected
                    )
                    topic = self.settings.dead_letter_topic
                    with contextlib.suppress(ApiError):
                        await self._letters.write(
                            self.key, self._state_epoch, self._creation_offset, self.partition, topic, dead
                        )
        await original(self)

    replace(LedSharePartition, "_write", _write)


# -- the share coordinator -----------------------------------------------------------------------------------


def leaders_that_were_replaced_may_write(replace: Replace) -> None:
    def _check_leader(_state: PartitionState, _leader_epoch: int) -> None: ...

    replace(machine, "_check_leader", _check_leader)


def writes_of_an_older_state_epoch_are_taken(replace: Replace) -> None:
    original = ShareStates._write

    def _write(self: ShareStates, request: machine.Write, steady_ms: int) -> Any:
        change = replace_(request.change, state_epoch=-1)
        return original(self, request._replace(change=change), steady_ms)

    replace(ShareStates, "_write", _write)


def an_update_replaces_the_states(replace: Replace) -> None:
    original = batches.combined

    def combined(
        so_far: Sequence[StateBatch], added: Iterable[StateBatch], start_offset: int
    ) -> tuple[StateBatch, ...]:
        new = list(added)
        return original((), new, start_offset) if new else original(so_far, (), start_offset)

    replace(machine, "combined", combined)


def a_snapshot_lacks_the_change_that_caused_it(replace: Replace) -> None:
    original = ShareStates._changed

    def _changed(
        self: ShareStates,
        key: SharePartitionKey,
        state: PartitionState,
        change: ShareStateChange,
        leader_epoch: int,
        steady_ms: int,
    ) -> ShareRecord:
        if state.updates >= self.config.snapshot_update_records_per_snapshot:
            change = replace_(change, batches=())
        return original(self, key, state, change, leader_epoch, steady_ms)

    replace(ShareStates, "_changed", _changed)


def a_new_coordinator_reads_only_snapshots(replace: Replace) -> None:
    def decode_snapshot(_self: ShareStates, key: bytes, value: bytes | None) -> ShareRecord | None:
        record = decode(key, value)
        return None if record is not None and isinstance(record.value, ShareUpdateValue) else record

    replace(ShareStates, "decode", decode_snapshot)


def the_log_is_pruned_with_its_last_snapshot(replace: Replace) -> None:
    original = ShareStates._prune

    def _prune(self: ShareStates, steady_ms: int) -> Any:
        decision = original(self, steady_ms)
        if decision is None:
            return None
        (prune,) = decision.committed_effects
        return replace_(decision, committed_effects=[PruneLog(prune.offset + 1)])

    replace(ShareStates, "_prune", _prune)


SHARE_BUGS: tuple[Bug, ...] = (
    Bug("answered before it is durable", answered_before_it_is_durable, found_in=3, plan=SHARES),
    Bug("releases are not counted", releases_are_not_counted, plan=SHARES),
    Bug("locks that end are not counted", locks_that_end_are_not_counted, plan=SHARES),
    Bug("the limit archives nothing", the_limit_archives_nothing, found_in=2, plan=SHARES),
    Bug("the start offset passes locked records", the_start_offset_passes_locked_records, plan=SHARES),
    Bug(
        "a new leader forgets what was acknowledged", a_new_leader_forgets_what_was_acknowledged, plan=SHARES
    ),
    Bug("an update replaces the states", an_update_replaces_the_states, plan=SHARES),
    Bug(
        "a snapshot lacks the change that caused it", a_snapshot_lacks_the_change_that_caused_it, plan=SHARES
    ),
    Bug("a new coordinator reads only snapshots", a_new_coordinator_reads_only_snapshots, plan=SHARES),
    Bug("the log is pruned with its last snapshot", the_log_is_pruned_with_its_last_snapshot, plan=SHARES),
    Bug("the backoff does not grow", the_backoff_does_not_grow, plan=SHARES),
    Bug("letters are not written", letters_are_not_written, plan=SHARES),
    Bug("records are given up one delivery early", records_are_given_up_one_delivery_early, plan=SHARES),
)


# -- what few seeds bring out ----------------------------------------------------------------------------------


def _at_a_leader(test: Callable[..., None]) -> Callable[[], None]:
    """A course of events at one leader, whose share coordinator is a fake."""

    def course() -> None:
        world, states = World(1), StoredStates()
        try:
            world.start()
            world.create_topic((1,), partitions=2)
            world.settle()
            share_with(world, states)
            configure(world, share_auto_offset_reset="earliest")
            world.settle()
            test(world, states) if "states" in signature(test).parameters else test(world)
        finally:
            world.close()

    return course


def _at_leaders(test: Callable[..., None], **options: bool) -> Callable[[], None]:
    """A course of events that makes its own brokers."""

    def course() -> None:
        worlds: list[World] = []

        def make_world(*args: Any, **settings: Any) -> World:
            worlds.append(World(*args, **settings))
            return worlds[-1]

        try:
            test(make_world=make_world, states=StoredStates(), **options)
        finally:
            for world in worlds:
                world.close()

    return course


def _at_a_coordinator(test: Callable[[StateWorld], None]) -> Callable[[], None]:
    def course() -> None:
        world = StateWorld()
        world.ask(machine.Initialize(KEY, 1, 0))
        test(world)

    return course


SHARE_COURSES: tuple[tuple[Bug, Callable[[], None]], ...] = (
    (
        Bug("a failed write counts", a_failed_write_counts),
        _at_a_leader(leaders.test_failed_write_leaves_the_record_locked_for_its_holder),
    ),
    (
        Bug(
            "what comes back during a write counts as written",
            what_comes_back_during_a_write_counts_as_written,
        ),
        _at_a_leader(leaders.test_failure_31_sessions_that_close_during_a_write_count),
    ),
    (
        Bug("a lock ends while its write is under way", a_lock_ends_while_its_write_is_under_way),
        _at_a_leader(leaders.test_failure_32_lock_does_not_expire_while_its_acknowledgement_is_written),
    ),
    (
        Bug("a new leader forgets backoffs", a_new_leader_forgets_backoffs),
        _at_leaders(
            leaders.test_failure_31_backoff_of_a_released_record_outlives_its_share_partition,
            is_failover=True,
        ),
    ),
    (
        Bug("a session begins with the old state", a_session_begins_with_the_old_state),
        _at_a_leader(leaders.test_session_after_an_alteration_of_offsets_gets_nothing_of_the_old_state),
    ),
    (
        Bug("a repeated letter has another producer", a_repeated_letter_has_another_producer),
        _at_leaders(letters.test_failure_33_next_leader_writes_what_is_owed_once, is_letter_written=True),
    ),
    (
        Bug(
            "the letter is written before the record is archived",
            the_letter_is_written_before_the_record_is_archived,
        ),
        _at_leaders(letters.test_failure_33_archiving_is_durable_before_the_letter_is_written),
    ),
    (
        Bug("anybody may acknowledge", anybody_may_acknowledge),
        _at_a_leader(leaders.test_second_acknowledgement_and_that_of_another_member_are_refused),
    ),
    (
        Bug("leaders that were replaced may write", leaders_that_were_replaced_may_write),
        _at_a_coordinator(coordinators.test_read_fences_older_leaders),
    ),
    (
        Bug("writes of an older state epoch are taken", writes_of_an_older_state_epoch_are_taken),
        _at_a_coordinator(coordinators.test_new_state_epoch_fences_writers_of_the_old_one),
    ),
)
