"""Delay headers: what they ask for, what is refused with which words, and the headers of copies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.poisoned import POISONED
from tests.unit.delays.copied import carried_copy, visible_copy
from tidemill.delays.requests import (
    CANCEL,
    CARRIED,
    DELAY,
    DELIVER_AT,
    DUE,
    NEXT_DUE,
    ORIGINAL_OFFSET,
    PENDING_OFFSET,
    SCHEDULE,
    SCHEDULE_ID,
    TIME_ZONE,
    Cancel,
    Carried,
    Copy,
    Delayed,
    Inspection,
    Limits,
    delay_records,
    inspect,
    is_hidden,
    may_hold_requests,
    meaning_of,
)
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.record_walk import records_of
from tidemill.protocol.records import Header, Record, build_batch, header_at
from tidemill.protocol.steps import run_steps

NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
DAY_MS = 86_400_000
LIMITS = Limits(delay_ms_max=30 * DAY_MS, interval_ms_min=1000)


def record(*headers: tuple[str, bytes | None], key: bytes | None = b"k", offset: int = 0) -> Record:
    return Record(offset, NOW_MS, key, b"v", [Header(*each) for each in headers])


def inspected(records: Sequence[Record], limits: Limits = LIMITS) -> Inspection:
    return run_steps(inspect(records, NOW_MS, limits))


def due_ms(*headers: tuple[str, bytes | None]) -> int:
    meaning = meaning_of(record(*headers))
    assert isinstance(meaning, Delayed)
    return meaning.due_ms


def refusal(*headers: tuple[str, bytes | None], limits: Limits = LIMITS) -> str:
    inspection = inspected([record(), record(*headers, offset=1)], limits)
    assert len(inspection.errors) == 1
    index, sentence = inspection.errors[0]
    assert index == 1
    return sentence


@pytest.mark.parametrize(
    ("header", "expected_ms"),
    [
        ((DELAY, b"30s"), NOW_MS + 30_000),
        ((DELAY, b"500ms"), NOW_MS + 500),
        ((DELAY, b"1500"), NOW_MS + 1500),
        ((DELAY, b"0"), NOW_MS),
        ((DELIVER_AT, b"%d" % (NOW_MS + 5)), NOW_MS + 5),
        ((DELIVER_AT, b"2026-01-01T01:00:00+01:00"), NOW_MS),
        ((DELIVER_AT, b"2026-01-01T00:00:00.250Z"), NOW_MS + 250),
        ((DELIVER_AT, b"0"), 0),
    ],
)
def test_time_of_delivery(header: tuple[str, bytes], expected_ms: int) -> None:
    assert due_ms(header) == expected_ms
    assert not inspected([record(header)]).errors


def test_schedule_is_due_at_its_first_occurrence_after_the_append() -> None:
    headers = ((SCHEDULE, b"0 6 * * *"), (TIME_ZONE, b"Europe/Berlin"), (SCHEDULE_ID, b"report"))
    assert due_ms(*headers) == NOW_MS + 5 * 3_600_000


def test_only_times_relative_to_the_append_need_its_clock() -> None:
    relative = inspected([record((DELAY, b"1s"))])
    assert relative.needs_append_time
    assert relative.has_hidden
    absolute = inspected([record((DELIVER_AT, b"%d" % NOW_MS))])
    assert not absolute.needs_append_time
    assert absolute.has_hidden
    ordinary = inspected([record(), record(("tidemill-claim-uri", b"s3://x"), offset=1)])
    assert not ordinary.has_hidden
    assert not ordinary.errors


def test_same_key_and_id_is_one_identity_and_other_pairs_are_not() -> None:
    def identity(key: bytes | None, name: bytes) -> bytes:
        meaning = meaning_of(record((DELAY, b"1s"), (SCHEDULE_ID, name), key=key))
        assert isinstance(meaning, Delayed)
        assert meaning.identity is not None
        return meaning.identity

    pairs = [(None, b"a"), (b"", b"a"), (b"a", b"b"), (b"ab", b"c"), (b"a", b"bc"), (b"1:a", b"b")]
    assert len({identity(*pair) for pair in pairs}) == len(pairs)
    assert identity(b"k", b"a") == identity(b"k", b"a")


def test_cancel_names_an_identity_or_an_offset() -> None:
    named = meaning_of(record((CANCEL, None), (SCHEDULE_ID, b"a")))
    delayed = meaning_of(record((DELAY, b"1s"), (SCHEDULE_ID, b"a")))
    assert isinstance(named, Cancel)
    assert isinstance(delayed, Delayed)
    assert named.identity == delayed.identity
    assert meaning_of(record((CANCEL, b"17"))) == Cancel(None, 17)


def test_delay_above_the_limit_is_refused_with_the_limit() -> None:
    assert f"tidemill.delays.max.ms={LIMITS.delay_ms_max}" in refusal((DELAY, b"31d"))
    assert "tidemill.delays.max.ms" in refusal((DELIVER_AT, b"2026-03-01T00:00:00Z"))


def test_delay_of_300_years_is_refused() -> None:
    assert "tidemill.delays.max.ms" in refusal((DELAY, b"109500d"))
    assert refusal((DELAY, b"999999999999999d"), limits=Limits(1 << 62, 1)).endswith(
        "between the years 1970 and 9999"
    )


def test_schedule_faster_than_the_limit_is_refused_and_every_second_is_allowed() -> None:
    every_second = ((SCHEDULE, b"* * * * * *"), (SCHEDULE_ID, b"tick"))
    assert not inspected([record(*every_second)]).errors
    assert "tidemill.delays.interval.min.ms=60000" in refusal(*every_second, limits=Limits(DAY_MS, 60_000))
    assert "tidemill.delays.interval.min.ms" in refusal((SCHEDULE, b"@every 10ms"), (SCHEDULE_ID, b"tick"))


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([(DELAY, b"-5s")], "negative"),
        ([(DELIVER_AT, b"-5")], "1970"),
        ([(DELAY, b"soon")], "no duration"),
        ([(DELAY, None)], "at most 256 bytes"),
        ([(DELAY, b"\xff")], "not UTF-8"),
        ([(DELAY, b"1" * 1000)], "at most 256 bytes"),
        ([(DELIVER_AT, b"tomorrow")], "neither epoch milliseconds nor ISO 8601"),
        ([(DELIVER_AT, b"2026-01-01T00:00:00")], "no offset from UTC"),
        ([(DELIVER_AT, b"9" * 30)], "9999"),
        ([(DELAY, b"1s"), (DELIVER_AT, b"5")], "not both"),
        ([(DELAY, b"1s"), (DELAY, b"2s")], "twice"),
        ([(DELAY, b"1s"), (CANCEL, b"")], "not both"),
        ([(DELAY, b"1s"), (TIME_ZONE, b"UTC")], SCHEDULE),
        ([(DELAY, b"1s"), (SCHEDULE_ID, b"")], "between 1 and 256 bytes"),
        ([(DELAY, b"1s"), (SCHEDULE_ID, b"x" * 257)], "between 1 and 256 bytes"),
        ([(SCHEDULE_ID, b"a")], "needs a time"),
        ([(SCHEDULE, b"0 0 31 2 *"), (SCHEDULE_ID, b"a")], "never fires"),
        ([(SCHEDULE, b"0 0 * *"), (SCHEDULE_ID, b"a")], "five fields"),
        ([(SCHEDULE, b"0 0 * * *"), (SCHEDULE_ID, b"a"), (TIME_ZONE, b"Mars")], "time zone"),
        ([(SCHEDULE, b"0 0 * * *")], SCHEDULE_ID),
        ([(CANCEL, b"")], SCHEDULE_ID),
        ([(CANCEL, b"x")], "number"),
        ([(ORIGINAL_OFFSET, b"5")], "written by the broker"),
        ([(DELAY, b"1s"), (CARRIED, b"")], "written by the broker"),
    ],
)
def test_headers_that_make_no_sense_are_refused(headers: list[tuple[str, bytes | None]], words: str) -> None:
    assert words in refusal(*headers)
    if not {ORIGINAL_OFFSET, CARRIED, TIME_ZONE} & {name for name, _ in headers}:
        # In a log that some other system wrote, such a record is an ordinary one.
        assert not is_hidden(meaning_of(record(*headers)))


def test_accepted_schedule_stays_hidden_where_its_time_zone_is_unknown() -> None:
    headers = ((SCHEDULE, b"0 6 * * *"), (TIME_ZONE, b"Mars/Olympus"), (SCHEDULE_ID, b"report"))
    assert "time zone" in refusal(*headers)
    assert is_hidden(meaning_of(record(*headers)))
    assert due_ms(*headers) == NOW_MS + 6 * 3_600_000


def test_record_with_a_wrong_offset_delta_is_refused() -> None:
    assert "offset delta" in inspected([record((DELAY, b"1s"), offset=3)]).errors[0][1]


def test_answer_names_the_first_hundred_wrong_records() -> None:
    wrong = [record((DELAY, b"soon"), offset=index) for index in range(300)]
    assert [index for index, _ in inspected(wrong).errors] == list(range(100))


# -- copies ------------------------------------------------------------------------------------------------------


def test_visible_copy_names_its_original_and_has_the_due_time_as_timestamp() -> None:
    original = record(("trace", b"1"), (DELAY, b"30s"), (SCHEDULE_ID, b"a"), offset=42)
    copy = visible_copy(original, NOW_MS + 30_000, None)
    assert copy.timestamp == NOW_MS + 30_000
    assert (copy.key, copy.value) == (original.key, original.value)
    assert dict(copy.headers) == {
        "trace": b"1",
        SCHEDULE_ID: b"a",
        ORIGINAL_OFFSET: b"42",
        DUE: b"%d" % (NOW_MS + 30_000),
    }
    assert meaning_of(copy) == Copy(42, 42, NOW_MS + 30_000, None)
    assert not is_hidden(meaning_of(copy))


def test_copy_of_a_time_long_past_does_not_look_expired() -> None:
    copy = visible_copy(record((DELIVER_AT, b"0")), 0, None)
    assert copy.timestamp == NOW_MS
    assert dict(copy.headers)[DUE] == b"0"


def test_copy_of_an_occurrence_states_the_next_one() -> None:
    original = record((SCHEDULE, b"@hourly"), (SCHEDULE_ID, b"a"), offset=7)
    copy = visible_copy(original, NOW_MS, NOW_MS + 3_600_000)
    assert dict(copy.headers)[NEXT_DUE] == b"%d" % (NOW_MS + 3_600_000)
    assert meaning_of(copy) == Copy(7, 7, NOW_MS, NOW_MS + 3_600_000)


def test_carried_record_keeps_due_time_schedule_and_first_offset() -> None:
    original = record((SCHEDULE, b"@hourly"), (TIME_ZONE, b"Asia/Tokyo"), (SCHEDULE_ID, b"a"), offset=7)
    first = meaning_of(original)
    assert isinstance(first, Delayed)
    once = carried_copy(original, NOW_MS + 9)._replace(offset=50)
    twice = carried_copy(once, NOW_MS + 9)._replace(offset=90)
    assert meaning_of(once) == Carried(7, 7, first._replace(due_ms=NOW_MS + 9))
    assert meaning_of(twice) == Carried(50, 7, first._replace(due_ms=NOW_MS + 9))
    copy = visible_copy(twice, NOW_MS + 9, None)
    assert meaning_of(copy) == Copy(90, 7, NOW_MS + 9, None)
    assert dict(copy.headers)[PENDING_OFFSET] == b"90"
    assert all(is_hidden(meaning_of(each)) for each in (original, once, twice))


# -- batches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(CompressionType))
def test_batch_without_delay_headers_is_known_by_one_search(codec: CompressionType) -> None:
    for records, expected in (([record()], 0), ([record(), record((DELAY, b"1s"), offset=1)], 2)):
        batch = memoryview(build_batch(records, codec=codec))
        assert may_hold_requests(records_of(batch, header_at(batch))) is bool(expected)
        assert len(delay_records(batch, header_at(batch))) == expected


@pytest.mark.parametrize("name", sorted(POISONED))
def test_batch_that_does_not_decode_has_no_delays(name: str) -> None:
    batch = memoryview(POISONED[name])
    assert delay_records(batch, header_at(batch)) == []


def test_damaged_records_with_delay_headers_have_no_delays() -> None:
    batch = build_batch([record((DELAY, b"1s"))])
    batch[-1] ^= 0x55
    batch[61] ^= 0x02
    assert delay_records(memoryview(batch), header_at(batch)) == []


def test_a_large_batch_is_inspected_in_steps() -> None:
    delayed = [record((DELAY, b"1s"), offset=index) for index in range(2000)]
    assert len(list(inspect(delayed, NOW_MS, LIMITS))) == 4
    crons = [(SCHEDULE, b"0 0 29 2 *"), (SCHEDULE_ID, b"a")]
    recurring = [record(*crons, offset=index) for index in range(2000)]
    assert len(list(inspect(recurring, NOW_MS, LIMITS))) == 40, "a schedule may cost much"


def test_every_offset_delta_beside_a_delayed_record_must_be_its_index() -> None:
    """Otherwise a neighbour has the offset of the delayed record, which is then neither hidden nor delivered."""
    records = [record(offset=2), record((DELAY, b"1s"), offset=1), record(offset=2)]
    ((index, sentence),) = inspected(records).errors
    assert index == 0
    assert "offset delta is 2, not 0" in sentence


def test_cancel_of_an_offset_that_no_log_has_is_refused() -> None:
    assert not inspected([record((CANCEL, b"%d" % (2**63 - 1)))]).errors
    ((_, sentence),) = inspected([record((CANCEL, b"%d" % 2**63))]).errors
    assert "is no offset" in sentence


def test_cancel_of_an_offset_that_no_log_has_stays_hidden_where_it_was_accepted() -> None:
    assert meaning_of(record((CANCEL, b"9" * 19))) == Cancel(None, 2**63 - 1)
