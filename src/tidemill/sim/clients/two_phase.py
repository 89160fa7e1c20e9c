"""A simulated query that writes batches exactly once by two-phase commit (KIP-939): a driver decides, its tasks write.

Each task writes its rows in an open transaction of its own transactional id T, `<query>-<partition>-<attempt>`, and
reports its producer id and epoch to the driver. To commit, the driver fences other drivers by its own transactional id
D and reads the last decision. It finishes that one: each T has ended as its own coordinator describes it, or is taken
over and committed. It takes over every T of the batch without a timeout and compares the writer with the task's report.
It writes the decision in a transaction of D, and commits every T. A repeated batch has the same rows, in other tasks.

A process that wants to abort a T follows the order that never aborts a decided one: take T over, fence D, read the
decision, then end T accordingly (`Sink.settle`).

A decision is read behind a *barrier*, a record in a transaction of D that the topic of decisions must accept first. A
replaced leader that does not know it still returns its old high watermark. It cannot return as much as the leader that
accepted the barrier.

A driver dies at the worst moments, or exceeds the transaction timeout of its tasks. Tasks run in processes of their
own and outlive a dead driver. A task that is stopped after its report aborts its transaction, unless the driver was
faster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tidemill.sim.checks.checker import MessageId
from tidemill.sim.checks.decisions import row
from tidemill.sim.checks.transactions import Decided
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.fetching import Position
from tidemill.sim.clients.transactional import TRANSACTION_TIMEOUT_MS
from tidemill.sim.clients.transactor import Abortable, Fenced, Transactor
from tidemill.types import TopicPartition

_WAIT_MS = 1_000
_BARRIER = "barrier"
_TASKS_MAX = 3
_ATTEMPTS_MAX = 3
_POLL_S = 0.2
_DEATH_SHARE = 0.04
_DAWDLE_SHARE = 0.05
_REGRET_SHARE = 0.05

# The producer id and epoch that wrote a transaction.
Writer = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a batch: its writers by transactional id."""

    batch: int
    writers: dict[str, Writer]

    def __str__(self) -> str:
        return " ".join([str(self.batch), *(f"{name}={w[0]}.{w[1]}" for name, w in self.writers.items())])

    @classmethod
    def of(cls, message: MessageId) -> Decision:
        _, batch, *writers = message.producer.split(" ")
        named = (each.partition("=") for each in writers)
        return cls(int(batch), {name: _writer_of(text) for name, _, text in named})


def _writer_of(text: str) -> Writer:
    producer_id, _, epoch = text.partition(".")
    return int(producer_id), int(epoch)


def rows_of(batch: int) -> int:
    return 4 + batch % 5


class Died(Exception):
    """The driver's process ends here."""


class Failed(Exception):
    """The batch must be repeated."""


@dataclass(slots=True)
class Attempt:
    """One task's work on its share of a batch."""

    transactional_id: str
    batch: int
    rows: Sequence[int]
    # What the task reports when all rows are written.
    writer: Writer | None = None
    has_failed: bool = False


@dataclass(slots=True)
class Query:
    """The state that all drivers and tasks of one query share."""

    name: str
    rows: Sequence[TopicPartition]
    decisions: TopicPartition
    note: Callable[[str, str], None]
    # Every transactional id that a task has used.
    task_ids: dict[str, None] = field(default_factory=dict)
    # How many drivers there have been; the last is the newest.
    drivers: int = 0

    @property
    def topics(self) -> list[str]:
        return sorted({self.decisions.topic, *(tp.topic for tp in self.rows)})


class Sink:
    """The transactions of one driver or task process."""

    def __init__(self, client: Client, query: Query) -> None:
        self.query = query
        self._client = client
        self._position = Position(client, query.decisions, is_read_committed=True)
        self._last: Decision | None = None

    def transactor(self, transactional_id: str) -> Transactor:
        return Transactor(self._client, transactional_id, TRANSACTION_TIMEOUT_MS, is_new=True)

    async def open(self) -> tuple[Transactor, Decision | None]:
        """Fence every other driver and open a transaction for the next decision. Returns the last decision."""
        query, transactor = self.query, self.transactor(self.query.name)
        await transactor.initialise()
        await transactor.begin(patience_s=8.0)
        barrier = await transactor.write_under(query.decisions, query.name, _BARRIER)
        if barrier < 0:
            # It was there already, and the partition has forgotten its offset.
            raise Abortable(None)
        await self._read_to(barrier)
        return transactor, self._last

    async def glance(self) -> Decision | None:
        """The last decision that a broker returns; there may be a later one."""
        await self._read_to(await Position(self._client, self.query.decisions).end_offset())
        return self._last

    async def _read_to(self, end_offset: int) -> None:
        """Read to the offset; waits for open transactions below it."""
        while self._position.offset < end_offset:
            for _, message in await self._position.fetch(_WAIT_MS):
                if not message.producer.endswith(_BARRIER):
                    self._last = Decision.of(message)
                    self.note_decision(self._last)

    def note_decision(self, decision: Decision) -> None:
        record = self._client.record
        writers = tuple(sorted(decision.writers.values()))
        record.transactions.append(Decided(record.now_s(), decision.batch, writers, rows_of(decision.batch)))

    async def settle(self, transactional_ids: Iterable[str]) -> None:
        """End the open transactions of these ids: commit the decided ones, abort the others."""
        taken = [await self._taken(each) for each in transactional_ids]
        await self.settle_taken([(transactor, writer) for transactor, writer in taken if writer is not None])

    async def _taken(self, transactional_id: str) -> tuple[Transactor, Writer | None]:
        transactor = self.transactor(transactional_id)
        return transactor, await transactor.take_over(is_two_phase=False)

    async def settle_taken(self, taken: Sequence[tuple[Transactor, Writer]]) -> bool:
        """Returns whether no other process took any of them over meanwhile."""
        if not taken:
            return True
        driver, decision = await self.open()
        await driver.end(is_commit=False)
        decided = decision.writers if decision is not None else {}
        ended = [
            await self.end(transactor, writer, is_commit=decided.get(transactor.transactional_id) == writer)
            for transactor, writer in taken
        ]
        return all(ended)

    async def end(self, transactor: Transactor, writer: Writer, *, is_commit: bool) -> bool:
        """Returns False when another process has taken it over."""
        try:
            await transactor.end_taken(writer, is_commit=is_commit)
        except Fenced:
            return False
        except Abortable as error:
            what = "commit" if is_commit else "abort"
            self._client.record.accuse(f"{transactor.transactional_id}: {error} to the {what} of {writer}")
        return True

    async def finish(self, decision: Decision) -> None:
        """Return when all its transactions are known to have ended. Other transactions are left alone."""
        for transactional_id, decided in decision.writers.items():
            is_ended = await self.transactor(transactional_id).is_surely_ended(decided)
            while not is_ended:
                transactor, writer = await self._taken(transactional_id)
                is_ended = writer != decided or await self.end(transactor, decided, is_commit=True)


class Task:
    """One task process."""

    def __init__(self, client: Client, query: Query, attempt: Attempt) -> None:
        self.client = client
        self.is_done = False
        self._query = query
        self._attempt = attempt

    async def run(self) -> None:
        await self.client.find_topics(self._query.topics)
        try:
            transactor = await self._write()
        except (Fenced, Abortable):
            self._attempt.has_failed = True
        else:
            self._attempt.writer = transactor.producer
            if self.client.rng.random() < _REGRET_SHARE:
                await self._regret(transactor)
        self.is_done = True

    async def _regret(self, transactor: Transactor) -> None:
        await asyncio.sleep(self.client.rng.random())
        with contextlib.suppress(Fenced, Abortable):
            await transactor.end_taken(transactor.producer, is_commit=False)

    async def _write(self) -> Transactor:
        """Write all rows. Returns the writer of the open transaction."""
        rng, attempt, sink = self.client.rng, self._attempt, Sink(self.client, self._query)
        transactor = sink.transactor(attempt.transactional_id)
        found = await transactor.take_over(is_two_phase=False)
        if found is not None and not await sink.settle_taken([(transactor, found)]):
            raise Fenced
        shares: dict[TopicPartition, list[int]] = {}
        for number in attempt.rows:
            shares.setdefault(rng.choice(self._query.rows), []).append(number)
        await transactor.begin(patience_s=rng.uniform(1, 8))
        try:
            for tp, share in shares.items():
                await transactor.write(tp, len(share), [row(attempt.batch, each) for each in share])
                await asyncio.sleep(rng.random() if rng.random() < 0.2 else 0.0)
        except Abortable:
            if rng.random() < 0.5:
                await transactor.abort()
            raise
        return transactor


class Driver:
    """One driver process."""

    def __init__(
        self,
        client: Client,
        query: Query,
        start_task: Callable[[Attempt], None],
        pause_s_max: float,
    ) -> None:
        self.is_done = False
        self._client = client
        self._query = query
        self._sink = Sink(client, query)
        self._start_task = start_task
        self._pause_s_max = pause_s_max
        self._number = query.drivers = query.drivers + 1

    async def run(self) -> None:
        client, rng = self._client, self._client.rng
        await client.find_topics(self._query.topics)
        try:
            decision = await self._sink.glance()
            # The driver may not have recorded that its last batch was done.
            batch = decision.batch + rng.randint(0, 1) if decision is not None else 0
            while not client.record.is_ending and not self._is_replaced():
                batch = await self._run_batch(batch)
                await asyncio.sleep(rng.random() * self._pause_s_max)
        except Died as point:
            self._query.note(client.name, f"dies {point}")
        self.is_done = True

    async def run_last(self) -> None:
        """Run one more batch at the end, whatever the others left behind."""
        await self._client.find_topics(self._query.topics)
        decision = await self._sink.glance()
        batch = last = decision.batch + 1 if decision is not None else 0
        while batch == last:
            batch = await self._run_batch(batch)
        self.is_done = True

    async def sweep(self) -> None:
        """End every open transaction afterwards."""
        await self._client.find_topics(self._query.topics)
        driver, decision = await self._sink.open()
        await driver.end(is_commit=False)
        if decision is not None:
            await self._sink.finish(decision)
        await self._sink.settle(self._query.task_ids)
        self.is_done = True

    def _is_replaced(self) -> bool:
        """Whether this driver has noticed a newer one; a zombie continues."""
        return self._number != self._query.drivers and self._client.rng.random() < 0.4

    async def _run_batch(self, batch: int) -> int:
        """Run a batch. Returns the batch to continue with."""
        rng, started = self._client.rng, list[Attempt]()
        try:
            attempts = await self._run_tasks(batch, started)
            return await self._commit(batch, attempts)
        except (Fenced, Abortable, Failed):
            # A transaction that is left open ends by its timeout, or waits for the next driver.
            if rng.random() < 0.6:
                with contextlib.suppress(Fenced, Abortable):
                    await self._sink.settle([each.transactional_id for each in started])
            return batch

    # -- tasks -----------------------------------------------------------------------------------------------

    async def _run_tasks(self, batch: int, started: list[Attempt]) -> list[Attempt]:
        rng = self._client.rng
        numbers = rng.sample(range(rows_of(batch)), rows_of(batch))
        count = rng.randint(1, _TASKS_MAX)
        shares = [numbers[index::count] for index in range(count)]
        running = [self._run_task(batch, index, share, started) for index, share in enumerate(shares)]
        found = await asyncio.gather(*running)
        attempts = [each for each in found if each is not None]
        if len(attempts) < count:
            raise Failed
        return attempts

    async def _run_task(
        self, batch: int, partition: int, rows: Sequence[int], started: list[Attempt]
    ) -> Attempt | None:
        """Run attempts of a task until one succeeds; while one is slow, another is started."""
        rng, record = self._client.rng, self._client.record
        own: list[Attempt] = []
        for number in range(_ATTEMPTS_MAX):
            attempt = Attempt(f"{self._query.name}-{partition}-{number}", batch, rows)
            own.append(attempt)
            started.append(attempt)
            self._query.task_ids[attempt.transactional_id] = None
            self._start_task(attempt)
            deadline_s = record.now_s() + rng.uniform(0.1, 8)
            while record.now_s() < deadline_s and not attempt.has_failed:
                await asyncio.sleep(_POLL_S)
                done = next((each for each in own if each.writer is not None), None)
                if done is not None:
                    return done
        return None

    # -- the decision ----------------------------------------------------------------------------------------

    async def _commit(self, batch: int, attempts: Sequence[Attempt]) -> int:
        sink = self._sink
        driver, decision = await sink.open()
        if decision is not None:
            await sink.finish(decision)
        if decision is not None and decision.batch >= batch:
            await driver.end(is_commit=False)
            await sink.settle([each.transactional_id for each in attempts])
            return decision.batch + 1
        taken = await self._take_over(attempts)
        self._may_die("before the decision")
        decision = Decision(batch, {transactor.transactional_id: writer for transactor, writer in taken})
        await self._decide(driver, decision)
        self._may_die("after the decision")
        if self._client.rng.random() < _DAWDLE_SHARE:
            await asyncio.sleep(1.5 * TRANSACTION_TIMEOUT_MS / 1000)
        await self._carry_out(decision, taken)
        return batch + 1

    async def _take_over(self, attempts: Sequence[Attempt]) -> list[tuple[Transactor, Writer]]:
        taken = []
        for attempt in attempts:
            transactor = self._sink.transactor(attempt.transactional_id)
            writer = await transactor.take_over(is_two_phase=True)
            if writer is None or writer != attempt.writer:
                raise Failed
            taken.append((transactor, writer))
        return taken

    async def _decide(self, driver: Transactor, decision: Decision) -> None:
        await driver.write_under(self._query.decisions, self._query.name, str(decision))
        self._may_die("with the decision written and not committed")
        await driver.end(is_commit=True)
        self._sink.note_decision(decision)

    async def _carry_out(self, decision: Decision, taken: Sequence[tuple[Transactor, Writer]]) -> None:
        is_finished = True
        for transactor, writer in taken:
            is_finished &= await self._sink.end(transactor, writer, is_commit=True)
            self._may_die("among the commits")
        if not is_finished:
            await self._sink.finish(decision)

    def _may_die(self, point: str) -> None:
        if not self._client.record.is_ending and self._client.rng.random() < _DEATH_SHARE:
            raise Died(point)
