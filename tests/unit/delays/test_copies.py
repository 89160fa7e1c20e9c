"""Copies of delayed records against a dumb twin that decodes them, changes them and encodes them again."""

from __future__ import annotations

from random import Random

import pytest

from tidemill.delays.copies import CopyBatch, Original
from tidemill.delays.requests import (
    BROKER_HEADERS,
    CARRIED,
    DELAY,
    DELIVER_AT,
    DUE,
    NEXT_DUE,
    ORIGINAL_OFFSET,
    PENDING_OFFSET,
    PRODUCER_HEADERS,
    SCHEDULE,
    SCHEDULE_ID,
    TIME_ZONE,
)
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.record_walk import records_of, walk
from tidemill.protocol.records import (
    LOG_APPEND_TIME,
    Header,
    Record,
    build_batch,
    checksum_matches,
    header_at,
    iterate_records,
)

NOW_MS = 1_767_225_600_000


def dumb_visible(record: Record, due_ms: int, next_due_ms: int | None) -> Record:
    dropped = (PRODUCER_HEADERS | BROKER_HEADERS) - {SCHEDULE_ID}
    headers = [each for each in record.headers if each.key not in dropped]
    headers += [*_origin(record), Header(DUE, b"%d" % due_ms)]
    if next_due_ms is not None:
        headers.append(Header(NEXT_DUE, b"%d" % next_due_ms))
    return record._replace(timestamp=max(due_ms, record.timestamp), headers=headers)


def dumb_carried(record: Record, due_ms: int, wall_ms: int) -> Record:
    dropped = BROKER_HEADERS | {DELIVER_AT, DELAY}
    headers = [each for each in record.headers if each.key not in dropped]
    return record._replace(
        timestamp=max(wall_ms, record.timestamp),
        headers=[*headers, *_origin(record), Header(DUE, b"%d" % due_ms), Header(CARRIED, b"")],
    )


def _origin(record: Record) -> list[Header]:
    first = [each.value for each in record.headers if each.key == ORIGINAL_OFFSET]
    if not first:
        return [Header(ORIGINAL_OFFSET, b"%d" % record.offset)]
    return [Header(ORIGINAL_OFFSET, first[0]), Header(PENDING_OFFSET, b"%d" % record.offset)]


def _headers(random: Random) -> list[Header]:
    asked = [
        [Header(DELIVER_AT, b"%d" % NOW_MS)],
        [Header(DELAY, b"2h"), Header(SCHEDULE_ID, b"mail")],
        [Header(SCHEDULE, b"@daily"), Header(TIME_ZONE, b"Asia/Tokyo"), Header(SCHEDULE_ID, b"a" * 200)],
        [Header(ORIGINAL_OFFSET, b"7"), Header(DUE, b"1"), Header(CARRIED, b"")],
        [
            Header(ORIGINAL_OFFSET, b"7"),
            Header(PENDING_OFFSET, b"9"),
            Header(DUE, b"1"),
            Header(CARRIED, b""),
        ],
    ]
    own = [Header("trace", None), Header("", b""), Header("ü" * 40, random.randbytes(300)), Header("n", b"1")]
    headers = [*random.choice(asked), *random.sample(own, random.randrange(4))]
    random.shuffle(headers)
    return headers


def _originals(random: Random) -> tuple[list[Record], list[Original]]:
    """The records of a batch, decoded and as they are in the log."""
    offset = random.choice((0, 5_000, 2**40))
    records = [
        Record(
            offset + number,
            NOW_MS + random.randrange(-10_000, 10_000),
            random.choice((None, b"", b"key", random.randbytes(100))),
            random.choice((None, b"", b"value", random.randbytes(9_000))),
            _headers(random),
        )
        for number in range(random.randrange(1, 70))
    ]
    batch = build_batch(
        records,
        base_offset=offset,
        codec=random.choice(list(CompressionType)),
        attributes=random.choice((0, LOG_APPEND_TIME)),
    )
    header = header_at(batch)
    body = records_of(memoryview(batch), header)
    originals = [Original.at(header, body, raw[0]) for raw in walk(body, header)]
    return list(iterate_records(memoryview(batch), header)), originals


@pytest.mark.parametrize("seed", range(30))
def test_copies_are_those_of_the_dumb_twin(seed: int) -> None:
    random = Random(seed)
    records, originals = _originals(random)
    assert [each.offset for each in originals] == [each.offset for each in records]
    batch = CopyBatch()
    expected: list[Record] = []
    for record, original in zip(records, originals, strict=True):
        due_ms = NOW_MS + random.choice((-(10**9), 0, 10**9))
        if random.random() < 0.3:
            batch.add_carried(original, due_ms, NOW_MS)
            copy = dumb_carried(record, due_ms, NOW_MS)
        else:
            next_due_ms = random.choice((None, due_ms + 1))
            batch.add_visible(original, due_ms, next_due_ms)
            copy = dumb_visible(record, due_ms, next_due_ms)
        expected.append(copy._replace(offset=len(expected)))
    assert batch.record_count == len(expected)
    made = batch.finish()
    assert bytes(made) == bytes(build_batch(expected))
    assert batch.size == len(made)
    assert checksum_matches(memoryview(made), header_at(made))
    assert [
        record._replace(headers=list(record.headers)) for record in iterate_records(memoryview(made))
    ] == [record._replace(headers=list(record.headers)) for record in expected]
