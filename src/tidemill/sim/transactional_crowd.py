"""The clients of a world that use transactions, what happens to them, and how they come to an end.

Producers write `payments` in transactions; a group transforms each committed payment into a shipment, exactly once; readers
of both isolation levels read along. Now and then one is killed, or falls asleep; a successor takes over its transactional
id, and the sleeper wakes up as a zombie. In the end every partition is stable up to its high watermark, or a transaction
hangs.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING

from tidemill.sim.checker import Died, MemberName
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.consumer import TransactionReader
from tidemill.sim.clients.transactional import TransactionalProducer
from tidemill.sim.clients.transformer import Transformer
from tidemill.sim.transactions import Transformed
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.sim.world import World

PAYMENTS = "payments"
SHIPMENTS = "shipments"
TRANSACTION_TOPICS = {PAYMENTS: 2, SHIPMENTS: 1}
_GROUP = "shipping"
_OUT_OF_TOUCH_S_MAX = 15.0
_SLEEP_S_MAX = 25.0
_STABLE_LIMIT_S = 90.0
_END_LIMIT_S = 300.0

# Timed-out transactions are looked for often.
TRANSACTION_SETTINGS = {
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000",
}


class TransactionalCrowd:
    def __init__(self, world: World, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self._made = 0
        self._payments = _partitions(PAYMENTS)
        self._shipments = _partitions(SHIPMENTS)
        # By the name of the client process: those that were not killed, sleepers and zombies too.
        self._producers: dict[str, tuple[str, TransactionalProducer]] = {}
        self._transformers: dict[str, tuple[str, Transformer]] = {}
        self._readers: list[TransactionReader] = []

    # -- coming and going ------------------------------------------------------------------------------------

    def start(self, *, has_upsets: bool) -> None:
        for number in range(2):
            self._add_producer(f"pay-{number}")
            self._add_transformer(f"ship-{number}")
        self._add_reader(is_read_committed=True, rack=self._rng.choice(("", "rack-1")))
        if has_upsets:
            self._upset_later()

    def _client(self, kind: str) -> Client:
        self._made += 1
        return self._world.client(f"{kind}-{self._made}")

    def _add_producer(self, transactional_id: str) -> None:
        client = self._client("payer")
        producer = TransactionalProducer(
            client, transactional_id, self._payments, self._world.plan.transaction_pause_s_max
        )
        self._producers[client.name] = (transactional_id, producer)
        self._world.spawn(client, producer.run())

    def _add_transformer(self, transactional_id: str) -> None:
        client = self._client("shipper")
        transformer = Transformer(
            client,
            _GROUP,
            transactional_id,
            [PAYMENTS],
            self._shipments,
            self._world.plan.transaction_pause_s_max,
        )
        self._transformers[client.name] = (transactional_id, transformer)
        self._world.spawn(client, transformer.run())

    def _add_reader(self, *, is_read_committed: bool, rack: str = "") -> TransactionReader:
        client = self._client("reader")
        tps = [*self._payments, *self._shipments]
        reader = TransactionReader(client, tps, is_read_committed=is_read_committed, rack=rack)
        self._readers.append(reader)
        self._world.spawn(client, reader.run())
        return reader

    # -- upsets ----------------------------------------------------------------------------------------------

    def _upset_later(self) -> None:
        mean_s = self._world.plan.mean_upset_interval_s
        self._world.scheduler.after(self._rng.expovariate(1 / mean_s), self._upset)

    def _upset(self) -> None:
        if self._world.record.is_ending:
            return
        rng = self._rng
        is_producer = rng.random() < 0.6
        crowd = self._producers if is_producer else self._transformers
        self._upset_later()
        # A zombie or a sleeper may be hit too.
        at_work = [name for name, (_, each) in crowd.items() if not each.is_done]
        if not at_work:
            # The last one had been fenced without noticing, by a successor that was killed.
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
            # The group alone keeps members with different transactional ids apart.
            is_same = is_producer or rng.random() < 0.5
            self._add(crowd, transactional_id if is_same else f"ship-{self._made}")

    def _add(self, crowd: Mapping[str, object], transactional_id: str) -> None:
        if crowd is self._producers:
            self._add_producer(transactional_id)
        else:
            self._add_transformer(transactional_id)

    def _kill(self, name: str) -> None:
        world = self._world
        world.trace.add(name, "is killed")
        self._producers.pop(name, None)
        if self._transformers.pop(name, None) is not None:
            world.record.history.append(Died(world.scheduler.now_s, MemberName(_GROUP, name)))
        world.kill_client(name, is_silent=self._rng.random() < 0.5)

    def _fall_asleep(self, name: str) -> None:
        loop = self._world.client_loop(name)
        duration_s = self._rng.uniform(0.5, _SLEEP_S_MAX)
        self._world.trace.add(name, f"sleeps for {duration_s:.1f} s")
        loop.pause()
        self._world.scheduler.after(duration_s, loop.resume)

    def _lose_touch(self, name: str) -> None:
        """With one broker, for a while: what it sends there arrives when it has given up long since."""
        broker = self._rng.choice(self._world.cluster.brokers()).host
        duration_s = self._rng.uniform(1, _OUT_OF_TOUCH_S_MAX)
        self._world.trace.add(name, f"does not reach {broker} for {duration_s:.1f} s")
        wires = self._world.cluster.wires
        wires.cut(name, broker)
        self._world.scheduler.after(duration_s, lambda: wires.heal(name, broker))

    # -- the end ---------------------------------------------------------------------------------------------

    def finish(self) -> bool:
        """Whether everything came to a good end."""
        world = self._world
        producers = [producer for _, producer in self._producers.values()]
        return (
            world.wait_for(lambda: all(each.is_done for each in producers), _END_LIMIT_S, "transactions end")
            and self._wait_stable()
            and self._finish_transforming()
            and self._wait_stable()
            and self._read_everything()
        )

    def _wait_stable(self) -> bool:
        if self._world.wait_for(lambda: not self._unstable(), _STABLE_LIMIT_S, "no transaction is left open"):
            return True
        self._world.accuse(f"open for ever: {'; '.join(self._unstable())}")
        return False

    def _unstable(self) -> list[str]:
        found = []
        for machine in self._world.cluster.brokers():
            if machine.node is None:
                return [f"{machine.host} is not up"]
            for partition in machine.node.broker.replicas.partitions():
                if partition.leader is not None and partition.last_stable_offset != partition.high_watermark:
                    found.append(
                        f"{partition.name} of {machine.host}: stable up to {partition.last_stable_offset} "
                        f"of {partition.high_watermark}"
                    )
        tps = [*self._payments, *self._shipments]
        led = self._ends(tps)
        return found + [f"{tp} has no leader" for tp in tps if tp not in led]

    def _finish_transforming(self) -> bool:
        world = self._world
        ends = self._ends(self._payments)
        if not world.wait_for(
            lambda: self._is_transformed(ends), _END_LIMIT_S, "every payment is transformed"
        ):
            return False
        for tp in self._payments:
            world.record.transactions.append(Transformed(world.scheduler.now_s, tp))
        transformers = [transformer for _, transformer in self._transformers.values()]
        for transformer in transformers:
            transformer.is_stopping = True
        return world.wait_for(
            lambda: all(each.is_done for each in transformers), _END_LIMIT_S, "the transformers stop"
        )

    def _is_transformed(self, ends: dict[TopicPartition, int]) -> bool:
        for tp in self._payments:
            committed = (each.committed.get(tp, -1) for _, each in self._transformers.values())
            if max(committed, default=-1) != ends[tp]:
                return False
        return True

    def _ends(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        """As the leaders know them: everybody has stopped to write here."""
        ends: dict[TopicPartition, int] = {}
        for machine in self._world.cluster.brokers():
            if machine.node is None:
                continue
            for tp in tps:
                partition, _ = machine.node.broker.replicas.find((tp.topic, tp.partition))
                if partition is not None and partition.leader is not None:
                    ends[tp] = max(ends.get(tp, 0), partition.high_watermark)
        return ends

    def _read_everything(self) -> bool:
        for is_read_committed in (True, False):
            self._add_reader(is_read_committed=is_read_committed)
        ends = self._ends([*self._payments, *self._shipments])
        for reader in self._readers:
            reader.end_offsets = ends
        return self._world.wait_for(
            lambda: all(reader.is_done for reader in self._readers), _END_LIMIT_S, "readers reach the end"
        )


def _partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(TRANSACTION_TOPICS[topic])]
