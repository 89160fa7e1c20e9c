"""Holes between the segments of a compacted log: which were there before, and which are damage.

Each segment that this code writes starts where its predecessor ends. This holds for a leader and for a follower. A roll
takes the end of the last batch as the new base offset, also when the next fetched batch leaves a gap. It holds after a
cleaning too, whose last batch marks the end of each new segment. Apache Kafka's cleaner may drop that batch, and a data
directory may come from there.

So a compacted log has a mark: the file `tidemill-holes-end`, with a version line and an offset. Holes below the offset
were there when this code first opened the log, and are accepted. A hole above it is a missing file. The mark outlives
a change of `cleanup.policy`. A log without one has never been compacted here.

The mark needs no sync of its own, as `partition.metadata` needs none: the first sync of the log covers it, and no
recovery point passes a segment before that. A torn mark counts as none, so the next start looks for holes again.
Every crash therefore leaves a mark that accepts the holes which are there.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from itertools import pairwise

from tidemill.log.files import Files
from tidemill.log.segments.segment import Segment

logger = logging.getLogger(__name__)

HOLES_END_NAME = "tidemill-holes-end"
_CONTENT = re.compile(rb"0\n(\d{1,19})\n")


class HolesEnd:
    """The mark of one log. Holes between segments are accepted below `offset`."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self.path = f"{folder}/{HOLES_END_NAME}"
        self.offset = 0
        self.is_saved = False
        if files.exists(self.path):
            found = _CONTENT.fullmatch(files.read(self.path))
            if found is None:
                logger.warning("%s is torn or damaged; the holes in the log are looked for again", self.path)
            else:
                self.offset = int(found[1])
                self.is_saved = True

    def save(self) -> bool:
        """Write the mark without a sync. Returns whether it was written; a failure is logged, not raised."""
        try:
            file = self._files.open(self.path, create=True)
            file.truncate(0)
            file.write(b"0\n%d\n" % self.offset, 0)
        except OSError as error:
            # The next start looks for holes again.
            logger.warning("%s cannot be written; the next start looks for holes again: %s", self.path, error)
            return False
        self.is_saved = True
        return True

    def lower_to(self, offset: int) -> None:
        """The log was truncated to `offset`, and the removal of its segments is durable.

        A lower mark beside the old segments would make damage of their holes.
        """
        if offset < self.offset:
            self.offset = offset
            if self.is_saved:
                self.save()


def find_holes_end(segments: Sequence[Segment], end_offset_max: int | None) -> int:
    """Returns the base offset of the last segment that does not start where its predecessor ends; 0 without holes.

    Segments that start above `end_offset_max` are not looked at.
    """
    found = 0
    for segment, following in pairwise(segments):
        if end_offset_max is not None and following.base_offset > end_offset_max:
            break
        segment.verify()
        end_offset = segment.next_offset()
        # None means damage inside the segment, which the read that reaches it reports.
        if end_offset is not None and end_offset < following.base_offset:
            found = following.base_offset
    return found
