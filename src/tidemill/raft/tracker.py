"""What a leader knows of the others' logs, and the arithmetic of majorities.

A replica's fetch offset says: everything before it is on my disk, and it is what the leader has. The latest
word counts, also when it is less than an earlier one: an old request that came late is put right by the next,
and a replica that has lost its log must not be counted with what it had. The leader itself counts with what
it has *synced*, never with what it has only written, and only as long as it is a voter.

Pure arithmetic: nothing here decides whether an offset may be committed (leader.py does, by epoch).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemill.raft.voters import ReplicaKey, VoterSet

# An observer that has not fetched for this long is forgotten.
OBSERVER_SESSION_TIMEOUT_MS = 300_000
OBSERVERS_MAX = 10_000


def majority_value(values: Iterable[int]) -> int:
    """The largest value that a majority has reached: of five, the third largest; of four, the third largest too."""
    ordered = sorted(values, reverse=True)
    return ordered[len(ordered) // 2]


@dataclass(slots=True)
class Progress:
    """One replica, as the leader sees it."""

    key: ReplicaKey
    # -1 until its first valid fetch of this epoch.
    end_offset: int = -1
    last_fetch_ms: int = -1
    # When it had all that the leader had at the time.
    last_caught_up_ms: int = -1
    # The leader's end at its previous fetch, and when that was: reaching it now means it was caught up then.
    _previous_leader_end: int = -1
    _previous_fetch_ms: int = -1

    def fetched(self, offset: int, leader_end_offset: int, now_ms: int) -> None:
        if offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif offset >= self._previous_leader_end >= 0:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self._previous_fetch_ms)
        self._previous_leader_end, self._previous_fetch_ms = leader_end_offset, now_ms
        self.end_offset = offset
        self.last_fetch_ms = max(self.last_fetch_ms, now_ms)


class Tracker:
    """Progress of the voters (the leader among them, if it is one) and of the observers."""

    def __init__(self, own: ReplicaKey, voters: VoterSet, now_ms: int) -> None:
        self._own = own
        self.voters: dict[int, Progress] = {}
        self.observers: dict[ReplicaKey, Progress] = {}
        self.change_voters(voters, now_ms)

    def change_voters(self, voters: VoterSet, now_ms: int) -> None:
        """A replica that changes sides keeps its progress. A new voter is given the time of an election to fetch."""
        before, self.voters = self.voters, {}
        for key in voters.keys:
            known = before.pop(key.id, None)
            if known is None or not known.key.matches(key):
                known = self.observers.pop(key, None) or Progress(key, last_fetch_ms=now_ms)
            self.voters[key.id] = known
        for progress in before.values():
            if progress.key.id != self._own.id:
                self.observers[progress.key] = progress

    def find(self, key: ReplicaKey) -> Progress | None:
        voter = self.voters.get(key.id)
        if voter is not None and voter.key.matches(key):
            return voter
        return self.observers.get(key)

    def fetched(self, key: ReplicaKey, offset: int, leader_end_offset: int, now_ms: int) -> None:
        progress = self.find(key)
        if progress is None:
            if len(self.observers) >= OBSERVERS_MAX:
                return
            progress = self.observers[key] = Progress(key)
        progress.fetched(offset, leader_end_offset, now_ms)

    def heard(self, key: ReplicaKey, now_ms: int) -> None:
        """It asked in this epoch, though its log does not match: nothing of it counts."""
        progress = self.find(key)
        if progress is not None:
            progress.end_offset = min(progress.end_offset, 0)
            progress.last_fetch_ms = max(progress.last_fetch_ms, now_ms)

    def forget_silent_observers(self, now_ms: int) -> None:
        self.observers = {
            key: progress
            for key, progress in self.observers.items()
            if progress.last_fetch_ms + OBSERVER_SESSION_TIMEOUT_MS > now_ms
        }

    def majority_offset(self, own_synced_end_offset: int) -> int:
        """What a majority of the voters has on disk; -1 while too few have fetched."""
        return majority_value(
            own_synced_end_offset if voter_id == self._own.id else progress.end_offset
            for voter_id, progress in self.voters.items()
        )

    def majority_heard_ms(self, now_ms: int) -> int:
        """When a majority was last known to follow: the leader itself, as a voter, always does."""
        return majority_value(
            now_ms if voter_id == self._own.id else progress.last_fetch_ms
            for voter_id, progress in self.voters.items()
        )

    def successors(self) -> Sequence[ReplicaKey]:
        """The other voters, the most advanced first: who should lead next."""
        others = [progress for voter_id, progress in self.voters.items() if voter_id != self._own.id]
        return [p.key for p in sorted(others, key=lambda p: (-p.end_offset, p.key.id))]
