"""The filtered read against a dumb filter over the same log: codecs, transactions, limits, indexes, logs that change."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.poisoned import POISONED
from tests.unit.log import compacted
from tests.unit.log.batches import T0, append, small_segments
from tests.unit.log.indexed import check_indexes, index_in_parts, index_sealed_segments
from tidemill.broker.partitions.delayed_operations import DelayedOperations
from tidemill.broker.partitions.reader import PartitionReader
from tidemill.errors import StorageError
from tidemill.filters.language import parse
from tidemill.log.files import FileSlice
from tidemill.log.filtered_read import Filtered, FilteredRead, KnownRun, Skipping
from tidemill.log.log import Log
from tidemill.log.segments import tag_index
from tidemill.log.segments.dictionaries import Probe
from tidemill.log.segments.tag_index_files import TagIndexes
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.api.data import FetchPartition
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.record_walk import RawRecord, walk
from tidemill.protocol.records import (
    TRANSACTIONAL,
    BatchHeader,
    Record,
    build_batch,
    iterate_records,
    split_batches,
)
from tidemill.protocol.steps import Steps, run_steps
from tidemill.sim.platform.disk import SimulatedDisk
from tidemill.types import TopicPartition

SEEDS = range(60)
ALL = 1 << 40
PROBE = Probe(parse("key in ('y0', 'y1', 'y2', 'y3', 'y4', 'y5', 'y6')"))


def keeps(key: bytes | None) -> bool:
    return key is not None and key.startswith(b"y")


def select(body: bytes, header: BatchHeader) -> Steps[list[RawRecord]]:
    yield None
    return [record for record in walk(body, header) if keeps(record[4])]


def new_log(disk: SimulatedDisk | None = None) -> Log:
    disk = disk or SimulatedDisk()
    disk.make_folder("/d")
    return Log(disk, "/d", small_segments(segment_bytes=2000), wall_ms=T0)


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some runs for each of the small segments."""
    monkeypatch.setattr(tag_index, "RUN_BYTES", 500)


def fill(log: Log, random: Random, count: int = 30) -> None:
    """Batches of all kinds, of which few, some or all records are kept; some in transactions."""
    sequences: dict[int, int] = {}
    epoch = 0
    for _ in range(count):
        epoch += random.random() < 0.2
        share = random.choice((0.0, 0.0, 0.0, 0.3, 1.0))
        records = [
            Record(
                number,
                T0 + random.randrange(1000),
                random.choice((None, b"n")) if random.random() >= share else b"y%d" % number,
                random.choice((None, b"", b"v" * random.randrange(40))),
            )
            for number in range(random.randrange(1, 8))
        ]
        kind = random.random()
        fields: dict[str, int] = {}
        if kind < 0.5:
            producer = random.randrange(1, 4)
            sequence = sequences.get(producer, 0)
            sequences[producer] = sequence + len(records)
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            if kind < 0.3:
                fields["attributes"] = TRANSACTIONAL
        batch = build_batch(records, codec=random.choice(list(CompressionType)), **fields)
        append(log, batch, leader_epoch=epoch)
        if fields.get("attributes") and random.random() < 0.5:
            end = TransactionEnd(fields["producer_id"], 0, 1, random.random() < 0.5, 0)
            log.append_marker(end, epoch, T0)


def reading(log: Log, offset: int, max_bytes: int = ALL, skipping: Skipping | None = None) -> FilteredRead:
    return FilteredRead(log, offset, select, max_bytes, pytest.fail, skipping)


def joined(found: Filtered | None) -> bytes:
    if found is None:
        return b""
    data = b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in found.parts)
    assert len(data) == found.length
    return data


def headers_of(data: bytes) -> list[BatchHeader]:
    return split_batches(memoryview(data))


def shown(data: bytes, offset: int = 0) -> list[Record]:
    found, position = [], 0
    for header in headers_of(data):
        if not header.is_control:
            batch = memoryview(data)[position : position + header.size]
            found += [record for record in iterate_records(batch, header) if record.offset >= offset]
        position += header.size
    return found


def everything(log: Log) -> bytes:
    return b"".join(bytes(batch) for segment in log.segments for _, _, batch in segment.batches())


def index_some(disk: SimulatedDisk, log: Log, random: Random) -> None:
    """Segments with an index, with indexes of parts of them, and without."""
    for segment in log.segments:
        if random.random() < 0.7:
            index_in_parts(disk, segment, random)
    if random.random() < 0.5:
        index_sealed_segments(disk, log)


@pytest.mark.parametrize("is_indexed", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_shows_what_a_dumb_filter_shows(seed: int, is_indexed: bool, short_runs: None) -> None:
    random = Random(seed)
    disk = SimulatedDisk()
    log = new_log(disk)
    fill(log, random)
    skipping = None
    if is_indexed:
        index_some(disk, log, random)
        skipping = Skipping(PROBE, TagIndexes(disk, random.choice((0, ALL))))
    offset = random.randrange(log.log_end_offset)
    expected = [record for record in shown(everything(log)) if keeps(record.key) and record.offset >= offset]
    found: list[Record] = []
    headers: list[BatchHeader] = []
    position = offset
    # As a consumer does it: from response to response.
    while position < log.log_end_offset:
        read = reading(log, position, random.choice((1, 300, ALL)), skipping)
        for _ in range(random.randrange(1, 5)):
            run_steps(read.advance(log.log_end_offset, random.choice((1, 500, ALL))))
        data = joined(read.result())
        found += shown(data, position)
        headers += headers_of(data)
        assert headers[-1].next_offset == read.next_offset > position
        position = read.next_offset
    assert found == expected
    assert [header.base_offset for header in headers] == sorted(header.base_offset for header in headers)
    assert [header.leader_epoch for header in headers] == sorted(header.leader_epoch for header in headers)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_read_with_indexes_returns_the_same_bytes_as_one_without(seed: int, short_runs: None) -> None:
    random = Random(seed)
    disk = SimulatedDisk()
    log = new_log(disk)
    fill(log, random, 60)
    ends = [header.base_offset for header in headers_of(everything(log))] + [log.log_end_offset]
    offset, end_offset = sorted(random.sample(range(len(ends)), 2))
    max_bytes = random.choice((300, 2000, ALL))

    def found(skipping: Skipping | None) -> tuple[bytes, int]:
        read = reading(log, ends[offset], max_bytes, skipping)
        run_steps(read.advance(ends[end_offset], ALL))
        return joined(read.result()), read.next_offset

    expected = found(None)
    index_some(disk, log, random)
    assert found(Skipping(PROBE, TagIndexes(disk))) == expected


@pytest.mark.parametrize("policy", [("compact",), ("compact", "delete")])
@pytest.mark.parametrize("seed", range(20))
def test_indexes_of_a_compacted_log_with_gaps_show_what_a_dumb_filter_shows(
    seed: int, policy: tuple[str, ...], short_runs: None
) -> None:
    """Compaction leaves gaps, bare headers and batches with fewer records; retention takes the front."""
    random = Random(seed)
    disk = SimulatedDisk()
    log = compacted.open_log(disk, compacted.topic_config(cleanup_policy=policy, segment_bytes=1000))
    skipping = Skipping(PROBE, TagIndexes(disk))
    for _ in range(3):
        for _ in range(40):
            keys = [random.choice((b"y0", b"y1", b"n0", b"n1", b"n2")) for _ in range(random.randrange(1, 5))]
            compacted.put(log, *((key, b"v" * random.randrange(30)) for key in keys))
        compacted.seal(log)
        index_sealed_segments(disk, log)
        compacted.compact(disk, log)
        index_sealed_segments(disk, log)
        if "delete" in policy:
            for path in log.move_start(log.segments[len(log.segments) // 2].base_offset):
                disk.remove(path)
        check_indexes(disk, log)
        expected = [record for record in shown(everything(log)) if keeps(record.key)]
        found: list[Record] = []
        position = log.log_start_offset
        while position < log.log_end_offset:
            read = reading(log, position, random.choice((1, 300, ALL)), skipping)
            run_steps(read.advance(log.log_end_offset, random.choice((1, 500, ALL))))
            found += shown(joined(read.result()), position)
            assert read.next_offset > position
            position = read.next_offset
        assert found == [record for record in expected if record.offset >= log.log_start_offset]


def test_an_aborted_transaction_inside_the_filtered_range_is_listed() -> None:
    log = new_log()
    fields = {"producer_id": 7, "producer_epoch": 0, "attributes": TRANSACTIONAL}
    append(log, build_batch([Record(0, T0, b"n", b"v")]))
    append(log, build_batch([Record(0, T0, b"y", b"aborted")], base_sequence=0, **fields))
    append(log, build_batch([Record(0, T0, b"n", b"v")]))
    log.append_marker(TransactionEnd(7, 0, 1, False, 0), 0, T0)
    append(log, build_batch([Record(0, T0, b"y", b"after")]))
    read = reading(log, 0)
    run_steps(read.advance(log.log_end_offset, ALL))
    reader = PartitionReader(TopicPartition("t", 0), log, log.log_end_offset, DelayedOperations())
    wanted = FetchPartition(partition=0, fetch_offset=0)
    fetched, records = reader.fetch_filtered(wanted, read, reads_committed=True)
    assert fetched.aborted == [(7, 1)]
    headers = headers_of(joined(records))
    assert [(each.base_offset, each.is_control) for each in headers] == [(1, False), (3, True), (4, False)]


def test_excluded_runs_are_not_read_and_count_for_little(short_runs: None) -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    for number in range(100):
        append(log, build_batch([Record(0, T0, b"y0" if number == 60 else b"n", b"v" * 100)]))
    index_sealed_segments(disk, log)
    read = reading(log, 0, skipping=Skipping(PROBE, TagIndexes(disk)))
    scanned_bytes = run_steps(read.advance(log.segments[-1].base_offset, ALL))
    assert [record.offset for record in shown(joined(read.result()))] == [60]
    assert read.next_offset == log.segments[-1].base_offset
    assert 0 < scanned_bytes < 500 + log.size // 200


def test_an_index_that_comes_and_goes_between_two_steps_changes_nothing(short_runs: None) -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    for _ in range(60):
        append(log, build_batch([Record(0, T0, b"n", b"v" * 100)]))
    index_sealed_segments(disk, log)
    read = reading(log, 0, skipping=Skipping(PROBE, TagIndexes(disk)))
    steps = read.advance(log.log_end_offset, ALL)
    next(steps)
    log.truncate_to(1)
    append(log, build_batch([Record(0, T0, b"y0", b"new")]), leader_epoch=1)
    assert all(work is None for work in steps)
    run_steps(read.advance(log.log_end_offset, ALL))
    assert [record.offset for record in shown(joined(read.result()))] == [1]


@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_damaged_header_is_an_error_and_not_the_end_of_the_segment(
    is_indexed: bool, short_runs: None
) -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    for _ in range(60):
        append(log, build_batch([Record(0, T0, b"y0", b"v" * 100)]))
    index_sealed_segments(disk, log)
    positions = [at for at, _, _ in log.segments[1].batches()]
    disk.flip_bit(log.segments[1].path_of("log"), positions[2] + 16)  # the magic byte
    read = reading(log, 0, skipping=Skipping(PROBE, TagIndexes(disk)) if is_indexed else None)
    with pytest.raises(StorageError, match=f"no batch at position {positions[2]}"):
        run_steps(read.advance(log.log_end_offset, ALL))


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_keep_what_identifies_them(seed: int) -> None:
    log = new_log()
    fill(log, Random(seed))
    originals = {header.base_offset: header for header in headers_of(everything(log))}
    read = reading(log, 0)
    run_steps(read.advance(log.log_end_offset, ALL))
    headers = headers_of(joined(read.result()))
    for header in headers:
        if not header.record_count:
            assert header is headers[-1], "only the last batch may be empty"
            continue
        original = originals[header.base_offset]
        same = (
            "leader_epoch",
            "last_offset_delta",
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "is_transactional",
            "is_control",
            "is_log_append_time",
        )
        assert all(getattr(header, name) == getattr(original, name) for name in same)
        assert header.codec in (original.codec, CompressionType.NONE)
        assert header.size <= original.size
    controls = [each for each in originals.values() if each.is_control]
    assert [each for each in headers if each.is_control] == controls


def test_a_batch_that_loses_nothing_is_a_slice_of_the_file() -> None:
    log = new_log()
    for _ in range(3):
        append(log, build_batch([Record(0, T0, b"y", b"v"), Record(1, T0, b"y", b"v")]))
    read = reading(log, 0)
    run_steps(read.advance(log.log_end_offset, ALL))
    found = read.result()
    assert found is not None
    assert [type(part) for part in found.parts] == [FileSlice], "neighbours are one slice"
    assert joined(found) == everything(log)


def test_a_run_of_nothing_is_one_empty_batch_that_reaches_to_its_end() -> None:
    log = new_log()
    for _ in range(100):
        append(log, build_batch([Record(number, T0, b"n", b"v") for number in range(10)]), leader_epoch=3)
    read = reading(log, 7)
    run_steps(read.advance(log.log_end_offset, ALL))
    (header,) = headers_of(joined(read.result()))
    assert (header.base_offset, header.last_offset, header.record_count) == (7, 999, 0)
    assert (header.leader_epoch, header.producer_id) == (3, -1)


@pytest.mark.parametrize("seed", SEEDS)
def test_known_runs_do_not_change_the_result(seed: int) -> None:
    """Little, much or nothing may be known of where records are left out."""
    random = Random(seed)
    log = new_log()
    fill(log, random)
    hidden = [record.offset for record in shown(everything(log)) if not keeps(record.key)]
    known_end = random.choice((0, log.log_end_offset // 2, log.log_end_offset))

    def known_run(offset: int) -> KnownRun:
        end = offset
        while end in hidden and end < known_end:
            end += 1
        if end > offset:
            return KnownRun(end, is_left_out=True)
        first = next((each for each in hidden if each >= offset), log.log_end_offset)
        return KnownRun(max(offset, min(first, known_end)), is_left_out=False)

    offset = random.randrange(log.log_end_offset)
    expected = [record for record in shown(everything(log)) if keeps(record.key) and record.offset >= offset]
    found: list[Record] = []
    position = offset
    while position < log.log_end_offset:
        max_bytes = random.choice((1, 300, 1000, ALL))
        read = FilteredRead(log, position, select, max_bytes, pytest.fail, None, known_run)
        for _ in range(random.randrange(1, 5)):
            run_steps(read.advance(log.log_end_offset, random.choice((1, 500, ALL))))
        data = joined(read.result())
        headers = headers_of(data)
        sizes = [header.size for header in headers if header.record_count]
        assert sum(sizes) <= max_bytes or len(sizes) == 1
        found += shown(data, position)
        assert headers[-1].next_offset == read.next_offset > position
        position = read.next_offset
    assert found == expected


def test_batches_of_which_all_or_nothing_is_left_out_are_not_read() -> None:
    log = new_log()
    for number in range(60):
        append(log, build_batch([Record(0, T0, b"n" if 30 <= number < 50 else b"y", b"v" * 100)]))

    def nothing_is_read(body: bytes, header: BatchHeader) -> Steps[list[RawRecord]]:
        raise AssertionError(header)

    def known_run(offset: int) -> KnownRun:
        return KnownRun(next(end for end in (30, 50, 60) if end > offset), is_left_out=30 <= offset < 50)

    read = FilteredRead(log, 0, nothing_is_read, ALL, pytest.fail, None, known_run)
    run_steps(read.advance(60, ALL))
    found = read.result()
    assert found is not None
    assert all(isinstance(part, FileSlice) for part in found.parts)
    assert [record.offset for record in shown(joined(found))] == [*range(30), *range(50, 60)]


def test_the_end_offset_is_respected() -> None:
    log = new_log()
    for _ in range(10):
        append(log, build_batch([Record(0, T0, b"y", b"v"), Record(1, T0, b"n", b"v")]))
    read = reading(log, 0)
    run_steps(read.advance(6, ALL))
    assert [record.offset for record in shown(joined(read.result()))] == [0, 2, 4]
    run_steps(read.advance(10, ALL))
    assert [record.offset for record in shown(joined(read.result()))] == [0, 2, 4, 6, 8]


def test_the_first_batch_may_be_larger_than_the_limit_and_no_other() -> None:
    log = new_log()
    for _ in range(4):
        append(log, build_batch([Record(0, T0, b"y", b"v" * 300)]))
    size = len(everything(log)) // 4
    for max_bytes, count in ((1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2)):
        read = reading(log, 0, max_bytes)
        run_steps(read.advance(log.log_end_offset, ALL))
        assert len(shown(joined(read.result()))) == count == read.next_offset
        assert not read.has_more(log.log_end_offset)


@pytest.mark.parametrize("name", POISONED)
def test_records_that_do_not_decode_are_not_shown(name: str) -> None:
    log = new_log()
    append(log, build_batch([Record(0, T0, b"y", b"before")]))
    append(log, bytearray(POISONED[name]))
    append(log, build_batch([Record(0, T0, b"y", b"after")]))
    complaints: list[str] = []
    read = FilteredRead(log, 0, select, ALL, complaints.append)
    run_steps(read.advance(log.log_end_offset, ALL))
    assert [record.value for record in shown(joined(read.result()))] == [b"before", b"after"]
    assert len(complaints) == 1


def _truncate(log: Log) -> None:
    log.truncate_to(23)


def _delete_front(log: Log) -> None:
    log.move_start(15)


@pytest.mark.parametrize("change", [_truncate, _delete_front])
def test_a_log_that_changed_is_read_again(change: Callable[[Log], object]) -> None:
    log = new_log()
    for _ in range(30):
        append(log, build_batch([Record(0, T0, b"y", b"v" * 100)]))
    read = reading(log, 20)
    run_steps(read.advance(25, ALL))
    assert read.is_of(log)
    change(log)
    assert not read.is_of(log)
    run_steps(read.advance(log.log_end_offset, ALL))
    assert read.is_of(log)
    assert [record.offset for record in shown(joined(read.result()))] == list(range(20, log.log_end_offset))


def test_a_log_that_changes_between_two_steps_is_read_again() -> None:
    log = new_log()
    for _ in range(30):
        append(log, build_batch([Record(0, T0, b"y", b"old" * 30)]))
    read = reading(log, 0)
    steps = read.advance(log.log_end_offset, ALL)
    next(steps)
    next(steps)
    log.truncate_to(1)
    for _ in range(3):
        append(log, build_batch([Record(0, T0, b"y", b"new")]), leader_epoch=1)
    for _ in steps:
        pass
    run_steps(read.advance(log.log_end_offset, ALL))
    assert [record.value for record in shown(joined(read.result()))][1:] == [b"new"] * 3


def test_failure_21_a_log_that_is_released_between_two_steps_leaves_the_files_of_its_successor_alone() -> (
    None
):
    disk = SimulatedDisk()
    log = new_log(disk)
    for _ in range(30):
        append(log, build_batch([Record(0, T0, b"y", b"old" * 30)]))
    read = reading(log, 0)
    steps = read.advance(log.log_end_offset, ALL)
    next(steps)
    next(steps)
    log.release()
    disk.rename("/d", "/d-deleted")
    new_log(disk)
    before = disk.contents()
    for _ in steps:
        pass
    run_steps(read.advance(log.log_end_offset, ALL))
    assert disk.contents() == before
