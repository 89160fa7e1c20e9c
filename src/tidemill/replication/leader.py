"""The machine of a partition's leader in one leader epoch: it decides the ISR and the high watermark.

Each event is a method that returns effects; only these methods change the machine. It never touches the log: events carry
the log's end.

The high watermark is the smallest log end of the *maximal* ISR. That is the larger of the ISR that the controller has
committed and the one that was proposed to it, because either may hold. A replica that is about to join counts too. The
high watermark never goes back. It stands still while fewer replicas are in sync than `min.insync.replicas` (KIP-966).
So a replica outside of the ISR that may then be elected has everything that was committed. A new leader begins with the
high watermark that it had as a follower, which does not move until the whole ISR has fetched.

A follower leaves the ISR when it has not been at the log's end for `replica.lag.time.max.ms`. It returns when it has
reached the high watermark *and* the start of this leader epoch, and its broker is alive in the incarnation that
fetched, by the controller's image. A replica that came back empty is not the one that was in sync before.

One proposal is in flight at a time. After an answer that leaves open whether the proposal was applied, the machine stays
with the larger ISR and waits for the image, which settles it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.errors import ErrorCode

UNKNOWN_OFFSET = -1
_NO_EPOCH = -1
_NEVER_MS = -(1 << 62)

# With these errors the controller did not apply the proposal, and a later one may succeed.
_REFUSED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
# With these errors this machine is behind the image, which will arrive.
_OUTDATED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


class IsrMember(NamedTuple):
    broker_id: int
    broker_epoch: int


class ProposeIsr(NamedTuple):
    """Propose this ISR to the controller, on top of that partition epoch."""

    isr: tuple[IsrMember, ...]
    leader_epoch: int
    partition_epoch: int


class AdvanceHighWatermark(NamedTuple):
    offset: int


class ReconsiderLater(NamedTuple):
    """Call `reconsidered` in a while: the proposal was refused for now."""


Effect = ProposeIsr | AdvanceHighWatermark | ReconsiderLater
NOTHING: Sequence[Effect] = ()


class StaleFollower(Exception):
    """The fetch is of an incarnation of the follower that was replaced."""


@dataclass(slots=True)
class FollowerState:
    """The leader's knowledge of one other replica."""

    broker_id: int
    broker_epoch: int = _NO_EPOCH
    log_start_offset: int = UNKNOWN_OFFSET
    log_end_offset: int = UNKNOWN_OFFSET
    # When it last had everything, as far as is known.
    caught_up_ms: int = _NEVER_MS
    last_fetch_ms: int = _NEVER_MS
    # The leader's end when the follower last fetched. A fetch from there or beyond proves that it had everything then.
    end_at_last_fetch: int = UNKNOWN_OFFSET

    def is_caught_up(self, end_offset: int, steady_ms: int, lag_time_max_ms: int) -> bool:
        return self.log_end_offset == end_offset or steady_ms - self.caught_up_ms <= lag_time_max_ms


class _Proposal(NamedTuple):
    isr: tuple[int, ...]
    is_expansion: bool
    request: ProposeIsr


class PartitionLeader:
    """`steady_ms` is steady time; it is compared with itself only."""

    __slots__ = (
        "_broker_id",
        "_eligible_epoch",
        "_lag_time_max_ms",
        "_min_insync_replicas",
        "_proposal",
        "end_offset",
        "followers",
        "high_watermark",
        "isr",
        "leader_epoch",
        "leader_epoch_start_offset",
        "partition_epoch",
        "replicas",
        "synced_end_offset",
    )

    def __init__(
        self,
        broker_id: int,
        replicas: Sequence[int],
        isr: Sequence[int],
        leader_epoch: int,
        partition_epoch: int,
        *,
        end_offset: int,
        synced_end_offset: int | None = None,
        high_watermark: int,
        min_insync_replicas: int,
        lag_time_max_ms: int,
        eligible_epoch: Callable[[int], int | None],
        steady_ms: int,
    ) -> None:
        """`synced_end_offset` is what this replica vouches for: its end, or less where acks wait for the disk.

        `eligible_epoch` returns the epoch of a broker that may be in an ISR, None for one that may not.
        """
        self._broker_id = broker_id
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.leader_epoch_start_offset = end_offset
        self.end_offset = end_offset
        self.synced_end_offset = end_offset if synced_end_offset is None else synced_end_offset
        self.high_watermark = high_watermark
        self._min_insync_replicas = min_insync_replicas
        self._lag_time_max_ms = lag_time_max_ms
        self._eligible_epoch = eligible_epoch
        self._proposal: _Proposal | None = None
        self.isr = tuple(isr)
        self.replicas = tuple(replicas)
        self.followers: dict[int, FollowerState] = {}
        self._keep_followers(steady_ms)

    def _keep_followers(self, steady_ms: int) -> None:
        """Keep one state for each other replica. A new one in the ISR gets the whole lag time for its first fetch."""
        known = self.followers
        self.followers = {}
        for broker_id in self.replicas:
            if broker_id == self._broker_id:
                continue
            state = known.get(broker_id)
            if state is None:
                state = FollowerState(broker_id)
                if broker_id in self.isr:
                    state.caught_up_ms = steady_ms
            self.followers[broker_id] = state

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        proposal = self._proposal
        return proposal.isr if proposal is not None and proposal.is_expansion else self.isr

    @property
    def min_insync_replicas(self) -> int:
        return min(self._min_insync_replicas, len(self.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.isr) < self.min_insync_replicas

    def live_followers(self) -> list[FollowerState]:
        """The followers whose brokers are alive; nothing waits for the others."""
        return [
            state for state in self.followers.values() if self._eligible_epoch(state.broker_id) is not None
        ]

    # -- events ----------------------------------------------------------------------------------------------

    def has_fetched(self, broker_id: int) -> bool:
        """Whether that follower has fetched from this leader, and so knows of it."""
        state = self.followers.get(broker_id)
        return state is not None and state.last_fetch_ms != _NEVER_MS

    def configured(self, min_insync_replicas: int, steady_ms: int) -> Sequence[Effect]:
        self._min_insync_replicas = min_insync_replicas
        return self._advance(steady_ms)

    def appended(self, end_offset: int, steady_ms: int) -> None:
        """The log grew. A follower that had all of it was caught up until now."""
        for state in self.followers.values():
            if state.log_end_offset == self.end_offset:
                state.caught_up_ms = steady_ms
        self.end_offset = end_offset

    def appended_alone(self, end_offset: int, synced_end_offset: int, high_watermark: int) -> None:
        """The log grew while there was no other replica, and committed its records without this machine."""
        self.end_offset, self.synced_end_offset = end_offset, synced_end_offset
        self.high_watermark = high_watermark

    def synced(self, end_offset: int, steady_ms: int) -> Sequence[Effect]:
        """This replica vouches for everything below `end_offset`."""
        if end_offset <= self.synced_end_offset:
            return NOTHING
        self.synced_end_offset = end_offset
        return self._advance(steady_ms)

    def follower_fetched(
        self, broker_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int, steady_ms: int
    ) -> Sequence[Effect]:
        """A follower whose epochs match fetched from `fetch_offset`: it has everything before that."""
        state = self.followers[broker_id]
        if broker_epoch < state.broker_epoch:
            raise StaleFollower
        if broker_epoch != state.broker_epoch:
            # Another incarnation, perhaps with another disk: what is known of the old one does not hold for it.
            state.broker_epoch = broker_epoch
            state.end_at_last_fetch = UNKNOWN_OFFSET
        if fetch_offset >= self.end_offset:
            state.caught_up_ms = max(state.caught_up_ms, steady_ms)
        elif fetch_offset >= state.end_at_last_fetch != UNKNOWN_OFFSET:
            state.caught_up_ms = max(state.caught_up_ms, state.last_fetch_ms)
        state.log_end_offset = fetch_offset
        state.log_start_offset = log_start_offset
        state.last_fetch_ms = steady_ms
        state.end_at_last_fetch = self.end_offset
        effects = self._expanded(state)
        advanced = self._advance(steady_ms)
        if not effects:
            return advanced
        return [*effects, *advanced]

    def reconsidered(self, steady_ms: int) -> Sequence[Effect]:
        """Time passed or brokers changed: followers that fell behind leave the ISR, others may return."""
        if self._proposal is not None:
            return NOTHING
        lagging = [
            broker_id
            for broker_id in self.isr
            if broker_id != self._broker_id
            and not self.followers[broker_id].is_caught_up(self.end_offset, steady_ms, self._lag_time_max_ms)
        ]
        if lagging:
            kept = tuple(broker_id for broker_id in self.isr if broker_id not in lagging)
            return [self._propose(kept, is_expansion=False)]
        return self._expanded_at_rest(steady_ms) or self._advance(steady_ms)

    def isr_committed(
        self, proposal: ProposeIsr, isr: Sequence[int], partition_epoch: int, steady_ms: int
    ) -> Sequence[Effect]:
        """The controller applied the proposal; the image will say the same later."""
        if not self._awaits(proposal) or partition_epoch < self.partition_epoch:
            return NOTHING
        return self._settled(isr, partition_epoch, steady_ms)

    def isr_refused(self, proposal: ProposeIsr, code: ErrorCode) -> Sequence[Effect]:
        if self._proposal is None or not self._awaits(proposal):
            return NOTHING
        if code in _REFUSED:
            self._proposal = None
            return [ReconsiderLater()]
        if code in _OUTDATED:
            return NOTHING
        return [proposal]  # not decided: send it again

    def _awaits(self, proposal: ProposeIsr) -> bool:
        """Whether this proposal is in flight. An answer to an earlier one is ignored."""
        return self._proposal is not None and self._proposal.request == proposal

    def image_changed(
        self, replicas: Sequence[int], isr: Sequence[int], partition_epoch: int, steady_ms: int
    ) -> Sequence[Effect]:
        """The metadata changed in the same leader epoch. An image that is not newer is ignored."""
        if partition_epoch <= self.partition_epoch:
            return NOTHING
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        self._keep_followers(steady_ms)
        return self._settled(isr, partition_epoch, steady_ms)

    def new_epoch(
        self, replicas: Sequence[int], isr: Sequence[int], epochs: tuple[int, int], steady_ms: int
    ) -> None:
        """The same leader in a new leader epoch: (leader epoch, partition epoch). The followers' states still hold."""
        self.leader_epoch, self.partition_epoch = epochs
        self.leader_epoch_start_offset = self.end_offset
        self._proposal = None
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        self._keep_followers(steady_ms)
        for broker_id in isr:
            if broker_id in self.followers:
                self.followers[broker_id].caught_up_ms = steady_ms

    # -- deciding --------------------------------------------------------------------------------------------

    def _settled(self, isr: Sequence[int], partition_epoch: int, steady_ms: int) -> Sequence[Effect]:
        self._proposal = None
        self.isr = tuple(isr)
        self.partition_epoch = partition_epoch
        advanced = self._advance(steady_ms)
        # A second follower may have caught up while the first one's proposal was in flight.
        effects = self._expanded_at_rest(steady_ms)
        return [*effects, *advanced] if effects else advanced

    def _expanded_at_rest(self, steady_ms: int) -> Sequence[Effect]:
        """Expand the ISR by a follower that is caught up: its fetches do not name a partition at rest.

        A follower that only has what is committed may be gone; it returns with its next fetch.
        """
        for state in self.followers.values():
            if state.is_caught_up(self.end_offset, steady_ms, self._lag_time_max_ms):
                effects = self._expanded(state)
                if effects:
                    return effects
        return NOTHING

    def _is_eligible(self, state: FollowerState) -> bool:
        return state.broker_epoch != _NO_EPOCH and self._eligible_epoch(state.broker_id) == state.broker_epoch

    def _expanded(self, state: FollowerState) -> Sequence[Effect]:
        if (
            self._proposal is not None
            or state.broker_id in self.isr
            or state.log_end_offset < self.high_watermark
            or state.log_end_offset < self.leader_epoch_start_offset
            or not self._is_eligible(state)
        ):
            return NOTHING
        wanted = {*self.isr, state.broker_id}
        return [
            self._propose(
                (broker_id for broker_id in self.replicas if broker_id in wanted), is_expansion=True
            )
        ]

    def _propose(self, isr: Iterable[int], *, is_expansion: bool) -> ProposeIsr:
        wanted = tuple(isr)
        members = tuple(IsrMember(broker_id, self._epoch_of(broker_id)) for broker_id in wanted)
        request = ProposeIsr(members, self.leader_epoch, self.partition_epoch)
        self._proposal = _Proposal(wanted, is_expansion, request)
        return request

    def _epoch_of(self, broker_id: int) -> int:
        """The broker epoch for a proposal: that of the follower's fetches, or the one in the image."""
        state = self.followers.get(broker_id)
        if state is not None and state.broker_epoch != _NO_EPOCH:
            return state.broker_epoch
        epoch = self._eligible_epoch(broker_id)
        return _NO_EPOCH if epoch is None else epoch

    def _advance(self, steady_ms: int) -> Sequence[Effect]:
        offset = self.synced_end_offset
        if offset <= self.high_watermark or len(self.isr) < self.min_insync_replicas:
            return NOTHING
        maximal_isr = self.maximal_isr
        for state in self.followers.values():
            if state.log_end_offset < offset and (
                state.broker_id in maximal_isr
                or (
                    state.is_caught_up(self.end_offset, steady_ms, self._lag_time_max_ms)
                    and self._is_eligible(state)
                )
            ):
                offset = state.log_end_offset
        if offset <= self.high_watermark:
            return NOTHING
        self.high_watermark = offset
        return [AdvanceHighWatermark(offset)]

    def check_invariants(self) -> None:
        assert self.high_watermark <= self.synced_end_offset <= self.end_offset
        assert self._broker_id in self.isr, self.isr
        assert set(self.isr) <= set(self.replicas)
