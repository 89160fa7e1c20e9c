"""What two-phase commits depend on (KIP-939), played on a whole cluster at the moments that seeds seldom hit."""

from __future__ import annotations

import pytest

from tests.sim.scripted import Stage, play
from tests.sim.test_transaction_failures import ID, Producer, coordinator, kill_coordinator
from tidemill.errors import ErrorCode
from tidemill.sim.clients.admin import Admin
from tidemill.sim.clients.transactor import Transactor
from tidemill.sim.clients.two_phase import Decision, Query, Sink
from tidemill.sim.crowds.two_phase import TWO_PHASE_CONFIGS, TWO_PHASE_TOPICS
from tidemill.types import TopicPartition

_TIMEOUT_MS = 10_000


class Taker:
    """Another process, which takes the producer's transaction over and ends it."""

    def __init__(self, producer: Producer) -> None:
        self._stage = producer.stage
        self._client = self._stage.client("taker")
        self._transactor = Transactor(self._client, ID, _TIMEOUT_MS, is_new=True)
        self._writer: tuple[int, int] | None = None
        taking = self._stage.perform(self._client, self._take_over())
        self._stage.finished(taking, "the transaction is taken over")
        self._stage.require(self._writer == producer.transactor.producer, f"{self._writer} wrote it")

    async def _take_over(self) -> None:
        self._writer = await self._transactor.take_over(is_two_phase=True)

    def committed(self) -> None:
        assert self._writer is not None
        ending = self._stage.perform(self._client, self._transactor.end_taken(self._writer, is_commit=True))
        self._stage.finished(ending, "the transaction is committed")


@pytest.mark.parametrize("has_moved", [False, True], ids=["same coordinator", "next coordinator"])
def test_original_producer_cannot_end_transaction_after_takeover(has_moved: bool) -> None:
    def course(stage: Stage) -> None:
        producer = Producer(stage, is_new=True)
        producer.opened()
        taker = Taker(producer)
        if has_moved:
            kill_coordinator(stage)
        codes: list[ErrorCode] = []
        late = producer.end_late(producer.transactor.producer, is_commit=False, codes=codes)
        stage.finished(stage.perform(producer.client, late), "the writer's end is answered")
        stage.require(codes[0] != ErrorCode.NONE, "who wrote it has ended it")
        taker.committed()
        stage.require(producer.end_known() is True, "the transaction is committed")

    play(course, has_transactions=True)


def test_transaction_taken_over_in_two_phases_does_not_time_out() -> None:
    """Not by a coordinator either that learns of it from the log alone."""

    def course(stage: Stage) -> None:
        producer = Producer(stage, is_new=True, timeout_ms=_TIMEOUT_MS)
        producer.opened()
        taker = Taker(producer)
        stage.let(3 * _TIMEOUT_MS / 1000)
        kill_coordinator(stage)
        stage.let(3 * _TIMEOUT_MS / 1000)
        coordinator(stage)
        taker.committed()
        stage.require(producer.end_known() is True, "the transaction is committed")

    play(course, has_transactions=True)


def test_a_decision_is_not_overlooked_at_a_leader_that_was_replaced() -> None:
    """Which still shows everything up to its high watermark to a client that knows no other leader."""

    def course(stage: Stage) -> None:
        admin = Admin(stage.client("decisions-admin"), stage._note_admin, stage.plan.shape.broker_ids, 1.0)
        creating = admin.create(TWO_PHASE_TOPICS, stage.plan.shape.replicas, TWO_PHASE_CONFIGS)
        stage.finished(stage.perform(admin._client, creating), "the topics are made")
        decisions = TopicPartition("decisions", 0)
        query = Query("scripted", [TopicPartition("rows", 0)], decisions, stage.trace.add)
        old, new = stage.client("old"), stage.client("new")
        for client in (old, new):
            stage.finished(stage.perform(client, client.find_topics(query.topics)), "the topics are known")
        stage.wait_healthy()
        replaced = stage.leader_of(decisions)
        stage.part([replaced], [each for each in stage.machines() if each is not replaced])
        stage.wait(lambda: _is_replaced(stage, decisions, replaced.id), "another broker leads")
        stage.finished(stage.perform(new, _decide(Sink(new, query))), "a decision is written")
        found: list[Decision | None] = []
        stage.finished(stage.perform(old, _read(Sink(old, query), found)), "the decision is read")
        stage.require(found[0] is not None, "the decision is overlooked")

    play(course)


def _is_replaced(stage: Stage, tp: TopicPartition, leader: int) -> bool:
    controller = stage.controller_or_none()
    return controller is not None and stage.partition(tp).leader not in (leader, -1)


async def _decide(sink: Sink) -> None:
    driver, _ = await sink.open()
    await driver.write_under(sink.query.decisions, sink.query.name, str(Decision(0, {})))
    await driver.end(is_commit=True)


async def _read(sink: Sink, found: list[Decision | None]) -> None:
    driver, decision = await sink.open()
    await driver.end(is_commit=False)
    found.append(decision)
