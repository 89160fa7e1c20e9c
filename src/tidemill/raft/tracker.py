"""The leader's view of the replicas' logs, and the arithmetic of majorities.

A fetch offset means that everything below it is on the replica's disk and equals the leader's log. The latest fetch
counts, even when it is lower than an earlier one. The next fetch corrects a delayed request, and a replica that lost
its log must not count with its old offset. The leader counts with its *synced* end only, and only while it is a voter.

This module never decides whether an offset may be committed; `leader.py` does, by epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemill.raft.voters import ReplicaKey, VoterSet

# An observer that has not fetched for this long is dropped.
OBSERVER_SESSION_TIMEOUT_MS = 300_000
OBSERVERS_MAX = 10_000


def majority_value(values: Iterable[int]) -> int:
    """The largest value that a majority has reached: of five, the third largest; of four, the third largest too."""
    ordered = sorted(values, reverse=True)
    return ordered[len(ordered) // 2]


@dataclass(slots=True)
class Progress:
    """The progress of one replica."""

    key: ReplicaKey
    # -1 until its first valid fetch of this epoch.
    end_offset: int = -1
    last_fetch_ms: int = -1
    # When the fetch before the last arrived: the last one was sent after the answer to that.
    confirmed_ms: int = -1
    # The last time when it had everything that the leader had.
    last_caught_up_ms: int = -1
    # The leader's end at the previous fetch, and its time. A replica that reaches it now was caught up then.
    _previous_leader_end: int = -1
    _previous_fetch_ms: int = -1

    def fetched(self, offset: int, leader_end_offset: int, steady_ms: int) -> None:
        if offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, steady_ms)
        elif offset >= self._previous_leader_end >= 0:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self._previous_fetch_ms)
        self._previous_leader_end, self._previous_fetch_ms = leader_end_offset, steady_ms
        self.end_offset = offset
        self.confirmed_ms = self.last_fetch_ms
        self.last_fetch_ms = max(self.last_fetch_ms, steady_ms)


class Tracker:
    """The progress of the voters (including the leader, if it votes) and of the observers."""

    def __init__(self, own: ReplicaKey, voters: VoterSet, steady_ms: int) -> None:
        self._own = own
        self.voters: dict[int, Progress] = {}
        self.observers: dict[ReplicaKey, Progress] = {}
        self.change_voters(voters, steady_ms)

    def change_voters(self, voters: VoterSet, steady_ms: int) -> None:
        """Change the voters. A replica that becomes voter or observer keeps its progress. A new voter gets one
        election timeout to fetch.
        """
        before, self.voters = self.voters, {}
        for key in voters.keys:
            known = before.pop(key.id, None)
            if known is None or not known.key.matches(key):
                known = self.observers.pop(key, None) or Progress(key, last_fetch_ms=steady_ms)
            self.voters[key.id] = known
        for progress in before.values():
            if progress.key.id != self._own.id:
                self.observers[progress.key] = progress

    def find(self, key: ReplicaKey) -> Progress | None:
        voter = self.voters.get(key.id)
        if voter is not None and voter.key.matches(key):
            return voter
        return self.observers.get(key)

    def fetched(self, key: ReplicaKey, offset: int, leader_end_offset: int, steady_ms: int) -> None:
        progress = self.find(key)
        if progress is None:
            if len(self.observers) >= OBSERVERS_MAX:
                return
            progress = self.observers[key] = Progress(key)
        progress.fetched(offset, leader_end_offset, steady_ms)

    def record_contact(self, key: ReplicaKey, steady_ms: int) -> None:
        """Record a fetch of this epoch from a log that does not match: only the time counts."""
        progress = self.find(key)
        if progress is not None:
            progress.end_offset = min(progress.end_offset, 0)
            progress.last_fetch_ms = max(progress.last_fetch_ms, steady_ms)

    def forget_silent_observers(self, steady_ms: int) -> None:
        self.observers = {
            key: progress
            for key, progress in self.observers.items()
            if progress.last_fetch_ms + OBSERVER_SESSION_TIMEOUT_MS > steady_ms
        }

    def majority_offset(self, own_synced_end_offset: int) -> int:
        """The offset that a majority of the voters has on disk; -1 while too few have fetched."""
        return majority_value(
            own_synced_end_offset if voter_id == self._own.id else progress.end_offset
            for voter_id, progress in self.voters.items()
        )

    def majority_contact_ms(self, steady_ms: int) -> int:
        """The last time at which a majority had fetched. The leader, as a voter, always counts as now."""
        return majority_value(
            steady_ms if voter_id == self._own.id else progress.last_fetch_ms
            for voter_id, progress in self.voters.items()
        )

    def majority_confirmed_ms(self, steady_ms: int) -> int:
        """The last time at which a majority is known to have followed this leader, whatever was under way since."""
        return majority_value(
            steady_ms if voter_id == self._own.id else progress.confirmed_ms
            for voter_id, progress in self.voters.items()
        )

    def successors(self) -> Sequence[ReplicaKey]:
        """The other voters, the most advanced first: the preferred successors."""
        others = [progress for voter_id, progress in self.voters.items() if voter_id != self._own.id]
        return [p.key for p in sorted(others, key=lambda p: (-p.end_offset, p.key.id))]
