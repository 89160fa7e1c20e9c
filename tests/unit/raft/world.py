"""A whole quorum in one process: machines, a network, disks, virtual time, from one seed; with its invariants.

Every effect of a machine is carried out here, one by one; a crash may come between any two. `Faults` sets the faults of
the network and the disks. The test itself causes partitions, crashes, restarts and appends.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tests.unit.raft.invariants import Invariants
from tests.unit.raft.sim_log import Disk, SimLog, control_value, decode, encode, replica
from tidemill.protocol.api.data import FetchResponse
from tidemill.protocol.api.quorum import (
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    FetchSnapshotResponse,
    VoteResponse,
)
from tidemill.raft import effects as do
from tidemill.raft import events as on
from tidemill.raft import messages
from tidemill.raft.core import RaftMachine
from tidemill.raft.effects import Effect
from tidemill.raft.events import Event
from tidemill.raft.requests import Sent
from tidemill.raft.state import QuorumConfig
from tidemill.raft.voters import VoterSet

SNAPSHOT_BYTES_MAX = 60


@dataclass
class Faults:
    delay_ms: tuple[int, int] = (1, 1)
    sync_ms: tuple[int, int] = (1, 1)
    drop: float = 0.0
    duplicate: float = 0.0
    # Messages that come very late: after the next election, perhaps.
    slow: float = 0.0
    slow_ms: tuple[int, int] = (100, 2_000)
    # Per step: the chance that the process dies while it carries out the effects.
    crash: float = 0.0


class Token(NamedTuple):
    node_id: int
    generation: int
    number: int


class Node:
    def __init__(self, node_id: int, disk: Disk) -> None:
        self.id = node_id
        self.disk = disk
        self.generation = 0
        self.is_up = False
        self.log: SimLog
        self.machine: RaftMachine
        self.fetched_snapshot = b""
        self.timer_ms: int | None = None


class World:
    def __init__(
        self,
        ids: list[int],
        voters: VoterSet,
        seed: int,
        faults: Faults,
        config: QuorumConfig,
        jitter: Callable[[int, int], int] | None = None,
    ) -> None:
        self.random = Random(seed)
        self.steady_ms = 0
        self.faults = faults
        self.config = config
        self.voters = voters
        self.nodes = {node_id: Node(node_id, Disk()) for node_id in ids}
        self.cut_links: set[tuple[int, int]] = set()
        self.invariants = Invariants(self.nodes)
        self.trace: list[str] = []
        self.is_traced = False
        self.fetched_entries_max = 4
        self.observe: Callable[[int, Effect], None] | None = None
        self.answered: dict[object, object] = {}
        self.lost_generations: dict[int, int] = {}
        self._jitter = jitter or (lambda _, bound: self.random.randrange(bound))
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        for node_id in ids:
            self.start(node_id)

    # -- time --------------------------------------------------------------------------------------------------

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self.steady_ms + delay_ms, self._sequence, action))

    def advance(self, duration_ms: int) -> None:
        end_ms = self.steady_ms + duration_ms
        while self._queue and self._queue[0][0] <= end_ms:
            self.steady_ms, _, action = heapq.heappop(self._queue)
            action()
        self.steady_ms = end_ms

    def advance_until(self, is_done: Callable[[], bool], limit_ms: int) -> bool:
        end_ms = self.steady_ms + limit_ms
        while not is_done():
            if not self._queue or self._queue[0][0] > end_ms:
                return False
            self.steady_ms, _, action = heapq.heappop(self._queue)
            action()
        return True

    # -- nodes -------------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        node = self.nodes[node_id]
        assert not node.is_up
        node.generation += 1
        node.is_up = True
        node.log = node.disk.open(self.voters)
        node.timer_ms = None
        node.machine = RaftMachine(
            replica(node_id),
            node.log,
            node.disk.election,
            self.config,
            lambda bound: self._jitter(node_id, bound),
            "cluster",
            self.steady_ms,
            is_incomplete=node.disk.is_incomplete,
        )
        self.invariants.started(node_id)
        self.step(node, on.TimerExpired())

    def crash(self, node_id: int) -> None:
        node = self.nodes[node_id]
        node.is_up = False
        node.generation += 1
        node.disk.crash(node.log, self.random)
        node.log.entries = list(node.disk.entries)
        self.trace.append(f"{self.steady_ms} {node_id} crashed")

    def lose_log(self, node_id: int) -> None:
        """Of a node that is down: its log is damaged, and the node will know it. Its connections died with it."""
        node = self.nodes[node_id]
        assert not node.is_up
        node.disk.lose_log()
        node.log.entries = []
        self.lost_generations[node_id] = node.generation
        self.invariants.lost_log(node_id)
        self.trace.append(f"{self.steady_ms} {node_id} lost its log")

    def leaders(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_up and node.machine.is_leader]

    def step(self, node: Node, event: Event) -> None:
        if not node.is_up:
            return
        generation = node.generation
        effects = node.machine.step(event, self.steady_ms)
        if self.is_traced and (effects or not isinstance(event, on.TimerExpired)):
            self.trace.append(f"{self.steady_ms} {node.id} {event!r} {effects!r}")
        dies_at = -1
        if self.faults.crash and effects and self.random.random() < self.faults.crash:
            dies_at = self.random.randrange(len(effects) + 1)
        for number, effect in enumerate(effects):
            if number == dies_at:
                break
            if self.observe is not None:
                self.observe(node.id, effect)
            self._carry_out(node, effect)
        if dies_at >= 0:
            self.crash(node.id)
            self.at(self.random.randint(1, 800), lambda: self._restart(node.id, generation + 1))
            return
        self.invariants.stepped(node.id)
        self._arm(node)

    def _restart(self, node_id: int, generation: int) -> None:
        if self.nodes[node_id].generation == generation:
            self.start(node_id)

    def _arm(self, node: Node) -> None:
        deadline_ms = node.machine.deadline_ms
        if deadline_ms is None:
            node.timer_ms = None
            return
        # A machine that wants to be woken at once, again and again, would stop time.
        deadline_ms = max(deadline_ms, self.steady_ms + (1 if node.timer_ms == self.steady_ms else 0))
        if deadline_ms == node.timer_ms:
            return
        node.timer_ms = deadline_ms
        generation = node.generation

        def expire() -> None:
            if node.generation == generation and node.timer_ms == deadline_ms:
                self.step(node, on.TimerExpired())

        self.at(deadline_ms - self.steady_ms, expire)

    # -- effects -----------------------------------------------------------------------------------------------

    def _carry_out(self, node: Node, effect: Effect) -> None:
        log, disk = node.log, node.disk
        match effect:
            case do.PersistQuorumState(state):
                disk.election = state
            case (
                do.SendVote()
                | do.SendFetch()
                | do.SendFetchSnapshot()
                | do.SendBeginQuorumEpoch()
                | do.SendEndQuorumEpoch()
            ):
                self._send(node, effect)
            case do.AppendToLog(token, epoch, base_offset, records, count):
                assert isinstance(records, list)
                assert len(records) == count
                log.append(base_offset, [(epoch, value) for value in records])
                self.answered[token] = effect
                self.invariants.log_changed(node.id)
            case do.AppendControl(epoch, base_offset, record):
                log.append(base_offset, [(epoch, control_value(record))])
                self.invariants.log_changed(node.id)
            case do.AppendFetched(base_offset, data):
                log.append(base_offset, decode(data))
                self.invariants.log_changed(node.id)
            case do.TruncateLog(end_offset):
                self.invariants.truncated(node.id, end_offset)
                log.truncate(end_offset)
            case do.SyncLog(number):
                self._sync(node, number)
            case do.AppendToSnapshot(_, position, data):
                node.fetched_snapshot = node.fetched_snapshot[:position] + bytes(data)
            case do.InstallSnapshot(snapshot):
                log.install(snapshot, decode(node.fetched_snapshot))
                disk.keep(log)
                self.invariants.log_changed(node.id)
            case do.AdvanceHighWatermark(offset):
                self.invariants.committed(node.id, offset)
            case do.BecomeLeader(epoch, _):
                self.invariants.elected(node.id, epoch)
            case do.Answer() | do.AnswerFetch() | do.AnswerFetchSnapshot():
                self._answer(node, effect)
            case do.RejectAppend(token):
                self.answered[token] = effect
            case do.CompleteLog():
                disk.is_incomplete = False
                self.invariants.completed(node.id)
            case do.ActivateLeader() | do.ResignLeadership() | do.FollowLeader():
                pass

    def _sync(self, node: Node, number: int) -> None:
        captured, generation = list(node.log.entries), node.generation

        def done() -> None:
            if node.generation == generation:
                node.disk.sync(number, captured)
                self.step(node, on.LogSynced(number, len(captured)))

        self.at(self.random.randint(*self.faults.sync_ms), done)

    # -- the network -------------------------------------------------------------------------------------------

    def _is_cut(self, sender: int, receiver: int) -> bool:
        return (sender, receiver) in self.cut_links

    def _deliver(self, sender: int, receiver: int, deliver: Callable[[], None]) -> None:
        copies = 1
        if self.faults.drop and self.random.random() < self.faults.drop:
            copies = 0
        elif self.faults.duplicate and self.random.random() < self.faults.duplicate:
            copies = 2

        def arrive() -> None:
            if not self._is_cut(sender, receiver):
                deliver()

        for _ in range(copies):
            is_slow = self.faults.slow and self.random.random() < self.faults.slow
            self.at(self.random.randint(*(self.faults.slow_ms if is_slow else self.faults.delay_ms)), arrive)

    def _send(self, node: Node, sent: Sent) -> None:
        token = Token(node.id, node.generation, sent.number)
        event: Event
        match sent:
            case do.SendVote(request=vote):
                event = on.VoteRequested(token, vote)
            case do.SendBeginQuorumEpoch(request=begin):
                event = on.BeginQuorumEpochReceived(token, begin)
            case do.SendEndQuorumEpoch(request=end):
                event = on.EndQuorumEpochReceived(token, end)
            case do.SendFetch(request=fetch):
                event = on.FetchRequested(token, fetch)
            case do.SendFetchSnapshot(request=snapshot):
                event = on.FetchSnapshotRequested(token, snapshot)
        receiver = self.nodes.get(sent.to)
        if receiver is not None:
            self.invariants.asked(token, event)
            self._deliver(node.id, sent.to, lambda: self._receive(receiver, token, event))

    def _receive(self, receiver: Node, token: Token, event: Event) -> None:
        sender = self.nodes[token.node_id]
        if not receiver.is_up and sender.generation == token.generation:
            # The connection is refused, so the request fails at once.
            self.step(sender, on.RequestFailed(token.number))
        elif token.generation >= self.lost_generations.get(token.node_id, 0):
            self.step(receiver, event)

    def _answer(self, node: Node, effect: do.Answer | do.AnswerFetch | do.AnswerFetchSnapshot) -> None:
        token, response = effect.token, effect.response
        if isinstance(effect, do.AnswerFetch):
            part = messages.fetch_response_part(effect.response)
            assert part is not None
            part.records = encode(node.log.entries[effect.offset : effect.offset + self.fetched_entries_max])
        elif isinstance(effect, do.AnswerFetchSnapshot):
            piece = messages.snapshot_response_part(effect.response)
            assert piece is not None
            data = encode(node.log.entries[: effect.snapshot.end_offset])
            piece.size = len(data)
            piece.unaligned_records = data[effect.position : effect.position + SNAPSHOT_BYTES_MAX]
        if not isinstance(token, Token):
            self.answered[token] = response
            return
        event: Event
        match response:
            case VoteResponse():
                self.invariants.vote_answered(node.id, token, response)
                event = on.VoteAnswered(token.number, response)
            case BeginQuorumEpochResponse():
                event = on.BeginQuorumEpochAnswered(token.number, response)
            case EndQuorumEpochResponse():
                event = on.EndQuorumEpochAnswered(token.number, response)
            case FetchResponse():
                event = on.FetchAnswered(token.number, response)
            case FetchSnapshotResponse():
                event = on.FetchSnapshotAnswered(token.number, response)
            case _:
                raise AssertionError(response)
        receiver = self.nodes[token.node_id]

        def arrive() -> None:
            if receiver.generation == token.generation:
                self.step(receiver, event)

        self._deliver(node.id, token.node_id, arrive)
