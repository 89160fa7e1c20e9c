"""A simulated quorum under every fault that Raft must survive: no invariant is broken, and when the faults end it recovers.

Replay one seed with its trace:  python -m tests.property.test_raft_safety SEED
"""

from __future__ import annotations

import hashlib
import sys

import pytest

from tests.unit.raft.sim_log import replica, voter_set
from tests.unit.raft.world import Faults, Node, World
from tidemill.protocol.api.quorum import AddRaftVoterRequest, RemoveRaftVoterRequest
from tidemill.raft import events as on
from tidemill.raft.state import QuorumConfig

CONFIG = QuorumConfig(
    election_timeout_ms=200,
    election_backoff_ms_max=200,
    fetch_timeout_ms=400,
    request_timeout_ms=300,
    retry_backoff_ms=30,
    fetch_max_wait_ms=120,
)
CHAOS_MS = 8_000
RECOVERY_MS = 20_000


class Chaos:
    """Partitions, crashes, resignations, appends, snapshots and voter changes at random times."""

    def __init__(self, seed: int) -> None:
        size = (3, 3, 5)[seed % 3]
        ids = list(range(1, size + 2))
        faults = Faults((1, 40), (1, 80), drop=0.04, duplicate=0.05, slow=0.03, crash=0.004)
        # The last node is an observer, until it may be added.
        self.world = World(ids, voter_set(*ids[:-1]), seed, faults, CONFIG)
        self.random = self.world.random
        self.appended = 0
        self.is_over = False
        self.world.at(1, self._act)

    def run(self) -> None:
        self.world.advance(CHAOS_MS)

    def _act(self) -> None:
        if self.is_over:
            return
        action = self.random.choices(
            [
                self._append,
                self._cut,
                self._heal,
                self._crash,
                self._resign,
                self._snapshot,
                self._reconfigure,
            ],
            [20, 3, 3, 1, 1, 2, 2],
        )[0]
        action()
        self.world.at(self.random.randint(5, 60), self._act)

    def _append(self) -> None:
        for node in self.world.leaders():
            self.appended += 1
            values = [f"v{self.appended}-{number}" for number in range(self.random.randint(1, 3))]
            token = f"append {self.appended}"
            self.world.step(node, on.AppendRequested(token, node.machine.epoch, values, len(values)))

    def _cut(self) -> None:
        ids = list(self.world.nodes)
        if self.random.random() < 0.5:
            self.world.cut_links.add(tuple(self.random.sample(ids, 2)))  # type: ignore[arg-type]
        else:
            alone = set(self.random.sample(ids, self.random.randint(1, len(ids) // 2)))
            self.world.cut_links = {(a, b) for a in ids for b in ids if (a in alone) != (b in alone)}

    def _heal(self) -> None:
        self.world.cut_links.clear()

    def _crash(self) -> None:
        node = self.random.choice(list(self.world.nodes.values()))
        if node.is_up:
            self.world.crash(node.id)
            generation = node.generation
            if self.random.random() < 0.3 and self._may_lose_log():
                self.world.lose_log(node.id)
            self.world.at(self.random.randint(1, 1500), lambda: self._restart(node, generation))

    def _may_lose_log(self) -> bool:
        """Three voters survive the loss of one log, not of two; two voters survive none."""
        nodes = self.world.nodes.values()
        fewest = min(len(node.log.voters.voters) for node in nodes)
        return fewest >= 3 and not self._is_any_incomplete()

    def _is_any_incomplete(self) -> bool:
        return any(node.disk.is_incomplete for node in self.world.nodes.values())

    def _restart(self, node: Node, generation: int) -> None:
        if node.generation == generation and not node.is_up:
            self.world.start(node.id)

    def _resign(self) -> None:
        for node in self.world.leaders():
            self.world.step(node, on.ResignRequested())

    def _snapshot(self) -> None:
        node = self.random.choice(list(self.world.nodes.values()))
        if node.is_up and node.machine.high_watermark > node.log.log_start_offset:
            node.log.take_snapshot(node.machine.high_watermark)
            node.disk.keep(node.log)

    def _reconfigure(self) -> None:
        if self._is_any_incomplete():
            return
        for node in self.world.leaders():
            voters = node.log.voters.voters.ids
            candidate = replica(self.random.choice(list(self.world.nodes)))
            if candidate.id in voters:
                if len(voters) > 2:
                    removal = RemoveRaftVoterRequest(
                        voter_id=candidate.id, voter_directory_id=candidate.directory_id
                    )
                    self.world.step(node, on.RemoveVoterRequested(f"remove {self.world.steady_ms}", removal))
            else:
                addition = AddRaftVoterRequest(
                    voter_id=candidate.id, voter_directory_id=candidate.directory_id, timeout_ms=500
                )
                self.world.step(node, on.AddVoterRequested(f"add {self.world.steady_ms}", addition))

    def recover(self) -> bool:
        """Without faults there is soon one leader, and every replica has its records."""
        self.is_over = True
        self.world.faults = Faults(delay_ms=(1, 20), sync_ms=(1, 10))
        self._heal()
        for node in self.world.nodes.values():
            if not node.is_up:
                self.world.start(node.id)
        return self.world.advance_until(self._is_settled, RECOVERY_MS)

    def _is_settled(self) -> bool:
        leaders = self.world.leaders()
        if len(leaders) != 1 or not leaders[0].machine.is_active_leader:
            return False
        end_offset = leaders[0].log.log_end_offset
        return all(
            node.is_up and node.machine.high_watermark == node.log.log_end_offset == end_offset
            for node in self.world.nodes.values()
        )

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.world.trace).encode()).hexdigest()


@pytest.mark.parametrize("seed", range(50))
def test_quorum_is_safe_and_recovers(seed: int) -> None:
    chaos = Chaos(seed)
    chaos.run()
    assert chaos.recover(), "no quorum came together again"
    assert chaos.world.invariants.committed_entries


def test_the_same_seed_gives_the_same_trace() -> None:
    traces = []
    for _ in range(2):
        chaos = Chaos(3)
        chaos.world.is_traced = True
        chaos.run()
        traces.append(chaos.digest())
    assert traces[0] == traces[1]
    assert traces[0] != hashlib.sha256(b"").hexdigest()


if __name__ == "__main__":
    replayed = Chaos(int(sys.argv[1]))
    replayed.world.is_traced = True
    try:
        replayed.run()
        print("recovered" if replayed.recover() else "did not recover")
    finally:
        print("\n".join(replayed.world.trace))
