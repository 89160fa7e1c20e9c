"""The machine of a partition's follower in one leader epoch: it decides what to fetch and where to truncate.

Each event is a method that returns effects; `tick` is due at `deadline_ms`. Every fetch names the epoch of the follower's
last record, so that the leader answers with records that continue the log or with the point where the two logs diverge. The
follower then cuts its log: at the end of the leader's epoch where both know it, otherwise at the end of its own last epoch
below that. Then it fetches again. It never cuts by its own high watermark, which may be behind the leader's (failure 1).

A follower that is behind the leader's log start begins anew there. So does one that would be cut there, unless its high
watermark proves that the deleted records were its own: the leader no longer knows where the logs diverged below its start.
The producer state of other records, an open transaction among them, would stay otherwise. A follower with an outdated
leader epoch waits until the image brings a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from tidemill.errors import ErrorCode

_NO_EPOCH = -1


class FollowerLog(Protocol):
    """The part of the log that the machine reads."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def latest_epoch(self) -> int:
        """The epoch of the last record; -1 when the log knows none."""

    def end_offset_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch in the log not above `epoch`, and where it ends; (-1, -1) when nothing is known."""


class FetchState(Enum):
    FETCHING = "fetching"
    # The log is being cut; the next fetch waits for that.
    TRUNCATING = "truncating"
    # Something failed, or a throttle holds it back: it fetches again after `deadline_ms`.
    BACKING_OFF = "backing off"
    # The leader has a newer leader epoch: the image will bring it.
    AWAITING_IMAGE = "awaiting the image"


class TruncateTo(NamedTuple):
    """Cut the log, then call `truncated`."""

    end_offset: int


class RestartAt(NamedTuple):
    """Drop everything and begin anew at this offset, then call `truncated`."""

    offset: int


class FollowHighWatermark(NamedTuple):
    offset: int


class FollowLogStart(NamedTuple):
    offset: int


Effect = TruncateTo | RestartAt | FollowHighWatermark | FollowLogStart
NOTHING: Sequence[Effect] = ()

# Usually the leader has not received the image that makes it leader: it will in a moment.
_LEADER_IS_BEHIND = frozenset({ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER})
_LEADER_RETRY_MS = 50


class FetchPosition(NamedTuple):
    """The offsets and epochs of the next fetch."""

    fetch_offset: int
    last_fetched_epoch: int
    leader_epoch: int
    log_start_offset: int


class PartitionFollower:
    __slots__ = ("_backoff_ms", "_log", "_retry_ms", "leader_epoch", "leader_id", "state")

    def __init__(self, log: FollowerLog, leader_id: int, leader_epoch: int, backoff_ms: int) -> None:
        self._log = log
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self._backoff_ms = backoff_ms
        self.state = FetchState.FETCHING
        self._retry_ms = 0

    def position(self) -> FetchPosition:
        log = self._log
        return FetchPosition(log.log_end_offset, log.latest_epoch, self.leader_epoch, log.log_start_offset)

    @property
    def deadline_ms(self) -> int | None:
        """The time at which a back-off ends; None when no time is waited for."""
        return self._retry_ms if self.state is FetchState.BACKING_OFF else None

    def is_ready(self, steady_ms: int) -> bool:
        """Whether the next fetch may name this partition."""
        return self.state is FetchState.FETCHING or (
            self.state is FetchState.BACKING_OFF and steady_ms >= self._retry_ms
        )

    # -- events ----------------------------------------------------------------------------------------------

    def tick(self, steady_ms: int) -> None:
        """Time passed: a back-off that is over ends."""
        if self.is_ready(steady_ms):
            self.state = FetchState.FETCHING

    def expects(self, fetch_offset: int) -> bool:
        """Whether a response to a fetch at that offset still fits: the log may have been cut since."""
        return self.state is FetchState.FETCHING and fetch_offset == self._log.log_end_offset

    def appended(self, high_watermark: int, log_start_offset: int) -> Sequence[Effect]:
        """Records were appended; these offsets came with them."""
        effects: list[Effect] = []
        if high_watermark >= 0:
            effects.append(FollowHighWatermark(min(high_watermark, self._log.log_end_offset)))
        if log_start_offset > self._log.log_start_offset:
            effects.append(FollowLogStart(min(log_start_offset, self._log.log_end_offset)))
        return effects

    def diverged(
        self, fetch_offset: int, epoch: int, end_offset: int, leader_log_start: int, high_watermark: int
    ) -> Sequence[Effect]:
        """The leader's log diverges from this one: it has `epoch` up to `end_offset`, and not the epoch of the fetch.

        `high_watermark` is this replica's own: what is below was committed, and is the same in every log.
        """
        log = self._log
        if not self.expects(fetch_offset):
            return NOTHING
        own_epoch, own_end = log.end_offset_of(epoch)
        if own_epoch == _NO_EPOCH:
            cut = end_offset
        elif own_epoch != epoch:
            cut = own_end
        else:
            cut = min(own_end, end_offset)
        offset = min(cut, log.log_end_offset)
        self.state = FetchState.TRUNCATING
        if offset <= leader_log_start and max(log.log_start_offset, high_watermark) < leader_log_start:
            return [RestartAt(leader_log_start)]
        if offset < log.log_start_offset:
            return [RestartAt(offset)]
        return [TruncateTo(offset)]

    def refused(
        self, code: ErrorCode, fetch_offset: int, log_start_offset: int, steady_ms: int
    ) -> Sequence[Effect]:
        """The leader answered with an error."""
        if self.state is not FetchState.FETCHING:
            return NOTHING
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and fetch_offset == self._log.log_end_offset:
            if log_start_offset > self._log.log_end_offset:
                self.state = FetchState.TRUNCATING
                return [RestartAt(log_start_offset)]
        elif code is ErrorCode.FENCED_LEADER_EPOCH:
            self.state = FetchState.AWAITING_IMAGE
            return NOTHING
        self.failed(steady_ms)
        if code in _LEADER_IS_BEHIND:
            self._retry_ms = steady_ms + min(self._backoff_ms, _LEADER_RETRY_MS)
        return NOTHING

    def failed(self, steady_ms: int) -> None:
        """The response could not be used, or the leader could not serve: back off."""
        self.state = FetchState.BACKING_OFF
        self._retry_ms = steady_ms + self._backoff_ms

    def held_back(self, until_ms: int) -> None:
        """A throttle forbids fetches until then."""
        if self.state is FetchState.FETCHING:
            self.state = FetchState.BACKING_OFF
            self._retry_ms = until_ms

    def truncated(self) -> None:
        """The cut was made."""
        self.state = FetchState.FETCHING
