"""Which records of a topic with delayed messages readers are shown: all but those that wait, or say what waits."""

from __future__ import annotations

from tidemill.delays.requests import is_hidden, may_hold_requests, meaning_of
from tidemill.protocol.record_walk import RawRecord, walk
from tidemill.protocol.records import BatchHeader, iterate_decompressed
from tidemill.protocol.steps import Steps

_RECORDS_A_STEP = 200


def select_shown(body: bytes, header: BatchHeader) -> Steps[list[RawRecord] | None]:
    """The records that are not hidden; None when that is all of them. A function of the records alone."""
    if not may_hold_requests(body):
        return None
    shown: list[RawRecord] = []
    pairs = zip(walk(body, header), iterate_decompressed(memoryview(body), header), strict=True)
    for count, (raw, record) in enumerate(pairs, 1):
        if not is_hidden(meaning_of(record)):
            shown.append(raw)
        if count % _RECORDS_A_STEP == 0:
            yield None
    return shown
