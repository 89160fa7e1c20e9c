"""The leader of a partition: the high watermark and the ISR."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tidemill.errors import ErrorCode
from tidemill.replication.leader import (
    AdvanceHighWatermark,
    Effect,
    IsrMember,
    PartitionLeader,
    ProposeIsr,
    ReconsiderLater,
    StaleFollower,
)

LAG_MS = 30_000


class Led:
    """A partition led by broker 1, replicas 1, 2, 3; every broker's epoch is ten times its id."""

    def __init__(
        self,
        isr: Sequence[int] = (1, 2, 3),
        *,
        end_offset: int = 0,
        synced_end_offset: int | None = None,
        high_watermark: int = 0,
        min_insync_replicas: int = 1,
        replicas: Sequence[int] = (1, 2, 3),
    ) -> None:
        self.steady_ms = 1_000
        self.eligible = {1: 10, 2: 20, 3: 30}
        self.machine = PartitionLeader(
            1,
            replicas,
            isr,
            leader_epoch=5,
            partition_epoch=7,
            end_offset=end_offset,
            synced_end_offset=synced_end_offset,
            high_watermark=high_watermark,
            min_insync_replicas=min_insync_replicas,
            lag_time_max_ms=LAG_MS,
            eligible_epoch=self.eligible.get,
            steady_ms=self.steady_ms,
        )

    def append(self, end_offset: int) -> list[Effect]:
        self.machine.appended(end_offset, self.steady_ms)
        effects = self.machine.synced(end_offset, self.steady_ms)
        self.machine.check_invariants()
        return list(effects)

    def fetch(self, broker_id: int, offset: int, epoch: int | None = None) -> list[Effect]:
        epoch = broker_id * 10 if epoch is None else epoch
        effects = self.machine.follower_fetched(broker_id, epoch, offset, 0, self.steady_ms)
        self.machine.check_invariants()
        return list(effects)

    def check(self, after_ms: int = 0) -> list[Effect]:
        self.steady_ms += after_ms
        return list(self.machine.reconsidered(self.steady_ms))

    def commit(self, proposal: Effect, partition_epoch: int = 8) -> list[Effect]:
        assert isinstance(proposal, ProposeIsr)
        isr = [member.broker_id for member in proposal.isr]
        return list(self.machine.isr_committed(proposal, isr, partition_epoch, self.steady_ms))


def isr_of(effect: Effect) -> list[int]:
    assert isinstance(effect, ProposeIsr)
    return [member.broker_id for member in effect.isr]


# -- the high watermark --------------------------------------------------------------------------------------


def test_high_watermark_is_smallest_log_end_of_isr() -> None:
    led = Led()
    assert led.append(10) == []
    assert led.fetch(2, 10) == []
    assert led.fetch(3, 6) == [AdvanceHighWatermark(6)]
    assert led.fetch(3, 10) == [AdvanceHighWatermark(10)]


def test_replica_outside_isr_does_not_hold_high_watermark_back() -> None:
    led = Led(isr=(1, 2))
    led.append(10)
    assert led.fetch(2, 10) == [AdvanceHighWatermark(10)]


def test_caught_up_replica_that_may_join_holds_high_watermark_back() -> None:
    led = Led(isr=(1, 2))
    led.append(10)
    led.fetch(2, 10)
    (joins,) = led.fetch(3, 10)
    led.machine.isr_refused(joins, ErrorCode.INELIGIBLE_REPLICA)  # type: ignore[arg-type]
    led.append(12)
    assert led.fetch(2, 12) == []
    assert led.fetch(3, 12)[-1] == AdvanceHighWatermark(12)


def test_high_watermark_never_goes_back() -> None:
    led = Led()
    led.append(10)
    led.fetch(2, 10)
    led.fetch(3, 10)
    assert led.fetch(3, 4) == []
    assert led.machine.high_watermark == 10


def test_high_watermark_stands_still_under_min_isr() -> None:
    """KIP-966: an eligible leader replica outside of the ISR must have everything that was shown."""
    led = Led(isr=(1,), min_insync_replicas=2)
    assert led.append(10) == []
    (joins,) = led.fetch(2, 10)
    assert led.commit(joins) == [AdvanceHighWatermark(10)]


def test_min_insync_replicas_is_limited_by_replica_count() -> None:
    led = Led(isr=(1,), replicas=(1,), min_insync_replicas=2)
    assert led.append(3) == [AdvanceHighWatermark(3)]


def test_leader_counts_with_its_synced_end() -> None:
    led = Led()
    led.machine.appended(10, led.steady_ms)
    assert led.fetch(2, 10) == []
    assert led.fetch(3, 10) == []
    assert led.machine.synced(8, led.steady_ms) == [AdvanceHighWatermark(8)]
    assert led.machine.synced(10, led.steady_ms) == [AdvanceHighWatermark(10)]


def test_failure_02_proposed_member_counts_before_the_controller_decides() -> None:
    """Leader and controller may disagree about the ISR for a while; the larger of the two must have it all."""
    led = Led(isr=(1, 2))
    led.append(10)
    led.fetch(2, 10)
    (proposal,) = led.fetch(3, 10)
    assert isr_of(proposal) == [1, 2, 3]
    led.append(20)
    led.steady_ms += LAG_MS + 1
    assert led.fetch(2, 20) == [], "3 may be in the ISR by now, and has only 10"
    assert not led.machine.isr_refused(proposal, ErrorCode.INVALID_UPDATE_VERSION)  # type: ignore[arg-type]
    assert led.fetch(2, 20) == [], "refused as outdated: only the image tells what holds"
    assert led.machine.image_changed((1, 2, 3), (1, 2), 8, led.steady_ms) == [AdvanceHighWatermark(20)]


def test_failure_02_leaving_member_counts_until_the_controller_decides() -> None:
    led = Led()
    led.append(10)
    led.fetch(2, 10)
    led.steady_ms += LAG_MS + 1
    led.fetch(2, 10)
    (proposal,) = led.check()
    assert isr_of(proposal) == [1, 2]
    assert led.fetch(2, 10) == [], "3 may still be elected, and does not have it"
    assert led.commit(proposal) == [AdvanceHighWatermark(10)]


def test_failure_11_new_leader_commits_nothing_before_isr_fetched() -> None:
    led = Led(end_offset=10, high_watermark=4)
    assert not led.machine.configured(1, led.steady_ms)
    assert led.fetch(2, 10) == []
    assert led.fetch(3, 10) == [AdvanceHighWatermark(10)]


def test_failure_13_record_of_one_replica_is_not_committed() -> None:
    led = Led()
    for end_offset in (1, 2, 3):
        assert led.append(end_offset) == []
    assert led.machine.high_watermark == 0


# -- leaving the ISR -----------------------------------------------------------------------------------------


def test_follower_that_lags_too_long_is_removed_from_isr() -> None:
    led = Led()
    led.append(10)
    led.fetch(2, 10)
    assert led.check(after_ms=LAG_MS) == []
    (proposal,) = led.check(after_ms=1)
    assert isr_of(proposal) == [1, 2]
    assert proposal == ProposeIsr((IsrMember(1, 10), IsrMember(2, 20)), 5, 7)


def test_follower_at_log_end_stays_in_isr_without_fetches() -> None:
    led = Led()
    led.append(10)
    led.fetch(2, 10)
    led.fetch(3, 10)
    assert led.check(after_ms=100 * LAG_MS) == []
    led.append(11)
    assert led.check(after_ms=LAG_MS) == [], "it had everything until the append"
    (proposal,) = led.check(after_ms=1)
    assert isr_of(proposal) == [1]


def test_follower_slightly_behind_stays_in_isr() -> None:
    led = Led(isr=(1, 2), replicas=(1, 2))
    led.append(10)
    led.fetch(2, 0)
    for end_offset in range(20, 100, 10):
        led.steady_ms += LAG_MS - 1
        led.append(end_offset)
        led.fetch(2, end_offset - 10)
        assert led.check() == []


def test_follower_that_falls_further_behind_leaves_isr() -> None:
    led = Led(isr=(1, 2), replicas=(1, 2))
    proposals: list[Effect] = []
    for number in range(1, 10):
        led.steady_ms += LAG_MS // 4
        led.append(100 * number)
        led.fetch(2, number)
        proposals = led.check()
        if proposals:
            break
    assert isr_of(proposals[0]) == [1]


def test_one_proposal_is_in_flight_at_a_time() -> None:
    led = Led()
    led.append(10)
    (first,) = led.check(after_ms=LAG_MS + 1)
    assert isr_of(first) == [1]
    assert led.check(after_ms=LAG_MS) == []
    assert led.fetch(2, 10) == []
    (again, *_) = led.commit(first)
    assert isr_of(again) == [1, 2], "2 caught up meanwhile"


# -- returning to it -----------------------------------------------------------------------------------------


def test_follower_joins_isr_when_it_reached_high_watermark() -> None:
    led = Led(isr=(1, 2))
    led.append(10)
    led.fetch(2, 10)
    assert led.fetch(3, 9) == []
    (proposal, *_) = led.fetch(3, 10)
    assert proposal == ProposeIsr((IsrMember(1, 10), IsrMember(2, 20), IsrMember(3, 30)), 5, 7)
    assert led.commit(proposal) == []
    assert led.machine.isr == (1, 2, 3)
    assert led.machine.partition_epoch == 8


def test_follower_joins_isr_only_after_start_of_leader_epoch() -> None:
    """The leader's high watermark may be behind, so reaching it does not suffice."""
    led = Led(isr=(1, 2), end_offset=10, high_watermark=4)
    assert led.fetch(3, 5) == []
    assert led.fetch(3, 9) == []
    (proposal,) = led.fetch(3, 10)
    assert isr_of(proposal) == [1, 2, 3]


@pytest.mark.parametrize("epoch", [None, 29, 31])
def test_failure_04_only_the_registered_incarnation_joins_isr(epoch: int | None) -> None:
    led = Led(isr=(1, 2))
    led.append(10)
    led.fetch(2, 10)
    if epoch is None:
        del led.eligible[3]
    else:
        led.eligible[3] = epoch
    assert led.fetch(3, 10) == []
    led.eligible[3] = 30
    (proposal,) = led.check()
    assert isr_of(proposal) == [1, 2, 3], "let in without another fetch, when the broker changed"


def test_fetch_of_replaced_incarnation_is_refused() -> None:
    led = Led()
    led.append(10)
    led.fetch(2, 0, epoch=21)
    with pytest.raises(StaleFollower):
        led.fetch(2, 10, epoch=20)
    assert led.machine.followers[2].log_end_offset == 0


def test_follower_that_left_isr_does_not_join_without_a_fetch() -> None:
    led = Led()
    led.append(10)
    led.fetch(2, 10)
    led.fetch(3, 10)
    led.append(20)
    led.steady_ms += LAG_MS + 1
    led.fetch(2, 10)
    (proposal,) = led.check()
    assert isr_of(proposal) == [1]
    assert led.commit(proposal) == [AdvanceHighWatermark(20)]


# -- answers -------------------------------------------------------------------------------------------------


def test_refused_member_is_proposed_again_later() -> None:
    led = Led(isr=(1, 2))
    (proposal,) = led.fetch(3, 0)
    assert isinstance(proposal, ProposeIsr)
    assert led.machine.isr_refused(proposal, ErrorCode.INELIGIBLE_REPLICA) == [ReconsiderLater()]
    assert led.machine._proposal is None
    assert led.check() == [proposal]


def test_undecided_proposal_is_sent_again() -> None:
    led = Led(isr=(1, 2))
    (proposal,) = led.fetch(3, 0)
    assert isinstance(proposal, ProposeIsr)
    assert led.machine.isr_refused(proposal, ErrorCode.UNKNOWN_SERVER_ERROR) == [proposal]
    assert led.machine._proposal is not None


def test_answer_to_earlier_proposal_is_ignored() -> None:
    led = Led(isr=(1, 2))
    led.append(10)
    led.fetch(2, 10)
    (first,) = led.fetch(3, 10)
    led.steady_ms += LAG_MS + 1
    led.machine.image_changed((1, 2, 3), (1, 2, 3), 8, led.steady_ms)  # overtook the answer
    led.append(20)
    led.fetch(2, 20)
    led.steady_ms += LAG_MS + 1
    led.fetch(2, 20)
    (second,) = led.check()
    assert isr_of(second) == [1, 2]
    assert led.commit(first) == []
    assert led.machine._proposal is not None
    assert led.machine.high_watermark == 10
    assert led.commit(second, partition_epoch=9) == [AdvanceHighWatermark(20)]


def test_old_image_changes_nothing() -> None:
    led = Led()
    assert not led.machine.image_changed((1, 2, 3), (1,), 7, led.steady_ms)
    assert led.machine.isr == (1, 2, 3)


def test_image_adds_new_replicas_and_drops_removed_ones() -> None:
    led = Led()
    led.machine.image_changed((1, 2, 4), (1, 2), 8, led.steady_ms)
    assert list(led.machine.followers) == [2, 4]


def test_appends_of_a_sole_replica_count_when_others_join() -> None:
    led = Led(isr=(1,), replicas=(1,))
    led.machine.appended_alone(10, 8, 8)
    led.machine.check_invariants()
    led.machine.image_changed((1, 2), (1,), 8, led.steady_ms)
    assert led.fetch(2, 7) == []
    (proposal,) = led.fetch(2, 8)
    assert isr_of(proposal) == [1, 2]


def test_new_leader_vouches_only_for_what_it_has_synced() -> None:
    machine = Led(isr=(1,), replicas=(1,), end_offset=10, synced_end_offset=6).machine
    assert machine.configured(1, 0) == [AdvanceHighWatermark(6)]
    assert machine.synced(10, 0) == [AdvanceHighWatermark(10)]


def test_same_leader_in_new_epoch_keeps_follower_state() -> None:
    led = Led()
    led.append(10)
    led.fetch(2, 10)
    led.machine.new_epoch((1, 2, 3), (1, 2), (6, 9), led.steady_ms)
    assert led.machine.leader_epoch_start_offset == 10
    assert led.machine.configured(1, led.steady_ms) == [AdvanceHighWatermark(10)]
