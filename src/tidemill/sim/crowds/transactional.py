"""The transactional clients of a world, their faults, and their shutdown.

Producers write `payments` in transactions. A group transforms each committed payment into a shipment, exactly once.
Readers of both isolation levels read along. Sometimes a client is killed or paused; a successor takes over its
transactional id, and a paused client continues as a zombie.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from tidemill.sim.checks.checker import Died, MemberName
from tidemill.sim.checks.transactions import Transformed
from tidemill.sim.clients.transactional import TransactionalProducer
from tidemill.sim.clients.transformer import Transformer
from tidemill.sim.crowds.crowd import END_LIMIT_S, Crowd, partitions_of
from tidemill.sim.stage import Stage
from tidemill.types import TopicPartition

PAYMENTS = "payments"
SHIPMENTS = "shipments"
TRANSACTION_TOPICS = {PAYMENTS: 2, SHIPMENTS: 1}
_GROUP = "shipping"

# Timed-out transactions are searched often.
TRANSACTION_SETTINGS = {
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000",
}


class TransactionalCrowd(Crowd):
    """The clients of the payments workload."""

    def __init__(self, stage: Stage, rng: Random) -> None:
        self._payments = partitions_of(TRANSACTION_TOPICS, PAYMENTS)
        self._shipments = partitions_of(TRANSACTION_TOPICS, SHIPMENTS)
        super().__init__(stage, rng, [*self._payments, *self._shipments])
        # By client process: those that were not killed, including paused ones and zombies.
        self._producers: dict[str, tuple[str, TransactionalProducer]] = {}
        self._transformers: dict[str, tuple[str, Transformer]] = {}

    # -- coming and going ------------------------------------------------------------------------------------

    def start(self, *, has_upsets: bool) -> None:
        for number in range(2):
            self._add_producer(f"pay-{number}")
            self._add_transformer(f"ship-{number}")
        self._add_reader(is_read_committed=True, rack=self._rng.choice(("", "rack-1")))
        if has_upsets:
            self._upset_later(self._upset)

    def _add_producer(self, transactional_id: str) -> None:
        client = self._client("payer")
        producer = TransactionalProducer(
            client, transactional_id, self._payments, self._stage.plan.transaction_pause_s_max
        )
        self._producers[client.name] = (transactional_id, producer)
        self._stage.spawn(client, producer.run())

    def _add_transformer(self, transactional_id: str) -> None:
        client = self._client("shipper")
        transformer = Transformer(
            client,
            _GROUP,
            transactional_id,
            [PAYMENTS],
            self._shipments,
            self._stage.plan.transaction_pause_s_max,
        )
        self._transformers[client.name] = (transactional_id, transformer)
        self._stage.spawn(client, transformer.run())

    # -- upsets ----------------------------------------------------------------------------------------------

    def _upset(self) -> None:
        if self._stage.record.is_ending:
            return
        rng = self._rng
        is_producer = rng.random() < 0.6
        crowd = self._producers if is_producer else self._transformers
        self._upset_later(self._upset)
        # A zombie or a paused client may be hit too.
        at_work = [name for name, (_, each) in crowd.items() if not each.is_done]
        if not at_work:
            # The last client was fenced without noticing, by a successor that was killed.
            self._add(crowd, rng.choice([used for used, _ in crowd.values()]))
            return
        name = rng.choice(at_work)
        if rng.random() < 0.4:
            self._lose_touch(name)
            return
        transactional_id = crowd[name][0]
        chance = rng.random()
        if chance < 0.4:
            self._kill(name)
        else:
            self._fall_asleep(name)
        has_user = transactional_id in [used for used, each in crowd.values() if not each.is_done]
        if not has_user or chance >= 0.7:
            # Otherwise only the group separates members with different transactional ids.
            is_same = is_producer or rng.random() < 0.5
            self._add(crowd, transactional_id if is_same else f"ship-{self._made}")

    def _add(self, crowd: Mapping[str, object], transactional_id: str) -> None:
        if crowd is self._producers:
            self._add_producer(transactional_id)
        else:
            self._add_transformer(transactional_id)

    def _kill(self, name: str) -> None:
        stage = self._stage
        self._producers.pop(name, None)
        if self._transformers.pop(name, None) is not None:
            stage.record.history.append(Died(stage.scheduler.now_s, MemberName(_GROUP, name)))
        super()._kill(name)

    # -- the end ---------------------------------------------------------------------------------------------

    def finish(self) -> bool:
        """Finish the workload. Returns whether it ended well."""
        stage = self._stage
        producers = [producer for _, producer in self._producers.values()]
        return (
            stage.wait_for(lambda: all(each.is_done for each in producers), END_LIMIT_S, "transactions end")
            and self._wait_stable()
            and self._finish_transforming()
            and self._wait_stable()
            and self._read_everything()
        )

    def _finish_transforming(self) -> bool:
        stage = self._stage
        ends = self._ends(self._payments)
        if not stage.wait_for(
            lambda: self._is_transformed(ends), END_LIMIT_S, "every payment is transformed"
        ):
            return False
        for tp in self._payments:
            stage.record.transactions.append(Transformed(stage.scheduler.now_s, tp))
        transformers = [transformer for _, transformer in self._transformers.values()]
        for transformer in transformers:
            transformer.is_stopping = True
        return stage.wait_for(
            lambda: all(each.is_done for each in transformers), END_LIMIT_S, "the transformers stop"
        )

    def _is_transformed(self, ends: dict[TopicPartition, int]) -> bool:
        for tp in self._payments:
            committed = (each.committed.get(tp, -1) for _, each in self._transformers.values())
            if max(committed, default=-1) != ends[tp]:
                return False
        return True
