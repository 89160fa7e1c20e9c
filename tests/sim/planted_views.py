"""Bugs of views, planted as in `planted.py`: a filtered read that shows too much, too little, or forgets where it is."""

from __future__ import annotations

from tests.sim.planted import ROUGH, Bug, Replace
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.requests.handlers.fetch import ConsumerFetch
from tidemill.log import filtered_read
from tidemill.log.cleaning.rewrite import with_records as with_records_of_the_cleaner
from tidemill.log.files import FileSlice
from tidemill.log.filtered_read import Filtered, FilteredRead, Part
from tidemill.protocol.records import BatchHeader
from tidemill.protocol.steps import Steps


def views_show_what_is_not_committed(replace: Replace) -> None:
    def _end_offset(_: ConsumerFetch, partition: Partition) -> int:
        assert partition.log is not None
        return partition.log.log_end_offset

    replace(ConsumerFetch, "_end_offset", _end_offset)


def a_batch_is_shown_whole_or_not_at_all(replace: Replace) -> None:
    original = FilteredRead._left_of

    def _left_of(
        self: FilteredRead, header: BatchHeader, batch: memoryview, whole: FileSlice
    ) -> Steps[Part | None]:
        part = yield from original(self, header, batch, whole)
        return None if part is None else whole

    replace(FilteredRead, "_left_of", _left_of)


def what_did_not_fit_is_skipped(replace: Replace) -> None:
    """A batch without room in the response is dropped, and the reader moves past it."""

    def _has_room(self: FilteredRead, part: Part) -> bool:
        if not self._parts or self.length < 200:
            return True
        self.next_offset += 1
        return False

    replace(FilteredRead, "_has_room", _has_room)


def an_empty_batch_reaches_too_far(replace: Replace) -> None:
    original = filtered_read._empty_batch

    def _empty_batch(first_offset: int, last_offset: int, leader_epoch: int) -> bytearray:
        return original(first_offset, last_offset + 1, leader_epoch)

    replace(filtered_read, "_empty_batch", _empty_batch)


def a_reader_is_never_moved_past_what_is_hidden(replace: Replace) -> None:
    def result(self: FilteredRead) -> Filtered | None:
        return Filtered(self._parts) if self._parts else None

    replace(FilteredRead, "result", result)


def offsets_of_a_rewritten_batch_begin_anew(replace: Replace) -> None:
    """The last offset is that of the last kept record, so the rest of the batch is read again from the file."""
    original = with_records_of_the_cleaner

    def with_records(header, body, kept, horizon):  # type: ignore[no-untyped-def]
        return original(header._replace(base_offset=header.base_offset + 1), body, kept, horizon)

    replace(filtered_read, "with_records", with_records)


VIEW_BUGS: tuple[Bug, ...] = (
    Bug("views show what is not committed", views_show_what_is_not_committed, plan=ROUGH),
    Bug("a batch is shown whole or not at all", a_batch_is_shown_whole_or_not_at_all),
    Bug("what did not fit is skipped", what_did_not_fit_is_skipped),
    Bug("an empty batch reaches too far", an_empty_batch_reaches_too_far),
    Bug("a reader is never moved past what is hidden", a_reader_is_never_moved_past_what_is_hidden),
    Bug("offsets of a rewritten batch begin anew", offsets_of_a_rewritten_batch_begin_anew),
)
