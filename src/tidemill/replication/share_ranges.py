"""The offsets of a share partition that are in flight, as ranges of equal state.

The ranges are in order and cover everything from the start offset to the end offset. Neighbours that are alike become
one, so memory grows with what differs, not with records. Decides nothing: `share_partition.py` does.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum, IntEnum, auto
from operator import attrgetter

from tidemill.protocol import share_state

_first_offset = attrgetter("first_offset")


class DeliveryState(IntEnum):
    """The values are those of Kafka's share coordinator. What is acquired is never durable."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    # Archived as far as members see; its dead letter is not written yet (KIP-1191).
    ARCHIVING = share_state.ARCHIVING
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        return self in (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)


class CountState(Enum):
    """Whether the delivery count of a range is durable. It leaves out the delivery that is under way."""

    DURABLE = auto()
    # The write that is under way has it.
    IN_WRITE = auto()
    UNWRITTEN = auto()


class Range:
    """Consecutive offsets in the same state."""

    __slots__ = (
        "count_state",
        "deadline_ms",
        "delivery_count",
        "end_offset",
        "first_offset",
        "holder",
        "is_rejected",
        "state",
        "transition",
    )

    def __init__(
        self,
        first_offset: int,
        end_offset: int,
        state: DeliveryState,
        delivery_count: int = 0,
        holder: str | None = None,
        deadline_ms: int = 0,
    ) -> None:
        self.first_offset = first_offset
        self.end_offset = end_offset
        self.state = state
        self.delivery_count = delivery_count
        # The member that has acquired it.
        self.holder = holder
        # When the lock ends, or when an available range may be acquired; 0 for at once.
        self.deadline_ms = deadline_ms
        # The change that is not durable yet; the range stays as it is until then.
        self.transition: object | None = None
        self.count_state = CountState.DURABLE
        # Whether a member gave it up; otherwise what is ARCHIVING has reached the limit.
        self.is_rejected = False

    @property
    def size(self) -> int:
        return self.end_offset - self.first_offset

    @property
    def ended_deliveries(self) -> int:
        """Its delivery count, without the delivery that is under way."""
        return self.delivery_count - (self.state == DeliveryState.ACQUIRED)

    def is_free(self, steady_ms: int) -> bool:
        """Whether it may be acquired now."""
        return (
            self.state == DeliveryState.AVAILABLE
            and self.transition is None
            and self.deadline_ms <= steady_ms
        )

    def is_like(self, other: Range) -> bool:
        return (
            self.state == other.state
            and self.delivery_count == other.delivery_count
            and self.holder == other.holder
            and self.deadline_ms == other.deadline_ms
            and self.transition is other.transition
            and self.transition is None
            # What came back during a write is not part of that write.
            and self.count_state is other.count_state
            and self.is_rejected == other.is_rejected
        )


class InFlight:
    __slots__ = ("_available_from", "end_offset", "open_count", "ranges", "start_offset")

    def __init__(self, start_offset: int) -> None:
        self.start_offset = start_offset
        # The first offset that was never looked at.
        self.end_offset = start_offset
        self.ranges: list[Range] = []
        # How many offsets are available or acquired.
        self.open_count = 0
        # No range before it is available.
        self._available_from = start_offset

    # -- finding ---------------------------------------------------------------------------------------------

    def index_of(self, offset: int) -> int:
        """The index of the range that holds an offset between start and end."""
        return bisect_right(self.ranges, offset, key=_first_offset) - 1

    def overlapping(self, first_offset: int, end_offset: int) -> list[Range]:
        """The ranges that hold any offset between the two, which lie between start and end."""
        ranges, index = self.ranges, self.index_of(first_offset)
        end = index
        while end < len(ranges) and ranges[end].first_offset < end_offset:
            end += 1
        return ranges[index:end]

    def first_free(self, steady_ms: int) -> Range | None:
        ranges = self.ranges
        if not ranges or self._available_from >= self.end_offset:
            return None
        index = self.index_of(max(self._available_from, self.start_offset))
        first_available: int | None = None
        for at in range(index, len(ranges)):
            found = ranges[at]
            if found.state == DeliveryState.AVAILABLE and first_available is None:
                first_available = found.first_offset
            if found.is_free(steady_ms):
                assert first_available is not None
                self._available_from = first_available
                return found
        self._available_from = self.end_offset if first_available is None else first_available
        return None

    def final_count(self, targets: dict[Range, DeliveryState], start_offset: int) -> int:
        """Returns the number of final offsets from a start offset on, with ranges in the states of `targets`."""
        return sum(
            each.end_offset - max(each.first_offset, start_offset)
            for each in self.ranges
            if each.end_offset > start_offset and targets.get(each, each.state).is_final
        )

    def start_after(self, targets: dict[Range, DeliveryState]) -> int:
        """The start offset, when ranges become what `targets` says."""
        start_offset = self.start_offset
        for each in self.ranges:
            if not targets.get(each, each.state).is_final:
                break
            start_offset = each.end_offset
        return start_offset

    # -- changing --------------------------------------------------------------------------------------------

    def append(self, added: Range) -> None:
        """Add a range at the end."""
        assert added.first_offset == self.end_offset
        self.end_offset = added.end_offset
        if not added.state.is_final:
            self.open_count += added.size
        last = self.ranges[-1] if self.ranges else None
        if last is not None and last.is_like(added):
            last.end_offset = added.end_offset
        else:
            self.ranges.append(added)

    def cut(self, first_offset: int, end_offset: int) -> list[Range]:
        """The ranges between two offsets, with borders at both of them."""
        self._split(first_offset)
        self._split(end_offset)
        return self.overlapping(first_offset, end_offset)

    def _split(self, offset: int) -> None:
        if offset >= self.end_offset:
            return
        index = self.index_of(offset)
        found = self.ranges[index]
        if found.first_offset == offset:
            return
        rest = Range(
            offset, found.end_offset, found.state, found.delivery_count, found.holder, found.deadline_ms
        )
        rest.count_state = found.count_state
        rest.is_rejected = found.is_rejected
        found.end_offset = offset
        self.ranges.insert(index + 1, rest)

    def change(
        self,
        changed: Range,
        state: DeliveryState,
        delivery_count: int,
        holder: str | None = None,
        deadline_ms: int = 0,
        *,
        is_rejected: bool = False,
    ) -> None:
        if changed.state.is_final != state.is_final:
            self.open_count += -changed.size if state.is_final else changed.size
        changed.state = state
        # What is final is all alike, so that it becomes one range.
        changed.delivery_count = 0 if state.is_final else delivery_count
        changed.holder = holder
        changed.deadline_ms = deadline_ms
        changed.is_rejected = is_rejected and not state.is_final
        if state != DeliveryState.ACQUIRED:
            changed.count_state = CountState.DURABLE
        if state == DeliveryState.AVAILABLE:
            self._available_from = min(self._available_from, changed.first_offset)

    def settle(self, first_offset: int, end_offset: int) -> None:
        """Join neighbours that are alike around what changed, and move the start past what is final."""
        ranges = self.ranges
        index = max(1, self.index_of(first_offset)) if ranges else 0
        while 0 < index < len(ranges) and ranges[index].first_offset <= end_offset:
            before, each = ranges[index - 1], ranges[index]
            if before.is_like(each):
                before.end_offset = each.end_offset
                del ranges[index]
            else:
                index += 1
        count = 0
        while count < len(ranges) and ranges[count].state.is_final and ranges[count].transition is None:
            self.start_offset = ranges[count].end_offset
            count += 1
        del ranges[:count]

    def drop_before(self, offset: int) -> None:
        """Forget everything before an offset."""
        if offset <= self.start_offset:
            return
        self.start_offset = offset
        if offset >= self.end_offset:
            self.end_offset = offset
        kept: list[Range] = []
        for each in self.ranges:
            if each.end_offset <= offset:
                self.open_count -= 0 if each.state.is_final else each.size
                # A write that is under way finds nothing to change any more.
                each.transition = None
                continue
            if each.first_offset < offset:
                self.open_count -= 0 if each.state.is_final else offset - each.first_offset
                each.first_offset = offset
            kept.append(each)
        self.ranges = kept

    def check_invariants(self) -> None:
        at, open_count = self.start_offset, 0
        for each in self.ranges:
            assert each.first_offset == at < each.end_offset, "ranges cover everything, in order"
            at = each.end_offset
            open_count += 0 if each.state.is_final else each.size
            assert (each.holder is not None) == (each.state == DeliveryState.ACQUIRED) or each.transition
            if each.state == DeliveryState.AVAILABLE:
                assert self._available_from <= each.first_offset, "the search begins before what is available"
        assert at == self.end_offset
        assert open_count == self.open_count
