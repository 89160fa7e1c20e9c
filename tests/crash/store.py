"""A broker's storage without the broker: what `broker/partitions/replicas.py` does with a data directory, in the same order.

`Store` writes down in a `History` what it is about to do and what is done. `judge` compares the survivor of a crash
with that. Every synced byte is there, and the surviving batches are a prefix of the appended ones. All derived state
(indexes, producers, transactions, epochs) equals a simple replay of the surviving batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tests.unit.log import transaction_model
from tests.unit.log.batches import T0, ParsedBatch, append, batch, parse_segment
from tidemill.config import TopicConfig
from tidemill.errors import StorageError
from tidemill.log.datadir import DataDir
from tidemill.log.log import Log
from tidemill.log.transactions import TransactionEnd, build_marker
from tidemill.protocol.records import header_at, stamp
from tidemill.sim.platform.disk import CutPoint, SimulatedDisk
from tidemill.types import TopicPartition

DATA = "/data"


@dataclass
class Timeline:
    """One course of a partition's life: its batches from offset zero on, and how much of it was promised."""

    batches: list[bytes] = field(default_factory=list)
    synced_end: int = 0

    @property
    def end(self) -> int:
        return header_at(self.batches[-1]).next_offset if self.batches else 0

    def truncated(self, end_offset: int) -> Timeline:
        kept = [b for b in self.batches if header_at(b).next_offset <= end_offset]
        line = Timeline(kept)
        line.synced_end = min(self.synced_end, line.end)
        return line


@dataclass
class PartitionHistory:
    topic_id: bytes
    # More than one while a truncation is under way: either may be found.
    timelines: list[Timeline] = field(default_factory=lambda: [Timeline()])
    # The largest log start offset that retention and DeleteRecords allow.
    start_max: int = 0
    # Checkpointed: nothing below is served again.
    start_min: int = 0
    # What readers were told; the log may forget which markers below it are how old.
    high_watermark: int = 0

    @property
    def now(self) -> Timeline:
        return self.timelines[-1]


@dataclass
class History:
    partitions: dict[TopicPartition, PartitionHistory] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Store:
    def __init__(self, disk: SimulatedDisk, history: History, config: TopicConfig) -> None:
        self.disk = disk
        self.history = history
        self.config = config
        self.wall_ms = T0
        self.data_dir = DataDir(disk, DATA, 1)
        self.logs = {tp: self._open(tp, known.topic_id) for tp, known in history.partitions.items()}
        self.data_dir.mark_in_use()

    def _open(self, tp: TopicPartition, topic_id: bytes) -> Log:
        data_dir = self.data_dir
        found_id = data_dir.topic_id_of(tp)
        if found_id is not None and found_id != topic_id:
            raise StorageError(f"{tp} belongs to another topic id")
        if found_id is None:
            data_dir.create_folder(tp, topic_id)
        return Log(
            self.disk,
            data_dir.folder_of(tp),
            self.config,
            wall_ms=self.wall_ms,
            is_clean=data_dir.was_clean,
            recovery_point=data_dir.recovery_points.get(tp, 0),
            log_start_offset=data_dir.log_starts.get(tp, 0),
        )

    def create(self, tp: TopicPartition, topic_id: bytes) -> Log:
        """The metadata is durable before the folder is made."""
        self.history.partitions[tp] = PartitionHistory(topic_id)
        log = self.logs[tp] = self._open(tp, topic_id)
        return log

    def delete(self, tp: TopicPartition) -> None:
        known = self.history.partitions.pop(tp)
        self.logs.pop(tp).release()
        self.data_dir.recovery_points.pop(tp, None)
        self.data_dir.log_starts.pop(tp, None)
        renamed = self.data_dir.mark_folder_deleted(tp, known.topic_id)
        self.disk.sync_folder(DATA)
        self.disk.remove(renamed)

    def append(self, tp: TopicPartition, data: bytearray, *, leader_epoch: int = 0) -> None:
        log = self.logs[tp]
        attempt = bytearray(data)
        stamp(memoryview(attempt), 0, log.log_end_offset, leader_epoch)
        line = self.history.partitions[tp].now
        line.batches.append(bytes(attempt))
        try:
            append(log, data, leader_epoch=leader_epoch, wall_ms=self.wall_ms)
        except OSError:
            line.batches.pop()
            raise

    def end_transaction(
        self, tp: TopicPartition, producer_id: int, *, commit: bool, epoch: int = 0, leader_epoch: int = 0
    ) -> None:
        end = TransactionEnd(producer_id, epoch, 3, commit)
        self.logs[tp].check_marker(end)
        self.append(tp, bytearray(build_marker(end, self.wall_ms)), leader_epoch=leader_epoch)

    def commit(self, tp: TopicPartition) -> None:
        """Sync, and let readers see it."""
        self.sync(tp)
        known = self.history.partitions[tp]
        known.high_watermark = known.now.synced_end
        self.logs[tp].last_stable_offset(known.high_watermark)

    def sync(self, tp: TopicPartition) -> None:
        log = self.logs[tp]
        work = log.sync_work()
        work.run()
        log.synced(work.end_offset, self.wall_ms)
        self.history.partitions[tp].now.synced_end = work.end_offset

    def truncate(self, tp: TopicPartition, end_offset: int) -> None:
        """Truncate the log. The recovery point is lowered first, as `truncate_to` requires."""
        log, known = self.logs[tp], self.history.partitions[tp]
        known.timelines.append(known.now.truncated(end_offset))
        known.timelines[0].synced_end = known.now.synced_end
        log.recovery_point = min(log.recovery_point, log.end_after_truncation(end_offset))
        self.checkpoint()
        log.truncate_to(end_offset)
        del known.timelines[:-1]

    def retain(self, tp: TopicPartition, config: TopicConfig) -> None:
        log, known = self.logs[tp], self.history.partitions[tp]
        log.config = config
        known.start_max = log.log_end_offset
        for path in log.apply_retention(self.wall_ms, log.log_end_offset):
            self.disk.remove(path)
        known.start_max = log.log_start_offset
        log.config = self.config

    def move_start(self, tp: TopicPartition, offset: int) -> None:
        log, known = self.logs[tp], self.history.partitions[tp]
        known.start_max = max(known.start_max, offset)
        for path in log.move_start(offset):
            self.disk.remove(path)

    def checkpoint(self) -> None:
        starts = {tp: log.log_start_offset for tp, log in self.logs.items()}
        self.data_dir.write_checkpoints({tp: log.recovery_point for tp, log in self.logs.items()}, starts)
        for tp, start in starts.items():
            self.history.partitions[tp].start_min = start

    def shut_down(self) -> None:
        for tp, log in self.logs.items():
            log.close()
            self.history.partitions[tp].now.synced_end = log.log_end_offset
        self.checkpoint()
        self.data_dir.mark_clean(-1)
        self.data_dir.unlock()


def found_disks(cut: CutPoint[History], seeds: int) -> list[tuple[str, SimulatedDisk]]:
    """The disks that may be found after this cut: a killed process, and power failures of every kind."""
    if cut.bytes_written:
        return [("kill", cut.disk.kill()), ("seed 0", cut.disk.crash(Random(cut.bytes_written)))]
    disks = [
        ("kill", cut.disk.kill()),
        ("all lost", cut.disk.crash(Random(0), keep="nothing")),
        ("all kept", cut.disk.crash(Random(0), keep="everything")),
    ]
    disks += [(f"seed {seed}", cut.disk.crash(Random(seed))) for seed in range(seeds)]
    return disks


def judge(disk: SimulatedDisk, history: History, config: TopicConfig) -> Store:
    """Reopen and check everything. Returns the running store."""
    store = Store(disk, history, config)
    for tp, known in history.partitions.items():
        log = store.logs[tp]
        log.check_invariants()
        surviving = surviving_batches(disk, log)
        for line in known.timelines:
            if _is_run_of(surviving, line, log):
                break
        else:
            raise AssertionError(f"{[b.base_offset for b in surviving]} were never appended in this order")
        assert log.log_end_offset >= line.synced_end, "synced records are lost"
        assert log.log_start_offset <= max(known.start_max, 0), "the log begins after what was asked for"
        if surviving:
            assert log.log_start_offset >= known.start_min, "deleted records are served again"
        _check_readable(log, surviving)
        _check_producers(log, line)
        _check_transactions(log, line, surviving, known.high_watermark)
        _check_epochs(log, line)
    return store


def surviving_batches(disk: SimulatedDisk, log: Log) -> list[ParsedBatch]:
    found: list[ParsedBatch] = []
    for name in disk.list(log.folder):
        if name.endswith(".log"):
            parsed = parse_segment(disk.read(f"{log.folder}/{name}"))
            assert not parsed or parsed[0].base_offset == int(name[:-4])
            found += parsed
    return found


def _is_run_of(surviving: list[ParsedBatch], line: Timeline, log: Log) -> bool:
    """Whether the surviving batches are appended ones, in order and without a hole, up to the log end offset."""
    first = surviving[0].base_offset if surviving else log.log_end_offset
    expected = [
        b
        for b in line.batches
        if header_at(b).base_offset >= first and header_at(b).next_offset <= log.log_end_offset
    ]
    if [b.raw for b in surviving] != expected:
        return False
    if surviving:
        return surviving[-1].last_offset + 1 == log.log_end_offset and first <= log.log_start_offset
    return log.log_end_offset <= line.end


def _check_readable(log: Log, surviving: list[ParsedBatch]) -> None:
    offset, seen = log.log_start_offset, []
    while (found := log.read(offset, 150, log.log_end_offset)) is not None:
        batches = parse_segment(found.read())
        assert batches[0].base_offset <= offset <= batches[0].last_offset
        seen += batches
        offset = batches[-1].last_offset + 1
    assert offset == log.log_end_offset
    assert [b.raw for b in seen] == [b.raw for b in surviving if b.last_offset >= log.log_start_offset]


def _check_producers(log: Log, line: Timeline) -> None:
    """Equal to a replay of everything; where retention took batches, a state may lack those, and no others."""
    twin = transaction_model.producers(_batches(line, log))
    first = log.segments[0].base_offset
    for producer_id, expected in twin.items():
        state = log.producers.get(producer_id)
        needed = [entry for entry in expected.batches if entry[2] >= first]
        if state is None:
            assert not needed, f"producer {producer_id} is forgotten"
            continue
        found = [tuple(entry) for entry in state.batches]
        assert state.epoch == expected.epoch
        assert found == expected.batches[len(expected.batches) - len(found) :], f"producer {producer_id}"
        assert len(found) >= len(needed)
        assert state.last_timestamp == expected.last_timestamp
        if not first:
            assert state.coordinator_epoch == expected.coordinator_epoch
            assert state.txn_first_offset == expected.txn_first_offset
    assert {state.producer_id for state in log.producers.states()} <= set(twin)


def _check_transactions(log: Log, line: Timeline, surviving: list[ParsedBatch], high_watermark: int) -> None:
    """Check open, stable and aborted transactions. Where retention removed batches, check only what the others need."""
    end_offset = log.log_end_offset
    batches = _batches(line, log)
    found = [tuple(entry) for entry in log.aborted_between(0, end_offset)]
    if log.segments[0].base_offset == 0:
        assert found == transaction_model.aborted(batches)
        opened = [t for t in transaction_model.transactions(batches) if t.marker_offset is None]
        assert [(s.producer_id, s.txn_first_offset) for s in log.producers.open_transactions()] == [
            (t.producer_id, t.first_offset) for t in opened
        ]
        for hw in range(high_watermark, end_offset + 1):
            stable = transaction_model.stable_offset(batches, hw, log.log_start_offset)
            assert log.last_stable_offset(hw) == stable, f"with the high watermark at {hw}"
        return
    for _, first_offset, marker_offset, _ in transaction_model.aborted(
        transaction_model.parsed(b.raw for b in surviving)
    ):
        assert [e for e in found if e[1] <= first_offset and e[2] == marker_offset]


def _batches(line: Timeline, log: Log) -> list[transaction_model.Batch]:
    return transaction_model.parsed(
        raw for raw in line.batches if header_at(raw).next_offset <= log.log_end_offset
    )


def _check_epochs(log: Log, line: Timeline) -> None:
    twin: list[tuple[int, int]] = []
    for raw in line.batches:
        header = header_at(raw)
        if header.next_offset <= log.log_end_offset and (not twin or header.leader_epoch > twin[-1][0]):
            twin.append((header.leader_epoch, header.base_offset))
    start = log.log_start_offset
    covering = [epoch for epoch, offset in twin if offset <= start]
    visible = [(epoch, offset) for epoch, offset in twin if offset > start]
    if covering and start < log.log_end_offset:
        visible.insert(0, (covering[-1], start))
    found = [tuple(entry) for entry in log.epochs.entries if entry.start_offset < log.log_end_offset]
    assert found == visible, "leader epochs"


def go_on(store: Store, tp: TopicPartition) -> None:
    """The survivor takes appends, and a clean restart finds them."""
    known = store.history.partitions[tp]
    log = store.logs[tp]
    known.high_watermark = log.log_end_offset  # so far `judge` has asked
    known.timelines = [
        next(line for line in known.timelines if _is_run_of(surviving_batches(store.disk, log), line, log))
    ]
    known.now.batches = known.now.truncated(log.log_end_offset).batches
    if log.log_end_offset > known.now.end:
        # Nothing is left below, but the offsets are used up: the line goes on behind the gap.
        known.now.batches = []
    for number in range(3):
        store.append(tp, batch(2, value=b"after %d" % number), leader_epoch=7)
    store.shut_down()
