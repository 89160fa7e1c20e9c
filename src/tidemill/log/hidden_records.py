"""Selects the records that readers of a topic with delayed messages are shown.

Consumers get all but those that wait, or say what waits. That is a function of the records alone. A listing gets those
that wait, and no others. That is what the leader's state says, and when those that recur are due next.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tidemill.delays.copies import with_next_due
from tidemill.delays.requests import is_hidden, may_hold_requests, meaning_of
from tidemill.delays.state import PartitionDelays
from tidemill.log.filtered_read import KnownRun, Restate, Select
from tidemill.protocol.record_walk import RawRecord, walk
from tidemill.protocol.records import BatchHeader, iterate_decompressed
from tidemill.protocol.steps import Steps

_RECORDS_A_STEP = 100


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


def select_waiting(state: PartitionDelays) -> Select:
    """Keeps the records that wait."""
    return partial(_waiting, state)


def _waiting(state: PartitionDelays, body: bytes, header: BatchHeader) -> Steps[list[RawRecord] | None]:
    waiting: list[RawRecord] = []
    for count, raw in enumerate(walk(body, header), 1):
        if header.base_offset + raw[3] in state.pending.offsets:
            waiting.append(raw)
        if count % _RECORDS_A_STEP == 0:
            yield None
    return waiting


def restate_recurring(state: PartitionDelays) -> Restate:
    """Says in records that recur when they are due next, which the log says in their copies."""
    return partial(_restated, state)


def _restated(
    state: PartitionDelays, body: bytes, header: BatchHeader, records: Sequence[RawRecord]
) -> Steps[list[bytes] | None]:
    restated: list[bytes] = []
    scheduled, has_changed = state.pending.scheduled, False
    for count, (start, end, _, offset_delta, _, _) in enumerate(records, 1):
        offset = header.base_offset + offset_delta
        due_ms = state.pending.offsets.get(offset)
        named = scheduled.get(offset)
        if named is None or named.schedule is None or due_ms is None:
            restated.append(body[start:end])
        else:
            restated.append(with_next_due(body, start, end, due_ms))
            has_changed = True
        if count % _RECORDS_A_STEP == 0:
            yield None
    return restated if has_changed else None


def run_without_waiting(state: PartitionDelays, offset: int) -> KnownRun:
    """The run of records from an offset on of which none waits. It is empty when the one at the offset does."""
    found = state.pending.offsets.first_from(offset, 1)
    return KnownRun(found[0][0] if found else max(offset, state.end_offset), is_left_out=True)
