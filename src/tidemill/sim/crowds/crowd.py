"""The base of the client groups that use transactions: their readers, their faults, and their final check.

A crowd is all clients of one workload, with topics of its own. At the end every partition must be stable up to its
high watermark, otherwise a transaction hangs, and readers of both isolation levels read everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from tidemill.sim.clients.base import Client
from tidemill.sim.clients.consumer import TransactionReader
from tidemill.sim.stage import Stage
from tidemill.types import TopicPartition

END_LIMIT_S = 300.0
_OUT_OF_TOUCH_S_MAX = 15.0
_SLEEP_S_MAX = 25.0
_STABLE_LIMIT_S = 90.0


class Crowd:
    """The clients of one workload."""

    def __init__(
        self, stage: Stage, rng: Random, partitions: list[TopicPartition], reader_kind: str = "reader"
    ) -> None:
        """`partitions` are the partitions that the readers read."""
        self._stage = stage
        self._reader_kind = reader_kind
        self._rng = rng
        self._read = partitions
        self._made = 0
        self._readers: list[TransactionReader] = []

    def _client(self, kind: str) -> Client:
        self._made += 1
        return self._stage.client(f"{kind}-{self._made}")

    def _add_reader(self, *, is_read_committed: bool, rack: str = "") -> TransactionReader:
        client = self._client(self._reader_kind)
        reader = TransactionReader(client, self._read, is_read_committed=is_read_committed, rack=rack)
        self._readers.append(reader)
        self._stage.spawn(client, reader.run())
        return reader

    # -- upsets ----------------------------------------------------------------------------------------------

    def _upset_later(self, upset: Callable[[], None]) -> None:
        mean_s = self._stage.plan.mean_upset_interval_s
        self._stage.scheduler.after(self._rng.expovariate(1 / mean_s), upset)

    def _kill(self, name: str) -> None:
        self._stage.trace.add(name, "is killed")
        self._stage.kill_client(name, is_silent=self._rng.random() < 0.5)

    def _fall_asleep(self, name: str) -> None:
        loop = self._stage.client_loop(name)
        duration_s = self._rng.uniform(0.5, _SLEEP_S_MAX)
        self._stage.trace.add(name, f"sleeps for {duration_s:.1f} s")
        loop.pause()
        self._stage.scheduler.after(duration_s, loop.resume)

    def _lose_touch(self, name: str) -> None:
        """Cut a client off from one broker for a while: its requests arrive after it has given up."""
        broker = self._rng.choice(self._stage.cluster.brokers()).host
        duration_s = self._rng.uniform(1, _OUT_OF_TOUCH_S_MAX)
        self._stage.trace.add(name, f"does not reach {broker} for {duration_s:.1f} s")
        wires = self._stage.cluster.wires
        wires.cut(name, broker)
        self._stage.scheduler.after(duration_s, lambda: wires.heal(name, broker))

    # -- the end ---------------------------------------------------------------------------------------------

    def _wait_stable(self) -> bool:
        if self._stage.wait_for(lambda: not self._unstable(), _STABLE_LIMIT_S, "no transaction is left open"):
            return True
        self._stage.accuse(f"open for ever: {'; '.join(self._unstable())}")
        return False

    def _unstable(self) -> list[str]:
        found = []
        for machine in self._stage.cluster.brokers():
            if machine.node is None:
                return [f"{machine.host} is not up"]
            for partition in machine.node.broker.replicas.partitions():
                # Records that are not replicated yet may be part of a transaction, or its marker.
                if partition.leader is None or partition.log is None:
                    continue
                if partition.last_stable_offset != partition.log.log_end_offset:
                    found.append(
                        f"{partition.name} of {machine.host}: stable up to {partition.last_stable_offset} "
                        f"of {partition.log.log_end_offset}"
                    )
        led = self._ends(self._read)
        return found + [f"{tp} has no leader" for tp in self._read if tp not in led]

    def _ends(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The end offsets as the leaders know them, after all writers have stopped."""
        ends: dict[TopicPartition, int] = {}
        for machine in self._stage.cluster.brokers():
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
        ends = self._ends(self._read)
        for reader in self._readers:
            reader.end_offsets = ends
        return self._stage.wait_for(
            lambda: all(reader.is_done for reader in self._readers), END_LIMIT_S, "readers reach the end"
        )


def partitions_of(topics: Mapping[str, int], topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(topics[topic])]
