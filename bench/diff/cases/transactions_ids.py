"""InitProducerId with a transactional id, FindCoordinator of transactions."""

from __future__ import annotations

from typing import Any

from bench.diff.script import Script, case
from bench.diff.transactions import (
    TransactionalProducer,
    await_coordinator,
    in_every_state,
    init_request,
    new_producer,
    settled,
)

TRANSACTION = 1
BATCHED_SINCE = 4
KNOWN_IDS_SINCE = 3
MAX_TIMEOUT_MS = 900_000
NEVER_GIVEN_OUT = 987_654_321


def _keys(*keys: str) -> dict[str, Any]:
    return {"key": keys[0] if keys else "", "key_type": TRANSACTION, "coordinator_keys": list(keys)}


@case("find_coordinator", since=1)
def of_transactions(s: Script) -> None:
    await_coordinator(s, s.name("tx"))
    s.ask("one", _keys(s.name("tx")))
    s.ask("empty key", _keys(""))
    s.ask("strange key", _keys("a b/ü:\n"))
    if s.version >= BATCHED_SINCE:
        s.ask("two", _keys(s.name("a"), s.name("b")))
        s.ask("none", _keys())
        s.ask("the same twice", _keys(s.name("a"), s.name("a")))
        s.ask("empty among others", _keys(s.name("a"), ""))


@case("init_producer_id")
def transactional(s: Script) -> None:
    p = TransactionalProducer(s)
    await_coordinator(s, p.transactional_id)
    p.init("first")
    p.describe("first, described")
    p.init("again")
    p.init("a third time")
    p.describe("a third time, described")
    TransactionalProducer(s, "other").init("another id")
    settled(s, init_request(""), "empty id")


@case("init_producer_id")
def timeouts(s: Script) -> None:
    await_coordinator(s, s.name("tx"))
    for label, timeout_ms in {
        "0": 0,
        "-1": -1,
        "1": 1,
        "largest": MAX_TIMEOUT_MS,
        "too large": MAX_TIMEOUT_MS + 1,
        "largest of all": 2**31 - 1,
    }.items():
        p = TransactionalProducer(s, f"of-{label.replace(' ', '-')}", timeout_ms=timeout_ms)
        p.init(label)
        p.describe(f"{label}, described")
    p = new_producer(s)
    settled(s, init_request(p.transactional_id, transaction_timeout=77_000), "another than before")
    p.describe("another than before, described")
    settled(s, init_request(p.transactional_id, transaction_timeout=0), "0 for a known id")
    p.describe("0 for a known id, described")
    for label, timeout_ms in {"0": 0, "too large": MAX_TIMEOUT_MS + 1}.items():
        settled(s, init_request("", transaction_timeout=timeout_ms), f"empty id, timeout {label}")


@case("init_producer_id", since=KNOWN_IDS_SINCE)
def with_an_epoch_of_its_own(s: Script) -> None:
    """The answers to the second of two producers with one transactional id, and which of them retries."""
    p = new_producer(s)
    first_id, first_epoch = p.id, p.epoch

    def ask(label: str, producer_id: int, epoch: int) -> None:
        request = init_request(p.transactional_id, producer_id=producer_id, producer_epoch=epoch)
        settled(s, request, label)
        p.describe(f"{label}, described")

    ask("known id and epoch", first_id, first_epoch)
    ask("the epoch before, again", first_id, first_epoch)
    ask("the epoch before that", first_id, first_epoch - 1)
    ask("the newest epoch", first_id, first_epoch + 1)
    ask("two epochs back", first_id, first_epoch)
    ask("a future epoch", first_id, 77)
    ask("another id", NEVER_GIVEN_OUT, 0)
    ask("another id, the right epoch", NEVER_GIVEN_OUT, first_epoch + 2)
    ask("id without an epoch", first_id, -1)
    ask("epoch without an id", -1, first_epoch)
    ask("negative id", -5, 0)
    ask("negative epoch", first_id, -5)
    ask("neither", -1, -1)
    fresh = s.name("fresh")
    settled(s, init_request(fresh, producer_id=NEVER_GIVEN_OUT, producer_epoch=3), "unknown transactional id")
    settled(s, init_request(fresh), "unknown transactional id, then new")


@case("init_producer_id", since=KNOWN_IDS_SINCE)
def in_states(s: Script) -> None:
    topic = s.topic("t")
    for is_newer, kind in ((False, "older"), (True, "newer")):
        for label, p in in_every_state(s, topic, f"{kind} client, ", is_newer=is_newer):
            known = init_request(p.transactional_id, producer_id=p.id, producer_epoch=p.epoch)
            s.ask(f"{label}, first answer", known)
            settled(s, known, f"{label}, known epoch")
            settled(s, known, f"{label}, known epoch again")
            p.describe(f"{label}, described")
            stale = init_request(p.transactional_id, producer_id=p.id, producer_epoch=p.epoch - 1)
            settled(s, stale, f"{label}, stale epoch")


@case("init_producer_id")
def fencing(s: Script) -> None:
    """A second producer of the same transactional id, which knows of nothing."""
    topic = s.topic("t")
    for is_newer, kind in ((False, "older"), (True, "newer")):
        for label, p in in_every_state(s, topic, f"{kind} client, ", is_newer=is_newer):
            second = TransactionalProducer(s, p.name, is_newer=is_newer)
            s.ask(f"{label}, first answer", init_request(p.transactional_id), keep=_without_id)
            second.init(f"{label}, second")
            p.describe(f"{label}, described")
            p.add(topic, label=f"{label}, the first adds")
            p.write(topic, label=f"{label}, the first writes")
            p.end(label=f"{label}, the first commits")
            p.init(f"{label}, the first comes back", producer_id=p.id, producer_epoch=p.epoch)
            second.add(topic, label=f"{label}, the second adds")
            second.write(topic, label=f"{label}, the second writes")
            second.end(label=f"{label}, the second commits")


def _without_id(tree: dict[str, Any]) -> dict[str, Any]:
    return {**tree, "producer_id": "<given>" if tree["producer_id"] >= 0 else tree["producer_id"]}
