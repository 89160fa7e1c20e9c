"""Bugs of views, planted as in `bugs.py`: a filtered read that shows too much, too little, or forgets where it is."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from tests.sim.planted.bugs import ROUGH, Bug, Replace
from tests.unit.log import test_tag_index as indexes
from tests.unit.log import test_tag_index_files as index_files
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.requests.handlers.fetch import ConsumerFetch
from tidemill.log import filtered_batches, filtered_read
from tidemill.log.files import FileSlice
from tidemill.log.filtered_batches import KeptRecords, Places
from tidemill.log.filtered_read import Filtered, FilteredRead, Kept
from tidemill.log.log import Log
from tidemill.log.segments import tag_index
from tidemill.log.segments.dictionaries import Probe, Verdict
from tidemill.log.segments.segment import Segment
from tidemill.protocol.records import BatchHeader
from tidemill.protocol.steps import Steps
from tidemill.sim.platform.disk import SimulatedDisk


def views_show_what_is_not_committed(replace: Replace) -> None:
    def _end_offset(_: ConsumerFetch, partition: Partition) -> int:
        assert partition.log is not None
        return partition.log.log_end_offset

    replace(ConsumerFetch, "_end_offset", _end_offset)


def a_batch_is_shown_whole_or_not_at_all(replace: Replace) -> None:
    original = FilteredRead._left_of

    def _left_of(
        self: FilteredRead,
        header: BatchHeader,
        batch: memoryview,
        whole: FileSlice,
        places: Places | None = None,
    ) -> Steps[Kept | None]:
        kept = yield from original(self, header, batch, whole, places)
        return None if kept is None else whole

    replace(FilteredRead, "_left_of", _left_of)


def what_did_not_fit_is_skipped(replace: Replace) -> None:
    """A batch without room in the response is dropped, and the reader moves past it."""

    def _has_room(self: FilteredRead, _kept: Kept) -> bool:
        if not self._parts or self.length < 200:
            return True
        self.next_offset += 1
        return False

    replace(FilteredRead, "_has_room", _has_room)


def an_empty_batch_reaches_too_far(replace: Replace) -> None:
    original = filtered_batches.empty_batch

    def empty_batch(first_offset: int, last_offset: int, leader_epoch: int) -> bytearray:
        return original(first_offset, last_offset + 1, leader_epoch)

    replace(filtered_read, "empty_batch", empty_batch)


def a_reader_is_never_moved_past_what_is_hidden(replace: Replace) -> None:
    def result(self: FilteredRead) -> Filtered | None:
        return Filtered(self._parts) if self._parts else None

    replace(FilteredRead, "result", result)


def offsets_of_a_rewritten_batch_begin_anew(replace: Replace) -> None:
    """The offsets of what is left of a batch are counted from one place further."""
    original = KeptRecords.append_to

    def append_to(self: KeptRecords, out: bytearray) -> None:
        base_offset = int.from_bytes(self.front[:8], "big") + 1
        original(self._replace(front=base_offset.to_bytes(8, "big") + self.front[8:]), out)

    replace(KeptRecords, "append_to", append_to)


# -- the tag index -------------------------------------------------------------------------------------------


def runs_are_joined_whatever_their_dictionaries_are(replace: Replace) -> None:
    original = tag_index._KnownRun.join

    def join(self: tag_index._KnownRun, following: tag_index._KnownRun) -> bool:
        following.keys, following.headers = self.keys, self.headers
        return original(self, following)

    replace(tag_index, "RUN_BYTES", 400)
    replace(tag_index._KnownRun, "join", join)


def a_record_is_taken_for_the_one_before_it(replace: Replace) -> None:
    """The sizes of a batch are summed up from the second record on."""
    original = tag_index._places

    def _places(sizes: array[int], kept: bytes, first: int, end: int, hit: int) -> Sequence[tuple[int, int]]:
        return (
            original(sizes, kept, first, end, hit)
            if hit == first
            else original(sizes, kept, first, end, hit - 1)
        )

    replace(tag_index, "_places", _places)


def an_index_outlives_its_batches(replace: Replace) -> None:
    """A segment keeps its index when it is cut."""
    replace(Segment, "drop_tag_index", lambda _: None)


def a_verdict_is_remembered_for_every_dictionary(replace: Replace) -> None:
    original = Probe.verdict

    def verdict(self: Probe, keys: bytes | None, headers: bytes | None) -> Steps[Verdict]:
        for remembered in self._verdicts.values():
            return remembered
        return (yield from original(self, keys, headers))

    replace(Probe, "verdict", verdict)


VIEW_BUGS: tuple[Bug, ...] = (
    Bug("views show what is not committed", views_show_what_is_not_committed, plan=ROUGH),
    Bug("a batch is shown whole or not at all", a_batch_is_shown_whole_or_not_at_all),
    Bug("what did not fit is skipped", what_did_not_fit_is_skipped),
    Bug("an empty batch reaches too far", an_empty_batch_reaches_too_far),
    Bug("a reader is never moved past what is hidden", a_reader_is_never_moved_past_what_is_hidden),
    Bug("offsets of a rewritten batch begin anew", offsets_of_a_rewritten_batch_begin_anew),
    Bug("runs are joined whatever their dictionaries are", runs_are_joined_whatever_their_dictionaries_are),
    Bug("a record is taken for the one before it", a_record_is_taken_for_the_one_before_it),
)


def _with_a_log(test: Callable[[SimulatedDisk, Log], None]) -> Callable[[], None]:
    def course() -> None:
        disk = SimulatedDisk()
        test(disk, index_files.indexed_log(disk))

    return course


# What takes a coincidence: segments of the same size, and runs that differ.
VIEW_COURSES: tuple[tuple[Bug, Callable[[], None]], ...] = (
    (
        Bug("an index outlives its batches", an_index_outlives_its_batches),
        _with_a_log(index_files.test_log_that_was_cut_and_filled_anew_is_searched_by_its_new_batches),
    ),
    (
        Bug("a verdict is remembered for every dictionary", a_verdict_is_remembered_for_every_dictionary),
        indexes.test_each_run_is_decided_by_its_own_dictionaries,
    ),
)
