"""A partition's delays agree with a dumb reading of its log, through every fault that a partition can have.

One seed is one life of a partition: appends with and without transactions, commits and aborts, deliveries of which some are
cut off with their leader, truncations, retention that carries, snapshots, a clock that jumps. After every step the state
equals the dumb twin's reading of the log, and at the end every record was delivered once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import pytest

from tests.unit.delays.copied import carried_copy, visible_copy
from tests.unit.delays.log_model import Batch, DumbLog, Marker
from tests.unit.delays.snapshots import restore, snapshot, with_crc
from tidemill.delays.pending import Delivery
from tidemill.delays.requests import (
    CANCEL,
    DELAY,
    DELIVER_AT,
    DUE,
    ORIGINAL_OFFSET,
    SCHEDULE,
    SCHEDULE_ID,
)
from tidemill.delays.snapshot import FrozenDelays, pieces_of
from tidemill.delays.state import PartitionDelays
from tidemill.protocol.records import Header, Record
from tidemill.protocol.steps import run_steps

STEPS = 130
# The last ones found what the others did not.
SEEDS = (*range(8), 15, 19, 1011, 1017, 1023, 1126)
PRODUCERS = (1, 2, 3)
NAMES = (b"a", b"b")
KEYS = (None, b"k")
EPOCH = 7


class Partition:
    """One partition's log, its twin that keeps everything retention removes, and the state under test."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.snapshot_rng = random.Random(seed)
        self.log = DumbLog()
        # The same log without retention: what it says to be pending must not be lost by carrying.
        self.history = DumbLog()
        self.delays = PartitionDelays()
        self.high_watermark = 0
        self.wall_ms = 1_000_000
        self.wall_ms_max = self.wall_ms
        self.delivered_at: list[tuple[Delivery, int]] = []
        # A snapshot that is being written: its pieces so far, those that are left, and what they must be in the end.
        self.pieces: list[bytes] = []
        self.pieces_left: Iterator[bytes] = iter(())
        self.frozen: FrozenDelays | None = None
        self.snapshot_at_freezing = b""

    # -- the log -------------------------------------------------------------------------------------------------

    def append(
        self,
        records: list[Record],
        producer_id: int | None = None,
        copies_of: Sequence[Delivery] | None = None,
    ) -> None:
        """`copies_of`: the leader knows what it delivers, and need not decode it."""
        first_offset = self.log.end
        batch = self.log.append(records, producer_id)
        self.history.entries.append(batch)
        self.history.end = self.log.end
        if copies_of is not None and first_offset % 2:
            self.delays.replay_copies(first_offset, copies_of)
        else:
            self.delays.replay(batch.header, batch.records)
        if self.rng.random() < 0.1:
            self.delays.replay(batch.header, batch.records)

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        marker = self.log.append_marker(producer_id, is_commit)
        self.history.append_marker(producer_id, is_commit)
        self.delays.end_transaction(producer_id, is_commit, marker.offset)

    def rebuilt(self) -> PartitionDelays:
        delays = PartitionDelays(self.log.start, self.high_watermark)
        self.replay_into(delays)
        return delays

    def replay_into(self, delays: PartitionDelays) -> None:
        for entry in self.log.entries:
            if isinstance(entry, Marker):
                delays.end_transaction(entry.producer_id, entry.is_commit, entry.offset)
            else:
                delays.replay(entry.header, entry.records)

    def open_producers(self) -> list[int]:
        return [
            producer_id
            for producer_id in PRODUCERS
            if any(
                isinstance(each, Batch)
                and each.producer_id == producer_id
                and self.log.outcome(each.records[-1].offset, producer_id) is None
                for each in self.log.entries
            )
        ]

    # -- steps ---------------------------------------------------------------------------------------------------

    def produce(self) -> None:
        producer_id = self.rng.choice((None, None, *PRODUCERS))
        self.append([self.a_record() for _ in range(self.rng.randint(1, 4))], producer_id)

    def a_record(self) -> Record:
        rng = self.rng
        key = rng.choice(KEYS)
        named = [Header(SCHEDULE_ID, rng.choice(NAMES))]
        headers = rng.choice(
            (
                [],
                [Header(DELAY, b"%d" % rng.randint(0, 5000))],
                [Header(DELAY, b"%ds" % rng.randint(1, 3))],
                [Header(DELIVER_AT, b"%d" % (self.wall_ms + rng.randint(-3000, 5000)))],
                [Header(DELAY, b"%d" % rng.randint(0, 9000)), *named],
                [Header(SCHEDULE, rng.choice((b"@every 700ms", b"*/2 * * * * *"))), *named],
                [Header(CANCEL, b""), *named],
                [Header(CANCEL, b"%d" % max(0, self.log.end - rng.randint(1, 12)))],
            )
        )
        return Record(0, self.wall_ms, key, b"v", headers)

    def decide(self) -> None:
        for producer_id in self.open_producers():
            if self.rng.random() < 0.6:
                self.end_transaction(producer_id, self.rng.random() < 0.6)

    def commit(self) -> None:
        self.high_watermark = self.rng.randint(self.high_watermark, self.log.end)
        run_steps(self.delays.advance_committed(self.high_watermark))

    def pass_time(self) -> None:
        jump_ms = self.rng.choice((10, 100, 1000, 1000, 3000, 60_000, -500, -60_000))
        self.wall_ms = max(1_000_000, self.wall_ms + jump_ms)
        self.wall_ms_max = max(self.wall_ms_max, self.wall_ms)

    def deliver(self) -> None:
        expected = self.expected_due()
        limit = self.rng.choice((1, 3, 1000))
        deliveries = run_steps(self.delays.due(self.wall_ms, limit))
        self.check_due(deliveries, expected, limit)
        if self.rng.random() < 0.3:
            self.produce()  # while the records are read
        fate = self.rng.random()
        if fate < 0.15:
            self.delays.give_back()
            return
        deliveries = self.delays.confirm(deliveries)
        if deliveries:
            copies = [
                visible_copy(self.log.record(each.offset), each.due_ms, each.next_due_ms)
                for each in deliveries
            ]
            self.delivered_at += ((each, self.wall_ms) for each in deliveries)
            self.append(copies, copies_of=deliveries)
        if fate < 0.3:
            self.delays = (
                self.rebuilt()
            )  # the leader dies between the append of the copy and its acknowledgement

    def expected_due(self) -> set[int]:
        return {
            offset
            for offset, (due_ms, at) in self.log.pending().items()
            if due_ms <= self.wall_ms and at < self.high_watermark
        }

    def check_due(self, deliveries: list[Delivery], expected: set[int], limit: int) -> None:
        given = [each.offset for each in deliveries]
        assert len(set(given)) == len(given)
        assert set(given) <= expected
        if limit >= 1000:
            assert set(given) == expected

    def truncate(self) -> None:
        end = self.log.border(self.rng.randint(max(self.high_watermark, self.log.start), self.log.end))
        self.cut(max(end, self.log.start))

    def cut(self, end: int) -> None:
        if self.frozen is not None and end < self.log.end:
            # A leader's log is not cut, and only leaders write snapshots.
            self.frozen.thaw()
            self.frozen = None
        self.log.truncate(end)
        self.history.truncate(end)
        if not self.delays.truncate(end):
            self.high_watermark = min(self.high_watermark, end)
            self.delays = self.rebuilt()
        self.high_watermark = min(self.high_watermark, end)

    def elect_uncleanly(self) -> None:
        """A replica that lacks committed records leads: what it lacks is lost, and the rest is as its log says."""
        if self.rng.random() < 0.2:
            self.cut(max(self.log.border(self.rng.randint(self.log.start, self.log.end)), self.log.start))
            self.history = DumbLog(list(self.log.entries), self.log.start, self.log.end)

    def retain(self) -> None:
        before = self.log.border(self.rng.randint(self.log.start, self.high_watermark))
        carries = self.delays.to_carry(before, self.rng.choice((1, 100)))
        if self.rng.random() < 0.3:
            self.produce()
        carries = self.delays.confirm_carries(carries)
        if carries:
            self.append([carried_copy(self.log.record(each.offset), each.due_ms) for each in carries])
        if self.rng.random() < 0.7:
            self.commit()
        if self.delays.retained_offset >= before > self.log.start:
            self.log.start = before
            run_steps(self.delays.advance_log_start(before))

    def take_snapshot(self) -> None:
        self.finish_snapshot()
        data = snapshot(self.delays, EPOCH)
        restored = restore(data, self.log.start, self.log.end, self.high_watermark, lambda _: EPOCH)
        assert restored is not None
        self.delays = restored

    def go_on_with_a_snapshot(self) -> None:
        """Write some pieces of a snapshot. The state goes on between them."""
        rng = self.snapshot_rng
        if self.frozen is None:
            self.snapshot_at_freezing = snapshot(self.delays, EPOCH)
            self.frozen = FrozenDelays(self.delays)
            self.pieces, self.pieces_left = [], pieces_of(self.frozen, EPOCH)
        if rng.random() < 0.8:
            self.pieces += islice(self.pieces_left, rng.randint(0, 2))
        else:
            self.finish_snapshot()

    def finish_snapshot(self) -> None:
        if self.frozen is not None:
            self.pieces += self.pieces_left
            self.frozen.thaw()
            self.frozen = None
            assert with_crc(self.pieces) == self.snapshot_at_freezing

    def live(self) -> None:
        self.rng.choice(STEPS_OF_A_LIFE)(self)
        self.check()
        self.go_on_with_a_snapshot()

    # -- judgement -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        pending = self.log.pending()
        assert dict(self.delays.pending.offsets.first_from(0, 10_000)) == {
            each: due_ms for each, (due_ms, _) in pending.items()
        }
        assert {each: due_ms for each, (due_ms, _) in self.history.pending().items()} == {
            each: due_ms for each, (due_ms, _) in pending.items()
        }, "retention lost or changed what is pending"
        hidden = {
            each for first, end in self.delays.hidden.between(0, self.log.end) for each in range(first, end)
        }
        assert hidden == self.log.hidden()
        assert _inner(self.delays, self.high_watermark) == _inner(self.rebuilt(), self.high_watermark)
        copies = Counter(
            (fields[ORIGINAL_OFFSET], fields[DUE])
            for record in self.history.visible()
            if ORIGINAL_OFFSET in (fields := dict(record.headers))
        )
        assert not [each for each, count in copies.items() if count > 1], "delivered twice"
        for delivery, wall_ms in self.delivered_at:
            assert delivery.due_ms <= wall_ms, "delivered early"

    def drain(self) -> None:
        """At last everything is decided, committed and due; what has no schedule is delivered."""
        for producer_id in self.open_producers():
            self.end_transaction(producer_id, True)
        self.wall_ms = self.wall_ms_max + 100_000
        for _ in range(100):
            self.high_watermark = self.log.end
            run_steps(self.delays.advance_committed(self.high_watermark))
            deliveries = self.delays.confirm(run_steps(self.delays.due(self.wall_ms, 1000)))
            if not deliveries:
                break
            self.append(
                [
                    visible_copy(self.log.record(each.offset), each.due_ms, each.next_due_ms)
                    for each in deliveries
                ]
            )
        self.check()
        assert all(due_ms > self.wall_ms for due_ms, _ in self.log.pending().values()), "never delivered"


def _inner(delays: PartitionDelays, high_watermark: int) -> object:
    pending = delays.pending
    markers = {offset: marker for offset, marker in pending.markers.items() if marker >= high_watermark}
    return (
        pending.scheduled,
        pending.by_identity,
        delays.staged,
        markers,
        delays.end_offset,
        delays.log_start_offset,
    )


STEPS_OF_A_LIFE = (
    *[Partition.produce] * 6,
    *[Partition.decide] * 2,
    *[Partition.commit] * 3,
    *[Partition.pass_time] * 3,
    *[Partition.deliver] * 4,
    Partition.truncate,
    Partition.elect_uncleanly,
    Partition.retain,
    Partition.take_snapshot,
)


@pytest.mark.parametrize("seed", SEEDS)
def test_delayed_records_are_never_early_never_twice_never_missing(seed: int) -> None:
    partition = Partition(seed)
    for _ in range(STEPS):
        partition.live()
    partition.drain()
