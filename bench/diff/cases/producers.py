"""InitProducerId without a transactional id, and the sequence numbers of idempotent produce."""

from __future__ import annotations

from typing import Any

from bench.diff import batches
from bench.diff.batches import batch, records
from bench.diff.cases.produce import look, produce
from bench.diff.script import Script, Topic, case

NEW_PRODUCER = {
    "transactional_id": None,
    "transaction_timeout": 60000,
    "producer_id": -1,
    "producer_epoch": -1,
}
NEVER_GIVEN_OUT = 987_654_321


@case("init_producer_id")
def idempotent(s: Script) -> None:
    first = s.tell(NEW_PRODUCER)
    second = s.tell(NEW_PRODUCER)
    s.note("first", _answer(s, first, "first"), NEW_PRODUCER)
    s.note("second", _answer(s, second, "second"), NEW_PRODUCER)
    s.note("the second id is higher", second["producer_id"] > first["producer_id"])
    if s.version >= 3:
        again = {
            **NEW_PRODUCER,
            "producer_id": first["producer_id"],
            "producer_epoch": first["producer_epoch"],
        }
        s.note("with an id and an epoch", _answer(s, s.tell(again), "third"), "the first id again")
        s.ask("with an id only", {**NEW_PRODUCER, "producer_id": 5})
        s.ask("with an epoch only", {**NEW_PRODUCER, "producer_epoch": 5})
        s.ask("negative id", {**NEW_PRODUCER, "producer_id": -2, "producer_epoch": 1}, keep=_is_given)
    s.ask("timeout 0", {**NEW_PRODUCER, "transaction_timeout": 0}, keep=_is_given)
    s.ask("timeout -1", {**NEW_PRODUCER, "transaction_timeout": -1}, keep=_is_given)
    s.ask("empty transactional id", {**NEW_PRODUCER, "transactional_id": ""}, keep=_is_given)


def _answer(s: Script, tree: Any, name: str) -> Any:
    """Two answers with the same id get the same name."""
    if isinstance(tree, dict) and tree["producer_id"] >= 0:
        s.facts.producer_ids.setdefault(tree["producer_id"], f"<{name} id>")
    return tree


def _is_given(tree: dict[str, Any]) -> dict[str, Any]:
    return {**tree, "producer_id": "<given>" if tree["producer_id"] >= 0 else tree["producer_id"]}


class Producer:
    """An idempotent producer that sends exactly what the script says, right or wrong."""

    def __init__(self, s: Script, topic: Topic):
        self.s, self.topic = s, topic
        self.id = s.await_answer(
            lambda: s.tell(NEW_PRODUCER, api="init_producer_id", version=4),
            lambda tree: bool(tree["producer_id"] >= 0),
        )["producer_id"]
        s.facts.producer_ids[self.id] = "<producer>"

    def ask(self, label: str, sequence: int, epoch: int = 0, count: int = 1, **header: Any) -> None:
        header.setdefault("producer_id", self.id)
        data = batch(records(count), producer_epoch=epoch, base_sequence=sequence, **header)
        self.s.ask(label, produce(self.topic, data))


@case("produce")
def sequences(s: Script) -> None:
    t = s.topic("x")
    p = Producer(s, t)
    p.ask("first", 0)
    p.ask("first again", 0)
    p.ask("second, of three", 1, count=3)
    p.ask("gap", 9)
    p.ask("next", 4)
    p.ask("same start, other length", 4, count=2)
    for sequence in range(5, 10):
        p.ask(f"sequence {sequence}", sequence)
    p.ask("the newest again", 9)
    p.ask("five back, again", 5)
    p.ask("six back, again", 4)
    p.ask("the first again", 0)
    look(s, "the log", t)


@case("produce")
def epochs(s: Script) -> None:
    t = s.topic("x")
    p = Producer(s, t)
    p.ask("epoch 0", 0)
    p.ask("epoch 1, not from 0", 1, epoch=1)
    p.ask("epoch 1 from 0", 0, epoch=1)
    p.ask("stale epoch", 1, epoch=0)
    p.ask("stale epoch, known sequence", 0, epoch=0)
    p.ask("epoch 5 from 0", 0, epoch=5)
    look(s, "the log", t)


@case("produce", only_ends=True)
def strange_producers(s: Script) -> None:
    t = s.topic("x")
    p = Producer(s, t)
    p.ask("id never given out, from 0", 0, producer_id=NEVER_GIVEN_OUT)
    p.ask("id never given out, not from 0", 7, producer_id=NEVER_GIVEN_OUT + 1)
    p.ask("starts at 5", 5)
    p.ask("negative sequence", -1)
    p.ask("negative sequence -2", -2)
    p.ask("negative epoch", 0, epoch=-1)
    p.ask("negative epoch -2", 0, epoch=-2)
    p.ask("negative id", 0, producer_id=-5)
    p.ask("wraps around", 2**31 - 1)
    p.ask("two records that wrap around", 2**31 - 1, count=2)
    p.ask("transactional, no transaction", 0, flags=batches.TRANSACTIONAL)
    two = [
        batch(records(1), producer_id=p.id, producer_epoch=0, base_sequence=sequence) for sequence in (0, 1)
    ]
    s.ask("two batches of one producer", produce(t, b"".join(two)))
    look(s, "the log", t)
