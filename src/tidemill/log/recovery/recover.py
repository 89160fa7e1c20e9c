"""What is left of a log after a crash, and what makes it durable before one.

Recovery: each segment that reaches past the recovery point is read whole and cut at the first batch whose checksum or
length is wrong; the epochs and the indexes are rebuilt on the way. What follows a torn segment, or a hole between two,
never was something that anybody could rely on: those segments are set aside as `*.torn`, never deleted. A broken batch
*below* the recovery point was synced once, so it is no torn tail but damage: the log refuses to open and nothing is
changed. So is a hole between two segments there, after a clean shutdown too: a file is missing. Segments begin where the one
before ends, and a cleaning leaves a batch at the end of each that says where that is. Apache Kafka's cleaner need not, and
a folder may come from there: between the segments of a compacted topic a hole proves nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.errors import StorageError
from tidemill.log.epochs import LeaderEpochs
from tidemill.log.files import Files
from tidemill.log.segments.segment import Segment
from tidemill.protocol.records import BatchHeader


class Recovered(NamedTuple):
    end_offset: int
    bytes_cut: int
    # The first segment whose aborted transactions its batches must say anew.
    replay_from: int | None


def recover(
    files: Files,
    segments: list[Segment],
    epochs: LeaderEpochs,
    recovery_point: int,
    log_start_offset: int,
    *,
    may_have_holes: bool,
) -> Recovered:
    """Check what a crash may have torn. Segments that are set aside leave the list."""
    end_offset = segments[0].base_offset
    is_first_read = True
    replay_from = next((s.base_offset for s in segments if s.txn_index.is_damaged), None)
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else None
        if following is not None and following <= recovery_point:
            segment.verify()
            if not may_have_holes:
                check_followed(segment, following, log_start_offset)
            continue
        if is_first_read:
            # The file may name epochs of a tail that was cut off since. From here on the batches say it themselves.
            epochs.truncate_from_end(segment.base_offset)
            is_first_read = False
        end_offset = segment.base_offset
        has_markers = len(segment.txn_index) > 0

        def note(header: BatchHeader) -> None:
            nonlocal end_offset, has_markers
            end_offset = header.next_offset
            has_markers |= header.is_control
            epochs.assign(header.leader_epoch, header.base_offset)

        end = segment.recover(note)
        if has_markers and (replay_from is None or segment.base_offset < replay_from):
            replay_from = segment.base_offset
        if end == segment.size and _goes_on(end_offset, following, log_start_offset):
            continue
        check_reaches(segment, end_offset, recovery_point)
        return Recovered(end_offset, _cut_off_after(files, segments, number, end), replay_from)
    check_reaches(segments[-1], end_offset, recovery_point)
    return Recovered(end_offset, 0, replay_from)


def _goes_on(end_offset: int, following: int | None, log_start_offset: int) -> bool:
    """Whether the next segment continues this one: a file may be torn between two batches, too.

    Below the log's start a hole is what was deleted.
    """
    return following is None or end_offset == following or end_offset < following <= log_start_offset


def check_followed(segment: Segment, following: int, log_start_offset: int) -> None:
    """Refuse a log that lacks a segment between two that are sealed."""
    end_offset = segment.next_offset()
    # None is damage in the segment itself, which whoever reads there reports.
    if end_offset is not None and not _goes_on(end_offset, following, log_start_offset):
        raise StorageError(
            f"{segment.path_of('log')} ends at offset {end_offset} and the next segment begins at {following}: a "
            "segment is missing or cut off. Restore the file from a replica or a backup; nothing was changed"
        )


def check_reaches(segment: Segment, end_offset: int, recovery_point: int) -> None:
    """Refuse a log that ends before what was synced."""
    if end_offset < recovery_point:
        raise StorageError(
            f"{segment.path_of('log')}: damaged or cut off at offset {end_offset}, but everything below offset "
            f"{recovery_point} was on disk. Restore the file from a replica or a backup; nothing was changed"
        )


def _cut_off_after(files: Files, segments: list[Segment], number: int, position: int) -> int:
    """Cut a segment and set aside those after it. Returns how many bytes that were."""
    torn = segments[number]
    bytes_cut = torn.size - position
    torn.truncate_to_position(position)
    for segment in segments[number + 1 :]:
        segment.close()
        bytes_cut += segment.size
        for path in segment.paths:
            if files.exists(path):
                files.rename(path, f"{path}.torn")
    del segments[number + 1 :]
    return bytes_cut
