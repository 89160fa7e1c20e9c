"""Recovery of a log after an unclean shutdown.

Each segment that reaches past the recovery point is read whole and truncated at the first batch with a wrong checksum
or length. Epochs and indexes are rebuilt on the way. Segments after a torn one, or after a hole, were never durable:
they are renamed to `*.torn` and not deleted.

A broken batch *below* the recovery point was synced, so it is damage. The log refuses to open and changes no file. A
hole between two segments there means a missing file and is refused too, even after a clean shutdown. `holes.py` says
why each segment starts where its predecessor ends, and which holes are accepted nevertheless.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.errors import StorageError
from tidemill.log.epochs import LeaderEpochs
from tidemill.log.files import Files
from tidemill.log.segments.segment import Segment
from tidemill.protocol.records import BatchHeader


class Recovered(NamedTuple):
    """The result of a recovery."""

    end_offset: int
    bytes_cut: int
    # The base offset of the first segment whose aborted transactions must be read from its batches.
    replay_from: int | None


def recover(
    files: Files,
    segments: list[Segment],
    epochs: LeaderEpochs,
    recovery_point: int,
    holes_end: int,
) -> Recovered:
    """Verify what a crash may have torn. Segments that are renamed to `*.torn` leave the list.

    Holes between segments are accepted below `holes_end`.
    """
    end_offset = segments[0].base_offset
    is_first_read = True
    replay_from = next((s.base_offset for s in segments if s.txn_index.is_damaged), None)
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else None
        if following is not None and following <= recovery_point:
            segment.verify()
            check_followed(segment, following, holes_end)
            continue
        if is_first_read:
            # The file may name epochs of a truncated tail. From here on the batches supply them.
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
        if end == segment.size and _goes_on(end_offset, following, holes_end):
            continue
        check_reaches(segment, end_offset, recovery_point)
        return Recovered(end_offset, _cut_off_after(files, segments, number, end), replay_from)
    check_reaches(segments[-1], end_offset, recovery_point)
    return Recovered(end_offset, 0, replay_from)


def _goes_on(end_offset: int, following: int | None, holes_end: int) -> bool:
    """Whether the next segment continues this one: a crash may cut a file between two batches too."""
    return following is None or end_offset == following or end_offset < following <= holes_end


def check_followed(segment: Segment, following: int, holes_end: int) -> None:
    """Raise `StorageError` when a segment between two sealed ones is missing."""
    end_offset = segment.next_offset()
    # None means damage inside the segment, which the read that reaches it reports.
    if end_offset is not None and not _goes_on(end_offset, following, holes_end):
        raise StorageError(
            f"{segment.path_of('log')} ends at offset {end_offset} and the next segment begins at {following}: a "
            "segment is missing or cut off. Restore the file from a replica or a backup; nothing was changed"
        )


def check_reaches(segment: Segment, end_offset: int, recovery_point: int) -> None:
    """Raise `StorageError` when a log ends below its recovery point."""
    if end_offset < recovery_point:
        raise StorageError(
            f"{segment.path_of('log')}: damaged or cut off at offset {end_offset}, but everything below offset "
            f"{recovery_point} was on disk. Restore the file from a replica or a backup; nothing was changed"
        )


def _cut_off_after(files: Files, segments: list[Segment], number: int, position: int) -> int:
    """Truncate a segment and rename those after it to `*.torn`. Returns the number of bytes cut off."""
    torn = segments[number]
    bytes_cut = torn.size - position
    torn.truncate_to_position(position)
    for segment in segments[number + 1 :]:
        segment.close()
        segment.drop_tag_index()
        bytes_cut += segment.size
        for path in segment.paths:
            if files.exists(path):
                files.rename(path, f"{path}.torn")
    del segments[number + 1 :]
    return bytes_cut
