"""InitProducerId 6: two-phase commits (KIP-939), where they are allowed and where they are not."""

from __future__ import annotations

from typing import Any

from bench.diff.brokers import NO_TWO_PHASE, TWO_PHASE
from bench.diff.script import Script, Topic, case
from bench.diff.transactions import TransactionalProducer, await_coordinator, in_every_state

SINCE = 6
MAX_TIMEOUT_MS = 900_000
FLAGS: dict[str, dict[str, Any]] = {"neither": {}, "two-phase": {"enable2_pc": True}}
KEEPING: dict[str, dict[str, Any]] = {
    "keep": {"keep_prepared_txn": True},
    "both": {"enable2_pc": True, "keep_prepared_txn": True},
}


def _begin_and_end(p: TransactionalProducer, topic: Topic, label: str) -> None:
    p.write(topic, label=f"{label}, writes")
    p.describe(f"{label}, described with a transaction")
    p.end(label=f"{label}, commits")
    p.describe(f"{label}, described afterwards")


@case("init_producer_id", since=SINCE, pair=TWO_PHASE)
def two_phase_of_a_new_id(s: Script) -> None:
    topic = s.topic("t")
    await_coordinator(s, s.name("tx"))
    for label, flags in FLAGS.items():
        p = TransactionalProducer(s, f"new-{label}", is_newer=True)
        p.init(label, **flags)
        p.describe(f"{label}, described")
        _begin_and_end(p, topic, label)


@case("init_producer_id", since=SINCE, pair=TWO_PHASE)
def two_phase_in_states(s: Script) -> None:
    """A second producer of the same id, with each of the flags, and who may end what is under way then."""
    topic = s.topic("t")
    for flag, flags in FLAGS.items():
        for label, p in in_every_state(s, topic, f"{flag}, ", is_newer=True):
            second = TransactionalProducer(s, p.name, is_newer=True)
            second.init(f"{label}, second", **flags)
            p.describe(f"{label}, described")
            p.end(label=f"{label}, the first commits")
            second.end(label=f"{label}, the second commits")
            p.describe(f"{label}, described afterwards")
            _begin_and_end(second, topic, f"{label}, the second")


@case("init_producer_id", since=SINCE, pair=TWO_PHASE)
def two_phase_timeouts(s: Script) -> None:
    """One that is given with the flag means nothing; a later one without it counts."""
    topic = s.topic("t")
    await_coordinator(s, s.name("tx"))
    for label, timeout_ms in {"0": 0, "-1": -1, "1": 1, "too large": MAX_TIMEOUT_MS + 1}.items():
        p = TransactionalProducer(s, f"of-{label.replace(' ', '-')}", is_newer=True, timeout_ms=timeout_ms)
        p.init(label, enable2_pc=True)
        p.describe(f"{label}, described")
    p = TransactionalProducer(s, "again", is_newer=True)
    p.init("first with", enable2_pc=True)
    p.begin(topic)
    p.init("then without, while one is under way")
    p.describe("then without, described")


@case("init_producer_id", since=SINCE, pair=TWO_PHASE)
def two_phase_with_an_epoch_of_its_own(s: Script) -> None:
    topic = s.topic("t")
    for label, p in in_every_state(s, topic, is_newer=True):
        known = {"producer_id": p.id, "producer_epoch": p.epoch}
        p.init(f"{label}, known epoch", enable2_pc=True, **known)
        p.init(f"{label}, the epoch before, again", enable2_pc=True, **known)
        p.describe(f"{label}, described")


@case("init_producer_id", since=SINCE, pair=TWO_PHASE)
def keeping(s: Script) -> None:
    """Which Kafka does not do yet. What it answers is all that is compared."""
    _keep(s)


@case("init_producer_id", since=SINCE, pair=NO_TWO_PHASE)
def keeping_without_two_phase(s: Script) -> None:
    _keep(s)


def _keep(s: Script) -> None:
    topic = s.topic("t")
    await_coordinator(s, s.name("tx"))
    for flag, flags in KEEPING.items():
        TransactionalProducer(s, f"new-{flag}", is_newer=True).init(f"{flag}, new", **flags)
        for label, p in in_every_state(s, topic, f"{flag}, ", is_newer=True):
            TransactionalProducer(s, p.name, is_newer=True).init(f"{label}, second", **flags)
            p.end(label=f"{label}, the first commits")


@case("init_producer_id", since=SINCE, pair=NO_TWO_PHASE)
def two_phase_not_allowed(s: Script) -> None:
    topic = s.topic("t")
    await_coordinator(s, s.name("tx"))
    for flag, flags in FLAGS.items():
        p = TransactionalProducer(s, f"new-{flag}", is_newer=True)
        p.init(f"{flag}, new", **flags)
        p.describe(f"{flag}, new, described")
        for label, known in in_every_state(s, topic, f"{flag}, ", is_newer=True):
            TransactionalProducer(s, known.name, is_newer=True).init(f"{label}, second", **flags)
            known.describe(f"{label}, described")
            known.end(label=f"{label}, the first commits")
