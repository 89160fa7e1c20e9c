"""The clients of a topic whose number of partitions changes, their faults, and how all of it is read at the end.

Keyed producers write, some of which never learn of fewer partitions, and so do transactional ones. A group reads along. An
administrator shrinks the topic, takes that back, empties partitions until they disappear, and adds others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from tidemill.config import PARTITIONS_KEPT_MS
from tidemill.sim.checks.keyed import KeyedHistory
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.keyed import KeyedProducer, RenewedMember
from tidemill.sim.clients.shrinker import Shrinker, find_records
from tidemill.sim.clients.transactional import TransactionalProducer
from tidemill.sim.crowds.crowd import END_LIMIT_S, Crowd
from tidemill.sim.stage import Stage
from tidemill.types import TopicPartition

_TOPIC = "accounts"
SHRINKING_TOPICS = {_TOPIC: 4}
# Longer than producers send a batch again, and than it may be under way after that.
SHRINKING_CONFIGS = {_TOPIC: {PARTITIONS_KEPT_MS: "60000"}}
_GROUP = "bookkeeping"
_KEYS = 12
_MEMBERS = 2


class _KeyedTransactions(TransactionalProducer):
    """Writes to the partitions that the topic has by the latest metadata."""

    async def _transact(self) -> bool:
        count = self._client.partition_counts[_TOPIC]
        self._partitions = [TopicPartition(_TOPIC, index) for index in range(count)]
        return await super()._transact()


class ShrinkingCrowd(Crowd):
    def __init__(self, stage: Stage, rng: Random) -> None:
        super().__init__(stage, rng, [])
        self.history = KeyedHistory(_TOPIC, transactions=stage.record.transactions)
        self._producers: dict[str, KeyedProducer] = {}
        self._transactions: dict[str, tuple[str, _KeyedTransactions]] = {}
        self._members: dict[str, RenewedMember] = {}
        self._shrinker: Shrinker | None = None
        self._is_found = False

    # -- coming and going ------------------------------------------------------------------------------------

    def start(self, *, has_upsets: bool) -> None:
        stage = self._stage
        for number, learns in enumerate((True, False)):
            client = self._client("accountant")
            keys = range(number, _KEYS, 2)
            producer = KeyedProducer(
                client, _TOPIC, keys, stage.plan.pause_s_max, self.history, learns=learns
            )
            self._producers[client.name] = producer
            stage.spawn(client, producer.run())
        for number in range(2):
            self._add_transactions(f"account-{number}")
        for _ in range(_MEMBERS):
            self._add_member()
        client = self._client("shrinker")
        pause_s_max = stage.plan.shrink_pause_s_max
        self._shrinker = Shrinker(client, _TOPIC, self.history, self._note, pause_s_max)
        stage.spawn(client, self._shrinker.run())
        if has_upsets:
            self._upset_later(self._upset)

    def _note(self, what: str) -> None:
        self._stage.trace.add("shrinker", what)

    def _add_transactions(self, transactional_id: str) -> None:
        client = self._client("account-payer")
        producer = _KeyedTransactions(
            client,
            transactional_id,
            [TopicPartition(_TOPIC, 0)],
            self._stage.plan.transaction_pause_s_max,
        )
        self._transactions[client.name] = (transactional_id, producer)
        self._stage.spawn(client, producer.run())

    def _add_member(self) -> None:
        client = self._client("bookkeeper")
        member = self._members[client.name] = RenewedMember(client, _GROUP, _TOPIC, self.history)
        self._stage.spawn(client, member.run())

    # -- upsets ----------------------------------------------------------------------------------------------

    def _upset(self) -> None:
        if self._stage.record.is_ending:
            return
        self._upset_later(self._upset)
        rng = self._rng
        chance = rng.random()
        if chance < 0.25:
            name = rng.choice(list(self._members))
            del self._members[name]
            self._kill(name)
            self._add_member()
        elif chance < 0.5:
            name = rng.choice(list(self._transactions))
            transactional_id, _ = self._transactions.pop(name)
            self._kill(name)
            self._add_transactions(transactional_id)
        else:
            name = rng.choice([*self._producers, *self._transactions, *self._members])
            (self._lose_touch if chance < 0.8 else self._fall_asleep)(name)

    # -- the end ---------------------------------------------------------------------------------------------

    def finish(self) -> bool:
        """Finish the workload. Returns whether it ended well."""
        stage, shrinker = self._stage, self._shrinker
        assert shrinker is not None
        producers = list(self._producers.values())
        transactions = [producer for _, producer in self._transactions.values()]

        def are_done() -> bool:
            return (
                shrinker.is_done
                and all(each.is_done for each in producers)
                and all(each.is_done for each in transactions)
            )

        if not stage.wait_for(are_done, END_LIMIT_S, "the writers of accounts are done"):
            return False
        if not self._wait_stable():
            return False
        client = self._client("account-auditor")
        stage.spawn(client, self._find_all(client))
        if not stage.wait_for(lambda: self._is_found, END_LIMIT_S, "accounts can be read to their ends"):
            return False
        found = set(self.history.found.values())
        if not stage.wait_for(
            lambda: self.history.delivered.issuperset(found), END_LIMIT_S, "the group has read all accounts"
        ):
            return False
        self.history.is_complete = True
        for member in self._members.values():
            member.is_stopping = True
        members = self._members.values()
        return stage.wait_for(
            lambda: all(each.is_done for each in members), END_LIMIT_S, "the bookkeepers stop"
        )

    async def _find_all(self, client: Client) -> None:
        await client.find_topics([_TOPIC])
        tps = [TopicPartition(_TOPIC, index) for index in range(client.partition_counts[_TOPIC])]
        never: Callable[[], bool] = lambda: False  # noqa: E731
        await asyncio.gather(*(find_records(client, tp, self.history, never) for tp in tps))
        self._is_found = True
