"""The workload of delayed records: its producers, its readers, and its end.

In some worlds the producers write in transactions, too, and retention removes segments long before their delayed records
are due. `checks/delays.py` has the rules for what the readers saw.
"""

from __future__ import annotations

from random import Random

from tidemill.sim.checks.delays import Event, Taken, required
from tidemill.sim.clients.delayed import (
    DELAY_S_MAX,
    DelayedProducer,
    DelayedReader,
    DelayedTransactions,
    SchedulingProducer,
)
from tidemill.sim.crowds.crowd import Crowd, partitions_of
from tidemill.sim.stage import Plan, Stage
from tidemill.types import TopicPartition

DELAY_TOPIC = "later"
DELAY_TOPICS = {DELAY_TOPIC: 2}
# What is delayed by more than that outlives its segment.
_EXPIRING_CONFIGS = {"segment.ms": "4000", "retention.ms": "15000"}
_EXPIRING_SETTINGS = {"log.retention.check.interval.ms": "3000"}
_EXPIRING_DELAY_S_MAX = 90.0
_END_LIMIT_S = 300.0
# A copy that comes twice would come soon after the first.
_QUIET_S = 20.0


def delay_configs(plan: Plan) -> dict[str, dict[str, str]]:
    expiring = _EXPIRING_CONFIGS if plan.has_expiring_delays else {}
    return {DELAY_TOPIC: {"tidemill.delays.enable": "true", **expiring}}


def delay_settings(plan: Plan) -> dict[str, str]:
    return _EXPIRING_SETTINGS if plan.has_expiring_delays else {}


class _TransactionalDelays(Crowd):
    """Producers that write delayed records in transactions. They are killed, paused and cut off, and have successors."""

    def __init__(self, stage: Stage, rng: Random, events: list[Event], delay_s_max: float) -> None:
        super().__init__(stage, rng, partitions_of(DELAY_TOPICS, DELAY_TOPIC))
        self._events = events
        self._delay_s_max = delay_s_max
        # By client process: those that were not killed, including paused ones and zombies.
        self._producers: dict[str, tuple[str, DelayedTransactions]] = {}

    def start(self, *, has_upsets: bool) -> None:
        for number in range(2):
            self._add(f"delay-{number}")
        if has_upsets:
            self._upset_later(self._upset)

    def _add(self, transactional_id: str) -> None:
        client = self._client("delayer")
        pause_s_max = self._stage.plan.transaction_pause_s_max
        producer = DelayedTransactions(
            client, transactional_id, self._read, pause_s_max, self._events, self._delay_s_max
        )
        self._producers[client.name] = (transactional_id, producer)
        self._stage.spawn(client, producer.run())

    def _upset(self) -> None:
        if self._stage.record.is_ending:
            return
        rng = self._rng
        self._upset_later(self._upset)
        name = rng.choice(list(self._producers))
        transactional_id, _ = self._producers[name]
        chance = rng.random()
        if chance < 0.4:
            self._lose_touch(name)
            return
        if chance < 0.7:
            del self._producers[name]
            self._kill(name)
        else:
            self._fall_asleep(name)
        self._add(transactional_id)

    def finish(self) -> bool:
        producers = [producer for _, producer in self._producers.values()]
        return (
            self._stage.wait_for(
                lambda: all(each.is_done for each in producers), _END_LIMIT_S, "delayed transactions end"
            )
            and self._wait_stable()
        )


class DelayedCrowd:
    """All clients of this workload."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.events: list[Event] = []
        self._producers: list[DelayedProducer] = []
        self._readers: list[tuple[TopicPartition, DelayedReader]] = []
        self._transactions: _TransactionalDelays | None = None

    def start(self) -> None:
        stage, plan = self._stage, self._stage.plan
        delay_s_max = _EXPIRING_DELAY_S_MAX if plan.has_expiring_delays else DELAY_S_MAX
        for index, tp in enumerate(partitions_of(DELAY_TOPICS, DELAY_TOPIC)):
            client, pause_s_max = stage.client(f"delaying-{index}"), 2 * plan.pause_s_max
            producer = (
                SchedulingProducer(client, tp, pause_s_max, self.events, delay_s_max)
                if plan.has_schedules
                else DelayedProducer(client, tp, pause_s_max, self.events)
            )
            self._producers.append(producer)
            stage.spawn(client, producer.run())
            for rack in ("", "rack-1"):
                client = stage.client(f"delayed-reader-{index}{rack and '-near'}")
                reader = DelayedReader(
                    client,
                    tp,
                    self.events,
                    rack,
                    # One of the two reads committed records: at the leader of one partition, near it in the other.
                    is_read_committed=plan.has_transactional_delays and bool(rack) == bool(index),
                    is_expiring=plan.has_expiring_delays,
                )
                self._readers.append((tp, reader))
                stage.spawn(client, reader.run())
        if plan.has_transactional_delays:
            rng = Random(f"{stage.seed}/delayed-transactions")
            self._transactions = _TransactionalDelays(stage, rng, self.events, delay_s_max)
            self._transactions.start(has_upsets=plan.has_faults)

    def finish(self, ahead_ms_max: int) -> bool:
        """Wait until everything that is to be delivered was seen, and a little longer.

        What counts from an append by the clock that was ahead the most is due by that clock, so all clocks show its time.
        """
        stage = self._stage
        if not stage.wait_for(
            lambda: all(each.is_done for each in self._producers), _END_LIMIT_S, "writers end"
        ):
            return False
        if self._transactions is not None and not self._transactions.finish():
            return False
        ahead_ms_max = max(0, ahead_ms_max)
        for machine in stage.cluster.machines.values():
            machine.clock.skew_ms = ahead_ms_max if stage.plan.has_schedules else 0
        missing = self._missing()

        def is_there(taken: Taken, reader: DelayedReader) -> bool:
            return taken.message in reader.seen or reader.may_have_missed(taken, ahead_ms_max)

        def is_delivered() -> bool:
            # Asked after every step of the world, so the work of one answer is kept for the next.
            while missing and is_there(*missing[-1]):
                missing.pop()
            return not missing

        if not stage.wait_for(is_delivered, _END_LIMIT_S, "delayed records are delivered"):
            never = [taken.message for taken, reader in missing if not is_there(taken, reader)]
            stage.accuse(f"never delivered: {never[:3]}")
            return False
        stage.scheduler.run_until(stage.scheduler.now_s + _QUIET_S, lambda: bool(stage.violations))
        return not stage.violations

    def _missing(self) -> list[tuple[Taken, DelayedReader]]:
        """Returns taken messages with the readers that have not seen them. Complete when the producers are done."""
        taken = required(
            [event for event in self.events if isinstance(event, Taken)], self._stage.record.transactions
        )
        return [
            (event, reader)
            for tp, reader in self._readers
            for event in taken
            if event.partition == tp and event.message not in reader.seen
        ]
