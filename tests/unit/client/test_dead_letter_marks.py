"""Which letters were replayed, as the offset and the metadata of a commit."""

from __future__ import annotations

import pytest

from tidemill.client.admin.dead_letters import Marks
from tidemill.client.producing.transactional import CommittedOffset
from tidemill.errors import TidemillError


def marked(*offsets: int) -> Marks:
    marks = Marks()
    for offset in offsets:
        marks.add(offset, offset + 1)
    return marks


@pytest.mark.parametrize(
    ("offsets", "committed"),
    [
        ([], CommittedOffset(0, "")),
        ([0, 1, 2], CommittedOffset(3, "")),
        ([2, 1, 0], CommittedOffset(3, "")),
        ([5], CommittedOffset(0, "5")),
        ([0, 5, 6, 9], CommittedOffset(1, "5-6,9")),
    ],
)
def test_marks_are_what_is_committed_and_come_back_from_it(
    offsets: list[int], committed: CommittedOffset
) -> None:
    marks = marked(*offsets)
    assert marks.committed() == committed
    again = Marks.of(committed)
    assert [offset for offset in range(12) if offset in again] == sorted(offsets)


def test_a_filled_hole_moves_the_offset() -> None:
    marks = Marks.of(CommittedOffset(1, "2-4"))
    marks.add(1, 2)
    assert marks.committed() == CommittedOffset(5, "")


def test_without_a_commit_nothing_is_marked() -> None:
    assert 0 not in Marks.of(None)


def test_more_marks_than_a_commit_can_hold_are_refused() -> None:
    with pytest.raises(TidemillError, match="out of order"):
        marked(*range(1, 4_000, 2)).committed()
