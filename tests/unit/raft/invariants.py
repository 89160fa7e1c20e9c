"""The invariants of a quorum after every step, with the names that Raft gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.raft.sim_log import Entry
from tidemill.protocol.api.quorum import VoteResponse
from tidemill.raft import messages
from tidemill.raft.events import Event, VoteRequested
from tidemill.raft.voters import ReplicaKey

if TYPE_CHECKING:
    from tests.unit.raft.world import Node, Token


class Violation(AssertionError):
    """An invariant does not hold. The text begins with its name."""


class Invariants:
    def __init__(self, nodes: dict[int, Node]) -> None:
        self._nodes = nodes
        self._leaders: dict[int, int] = {}
        self._votes: dict[tuple[int, int], ReplicaKey] = {}
        self._votes_asked: dict[Token, VoteRequested] = {}
        self._high_watermarks: dict[int, int] = {}
        self._committed_when_lost: dict[int, int] = {}
        # The log of all entries that any replica ever counted as committed.
        self.committed_entries: list[Entry] = []

    def started(self, node_id: int) -> None:
        self._high_watermarks[node_id] = self._nodes[node_id].log.log_start_offset

    def elected(self, node_id: int, epoch: int) -> None:
        other = self._leaders.setdefault(epoch, node_id)
        if other != node_id:
            raise Violation(f"SingleLeader: {other} and {node_id} both lead epoch {epoch}")
        log = self._nodes[node_id].log.entries
        if log[: len(self.committed_entries)] != self.committed_entries:
            raise Violation(f"LeaderCompleteness: {node_id} leads epoch {epoch} without a committed record")

    def asked(self, token: Token, event: Event) -> None:
        if isinstance(event, VoteRequested):
            self._votes_asked[token] = event

    def vote_answered(self, node_id: int, token: Token, response: VoteResponse) -> None:
        request = messages.vote_request_part(self._votes_asked[token].request)
        answer = messages.vote_response_part(response)
        assert request is not None
        if answer is None or not answer.vote_granted or request.pre_vote:
            return
        candidate = ReplicaKey(request.replica_id, request.replica_directory_id)
        on_disk = self._nodes[node_id].disk.election
        if (on_disk.epoch, on_disk.voted) != (request.replica_epoch, candidate):
            raise Violation(f"DurableVote: {node_id} votes for {candidate.id}, its disk says {on_disk}")
        other = self._votes.setdefault((node_id, request.replica_epoch), candidate)
        if other != candidate:
            raise Violation(f"OneVote: {node_id} votes twice in epoch {request.replica_epoch}")

    def truncated(self, node_id: int, end_offset: int) -> None:
        if end_offset < self._high_watermarks[node_id]:
            raise Violation(f"CommittedStays: {node_id} truncates to {end_offset}")

    def committed(self, node_id: int, offset: int) -> None:
        node = self._nodes[node_id]
        if offset <= self._high_watermarks[node_id]:
            raise Violation(f"MonotonicHighWatermark: {node_id} goes back to {offset}")
        self._high_watermarks[node_id] = offset
        known, own = self.committed_entries, node.log.entries[:offset]
        if len(own) < offset:
            raise Violation(f"CommittedIsHeld: {node_id} does not have what is before {offset}")
        shared = min(len(known), offset)
        if own[:shared] != known[:shared]:
            raise Violation(f"StateMachineSafety: {node_id} has something else committed before {offset}")
        if node.machine.is_leader and own[-1][0] != node.machine.epoch:
            raise Violation(f"OwnEpochCommit: {node_id} commits {offset} by an older epoch's record")
        if offset > len(known):
            self._check_durable(node, own)
            self.committed_entries = own

    def _check_durable(self, node: Node, entries: list[Entry]) -> None:
        voters = node.log.voters.voters
        end = len(entries)
        holders = [
            voter
            for voter in voters.ids
            # A voter that lost its log may have been counted before. It grants no vote until it has everything again.
            if self._nodes[voter].disk.entries[:end] == entries or self._nodes[voter].disk.is_incomplete
        ]
        if not voters.is_majority(holders):
            raise Violation(f"DurableMajority: only {holders} of {voters.ids} have {end} records on disk")

    def lost_log(self, node_id: int) -> None:
        self._committed_when_lost[node_id] = len(self.committed_entries)

    def completed(self, node_id: int) -> None:
        """It may have helped to commit all that was committed when it lost its log."""
        entries, end = self._nodes[node_id].disk.entries, self._committed_when_lost[node_id]
        if entries[:end] != self.committed_entries[:end]:
            raise Violation(f"Completeness: {node_id} calls its log complete without a committed record")

    def log_changed(self, node_id: int) -> None:
        own = self._nodes[node_id].log.entries
        for other in self._nodes.values():
            if other.id != node_id:
                _check_matching(node_id, own, other.id, other.log.entries)

    def stepped(self, node_id: int) -> None:
        node = self._nodes[node_id]
        if node.machine.election != node.disk.election:
            raise Violation(f"DurableState: {node_id} is at {node.machine.election}, its disk is not")
        if node.machine.high_watermark < self._high_watermarks[node_id]:
            raise Violation(f"MonotonicHighWatermark: {node_id} at {node.machine.high_watermark}")


def _check_matching(one_id: int, one: list[Entry], other_id: int, other: list[Entry]) -> None:
    """If two logs have a record of the same epoch at an offset, they are the same up to there."""
    for offset in range(min(len(one), len(other)) - 1, -1, -1):
        if one[offset][0] == other[offset][0]:
            if one[: offset + 1] != other[: offset + 1]:
                raise Violation(f"LogMatching: {one_id} and {other_id} differ before {offset + 1}")
            return
