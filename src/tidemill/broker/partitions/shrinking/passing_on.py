"""Passes batches for a decommissioned partition on to the partition that stores them (decision 18).

The batch names the decommissioned partition in its attributes. Its base offset says that it was passed on, and holds the
sequence that follows the producer's last one in this log. Its leader epoch says how far this broker knows the metadata. The
partition that stores it overwrites both fields. One batch is under way at a time, so none overtakes one that is refused.
Every batch is answered once.

A batch may be under way for long, while the shrink is taken back and begun again. The producer may have repeated it
meanwhile, and it is in the partition itself. So a batch from before is refused: by metadata that is older than the
present shrink.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tidemill.broker.partitions.refusals import Refusals
from tidemill.controller.image import MetadataImage
from tidemill.errors import ErrorCode
from tidemill.log.producer_state.producers import AppendedBatch, Producers, later_sequence, next_sequence
from tidemill.protocol.produce import ProduceResult
from tidemill.protocol.records import NAMED_PARTITION, BatchHeader, restamp, with_named_partition
from tidemill.types import TopicPartition

# The batches of one partition that may wait.
_WAITING_BYTES_MAX = 64 << 20
# How long nothing was sent to a partition that is removed, and how long such a pause is waited for.
_QUIET_MS = 5_000
_QUIET_AWAITED_MS = 60_000
_PRODUCERS_MAX = 1_000
# The upper half of the base offset of a batch that was passed on. The lower half is the sequence, or that any may be first.
_PASSED_ON = 0x7064_0018
_ANY_SEQUENCE = 0xFFFF_FFFF
# The field has 31 bits. Metadata logs that are longer are not compared.
_METADATA_END_MAX = 0x7FFF_FFFF

Settle = Callable[[ProduceResult], None]


class PassingOnHost(Protocol):
    """The part of the broker that passing batches on uses."""

    @property
    def image(self) -> MetadataImage | None: ...
    def steady_ms(self) -> int: ...
    def pass_on(
        self,
        target: TopicPartition,
        batch: memoryview,
        acks: int,
        transactional_id: str | None,
        settle: Settle,
    ) -> None:
        """Produce a batch to the leader of `target`. `settle` is called once, later."""


class _Waiting(NamedTuple):
    header: BatchHeader
    batch: memoryview
    acks: int
    transactional_id: str | None
    first_sequence: int | None
    settle: Settle


class PassingOn:
    __slots__ = (
        "_began_ms",
        "_empty_since_ms",
        "_going_on",
        "_host",
        "_is_closed",
        "_name",
        "_used_ms",
        "_waiting",
        "_waiting_bytes",
        "refusals",
        "target",
    )

    def __init__(self, name: TopicPartition, target: int, host: PassingOnHost, refusals: Refusals) -> None:
        self._name = name
        self.target = target
        self._host = host
        self.refusals = refusals
        # The first one is under way.
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        # The producers whose latest batches are known to be in the target, and their epochs.
        self._going_on: dict[int, int] = {}
        self._is_closed = False
        self._began_ms = self._used_ms = host.steady_ms()
        self._empty_since_ms: int | None = None

    def note_empty(self, *, is_empty: bool, kept_ms: int) -> None:
        """Remembers since when the partition is empty and old enough to be removed.

        Its log recognises retries of what it stored, so it stays for `kept_ms`.
        """
        steady_ms = self._host.steady_ms()
        if not is_empty or steady_ms - self._began_ms < kept_ms:
            self._empty_since_ms = None
        elif self._empty_since_ms is None:
            self._empty_since_ms = steady_ms

    @property
    def may_go(self) -> bool:
        """Whether the partition may be removed, as of the last `note_empty`.

        A client that loses a partition from its metadata may fail the records which wait for it in its buffers. So the
        removal waits for a pause of its producers, if there is one.
        """
        if self._empty_since_ms is None:
            return False
        steady_ms = self._host.steady_ms()
        is_quiet = steady_ms - self._used_ms >= _QUIET_MS
        return is_quiet or steady_ms - self._empty_since_ms >= _QUIET_AWAITED_MS

    def submit(
        self,
        header: BatchHeader,
        batch: memoryview,
        acks: int,
        transactional_id: str | None,
        first_sequence: int | None,
        settle: Settle,
        *,
        may_leave_gap: bool,
    ) -> None:
        """Pass a checked batch on. `first_sequence` is the one that follows the producer's last one in other logs.

        `may_leave_gap` says that later ones were perhaps stored in a log that is gone.
        """
        self._used_ms = self._host.steady_ms()
        if self._waiting_bytes + len(batch) > _WAITING_BYTES_MAX:
            self._refuse(
                header, ErrorCode.NOT_ENOUGH_REPLICAS, f"too many batches wait for {self._name}", settle
            )
            return
        if header.producer_id < 0 or self._going_on.get(header.producer_id) == header.producer_epoch:
            first_sequence = None
        elif may_leave_gap:
            first_sequence = later_sequence(header.base_sequence, first_sequence)
        marked = header._replace(
            base_offset=_PASSED_ON << 32 | (_ANY_SEQUENCE if first_sequence is None else first_sequence),
            attributes=with_named_partition(header.attributes, self._name.partition),
            leader_epoch=self._metadata_end(),
        )
        restamp(batch, marked)
        self._waiting.append(_Waiting(header, batch, acks, transactional_id, first_sequence, settle))
        self._waiting_bytes += len(batch)
        if len(self._waiting) == 1:
            self._send()

    def _metadata_end(self) -> int:
        """How far this broker knows the metadata."""
        image = self._host.image
        return 0 if image is None else min(image.end_offset, _METADATA_END_MAX)

    def _send(self) -> None:
        """Send the first one that waits and follows none that was refused."""
        while (code := self._refused_before(self._waiting[0])) is not None:
            refused = self._waiting.popleft()
            self._waiting_bytes -= len(refused.batch)
            self._refuse(refused.header, code, "an earlier batch of the producer comes first", refused.settle)
            if not self._waiting:
                return
        first = self._waiting[0]
        target = TopicPartition(self._name.topic, self.target)
        self._host.pass_on(target, first.batch, first.acks, first.transactional_id, self._settled)

    def _refused_before(self, waiting: _Waiting) -> ErrorCode | None:
        """A batch may leave a gap behind the logs that are known, but not behind a refused batch."""
        if waiting.header.producer_id < 0:
            return None
        return self.refusals.before(waiting.header, self._host.steady_ms())

    def _settled(self, result: ProduceResult) -> None:
        if self._is_closed:
            return
        waiting = self._waiting.popleft()
        self._waiting_bytes -= len(waiting.batch)
        if result.error:
            code = result.error
            if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                code = self.refusals.before(waiting.header, self._host.steady_ms()) or code
            self._refuse(waiting.header, code, result.message or code.message, waiting.settle)
        else:
            self.refusals.forget(waiting.header)
            self._note_going_on(waiting.header, waiting.first_sequence)
            # An offset of the target would be wrong for the partition that the producer named. Some clients count from the
            # base offset on, so that -1 would give the second record offset 0: every record gets a negative one.
            no_offset = -waiting.header.record_count
            waiting.settle(result._replace(partition=self._name.partition, base_offset=no_offset))
        if self._waiting and not self._is_closed:
            self._send()

    def _note_going_on(self, header: BatchHeader, first_sequence: int | None) -> None:
        """The target has a batch. It is the latest one of the producer, unless it was the retry of an older one."""
        if (
            header.producer_id < 0
            or later_sequence(header.base_sequence, first_sequence) != header.base_sequence
        ):
            return
        self._going_on[header.producer_id] = header.producer_epoch
        if len(self._going_on) > _PRODUCERS_MAX:
            del self._going_on[next(iter(self._going_on))]

    def _refuse(self, header: BatchHeader, code: ErrorCode, message: str, settle: Settle) -> None:
        if code.retriable:
            self.refusals.note(header, code, self._host.steady_ms())
        settle(ProduceResult(self._name.partition, code, message=message))

    def close(self) -> None:
        """The partition is not decommissioned any more, or not led here: producers try again."""
        self._is_closed = True
        for waiting in self._waiting:
            self._refuse(
                waiting.header,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{self._name} has just changed its role",
                waiting.settle,
            )
        self._waiting.clear()


def stored_before(producers: Producers, header: BatchHeader) -> tuple[AppendedBatch | None, int | None]:
    """Returns the stored batch that this one repeats, and the sequence that the producer has to start with elsewhere.

    `InvalidBatch` when the producer is fenced here.
    """
    state = producers.get(header.producer_id) if header.producer_id >= 0 else None
    if state is None:
        return None, None
    producers.check_epoch(header)
    if header.producer_epoch > state.epoch:
        return None, 0
    for batch in state.batches:
        if (batch.base_sequence, batch.last_sequence) == (header.base_sequence, header.last_sequence):
            return batch, None
    # Markers leave a producer without batches: it may start at any sequence.
    return None, next_sequence(state.batches) if state.batches else None


def is_committed(producers: Producers, header: BatchHeader, high_watermark: int) -> bool:
    """Whether the batches that a batch follows are sure to stay in this log: only then may it be stored elsewhere."""
    state = producers.get(header.producer_id) if header.producer_id >= 0 else None
    return state is None or not state.batches or state.batches[-1].last_offset < high_watermark


def knows_sequence(producers: Producers, header: BatchHeader) -> bool:
    """Whether a log has the sequence of a producer, in the epoch of its batch; otherwise a batch may leave a gap.

    A marker, or batches that were passed on by another partition, tell the epoch only. For a batch that is passed on, the
    partition that passes it on has kept the order.
    """
    state = producers.get(header.producer_id)
    if state is None or header.attributes & NAMED_PARTITION:
        return state is not None
    if state.epoch == header.producer_epoch:
        return bool(state.batches)
    return state.epoch > header.producer_epoch


def is_outdated(header: BatchHeader, storing_since: int) -> bool:
    """Whether a batch was passed on by metadata that is older than the time since which it is stored here.

    Brokers of earlier versions do not say it.
    """
    return 0 <= header.leader_epoch < min(storing_since, _METADATA_END_MAX)


def taken_over(header: BatchHeader) -> tuple[BatchHeader, int | None]:
    """The header as a producer's, and the sequence that is next by the log of the partition that passed the batch on."""
    if not header.attributes & NAMED_PARTITION:
        return header, None
    sequence = header.base_offset & 0xFFFF_FFFF
    return header._replace(base_offset=0), None if sequence == _ANY_SEQUENCE else sequence


def next_where_stored(producers: Producers, header: BatchHeader, stated: int | None) -> int | None:
    """The sequence that a batch which is passed on must have, by what the partition that passed it on has stated.

    The log that stores it may have had later batches if its producer state is incomplete: then it may leave a gap.
    """
    state = producers.get(header.producer_id)
    is_known = state is not None and header.named_partition in state.named
    if stated is None or producers.is_complete or is_known:
        return stated
    return later_sequence(header.base_sequence, stated)


def is_passed_on_batch(header: BatchHeader) -> bool:
    """Whether the batch says that another partition passed it on."""
    return bool(header.attributes & NAMED_PARTITION) and header.base_offset >> 32 == _PASSED_ON
