"""A partition's leader against a controller that answers late, twice, or never.

Every broker in the ISR that the controller has committed must hold all records below the leader's high watermark: any
of them may be the next leader.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.thoroughness import examples
from tidemill.errors import ErrorCode
from tidemill.replication.leader import Effect, PartitionLeader, ProposeIsr

REPLICAS = (1, 2, 3, 4)
FOLLOWERS = st.sampled_from(REPLICAS[1:])
LAG_MS = 100


class LeaderAndController(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.steady_ms = 0
        self.ends = dict.fromkeys(REPLICAS, 0)
        self.epochs = dict.fromkeys(REPLICAS, 10)
        self.is_fenced = dict.fromkeys(REPLICAS, False)
        self.isr: tuple[int, ...] = REPLICAS[:3]
        self.partition_epoch = 0
        self.shown = 0
        self.requests: list[ProposeIsr] = []
        self.answers: list[tuple[ProposeIsr, ErrorCode, tuple[int, ...], int]] = []
        self.images: list[tuple[tuple[int, ...], int]] = []
        self.leader = PartitionLeader(
            1,
            REPLICAS,
            self.isr,
            leader_epoch=0,
            partition_epoch=0,
            end_offset=0,
            high_watermark=0,
            min_insync_replicas=2,
            lag_time_max_ms=LAG_MS,
            eligible_epoch=lambda b: None if self.is_fenced[b] else self.epochs[b],
            steady_ms=0,
        )

    def _take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ProposeIsr):
                self.requests.append(effect)

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        self.ends[1] += count
        self.leader.appended(self.ends[1], self.steady_ms)
        self._take(self.leader.synced(self.ends[1], self.steady_ms))

    @rule(follower=FOLLOWERS, count=st.integers(0, 5))
    def fetch(self, follower: int, count: int) -> None:
        """The follower fetches at its log end offset and gets more records."""
        effects = self.leader.follower_fetched(
            follower, self.epochs[follower], self.ends[follower], 0, self.steady_ms
        )
        self._take(effects)
        self.ends[follower] = min(self.ends[1], self.ends[follower] + count)

    @rule(ms=st.integers(1, LAG_MS))
    def pass_time(self, ms: int) -> None:
        self.steady_ms += ms
        self._take(self.leader.reconsidered(self.steady_ms))

    @rule(follower=FOLLOWERS, end=st.integers(0, 10))
    def restart_with_less(self, follower: int, end: int) -> None:
        """An unclean restart: the controller takes the broker out of the ISR before it lets it in again."""
        self.epochs[follower] += 1
        if follower in self.isr:
            self._commit(tuple(b for b in self.isr if b != follower))
        self.ends[follower] = min(self.ends[follower], end)

    @rule(follower=FOLLOWERS)
    def fence_or_unfence(self, follower: int) -> None:
        self.is_fenced[follower] = not self.is_fenced[follower]
        if self.is_fenced[follower] and follower in self.isr:
            self._commit(tuple(b for b in self.isr if b != follower))

    def _commit(self, isr: tuple[int, ...]) -> None:
        self.isr = isr
        self.partition_epoch += 1
        self.images.append((isr, self.partition_epoch))

    @precondition(lambda self: self.requests)
    @rule(outcome=st.sampled_from(["decide", "lose", "lose the answer"]))
    def decide(self, outcome: str) -> None:
        request = self.requests.pop(0)
        isr = tuple(member.broker_id for member in request.isr)
        code = ErrorCode.NONE
        if outcome == "lose":
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        elif request.partition_epoch != self.partition_epoch:
            code = ErrorCode.INVALID_UPDATE_VERSION
        elif any(
            self.is_fenced[m.broker_id] or m.broker_epoch != self.epochs[m.broker_id] for m in request.isr
        ):
            code = ErrorCode.INELIGIBLE_REPLICA
        else:
            self._commit(isr)
            if outcome == "lose the answer":
                code = ErrorCode.UNKNOWN_SERVER_ERROR
        self.answers.append((request, code, self.isr, self.partition_epoch))

    @precondition(lambda self: self.answers)
    @rule()
    def hear_the_answer(self) -> None:
        request, code, isr, partition_epoch = self.answers.pop(0)
        if code:
            self._take(self.leader.isr_refused(request, code))
        else:
            self._take(self.leader.isr_committed(request, isr, partition_epoch, self.steady_ms))

    @precondition(lambda self: self.images)
    @rule()
    def hear_the_image(self) -> None:
        isr, partition_epoch = self.images.pop(0)
        self._take(self.leader.image_changed(REPLICAS, isr, partition_epoch, self.steady_ms))

    @invariant()
    def everybody_who_may_lead_has_what_was_shown(self) -> None:
        assert self.leader.high_watermark >= self.shown, "it went back"
        self.shown = self.leader.high_watermark
        for broker_id in self.isr:
            assert self.ends[broker_id] >= self.shown, f"broker {broker_id} may lead without it"
        self.leader.check_invariants()


TestLeaderAndController = LeaderAndController.TestCase
TestLeaderAndController.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
