"""Compaction against a dumb model: any writes, rolls, cleanings with any map, restarts; and the map against a dict."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from tests.unit.log.compacted import DELETE_RETENTION_MS, compact, latest, open_log, put, records, seal
from tidemill.log.cleaning.offset_map import SLOT_BYTES, OffsetMap, fingerprint
from tidemill.protocol.records import Record
from tidemill.sim.platform.disk import SimulatedDisk


@dataclass
class Model:
    """Lists and loops over all that was ever written."""

    written: list[Record] = field(default_factory=list)
    alive: dict[int, Record] = field(default_factory=dict)
    # For each record the last offset of its batch, and for each such batch when its tombstones may go.
    batch_end: dict[int, int] = field(default_factory=dict)
    horizon_ms: dict[int, int] = field(default_factory=dict)

    def append(self, batch: list[Record]) -> None:
        self.written += batch
        for record in batch:
            self.alive[record.offset] = record
            self.batch_end[record.offset] = batch[-1].offset

    def clean(self, start: int, end: int, wall_ms: int) -> None:
        last = {record.key: offset for offset, record in sorted(self.alive.items()) if offset < end}
        for offset, record in sorted(self.alive.items()):
            if offset >= end:
                continue
            batch = self.batch_end[offset]
            is_expired = batch < start and self.horizon_ms.get(batch, wall_ms + 1) <= wall_ms
            if last[record.key] != offset or (record.value is None and is_expired):
                del self.alive[offset]
        for offset, record in self.alive.items():
            batch = self.batch_end[offset]
            if record.value is None and batch < end:
                self.horizon_ms.setdefault(batch, wall_ms + DELETE_RETENTION_MS)


values = st.one_of(st.none(), st.binary(max_size=12))
entries = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"dd", b""]), values), min_size=1, max_size=5)
steps = st.one_of(
    st.tuples(st.just("put"), entries, st.integers(0, 4)),
    st.tuples(st.just("put"), entries, st.integers(0, 4)),
    st.tuples(st.just("roll")),
    st.tuples(st.just("clean"), st.integers(2, 12), st.integers(0, DELETE_RETENTION_MS)),
    st.tuples(st.just("reopen"), st.booleans()),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(steps, max_size=30))
def test_any_history_of_cleanings_keeps_what_the_model_keeps(history: list[tuple[object, ...]]) -> None:
    disk, model = SimulatedDisk(), Model()
    log = open_log(disk)
    wall_ms = first_dirty = 0
    for step in history:
        match step:
            case ("put", list(batch), int(codec)):
                model.append(put(log, *batch, timestamp=wall_ms, codec=codec))
            case ("roll",) if log.active.size:
                seal(log)
            case ("clean", int(slots), int(waited_ms)):
                wall_ms += waited_ms
                limit = log.active.base_offset
                result = compact(disk, log, first_dirty, wall_ms=wall_ms, map_bytes=slots * SLOT_BYTES)
                assert first_dirty < result.end_offset <= limit or result.end_offset == limit == first_dirty
                model.clean(first_dirty, result.end_offset, wall_ms)
                first_dirty = result.end_offset
            case ("reopen", bool(is_clean)):
                log.close()
                log = open_log(disk, is_clean=is_clean)
        assert records(log) == [record for _, record in sorted(model.alive.items())]
        assert latest(records(log)) == latest(model.written)
        assert log.log_end_offset == len(model.written)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 40), max_size=80), st.integers(2, 40), st.sampled_from([0.5, 0.9, 1.0]))
def test_the_map_is_a_dict_until_it_is_full(numbers: list[int], slots: int, load_factor: float) -> None:
    offset_map, expected = OffsetMap(slots * SLOT_BYTES, load_factor), dict[bytes, int]()
    assert 0 < offset_map.memory_bytes <= slots * SLOT_BYTES
    for offset, number in enumerate(numbers):
        key = b"%d" % number
        is_known_or_fits = key in expected or len(expected) < offset_map.capacity
        assert offset_map.put(key, offset) == is_known_or_fits
        if is_known_or_fits:
            expected[key] = offset
    assert len(offset_map) == len(expected)
    for number in range(45):
        assert offset_map.get(b"%d" % number) == expected.get(b"%d" % number, -1)


def test_the_map_is_no_larger_than_its_keys_need() -> None:
    offset_map = OffsetMap(1 << 30, 0.9, keys_expected=1000)
    assert all(offset_map.put(b"%d" % number, number) for number in range(1000))
    assert offset_map.memory_bytes <= 1000 * SLOT_BYTES * 3


def test_similar_keys_have_different_fingerprints() -> None:
    keys = [b"a" * count + b"\0" * zeros for count in range(18) for zeros in range(18)]
    # A key that equals the input of a long key's fingerprint.
    keys += [fingerprint(b"a" * 16), fingerprint(b"a" * 16)[:15], fingerprint(b"a")]
    assert len(set(keys)) == len(keys) == len({fingerprint(key) for key in keys})
    assert {len(fingerprint(key)) for key in keys} == {16}
