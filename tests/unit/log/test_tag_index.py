"""The tag index of a segment: which records it finds, what it never skips, and when it is not trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from random import Random

import pytest

from tests.poisoned import POISONED
from tidemill.errors import StorageError
from tidemill.filters.language import parse
from tidemill.log.segments import tag_index
from tidemill.log.segments.dictionaries import DICTIONARY_BYTES_MAX, ENTRIES_MAX, NAMES_MAX, Probe
from tidemill.log.segments.segment import read_batches
from tidemill.log.segments.tag_index import RECORDS_A_RUN_MAX, RUN_BYTES, Piece, TagIndex, build
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.record_walk import records_of, walk
from tidemill.protocol.records import (
    CONTROL,
    HEADER_SIZE,
    TRANSACTIONAL,
    Header,
    Record,
    build_batch,
    header_at,
    iterate_records,
    restamp,
    stamp,
)
from tidemill.protocol.steps import NotAtOnce, run_first_step, run_steps
from tidemill.sim.platform.disk import SimulatedDisk

# Two such batches do not fit a run, even when they are compressed.
LARGE = RUN_BYTES // 2 + 100
INCOMPRESSIBLE = Random(1).randbytes(4 * RUN_BYTES)


def _batch(
    *headers: tuple[str, bytes | None], key: bytes | None = None, size: int = LARGE, codec: int = 0
) -> bytearray:
    record = Record(0, 1_000, key, INCOMPRESSIBLE[:size], [Header(*each) for each in headers])
    return build_batch([record], codec=codec)


def _marker() -> bytearray:
    return build_batch([Record(0, 1_000, b"\0\0\0\1", b"\0\0\0\0\0\0")], attributes=CONTROL | TRANSACTIONAL)


def _segment(batches: Sequence[bytes | bytearray], base_offset: int = 100) -> tuple[bytes, list[int]]:
    """The bytes of a segment, and the positions of its batches."""
    data, positions = bytearray(), []
    for batch in batches:
        positions.append(len(data))
        stamped = bytearray(batch)
        stamp(memoryview(stamped), 0, base_offset, 0)
        base_offset = header_at(stamped).next_offset
        data += stamped
    return bytes(data), positions


def _built(data: bytes) -> bytes:
    disk = SimulatedDisk()
    disk.make_folder("d")
    file = disk.open("d/segment", create=True)
    file.write(data, 0)
    return build(read_batches(file, len(data)), len(data))


def _pieces(batches: Sequence[bytes | bytearray], text: str, position: int = 0) -> list[Piece]:
    data, _ = _segment(batches)
    index = TagIndex.open(_built(data), len(data))
    assert index is not None
    pieces, probe = [], Probe(parse(text))
    while (piece := run_steps(index.next_piece(probe, position))) is not None:
        pieces.append(piece)
        position = piece.end_position
    return pieces


def _read(batches: Sequence[bytes | bytearray], text: str) -> list[int]:
    """The numbers of the batches that a reader with the index reads."""
    _, positions = _segment(batches)
    read: set[int] = set()
    for piece in _pieces(batches, text):
        within = range(piece.position, piece.end_position)
        read |= {at for at in positions if at in within} if piece.found is None else set()
        read |= {each.position for each in piece.found or ()}
    return [number for number, at in enumerate(positions) if at in read]


def _found(batch: bytearray, text: str) -> list[Record] | None:
    """The records that the index finds in a batch. None when it does not know."""
    pieces = _pieces([batch], text)
    if not pieces:
        return []
    if pieces[0].found is None:
        return None
    (found,) = pieces[0].found
    header = header_at(batch)
    body = records_of(memoryview(batch), header)
    records = list(iterate_records(memoryview(batch), header))
    starts = {raw[:2]: number for number, raw in enumerate(walk(body, header))}
    assert found.records is not None
    assert (found.position, found.size, found.record_count) == (0, len(batch), len(records))
    return [records[starts[place]] for place in found.records]


# -- what is skipped -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("region = 'eu'", [0]),
        ("region in ('eu', 'us')", [0, 1]),
        ("region = 'e'", []),
        ("region exists", [0, 1]),
        ("zone exists", [3]),
        ("zone starts with 'a'", []),
        ("'test' in tags", [2]),
        ("'prod' in tags", [2, 3]),
        ("tags = 'prod'", [3]),
        ("key = 'k1'", [1]),
        ("key exists", [1, 3]),
        ("key starts with 'x'", []),
        ("key starts with 'k'", [1, 3]),
        ("region = 'eu' and 'test' in tags", []),
        ("region = 'eu' or 'test' in tags", [0, 2]),
        ("not (region != 'eu')", [0]),
        ("not (region != 'eu' or 'test' in tags)", [0]),
    ],
)
@pytest.mark.parametrize("codec", CompressionType)
def test_batches_without_a_match_are_skipped(text: str, numbers: list[int], codec: CompressionType) -> None:
    batches = [
        _batch(("region", b"eu"), codec=codec),
        _batch(("region", b"us"), key=b"k1", codec=codec),
        _batch(("tags", b"test, prod"), codec=codec),
        _batch(("zone", None), ("tags", b"prod"), key=b"k2", codec=codec),
    ]
    assert _read(batches, text) == numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("region != 'eu'", [1, 2]),
        ("region not exists", [2]),
        ("'test' not in tags", [1, 2]),
        ("key not exists", [1, 2]),
        ("not (region = 'eu' and 'test' in tags)", [1, 2]),
        ("region = 'nowhere' or region != 'us'", [0, 2]),
    ],
)
def test_negations_are_exact(text: str, numbers: list[int]) -> None:
    batches = [_batch(("region", b"eu"), ("tags", b"test"), key=b"k"), _batch(("region", b"us")), _batch()]
    assert _read(batches, text) == numbers


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("key = 'k3'", [b"3", b"13"]),
        ("n = '5'", [b"5", b"15"]),
        ("key = 'k3' and n = '3'", [b"3", b"13"]),
        ("key = 'k3' and n = '4'", []),
        ("key = 'k3' or n = '4'", [b"3", b"4", b"13", b"14"]),
        (
            "key starts with 'k' and n not in ('1', '2', '3', '4', '5', '6', '7', '8')",
            [b"0", b"9", b"10", b"19"],
        ),
    ],
)
def test_records_that_match_are_found_by_their_place(
    text: str, values: list[bytes], codec: CompressionType
) -> None:
    records = [
        Record(n, 1_000 + n, b"k%d" % (n % 10), b"%d" % n, [Header("n", b"%d" % (n % 10))]) for n in range(20)
    ]
    found = _found(build_batch(records, codec=codec), text)
    assert found is not None
    assert [record.value for record in found] == values


def test_records_larger_than_64_kib_are_found() -> None:
    records = [Record(n, 0, b"k%d" % n, INCOMPRESSIBLE[: 30_000 * n]) for n in range(4)]
    found = _found(build_batch(records), "key in ('k1', 'k3')")
    assert found is not None
    assert [record.key for record in found] == [b"k1", b"k3"]


def test_pair_of_another_header_is_no_term() -> None:
    """The length of the name is part of the term: `a` = `bc` is not `ab` = `c`."""
    assert _read([_batch(("a", b"bc"))], "ab = 'c'") == []
    assert _read([_batch(("a", b"bc"))], "key = 'bc'") == []


@pytest.fixture
def runs_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that never join their neighbours."""
    monkeypatch.setattr(tag_index, "RECORDS_A_JOINED_RUN_MAX", 0)


@pytest.mark.usefixtures("runs_apart")
def test_small_batches_share_a_run_and_large_ones_have_their_own() -> None:
    small = [_batch(("n", b"%d" % n), size=1_000) for n in range(100)]
    large = _batch(("n", b"large"), size=3 * RUN_BYTES)
    batches = [*small, large, *small]
    pieces = _pieces(batches, "n exists")
    assert [piece.position for piece in pieces[1:]] == [piece.end_position for piece in pieces[:-1]]
    assert [piece.base_offset for piece in pieces[1:]] == [piece.next_offset for piece in pieces[:-1]]
    assert (pieces[0].position, pieces[0].base_offset) == (0, 100)
    assert (pieces[-1].end_position, pieces[-1].next_offset) == (len(_segment(batches)[0]), 301)
    assert len(pieces) == 5
    assert sorted(piece.end_position - piece.position for piece in pieces[:2])[-1] <= RUN_BYTES
    (found,) = _pieces(batches, "n = 'large'")
    assert found.next_offset - found.base_offset == 1


def test_search_from_a_position_inside_a_run_cuts_the_run() -> None:
    batches = [_batch(("n", b"1"), size=1_000) for _ in range(3)]
    data, positions = _segment(batches)
    (piece,) = _pieces(batches, "n = '1'", positions[1])
    assert (piece.position, piece.end_position) == (positions[1], len(data))
    assert _pieces(batches, "n = '1'", len(data)) == []


@pytest.mark.usefixtures("runs_apart")
def test_offsets_that_compaction_removed_between_runs_belong_to_none() -> None:
    first, second = _batch(("n", b"1")), _batch(("n", b"2"))
    stamp(memoryview(first), 0, 100, 0)
    stamp(memoryview(second), 0, 5_000, 0)
    data = bytes(first + second)
    index = TagIndex.open(_built(data), len(data))
    assert index is not None
    piece = run_steps(index.next_piece(Probe(parse("n exists")), 0))
    assert piece is not None
    assert piece[:4] == (0, len(first), 100, 101)
    piece = run_steps(index.next_piece(Probe(parse("n exists")), len(first)))
    assert piece is not None
    assert piece[:4] == (len(first), len(data), 5_000, 5_001)


def test_batch_without_records_is_skipped() -> None:
    """Compaction leaves bare headers behind."""
    assert _read([build_batch([], last_offset_delta=5), _batch(("n", b"1"))], "m exists") == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("n = '1'", [1, 4]),
        ("n != '1'", [0, 2, 3, 5]),
        ("key = 'k'", [2]),
        ("key not exists and n != '0'", [1, 4, 5]),
        ("m exists", [5]),
        ("n = '0' or m = 'x'", [0, 3, 5]),
    ],
)
def test_neighbours_with_small_dictionaries_are_one_run_and_the_records_are_still_found(
    text: str, numbers: list[int]
) -> None:
    batches = [
        _batch(("n", b"0")),
        _batch(("n", b"1")),
        _batch(("n", b"2"), key=b"k"),
        _batch(("n", b"0")),
        _batch(("n", b"1")),
        _batch(("m", b"x")),
    ]
    (piece,) = _pieces(batches, text)
    assert (piece.base_offset, piece.next_offset) == (100, 106)
    assert _read(batches, text) == numbers


def test_joined_runs_have_a_limited_number_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_index, "RECORDS_A_JOINED_RUN_MAX", 2)
    pieces = _pieces([_batch(("n", b"%d" % number)) for number in range(5)], "n exists")
    assert [piece.next_offset - piece.base_offset for piece in pieces] == [2, 2, 1]


def test_runs_with_many_values_stay_apart() -> None:
    def batch(first: int) -> bytearray:
        records = [
            Record(number, 0, b"k%d" % (first + number), INCOMPRESSIBLE[: LARGE // 40])
            for number in range(40)
        ]
        return build_batch(records)

    assert len(_pieces([batch(0), batch(20), batch(20)], "key exists")) == 1
    assert len(_pieces([batch(0), batch(100), batch(100)], "key exists")) == 2


def test_each_run_is_decided_by_its_own_dictionaries() -> None:
    """Three runs that stay apart: each has other values than the one before it."""
    batches = [
        build_batch(
            [
                Record(
                    number,
                    0,
                    b"%d-%d" % (run, number),
                    INCOMPRESSIBLE[: LARGE // 40],
                    [Header("r", b"%d" % run)],
                )
                for number in range(40)
            ]
        )
        for run in range(3)
    ]
    assert len(_pieces(batches, "key exists")) == 3
    for run in range(3):
        assert _read(batches, f"key = '{run}-7'") == [run]
        assert _read(batches, f"r = '{run}'") == [run]
        assert _read(batches, f"r = '{run}' and key starts with '{run}-'") == [run]
    assert _read(batches, "r != '1'") == [0, 2]


def test_run_with_a_field_that_is_not_listed_does_not_make_its_neighbours_unknown() -> None:
    large = bytes(DICTIONARY_BYTES_MAX + 1)
    batches = [_batch(("a", b"1")), _batch(("a", large), ("b", b"1")), _batch(("a", b"1"), key=large)]
    assert _read(batches, "a = '2'") == [1]
    assert _read(batches, "key = 'k'") == [2]
    assert _read(batches, "b = '2'") == []


@pytest.mark.usefixtures("runs_apart")
def test_long_search_takes_steps() -> None:
    batches = [_batch(("n", b"1")) for _ in range(400)]
    data, _ = _segment(batches)
    index = TagIndex.open(_built(data), len(data))
    assert index is not None
    with pytest.raises(NotAtOnce):
        run_first_step(index.next_piece(Probe(parse("n = '2'")), 0))
    assert run_steps(index.next_piece(Probe(parse("n = '2'")), 0)) is None


@pytest.mark.parametrize("key_too", ["", " and key exists"])
def test_filter_of_many_terms_takes_more_steps(key_too: str) -> None:
    batch = build_batch([Record(n, 0, b"k", None, [Header("n", b"%d" % n)]) for n in range(200)])
    data, _ = _segment([batch])
    index = TagIndex.open(_built(data), len(data))
    assert index is not None
    few = Probe(parse("(n starts with 'a' or n starts with 'b')" + key_too))
    assert run_first_step(index.next_piece(few, 0)) is None
    terms = " or ".join(f"n starts with 'a{number}'" for number in range(250))
    with pytest.raises(NotAtOnce):
        run_first_step(index.next_piece(Probe(parse(f"({terms}){key_too}")), 0))


def test_empty_segment_has_an_empty_index() -> None:
    index = TagIndex.open(_built(b""), 0)
    assert index is not None
    assert run_first_step(index.next_piece(Probe(parse("key not exists")), 0)) is None


# -- what is never skipped -------------------------------------------------------------------------------------


def test_control_batches_are_read_although_their_run_is_skipped() -> None:
    small = _batch(("n", b"1"), size=100)
    batches = [small, _marker(), small, _marker(), _batch(("n", b"2")), _marker(), _batch(("n", b"1"))]
    assert _read(batches, "n = '3'") == [1, 3, 5]
    pieces = _pieces(batches, "n = '3'")
    assert [(piece.base_offset, piece.next_offset) for piece in pieces] == [
        (101, 102),
        (103, 104),
        (105, 106),
    ]
    _, positions = _segment(batches)
    assert [piece.position for piece in pieces] == [positions[n] for n in (1, 3, 5)]


def test_keys_of_control_batches_are_no_terms() -> None:
    batches = [_batch(("n", b"1")), _marker()]
    assert _read(batches, "key exists") == [1]


@pytest.mark.parametrize("name", POISONED)
def test_run_with_records_that_do_not_decode_is_read(name: str) -> None:
    batches = [_batch(("n", b"1")), bytearray(POISONED[name]), _batch(("n", b"1"))]
    assert 1 in _read(batches, "n = 'none'")


def test_run_with_headers_that_do_not_decode_is_read() -> None:
    """The last six bytes are the length of the name, the name, the length of the value and the value."""
    good = build_batch([Record(0, 0, None, None, [Header("abc", b"x")])])
    for from_end, is_read in ((6, True), (5, False), (4, False), (3, False), (2, True), (1, False)):
        wrong = bytearray(good)
        wrong[-from_end] = 0x7E
        restamp(memoryview(wrong), header_at(wrong))
        assert _read([wrong], "other exists") == ([0] if is_read else []), from_end


def test_run_with_a_wrong_checksum_is_read() -> None:
    batch = _batch(("n", b"1"))
    batch[-1] ^= 1
    assert _read([batch], "n = '2'") == [0]


def test_run_whose_header_lost_its_record_count_is_read() -> None:
    batch = _batch(("n", b"1"))
    batch[HEADER_SIZE - 4 : HEADER_SIZE] = bytes(4)
    assert header_at(batch).record_count == 0
    assert _read([batch], "n = '1'") == [0]


def test_field_with_too_many_values_is_read_and_others_are_still_found() -> None:
    def batch(count: int) -> bytearray:
        records = [
            Record(
                n,
                0,
                b"k%d" % n,
                None,
                [
                    Header("trace", b"%d" % n),
                    Header("tags", b"t%d" % n),
                    Header("a", b"b" if n % 2 else b"c"),
                ],
            )
            for n in range(count)
        ]
        return build_batch(records)

    for text in ("trace = 'none'", "key = 'none'", "'none' in tags"):
        assert _read([batch(50)], text) == [], text
        assert _read([batch(ENTRIES_MAX + 1)], text) == [0], text
    for text in ("a = 'd'", "other exists"):
        assert _read([batch(ENTRIES_MAX + 1)], text) == [], text
    found = _found(batch(ENTRIES_MAX + 1), "a = 'b'")
    assert found is not None
    assert [record.offset for record in found] == list(range(1, ENTRIES_MAX + 1, 2))
    assert _found(batch(ENTRIES_MAX + 1), "a = 'b' and trace exists") is None
    assert _found(batch(ENTRIES_MAX + 1), "a = 'b' and key exists") is None


def test_combinations_of_too_many_fields_are_read_and_those_of_few_are_found() -> None:
    """Each field has few values, and all of them together too many combinations."""
    records = [
        Record(n, 0, None, None, [Header(name, b"%d" % (n // 10**at % 10)) for at, name in enumerate("abc")])
        for n in range(1_000)
    ]
    batch = build_batch(records)
    found = _found(batch, "a = '7' and b = '3'")
    assert found is not None
    assert [record.offset % 100 for record in found] == [37] * 10
    assert _found(batch, "c = '5'") is None


@pytest.mark.parametrize("size", [DICTIONARY_BYTES_MAX - 100, DICTIONARY_BYTES_MAX + 1])
def test_large_keys_and_values_are_not_listed(size: int) -> None:
    is_listed = size < DICTIONARY_BYTES_MAX
    assert _read([_batch(key=bytes(size))], "key = 'none'") == ([] if is_listed else [0])
    batch = _batch(("a", bytes(size)), ("b", b"c"))
    assert _read([batch], "a = 'none'") == ([] if is_listed else [0])
    assert _read([batch], "b = 'none'") == []


def test_run_with_too_many_names_is_read() -> None:
    def batch(count: int) -> bytearray:
        return build_batch([Record(n, 0, None, None, [Header(f"name{n}", None)]) for n in range(count)])

    assert _read([batch(NAMES_MAX)], "other exists") == []
    assert _read([batch(NAMES_MAX + 1)], "other exists") == [0]
    assert _read([batch(NAMES_MAX + 1)], "key exists") == []


def test_run_with_too_many_records_is_read() -> None:
    def batch(count: int) -> bytearray:
        return build_batch((Record(n, 0, None, None) for n in range(count)), codec=CompressionType.ZSTD)

    half = batch(RECORDS_A_RUN_MAX // 2)
    assert _read([half, half], "key exists") == []
    assert _read([half, half, batch(1)], "key exists") == [0, 1, 2]


# -- the file --------------------------------------------------------------------------------------------------


def test_any_damage_makes_it_no_index() -> None:
    data, _ = _segment([_batch(("n", b"1")), _marker()])
    content = _built(data)
    assert TagIndex.open(content, len(data)) is not None
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        assert TagIndex.open(bytes(damaged), len(data)) is None, position
    for size in range(len(content)):
        assert TagIndex.open(content[:size], len(data)) is None, size
    assert TagIndex.open(content + b"\0", len(data)) is None


def test_index_of_a_segment_of_another_size_is_none() -> None:
    data, _ = _segment([_batch(("n", b"1"))])
    assert TagIndex.open(_built(data), len(data) + 1) is None


def test_batches_that_do_not_fill_the_segment_are_damage() -> None:
    data, _ = _segment([_batch(("n", b"1"))])
    with pytest.raises(StorageError, match="are batches"):
        _built(data + b"\0" * 100)


def test_batches_whose_offsets_go_back_are_damage() -> None:
    batch = bytes(_batch(("n", b"1")))
    with pytest.raises(StorageError, match="does not follow"):
        _built(batch + batch)


def test_other_process_builds_the_same_bytes() -> None:
    """The order of sets differs between processes."""
    program = (
        "from tidemill.log.segments.tag_index import build\n"
        "from tidemill.protocol.records import Header, Record, build_batch, header_at\n"
        "records = [Record(n, 0, b'k%d' % n, None, [Header('a', b'%d' % n)]) for n in range(100)]\n"
        "batch = build_batch(records)\n"
        "print(build([(0, header_at(batch), memoryview(batch))], len(batch)).hex())\n"
    )
    built = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(built) == 1
