"""Each scenario dies at every step it makes and at every byte of its last writes; each time the survivor is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.crash.store import History, Store, found_disks, go_on, judge
from tests.unit.log.batches import T0, batch, small_segments, transactional
from tidemill.sim.platform.disk import SimulatedDisk, every_cut_point
from tidemill.types import TopicPartition

TP = TopicPartition("t", 0)
ID, NEXT_ID = b"i" * 16, b"j" * 16
CONFIG = small_segments()


def rolls(store: Store) -> None:
    store.create(TP, ID)
    for number in range(9):
        store.append(TP, batch(1 + number % 3))
        if number in (4, 6):
            store.sync(TP)
        if number == 5:
            store.checkpoint()


def idempotent_producers(store: Store) -> None:
    store.create(TP, ID)
    for number in range(12):
        producer_id = number % 2
        epoch, sequence = (1, (number // 2 - 4) * 2) if number >= 8 else (0, number // 2 * 2)
        store.append(TP, batch(2, producer=(producer_id, epoch, sequence)))
        if number == 6:
            store.sync(TP)
            store.checkpoint()


def leader_epochs(store: Store) -> None:
    store.create(TP, ID)
    for number in range(9):
        store.append(TP, batch(2), leader_epoch=number // 2)
        if number in (3, 7):
            store.sync(TP)
            store.checkpoint()


def retention(store: Store) -> None:
    store.create(TP, ID)
    for number in range(10):
        store.append(TP, batch(2, producer=(5, 0, number * 2)), leader_epoch=number // 4)
        if number == 6:
            store.sync(TP)
            store.retain(TP, replace(CONFIG, retention_bytes=450))
    store.retain(TP, replace(CONFIG, retention_bytes=300))
    store.append(TP, batch(2, producer=(5, 0, 20)), leader_epoch=3)


def retention_of_everything(store: Store) -> None:
    store.create(TP, ID)
    for number in range(5):
        store.append(TP, batch(2, producer=(5, 0, number * 2)))
    store.wall_ms = T0 + 10_000
    store.retain(TP, replace(CONFIG, retention_ms=1_000))
    store.append(TP, batch(2))


def deleted_records(store: Store) -> None:
    store.create(TP, ID)
    for number in range(8):
        store.append(TP, batch(2), leader_epoch=number // 3)
    store.move_start(TP, 5)
    store.checkpoint()
    store.append(TP, batch(2), leader_epoch=3)
    store.move_start(TP, 13)
    store.checkpoint()


def clean_shutdown(store: Store) -> None:
    store.create(TP, ID)
    for number in range(6):
        store.append(TP, batch(2, producer=(5, 0, number * 2)), leader_epoch=number // 3)
    store.shut_down()
    again = Store(store.disk, store.history, CONFIG)
    for number in range(6, 9):
        again.append(TP, batch(2, producer=(5, 0, number * 2)), leader_epoch=2)
    again.shut_down()


def truncation(store: Store) -> None:
    store.create(TP, ID)
    for number in range(9):
        store.append(TP, batch(2, producer=(5, 0, number * 2)), leader_epoch=number // 4)
        if number == 7:
            store.sync(TP)
            store.checkpoint()
    store.truncate(TP, 7)
    for number in range(4):
        store.append(TP, batch(2, value=b"other" * 4, producer=(6, 0, number * 2)), leader_epoch=5)


def recreated_topic(store: Store) -> None:
    store.create(TP, ID)
    for _ in range(5):
        store.append(TP, batch(2))
    store.sync(TP)
    store.move_start(TP, 4)
    store.checkpoint()
    store.delete(TP)
    store.create(TP, NEXT_ID)
    for _ in range(2):
        store.append(TP, batch(1, value=b"of the new topic"))


def _write(store: Store, producer_id: int, sequence: int, *, epoch: int = 0, leader_epoch: int = 0) -> None:
    store.append(TP, transactional(producer_id, epoch, sequence), leader_epoch=leader_epoch)


def transactions(store: Store) -> None:
    """Commits and aborts of three producers, interleaved, over several segments; one stays open."""
    store.create(TP, ID)
    _write(store, 3, 0)
    for number in range(4):
        _write(store, 1, number * 2)
        _write(store, 2, 0, epoch=number)
        store.end_transaction(TP, 2, commit=False, epoch=number + 1)
        if number == 1:
            store.commit(TP)
            store.checkpoint()
        store.end_transaction(TP, 1, commit=number % 2 == 0)
    store.append(TP, batch(2, producer=(5, 0, 0)))
    store.end_transaction(TP, 7, commit=False)
    store.sync(TP)


def transactions_cut_off(store: Store) -> None:
    """A truncation below two markers, and another end of the same transactions."""
    store.create(TP, ID)
    for number in range(3):
        _write(store, 1, number * 2)
        _write(store, 2, number * 2)
        store.end_transaction(TP, 1, commit=False)
        if number == 1:
            store.sync(TP)
            store.checkpoint()
        store.end_transaction(TP, 2, commit=True)
    store.sync(TP)
    store.truncate(TP, 10)
    store.end_transaction(TP, 1, commit=True, leader_epoch=2)
    store.end_transaction(TP, 2, commit=False, leader_epoch=2)


def transactions_shut_down(store: Store) -> None:
    store.create(TP, ID)
    for number in range(3):
        _write(store, 1, number * 2)
        store.end_transaction(TP, 1, commit=False)
    _write(store, 2, 0)
    store.shut_down()
    again = Store(store.disk, store.history, CONFIG)
    again.end_transaction(TP, 2, commit=False, epoch=1)
    _write(again, 2, 0, epoch=1)
    again.shut_down()


def transactions_retained(store: Store) -> None:
    store.create(TP, ID)
    _write(store, 2, 0)
    for number in range(4):
        _write(store, 1, number * 2)
        store.end_transaction(TP, 1, commit=False)
        if number == 2:
            store.sync(TP)
            store.retain(TP, replace(CONFIG, retention_bytes=300))
    store.end_transaction(TP, 2, commit=False)


SCENARIOS: list[Callable[[Store], None]] = [
    rolls,
    idempotent_producers,
    leader_epochs,
    retention,
    retention_of_everything,
    deleted_records,
    clean_shutdown,
    truncation,
    transactions,
    transactions_cut_off,
    transactions_shut_down,
    transactions_retained,
]


def _run(scenario: Callable[[Store], None]) -> Callable[[SimulatedDisk, History], None]:
    return lambda disk, history: scenario(Store(disk, history, CONFIG))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_survivor_holds_what_was_synced_and_nothing_that_was_not_appended(
    scenario: Callable[[Store], None],
) -> None:
    for cut in every_cut_point(_run(scenario), History, torn_writes=(-1, -2)):
        for how, disk in found_disks(cut, seeds=3):
            try:
                judge(disk, cut.history, CONFIG)
            except BaseException as error:
                raise AssertionError(f"{how}, {cut}: {error!r}") from error


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_survivor_takes_appends_and_keeps_them(scenario: Callable[[Store], None]) -> None:
    for cut in every_cut_point(_run(scenario), History, torn_writes=()):
        if TP not in cut.history.partitions:
            continue
        for how, disk in found_disks(cut, seeds=1)[-1:]:
            try:
                go_on(judge(disk, cut.history, CONFIG), TP)
                judge(disk, cut.history, CONFIG)
            except BaseException as error:
                raise AssertionError(f"{how}, {cut}: {error!r}") from error
