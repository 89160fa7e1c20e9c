"""Segments read from files, held against a list of what was appended. The log is a real one; no broker, no Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.unit.log.batches import T0, append, batch, small_segments, transactional
from tidemill.errors import ConfigError
from tidemill.log.datadir import DataDir
from tidemill.log.epochs import LeaderEpochs
from tidemill.log.files import DiskFiles
from tidemill.log.log import Log
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.isolation import READ_COMMITTED, READ_UNCOMMITTED
from tidemill.protocol.records import iterate_records
from tidemill.sim.platform.disk import SimulatedDisk
from tidemill.spark.source import segments
from tidemill.spark.source.segments import (
    Leader,
    NotAsPlanned,
    Replica,
    SegmentFolders,
    common_end,
    read_part,
)
from tidemill.types import TopicPartition, uuid_text

TP = TopicPartition("orders.eu-x", 3)
TOPIC_ID = bytes(range(16))


class Written:
    """A partition's folder in a data directory, and what should be read from it."""

    def __init__(self, path: Path, *, segment_bytes: int = 700) -> None:
        self.path = path
        self.data_dir = DataDir(DiskFiles(), str(path), 1)
        folder = self.data_dir.create_folder(TP, TOPIC_ID)
        self.log = Log(DiskFiles(), folder, small_segments(segment_bytes=segment_bytes), wall_ms=T0)
        # Offset → value, and the producer whose transaction it belongs to.
        self.values: dict[int, tuple[bytes, int | None]] = {}
        self.aborted: list[tuple[int, range]] = []
        self.open: dict[int, int] = {}
        self._sequences: dict[int, int] = {}

    def plain(self, count: int, value: bytes) -> None:
        first = append(self.log, batch(count, value=value))
        self.values.update(dict.fromkeys(range(first, first + count), (value, None)))

    def in_transaction(self, producer_id: int, count: int, value: bytes) -> None:
        sequence = self._sequences.get(producer_id, 0)
        first = append(self.log, transactional(producer_id, 0, sequence, count, value=value))
        self._sequences[producer_id] = sequence + count
        self.open.setdefault(producer_id, first)
        self.values.update(dict.fromkeys(range(first, first + count), (value, producer_id)))

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        marker = self.log.append_marker(TransactionEnd(producer_id, 0, 0, is_commit), 0, T0) - 1
        first = self.open.pop(producer_id)
        if not is_commit:
            self.aborted.append((producer_id, range(first, marker)))

    def checkpoint(self, *, recovery_point: int | None = None, high_watermark: int | None = None) -> None:
        self.log.sync_work().run()
        end = self.log.log_end_offset if recovery_point is None else recovery_point
        self.data_dir.write_checkpoints({TP: end}, {TP: self.log.log_start_offset})
        if high_watermark is not None:
            self.data_dir.write_high_watermarks({TP: high_watermark})

    def expected(self, start: int, end: int, isolation_level: int) -> list[tuple[int, bytes]]:
        return [
            (offset, value)
            for offset, (value, producer) in self.values.items()
            if start <= offset < end
            and not (
                isolation_level == READ_COMMITTED
                and any(producer == other and offset in span for other, span in self.aborted)
            )
        ]

    def replica(
        self, isolation_level: int = READ_UNCOMMITTED, leader: Leader | None = None
    ) -> Replica | None:
        return SegmentFolders(str(self.path)).replica(TP, isolation_level, leader)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "data")


def read(replica: Replica, start: int, end: int, isolation_level: int) -> list[tuple[int, bytes | None]]:
    parts = replica.parts(start, end)
    assert parts[0].start_offset == start
    assert parts[-1].end_offset == end
    assert all(a.end_offset == b.start_offset for a, b in pairwise(parts))
    found = []
    for part in parts:
        aborted = (
            replica.aborted(part.start_offset, part.end_offset) if isolation_level == READ_COMMITTED else ()
        )
        for batches, _ in read_part(replica.files, part, aborted):
            found += [
                (record.offset, record.value)
                for header, data in batches
                for record in iterate_records(data, header)
                if part.start_offset <= record.offset < part.end_offset
            ]
    return found


def leader_of(readable_end: int, epoch_end: Callable[[int], tuple[int, int]] | None = None) -> Leader:
    return Leader(uuid_text(TOPIC_ID), readable_end, epoch_end or (lambda epoch: (epoch, readable_end)))


@pytest.mark.parametrize("seed", range(8))
def test_any_range_of_a_random_log_is_what_was_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(segments, "SPLIT_BYTES", 350)
    monkeypatch.setattr(segments, "READ_BYTES", 300)
    rng = random.Random(seed)
    written = Written(tmp_path / "data", segment_bytes=rng.choice([500, 2500]))
    for step in range(120):
        producer = rng.randrange(1, 4)
        value = b"%d" % step * rng.randrange(1, 30)
        if rng.random() < 0.4:
            written.plain(rng.randrange(1, 5), value)
        elif producer in written.open and rng.random() < 0.4:
            written.end(producer, is_commit=rng.random() < 0.5)
        else:
            written.in_transaction(producer, rng.randrange(1, 4), value)
    written.checkpoint()
    for isolation_level in (READ_UNCOMMITTED, READ_COMMITTED):
        replica = written.replica(isolation_level)
        assert replica is not None
        sealed_end = written.log.active.base_offset
        if isolation_level == READ_UNCOMMITTED:
            assert replica.end_offset == sealed_end
        else:
            # Undecided where the sealed part ends: what is open now, or ended in the active segment.
            assert replica.end_offset <= min([sealed_end, *written.open.values()])
        ends = [replica.end_offset, *rng.sample(range(1, replica.end_offset + 1), 5)]
        for end in ends:
            start = rng.randrange(end)
            expected = written.expected(start, end, isolation_level)
            assert read(replica, start, end, isolation_level) == expected


def test_a_transaction_that_ends_in_the_active_segment_is_left_to_the_broker(written: Written) -> None:
    written.plain(5, b"x" * 40)
    written.in_transaction(7, 2, b"perhaps")
    open_at = written.open[7]
    for _ in range(8):
        written.plain(5, b"x" * 40)
    written.checkpoint()
    with_snapshot = written.replica(READ_COMMITTED)
    assert with_snapshot is not None
    assert with_snapshot.end_offset == open_at
    for snapshot in Path(written.log.folder).glob("*.snapshot"):
        snapshot.unlink()
    assert written.replica(READ_COMMITTED) == with_snapshot
    uncommitted = written.replica(READ_UNCOMMITTED)
    assert uncommitted is not None
    assert uncommitted.end_offset == written.log.active.base_offset


def fill(written: Written, count: int = 30) -> None:
    for number in range(count):
        written.plain(3, b"%d" % number * 20)


def test_only_synced_and_committed_records_of_the_leader_are_read(written: Written) -> None:
    fill(written)
    bases = [segment.base_offset for segment in written.log.segments]
    assert len(bases) > 5
    written.checkpoint(recovery_point=bases[3] + 1)
    by_recovery = written.replica()
    assert by_recovery is not None
    assert by_recovery.end_offset == bases[3]
    written.checkpoint(high_watermark=bases[2] + 1)
    by_high_watermark = written.replica()
    assert by_high_watermark is not None
    assert by_high_watermark.end_offset == bases[2] + 1
    with_leader = written.replica(leader=leader_of(bases[4] + 2))
    assert with_leader is not None
    assert with_leader.end_offset == bases[4] + 2
    # The leader's epoch 0 ended early: what this replica has behind that was never committed.
    parted = written.replica(leader=leader_of(bases[4], lambda _: (0, bases[1] + 1)))
    assert parted is not None
    assert parted.end_offset == bases[1] + 1


def test_a_folder_of_another_topic_of_that_name_is_not_read(written: Written) -> None:
    fill(written)
    written.checkpoint()
    assert written.replica(leader=leader_of(1000)) is not None
    assert written.replica(leader=leader_of(1000)._replace(topic_id=uuid_text(bytes(16)))) is None


def test_without_a_recovery_point_nothing_is_read(written: Written) -> None:
    fill(written)
    assert written.replica() is None


def test_the_replica_that_reaches_furthest_is_taken(tmp_path: Path) -> None:
    short, long = Written(tmp_path / "a"), Written(tmp_path / "b")
    fill(short, 20)
    fill(long, 30)
    for each in (short, long):
        each.checkpoint()
    folders = SegmentFolders(f"{short.path}, file://{long.path}")
    found = folders.replica(TP, READ_UNCOMMITTED)
    assert found is not None
    assert found.end_offset == long.log.active.base_offset
    assert folders.topics() == {TP.topic: [TP]}


def test_segments_below_the_logs_start_are_not_read(written: Written) -> None:
    fill(written)
    written.data_dir.write_checkpoints({TP: written.log.log_end_offset}, {TP: 20})
    replica = written.replica()
    assert replica is not None
    assert replica.first_offset == 20


def test_a_broken_index_costs_only_larger_splits(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SPLIT_BYTES", 200)
    fill(written)
    written.checkpoint()
    replica = written.replica()
    assert replica is not None
    end = replica.end_offset
    good = replica.parts(0, end)
    for index in Path(replica.folder).glob("*.index"):
        index.write_bytes(bytes(reversed(index.read_bytes())) + b"x")
    bad = replica.parts(0, end)
    assert len(bad) < len(good)
    expected = written.expected(0, end, READ_UNCOMMITTED)
    assert read(replica, 0, end, READ_UNCOMMITTED) == expected


@pytest.mark.parametrize("change", ["removed", "cut", "other content", "flipped bit"])
def test_changed_file_is_noticed(written: Written, change: str) -> None:
    fill(written)
    written.checkpoint()
    replica = written.replica()
    assert replica is not None
    part = replica.parts(0, replica.end_offset)[1]
    path = Path(part.path)
    content = path.read_bytes()
    match change:
        case "removed":
            path.unlink()
        case "cut":
            path.write_bytes(content[:-1])
        case "other content":
            path.write_bytes(content[100:])
        case "flipped bit":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(NotAsPlanned) as noticed:
        list(read_part(replica.files, part, ()))
    # A cut file gave its whole batches first; otherwise nothing was given.
    assert noticed.value.next_offset == (21 if change == "cut" else part.start_offset)


def test_reader_waits_for_a_swap(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(written)
    written.checkpoint()
    swapped = Path(written.log.folder) / f"{0:020d}.log"
    waiting = swapped.rename(f"{swapped}.swap")
    monkeypatch.setattr(
        "tidemill.spark.source.segments.time.sleep", lambda _: waiting.exists() and waiting.rename(swapped)
    )
    replica = written.replica()
    assert replica is not None
    assert replica.base_offsets[0] == 0


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    known = LeaderEpochs(SimulatedDisk(), "/epochs")
    for epoch, start in entries:
        known.assign(epoch, start)
    return known


def shared_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_divergence_of_two_histories_is_found() -> None:
    """Random histories as Raft-like logs have them: equal epochs at an offset mean equal prefixes."""
    rng = random.Random(5)
    for _ in range(300):
        common = sorted(rng.choices(range(0, 20, 2), k=rng.randrange(1, 10)))
        ours = common + sorted(rng.choices(range(common[-1] + 1, 40, 4), k=rng.randrange(6)))
        leaders = common + sorted(rng.choices(range(common[-1] + 3, 40, 4), k=rng.randrange(6)))
        starts = [{e: h.index(e) for e in h} for h in (ours, leaders)]
        mine, known = (epochs(*sorted(s.items())) for s in starts)
        found = common_end(mine, len(ours), partial(known.end_offset_of, log_end_offset=len(leaders)))
        assert found <= shared_prefix(ours, leaders)
        if leaders[-1] >= ours[-1]:
            assert found == shared_prefix(ours, leaders)


def test_paths_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    for path in ("", " , ", str(tmp_path / "missing"), "nosuch://bucket/data"):
        with pytest.raises(ConfigError, match="segmentsPath"):
            SegmentFolders(path)
