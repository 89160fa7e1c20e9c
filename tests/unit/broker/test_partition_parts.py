"""The parts of a partition, each built without the others that it does not need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.unit.broker.replica_world import batch_of
from tidemill.broker.metrics.registry import TopicCounts
from tidemill.broker.partitions.appending.appender import Appender
from tidemill.broker.partitions.delayed_operations import DelayedOperations
from tidemill.broker.partitions.flush import LogFlush
from tidemill.broker.partitions.leadership import Leadership
from tidemill.broker.partitions.reader import PartitionReader
from tidemill.config import TopicConfig
from tidemill.controller.image import PartitionImage
from tidemill.errors import ErrorCode
from tidemill.log.log import Log
from tidemill.log.sync import DiskFull
from tidemill.protocol.api.data import FetchPartition
from tidemill.protocol.records import header_at
from tidemill.replication.leader import ProposeIsr
from tidemill.sim.platform.disk import SimulatedDisk
from tidemill.types import BrokerId, LeaderEpoch, PartitionEpoch, TopicPartition

NAME = TopicPartition("orders", 0)
ME, OTHER = BrokerId(1), BrokerId(2)


class Broker:
    """What the parts need of a broker: a clock that stands still and a disk that syncs when the test says so."""

    broker_id: int = ME
    lag_time_max_ms = 30_000
    long_work = None

    def __init__(self) -> None:
        self.syncs: list[tuple[Log, Callable[[OSError | None], None]]] = []

    def steady_ms(self) -> int:
        return 1_000

    def wall_ms(self) -> int:
        return 1_000

    def eligible_epoch(self, broker_id: int) -> int | None:
        return broker_id * 10

    def sync(self, log: Log, done: Callable[[OSError | None], None]) -> None:
        self.syncs.append((log, done))

    def finish_sync(self, error: OSError | None = None) -> None:
        log, done = self.syncs.pop(0)
        if error is None:
            work = log.sync_work()
            work.run()
            log.synced(work.end_offset, 0)
        done(error)


class Parts:
    def __init__(self, **config: Any) -> None:
        self.broker = Broker()
        self.config = TopicConfig(**config)
        files = SimulatedDisk()
        files.make_folder("/data/orders-0")
        self.log = Log(files, "/data/orders-0", self.config, wall_ms=0)
        self.delayed = DelayedOperations()
        self.reader = PartitionReader(NAME, self.log, 0, self.delayed)
        self.synced: list[int] = []
        self.disk_was_full = 0
        self.fenced: list[str] = []
        self.flush = LogFlush(
            self.reader,
            cast("Any", self.broker),
            on_synced=self._note_synced,
            on_disk_full=self._note_disk_full,
            fence=self.fenced.append,
        )
        self.proposals: list[ProposeIsr] = []
        self.leadership = Leadership(
            self.config,
            self.broker,
            self.reader,
            self.flush,
            self.delayed,
            propose=self.proposals.append,
            reconsider_later=lambda: None,
        )
        self.appender = Appender(
            NAME,
            self.config,
            cast("Any", self.broker),
            self.reader,
            self.leadership,
            TopicCounts(),
            None,
            fence=self.fenced.append,
        )
        # What happened, in order.
        self.events: list[object] = []

    def _note_synced(self, end_offset: int) -> None:
        self.synced.append(end_offset)
        self.leadership.synced(end_offset)

    def _note_disk_full(self) -> None:
        self.disk_was_full += 1

    def lead(
        self, *replicas: BrokerId, isr: tuple[BrokerId, ...] | None = None, partition_epoch: int = 0
    ) -> None:
        hosts = replicas or (ME,)
        image = PartitionImage(hosts, isr or hosts, ME, LeaderEpoch(0), PartitionEpoch(partition_epoch))
        self.leadership.lead(self.log, image)

    def put(self, *values: bytes) -> None:
        """Append to the log behind the back of the parts."""
        batch = memoryview(bytearray(batch_of(*values)))
        self.log.append(batch, (header_at(batch),), 0, 0)

    def append(self, *values: bytes, acks: int = -1) -> Any:
        return self.appender.append(memoryview(bytearray(batch_of(*values))), acks, 1_000)


# -- reader --------------------------------------------------------------------------------------------------


def test_reader_completes_acks_before_fetches_and_both_see_the_new_high_watermark() -> None:
    parts = Parts()
    parts.put(b"a", b"b")
    parts.delayed.appended(2, 70)
    parts.reader.wait(lambda added: parts.events.append(("fetch", added, parts.reader.high_watermark)))
    parts.delayed.acks.add(2, lambda code: parts.events.append(("ack", code, parts.reader.high_watermark)))
    parts.reader.advance_high_watermark(2, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert parts.events == [("ack", ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, 2), ("fetch", 70, 2)]


def test_high_watermark_never_moves_back_without_truncation() -> None:
    parts = Parts()
    parts.put(b"a", b"b")
    parts.reader.advance_high_watermark(2)
    parts.reader.wait(parts.events.append)
    parts.reader.advance_high_watermark(1)
    assert (parts.reader.high_watermark, parts.events) == (2, [])
    parts.log.truncate_to(0)
    parts.reader.truncated()
    assert parts.reader.high_watermark == 0


def test_fetch_returns_nothing_above_the_high_watermark() -> None:
    parts = Parts()
    parts.put(b"a")
    parts.put(b"b")
    parts.reader.advance_high_watermark(1)
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    fetched, records = parts.reader.fetch(wanted, 1 << 20, reads_committed=False, at_least_one=True)
    assert (fetched.high_watermark, fetched.last_stable_offset) == (1, 1)
    assert records is not None
    assert records.length == len(batch_of(b"a"))


def test_fetch_of_an_offline_partition_is_a_storage_error() -> None:
    reader = PartitionReader(NAME, None, 5, DelayedOperations())
    fetched, records = reader.fetch(FetchPartition(), 1, reads_committed=False, at_least_one=True)
    assert (fetched.error_code, records) == (ErrorCode.KAFKA_STORAGE_ERROR, None)


# -- flush ---------------------------------------------------------------------------------------------------


def test_when_synced_waits_for_the_request_that_covers_its_offset() -> None:
    parts = Parts()
    parts.put(b"a")
    parts.flush.request(parts.log)
    parts.flush.when_synced(1, parts.events.append)
    assert len(parts.broker.syncs) == 1
    parts.put(b"b")
    parts.flush.when_synced(2, parts.events.append)
    assert len(parts.broker.syncs) == 2
    parts.broker.finish_sync()
    assert parts.events == [ErrorCode.NONE, ErrorCode.NONE]


def test_full_disk_fails_what_waits_and_leaves_the_rest_to_the_next_request() -> None:
    parts = Parts()
    parts.put(b"a")
    parts.flush.when_synced(1, parts.events.append)
    parts.broker.finish_sync(DiskFull())
    assert (parts.events, parts.disk_was_full, parts.fenced) == ([ErrorCode.KAFKA_STORAGE_ERROR], 1, [])
    parts.flush.request_rest(parts.log)
    assert len(parts.broker.syncs) == 1
    parts.flush.request_rest(parts.log)
    assert len(parts.broker.syncs) == 1, "one request covers it"


def test_failed_sync_fences_the_partition() -> None:
    parts = Parts()
    parts.put(b"a")
    parts.flush.request(parts.log)
    parts.broker.finish_sync(OSError(5, "Input/output error"))
    assert parts.fenced == ["cannot sync: Input/output error"]
    assert parts.synced == []


# -- leadership and appender ---------------------------------------------------------------------------------


def test_sole_replica_commits_at_once() -> None:
    parts = Parts()
    parts.lead()
    result = parts.append(b"a")
    assert (result.error, result.base_offset, result.commit_to) == (ErrorCode.NONE, 0, None)
    assert parts.reader.high_watermark == 1


def test_sole_replica_that_syncs_commits_when_the_sync_is_done() -> None:
    parts = Parts(flush_messages=1)
    parts.lead()
    result = parts.append(b"a")
    assert (result.sync_to, result.commit_to, parts.reader.high_watermark) == (1, 1, 0)
    parts.broker.finish_sync()
    assert parts.reader.high_watermark == 1


def test_write_is_acked_when_the_follower_has_it() -> None:
    parts = Parts()
    parts.lead(ME, OTHER)
    result = parts.append(b"a")
    assert (result.commit_to, parts.reader.high_watermark) == (1, 0)
    parts.leadership.when_committed(result.commit_to, parts.events.append)
    assert parts.leadership.follower_fetched(OTHER, 20, 1, 0)
    assert (parts.events, parts.reader.high_watermark) == ([ErrorCode.NONE], 1)


def test_machine_of_a_sole_replica_knows_its_appends_when_a_replica_is_added() -> None:
    parts = Parts()
    parts.lead()
    parts.append(b"a", b"b")
    parts.lead(ME, OTHER, isr=(ME,), partition_epoch=1)
    machine = parts.leadership.machine
    assert machine is not None
    machine.check_invariants()
    assert (machine.end_offset, machine.high_watermark) == (2, 2)
    parts.append(b"c")
    assert parts.reader.high_watermark == 3
    parts.leadership.follower_fetched(OTHER, 20, 3, 0)
    assert [[member.broker_id for member in each.isr] for each in parts.proposals] == [[ME, OTHER]]


def test_append_to_a_partition_that_is_not_led_is_refused() -> None:
    parts = Parts()
    assert parts.append(b"a").error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    parts.reader.log = None
    assert parts.append(b"a").error is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(("acks", "expected"), [(-1, ErrorCode.NOT_ENOUGH_REPLICAS), (1, ErrorCode.NONE)])
def test_append_under_min_isr_is_refused_for_acks_all_only(acks: int, expected: ErrorCode) -> None:
    parts = Parts(min_insync_replicas=2)
    parts.lead(ME, OTHER, isr=(ME,))
    assert parts.append(b"a", acks=acks).error is expected


def test_resigning_fails_the_acks_that_wait() -> None:
    parts = Parts()
    parts.lead(ME, OTHER)
    parts.append(b"a")
    parts.leadership.when_committed(1, parts.events.append)
    parts.leadership.resign()
    assert parts.events == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert parts.append(b"b").error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_leader_remembers_what_it_sent_to_its_followers_only() -> None:
    parts = Parts()
    parts.lead(ME, OTHER)
    for broker_id in (OTHER, 9):
        parts.leadership.remember_sent(broker_id, 4)
    assert parts.leadership.was_sent(OTHER, 4)
    assert not parts.leadership.was_sent(OTHER, 5)
    assert not parts.leadership.was_sent(9, 4)
