"""The log against a plain list: random histories of appends, transactions, reads, deletions, restarts and power failures."""

from __future__ import annotations

import tempfile
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.thoroughness import examples
from tests.unit.log import transaction_model
from tests.unit.log.batches import T0, ParsedBatch, append, batch, parse_segment
from tidemill.config import TopicConfig
from tidemill.log.files import DiskFiles, Files
from tidemill.log.log import Log, OffsetOutOfRange
from tidemill.log.time_search import search_time
from tidemill.log.transactions import TransactionEnd, build_marker
from tidemill.protocol.records import TRANSACTIONAL, Record, header_at, iterate_records, stamp
from tidemill.protocol.steps import run_steps
from tidemill.sim.platform.disk import SimulatedDisk

CONFIG = TopicConfig(
    segment_bytes=700, index_interval_bytes=150, segment_index_bytes=64, retention_ms=-1, segment_ms=10_000
)
# Small enough that batches share timestamps, large enough that segments roll by time.
times = st.integers(0, 20_000)


class LogMachine(RuleBasedStateMachine):
    """`batches` is the model: every stamped batch that the log holds, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.files, self.folder = self.make_files()
        self.batches: list[bytes] = []
        self.log_start = 0
        self.synced_end = 0
        self.wall_ms = T0
        self.leader_epoch = 0
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        # The high watermark that readers saw: markers below it are known to be committed.
        self.high_watermark = 0

    def make_files(self) -> tuple[Files, str]:
        disk = SimulatedDisk(page_bytes=64)
        disk.make_folder("/data/t-0")
        disk.sync_folder("/")
        disk.sync_folder("/data")
        return disk, "/data/t-0"

    @initialize()
    def open(self) -> None:
        self.log = Log(self.files, self.folder, CONFIG, wall_ms=self.wall_ms)

    # -- what changes the log --------------------------------------------------------------------------------

    @rule(
        offsets=st.lists(times, min_size=1, max_size=5),
        value=st.sampled_from([b"", b"v" * 10, b"w" * 200]),
        producer_id=st.sampled_from([-1, -1, 0, 1]),
        codec=st.sampled_from([0, 0, 4]),
    )
    def append(self, offsets: list[int], value: bytes, producer_id: int, codec: int) -> None:
        producer = None
        if producer_id >= 0:
            producer = (producer_id, 0, self.sequences.get(producer_id, 0))
        timestamps = [T0 + offset for offset in offsets]
        data = batch(len(offsets), value=value, timestamps=timestamps, producer=producer, codec=codec)
        if producer is not None:
            assert self.log.producers.duplicate_of(header_at(data)) is None
            self.sequences[producer_id] = producer[2] + len(offsets)
        base_offset = append(self.log, data, leader_epoch=self.leader_epoch, wall_ms=self.wall_ms)
        assert base_offset == self.end
        self.batches.append(bytes(data))

    @rule(count=st.integers(1, 3), producer_id=st.sampled_from([2, 3, 4]), seconds=st.integers(0, 15))
    def write_in_transaction(self, count: int, producer_id: int, seconds: int) -> None:
        epoch, sequence = self.epochs.get(producer_id, 0), self.sequences.get(producer_id, 0)
        timestamps = [T0 + seconds * 1000] * count
        producer = (producer_id, epoch, sequence)
        data = batch(count, timestamps=timestamps, producer=producer, attributes=TRANSACTIONAL)
        assert self.log.producers.duplicate_of(header_at(data)) is None
        append(self.log, data, leader_epoch=self.leader_epoch, wall_ms=self.wall_ms)
        self.batches.append(bytes(data))
        self.sequences[producer_id] = sequence + count
        self.epochs[producer_id] = epoch

    @rule(producer_id=st.sampled_from([2, 3, 4]), is_commit=st.booleans(), is_bumped=st.booleans())
    def end_transaction(self, producer_id: int, is_commit: bool, is_bumped: bool) -> None:
        epoch = self.epochs.get(producer_id, 0) + is_bumped
        end = TransactionEnd(producer_id, epoch, 0, is_commit)
        marker = bytearray(build_marker(end, self.wall_ms))
        stamp(memoryview(marker), 0, self.end, self.leader_epoch)
        self.log.append_marker(end, self.leader_epoch, self.wall_ms)
        self.batches.append(bytes(marker))
        if is_bumped:
            self.sequences[producer_id] = 0
        self.epochs[producer_id] = epoch

    @rule(where=st.floats(0, 1))
    def commit(self, where: float) -> None:
        """Advance the high watermark to the synced end."""
        self.sync()
        rise = int((self.end - self.high_watermark) * where)
        self.high_watermark = max(self.high_watermark, self.log_start, self.high_watermark + rise)
        self.log.last_stable_offset(self.high_watermark)

    @rule()
    def new_leader(self) -> None:
        self.leader_epoch += 1

    @precondition(lambda self: self.log.active.size)
    @rule()
    def roll(self) -> None:
        self.log.roll(self.wall_ms)

    @rule()
    def sync(self) -> None:
        work = self.log.sync_work()
        work.run()
        self.log.synced(work.end_offset, self.wall_ms)
        self.synced_end = self.end

    @rule(where=st.floats(0, 1))
    def move_start(self, where: float) -> None:
        offset = self.log_start + int((self.end - self.log_start) * where)
        self._remove(self.log.move_start(offset))
        self.log_start = offset

    @rule(retention_bytes=st.sampled_from([0, 500, 1500]))
    def retain_by_size(self, retention_bytes: int) -> None:
        self.log.config = TopicConfig(retention_bytes=retention_bytes, retention_ms=-1)
        sizes = [segment.size for segment in self.log.segments]
        self.high_watermark = self.end
        self._remove(self.log.apply_retention(self.wall_ms, self.high_watermark))
        self.log.config = CONFIG
        excess, expected = sum(sizes) - retention_bytes, 0
        for size in sizes:
            if not size or excess < size:
                break
            excess, expected = excess - size, expected + 1
        self._check_kept(sizes, expected)

    @rule(age_ms=st.sampled_from([0, 5_000, 15_000, 30_000]))
    def retain_by_time(self, age_ms: int) -> None:
        self.log.config = TopicConfig(retention_ms=0)
        sizes, expected = [segment.size for segment in self.log.segments], 0
        for segment in self.log.segments:
            newest = [r.timestamp for _, h, raw in segment.batches() for r in iterate_records(raw, h)]
            if not newest or T0 + age_ms <= max(newest):
                break
            expected += 1
        self.high_watermark = self.end
        self._remove(self.log.apply_retention(T0 + age_ms, self.high_watermark))
        self.log.config = CONFIG
        self._check_kept(sizes, expected)

    def _check_kept(self, sizes: list[int], expected_deleted: int) -> None:
        kept = [segment.size for segment in self.log.segments]
        assert kept == (sizes[expected_deleted:] or [0])
        if expected_deleted:
            self.log_start = max(self.log_start, self.log.segments[0].base_offset)

    @rule(where=st.floats(0, 1))
    def truncate(self, where: float) -> None:
        end_offset = self.log_start + int((self.end - self.log_start) * where)
        self.log.truncate_to(end_offset)
        first = self.log.segments[0].base_offset
        held = [b for b in self.batches if header_at(b).base_offset >= first]
        kept = [b for b in held if header_at(b).next_offset <= end_offset]
        self.batches = [b for b in self.batches if header_at(b).base_offset < first] + kept
        self.log_start = min(self.log_start, header_at(kept[-1]).next_offset if kept else first)
        self.synced_end = min(self.synced_end, self.end)
        self.high_watermark = min(self.high_watermark, self.end)
        self._recount_sequences()

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.synced_end = self.end
        self._reopen(is_clean=True)

    @rule(seed=st.integers(0, 1 << 16), is_power_failure=st.booleans())
    def crash(self, seed: int, is_power_failure: bool) -> None:
        assert isinstance(self.files, SimulatedDisk)
        self.files = self.files.crash(Random(seed)) if is_power_failure else self.files.kill()
        # Older checkpoints are as right as the last one.
        recovery_point = Random(seed).randint(0, self.log.recovery_point)
        end_before = self.end
        self._reopen(is_clean=False, recovery_point=recovery_point)
        assert self.synced_end <= self.log.log_end_offset <= end_before
        if not is_power_failure:
            assert self.log.log_end_offset == end_before
        self.batches = [b for b in self.batches if header_at(b).next_offset <= self.log.log_end_offset]
        self._recount_sequences()

    def _reopen(self, *, is_clean: bool, recovery_point: int | None = None) -> None:
        self.log = Log(
            self.files,
            self.folder,
            CONFIG,
            wall_ms=self.wall_ms,
            is_clean=is_clean,
            recovery_point=self.log.recovery_point if recovery_point is None else recovery_point,
            log_start_offset=self.log_start,
        )

    def _recount_sequences(self) -> None:
        """A producer continues with the state that the log still has of it."""
        self.sequences = {s.producer_id: s.last_sequence + 1 for s in self.log.producers.states()}
        self.epochs = {s.producer_id: s.epoch for s in self.log.producers.states()}

    # -- what reads it ---------------------------------------------------------------------------------------

    @rule(
        where=st.floats(0, 1),
        max_bytes=st.sampled_from([0, 1, 100, 300, 1000, 100_000]),
        limit=st.floats(0, 1),
        at_least_one=st.booleans(),
    )
    def read(self, where: float, max_bytes: int, limit: float, at_least_one: bool) -> None:
        """Failure 20: the first batch holds the offset, also when it lies in the middle of one."""
        offset = self.log_start + int((self.end - self.log_start) * where)
        end_offset = self.log_start + int((self.end - self.log_start) * limit)
        found = self.log.read(offset, max_bytes, end_offset, at_least_one=at_least_one)
        visible = [
            b
            for b in self.batches
            if header_at(b).next_offset > offset and header_at(b).next_offset <= end_offset
        ]
        if offset >= end_offset or not visible:
            assert found is None
            return
        fits = len(visible[0]) <= max_bytes
        if not fits and not at_least_one:
            assert found is None
            return
        assert found is not None
        served = found.read()
        parsed: list[ParsedBatch] = parse_segment(served)
        assert [b.raw for b in parsed] == visible[: len(parsed)]
        assert parsed[0].base_offset <= offset <= parsed[0].last_offset
        assert len(served) <= max_bytes or len(parsed) == 1

    @rule()
    def read_outside(self) -> None:
        for offset in (self.log_start - 1, self.end + 1):
            try:
                self.log.read(offset, 1000, self.end)
            except OffsetOutOfRange:
                continue
            raise AssertionError(f"{offset} was served")

    @rule(timestamp=times)
    def search_by_time(self, timestamp: int) -> None:
        wanted = [(r.timestamp, r.offset) for r in self._visible() if r.timestamp >= T0 + timestamp]
        found = run_steps(search_time(self.log, T0 + timestamp))
        assert (found and (found.timestamp, found.offset)) == (wanted[0] if wanted else None)

    @rule()
    def find_newest(self) -> None:
        visible = [(r.timestamp, -r.offset) for r in self._visible()]
        found = self.log.newest()
        assert (found and (found.timestamp, -found.offset)) == (max(visible) if visible else None)

    # -- what always holds -----------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """After all records were deleted the model has no batches."""
        newest = header_at(self.batches[-1]).next_offset if self.batches else 0
        return max(newest, self.log_start)

    def _visible(self) -> list[Record]:
        records: list[Record] = []
        for raw in self.batches:
            if header_at(raw).next_offset > self.log_start:
                records += [r for r in iterate_records(memoryview(raw)) if r.offset >= self.log_start]
        return records

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            self.files.remove(path)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        self.log.check_invariants()
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.log_start, self.end)
        first = self.log.segments[0].base_offset
        held = [bytes(raw) for segment in self.log.segments for _, _, raw in segment.batches()]
        assert held == [b for b in self.batches if header_at(b).base_offset >= first]
        epochs: list[tuple[int, int]] = []
        for raw in self.batches:
            header = header_at(raw)
            if not epochs or header.leader_epoch > epochs[-1][0]:
                epochs.append((header.leader_epoch, header.base_offset))
        for offset in (self.log_start, (self.log_start + self.end) // 2, self.end - 1):
            if self.log_start <= offset < self.end:
                assert self.log.epochs.epoch_of(offset) == [e for e, start in epochs if start <= offset][-1]

    @invariant()
    def knows_its_transactions(self) -> None:
        """The state is exact until deletions remove batches. A replayed log may then know only the remaining ones."""
        if not hasattr(self, "log"):
            return
        hw = max(self.high_watermark, self.log_start)
        first = self.log.segments[0].base_offset
        found = [tuple(entry) for entry in self.log.aborted_between(first, self.end)]
        told = transaction_model.parsed(self.batches)
        left = transaction_model.parsed(b for b in self.batches if header_at(b).base_offset >= first)
        if first == 0:
            assert found == transaction_model.aborted(told)
            assert self.log.last_stable_offset(hw) == transaction_model.stable_offset(
                told, hw, self.log_start
            )
            return
        assert {entry[2] for entry in found} <= {entry[2] for entry in transaction_model.aborted(told)}
        listed = {entry[2]: entry[1] for entry in found}
        for _, first_offset, marker_offset, _ in transaction_model.aborted(left):
            assert listed[marker_offset] <= first_offset
        stable = self.log.last_stable_offset(hw)
        assert stable <= transaction_model.stable_offset(left, hw, self.log_start)
        assert stable >= transaction_model.stable_offset(told, hw, self.log_start)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.release()


class RealDiskMachine(LogMachine):
    """The same test on the real file system, without power failures."""

    def make_files(self) -> tuple[Files, str]:
        self._temporary = tempfile.TemporaryDirectory()
        return DiskFiles(), f"{self._temporary.name}/t-0"

    @rule()
    def crash(self) -> None:
        """The process dies: the files stay as they are."""
        self.log.release()
        end_before = self.end
        self._reopen(is_clean=False)
        assert self.log.log_end_offset == end_before
        self._recount_sequences()

    def teardown(self) -> None:
        super().teardown()
        self._temporary.cleanup()


_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
LogMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=_SLOW
)
RealDiskMachine.TestCase.settings = settings(
    max_examples=8, stateful_step_count=30, deadline=None, suppress_health_check=_SLOW
)
TestLogOnSimulatedDisk = LogMachine.TestCase
TestLogOnRealDisk = RealDiskMachine.TestCase
