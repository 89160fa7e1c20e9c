"""One partition of a share group, at the partition's leader: drives `replication.SharePartition`.

It reads the state from the share coordinator when it begins and writes each change there, one write at a time. Changes
during a write go with the next one. It belongs to one leader epoch of the partition. In the next one, and when the
share coordinator refuses its epochs, it is over: locks end, what waits is refused, and a later request begins another
one.

Fetches that find nothing to acquire wait here, and are served in the order in which they came.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from tidemill.broker.clock import Clock
from tidemill.broker.disk.long_work import LongWork
from tidemill.broker.machine_host import DeadlineTimer
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.share.dead_letters import DeadLetters
from tidemill.broker.share.reading import FilteredShare, Shared, read_filtered, read_shared
from tidemill.broker.share.settings import ShareSettings
from tidemill.config.share_groups import OffsetReset
from tidemill.errors import ApiError, ErrorCode, ProtocolError, StorageError
from tidemill.log.filtered_read import FilteredRead
from tidemill.log.log import Log, OffsetOutOfRange
from tidemill.log.time_search import search_time
from tidemill.protocol.share_state import (
    NO_CREATION_OFFSET,
    NO_START_OFFSET,
    SharePartitionKey,
    ShareState,
    ShareStateChange,
    ShareStateSummary,
)
from tidemill.replication.share_counts import ShareCounts
from tidemill.replication.share_messages import (
    AcknowledgedBatch,
    Transition,
    Write,
)
from tidemill.replication.share_partition import SharePartition

logger = logging.getLogger(__name__)

# How long fetches are served before other work of the loop gets its turn.
_SLICE_S = 0.0005
# After a write failed: when what is left to write is tried again.
_RETRY_S = 1.0
# How many dead letters are written before the archived records are marked.
_LETTERS_AT_ONCE = 100
# How much of a view's source is looked through at once.
_PREPARED_BYTES = 1 << 20

# Begins a read of what is shown of a log: from an offset on, with so many bytes at most.
ShownRecords = Callable[[Log, int, int], FilteredRead]
# The share coordinator knows another leader or another state: this one is over.
_FENCED = {
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.FENCED_STATE_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.GROUP_ID_NOT_FOUND,
}


class ShareStates(Protocol):
    """The share coordinators; `ShareStateClient` is that."""

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState: ...
    async def read_summary(self, key: SharePartitionKey) -> ShareStateSummary: ...
    async def write(self, key: SharePartitionKey, change: ShareStateChange) -> None: ...


class ShareHost(Protocol):
    """The part of the broker that a share partition uses; `Replicas` implements it."""

    @property
    def long_work(self) -> LongWork: ...
    @property
    def filtered_work(self) -> LongWork: ...
    def wall_ms(self) -> int: ...
    def is_deserted(self, partition: Partition) -> bool:
        """Whether another broker may lead the partition by now."""

    def is_succession_over(self, partition: Partition, since_ms: int) -> bool:
        """Whether the leader before this one serves no more."""

    def report_damage(self, partition: Partition, reason: str) -> None: ...
    def report_undecodable(self, partition: Partition, reason: str) -> None: ...


class Waiting(Protocol):
    """A fetch that waits for records."""

    def try_complete(self) -> bool:
        """Take what there is, if that is enough. Returns whether it waits no longer."""


class LedSharePartition:
    def __init__(
        self,
        key: SharePartitionKey,
        partition: Partition,
        settings: ShareSettings,
        states: ShareStates,
        clock: Clock,
        host: ShareHost,
        letters: DeadLetters,
        counts: ShareCounts,
        on_over: Callable[[LedSharePartition], None],
    ) -> None:
        self.key = key
        self.partition = partition
        self.settings = settings
        self._states = states
        self._clock = clock
        self._host = host
        self._letters = letters
        self._counts = counts
        # For views, and topics with delayed records.
        self.filter: ShownRecords | None = None
        self._prepared: FilteredShare | None = None
        self._is_preparing = False
        # Writes dead letters, while any are owed.
        self._burying: asyncio.Task[None] | None = None
        # Compares the state epoch, while sessions have begun since it was last known to be the current one.
        self._checking: asyncio.Task[None] | None = None
        self._must_check = False
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._leader_epoch = partition.leader_epoch
        self._began_ms = clock.steady_ms()
        self._state_epoch = 0
        self._creation_offset = NO_CREATION_OFFSET
        # None until its state was read.
        self.machine: SharePartition | None = None
        # Why it is over; None while it serves or begins.
        self.error: ApiError | None = None
        self._timer = DeadlineTimer(clock, self._deadline_passed)
        self._retry: asyncio.TimerHandle | None = None
        self._answers: dict[Transition, asyncio.Future[None]] = {}
        self._waiting: dict[Waiting, None] = {}
        self._serving: Iterator[Waiting] | None = None
        self._has_news = False
        self._task: asyncio.Task[None] = self._loop.create_task(self._begin())

    @property
    def is_over(self) -> bool:
        return self.error is not None or not self._is_led()

    def end_if_replaced(self) -> bool:
        """End when this broker leads the partition no more, or in another epoch. Returns whether it is over."""
        if self.error is None and not self._is_led():
            self._end(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        return self.error is not None

    def _is_led(self) -> bool:
        partition = self.partition
        return partition.is_leader and partition.leader_epoch == self._leader_epoch

    # -- beginning and ending --------------------------------------------------------------------------------

    async def _begin(self) -> None:
        try:
            state = await self._states.read(self.key, self._leader_epoch)
            if state.start_offset == NO_START_OFFSET:
                # Durable before the first record goes out: another leader must not decide it differently.
                state = replace(state, start_offset=await self._first_offset())
                await self._states.write(self.key, self._change(state))
        except ApiError as error:
            self._end(_shown(error))
            return
        except Exception as error:
            logger.exception("share partition %s could not begin", self.key)
            self._end(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))
            return
        log = self.partition.log
        if self.end_if_replaced() or log is None:
            return
        self._state_epoch = state.state_epoch
        self._creation_offset = state.creation_offset
        steady_ms = self._clock.steady_ms()
        try:
            self.machine = SharePartition(
                state, self.settings.limits, log.log_end_offset, steady_ms, self._counts
            )
        except ValueError as error:
            # Of a version that knows more delivery states.
            logger.error("share partition %s has a state that this broker cannot read: %s", self.key, error)
            self._end(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
            return
        self._timer.schedule(self.machine.next_deadline_ms(steady_ms))
        self._bury_soon()
        self.wake()

    def _change(self, begun: ShareState) -> ShareStateChange:
        return ShareStateChange(
            begun.state_epoch,
            self._leader_epoch,
            begun.start_offset,
            delivery_complete_count=0,
            creation_offset=begun.creation_offset,
        )

    async def _first_offset(self) -> int:
        """Returns the offset at which a group begins that has never read the partition."""
        log, strategy = self.partition.log, self.settings.offset_reset
        if log is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        if strategy.reset is OffsetReset.EARLIEST:
            return log.log_start_offset
        if strategy.reset is OffsetReset.BY_DURATION:
            since_ms = self._host.wall_ms() - strategy.duration_ms
            try:
                found = await self._host.long_work.run(partial(search_time, log, since_ms))
            except ProtocolError as error:
                # From the beginning, so that no record is left out because of one that cannot be decoded.
                self._host.report_undecodable(self.partition, str(error))
                return log.log_start_offset
            if found is not None and found.offset < self.partition.high_watermark:
                return found.offset
        return self.partition.high_watermark

    def close(self) -> None:
        """Its group is gone from here, or the broker stops."""
        self._end(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _end(self, error: ApiError) -> None:
        if self.error is not None:
            return
        self.error = error
        self._timer.cancel()
        if self._retry is not None:
            self._retry.cancel()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                _fail(answer, error)
        self._on_over(self)
        self.wake()

    def cancel(self) -> None:
        """The broker stops: a write that is under way is given up."""
        self._task.cancel()
        if self._burying is not None:
            self._burying.cancel()
        if self._checking is not None:
            self._checking.cancel()

    def session_began(self) -> None:
        """Hand out nothing until the state is known to be the current one.

        An administrator may have altered the group's offsets, or deleted the group, while it had no members. Sessions of
        members that are gone for the group may be left here, and with them what was read before.
        """
        self._must_check = True
        if self._checking is None:
            self._checking = self._loop.create_task(self._check_state())

    async def _check_state(self) -> None:
        # What is being read may be of the time before the session.
        await asyncio.wait({self._task})
        while self._must_check and self.error is None:
            self._must_check = False
            try:
                summary = await self._states.read_summary(self.key)
            except Exception as error:
                if not isinstance(error, ApiError):
                    logger.error("the state epoch of %s was not read", self.key, exc_info=error)
                self._must_check = True
                await asyncio.sleep(_RETRY_S)
                continue
            # A group that was deleted and created anew may have the same state epoch.
            is_new = summary.creation_offset != self._creation_offset
            if is_new or summary.state_epoch != self._state_epoch:
                logger.info("share partition %s is over: its state was replaced", self.key)
                self._end(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self._checking = None
        self.wake()

    @property
    def is_at_rest(self) -> bool:
        """Whether it may end without members: nothing is locked, to be written, or owed as a dead letter."""
        machine = self.machine
        if self.is_over or machine is None:
            return self.is_over or not self._busy()
        counts = machine.in_flight_counts()
        return not (self._busy() or machine.needs_write or counts.acquired or counts.owed)

    def _busy(self) -> list[asyncio.Task[None]]:
        tasks = (self._task, self._burying)
        return [task for task in tasks if task is not None and not task.done()]

    async def go_on(self) -> None:
        """Returns when it has come a step nearer to rest, or the next attempt is due."""
        busy = self._busy()
        if busy:
            await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(_RETRY_S)

    # -- members ---------------------------------------------------------------------------------------------

    def acknowledge(
        self, member_id: str, batches: Sequence[AcknowledgedBatch]
    ) -> asyncio.Future[None] | None:
        """Done when it is durable; None when nothing has to be written. `ApiError`, now or awaited."""
        machine = self._machine()
        transition = machine.acknowledge(member_id, batches, self._clock.steady_ms())
        if transition is None:
            self._write_soon()
            return None
        answer = self._answers[transition] = self._loop.create_future()
        self._write_soon()
        return answer

    def release_member(self, member_id: str) -> None:
        """A member is gone: what it held goes to others."""
        if self.machine is not None and not self.end_if_replaced() and self.machine.release_member(member_id):
            self._write_soon()
            self.wake()

    def _machine(self) -> SharePartition:
        if self.end_if_replaced():
            assert self.error is not None
            raise self.error
        if self.machine is None:
            # Nothing is delivered yet, so nothing can be acknowledged.
            raise ApiError(ErrorCode.INVALID_RECORD_STATE, "No offset of the partition is in flight.")
        return self.machine

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, max_bytes: int, *, at_least_one: bool) -> Shared | None:
        """Reads for the next member; None when there is nothing to acquire."""
        machine, log = self.machine, self.partition.log
        if machine is None or self.end_if_replaced() or log is None or self._checking is not None:
            return None
        # Another broker may lead by now, and may have taken acknowledgements of what this one would hand out. For the
        # same reason a new leader begins when its predecessor has ended.
        is_over = self._host.is_succession_over(self.partition, self._began_ms)
        if not is_over or self._host.is_deserted(self.partition):
            return None
        if log.log_start_offset > machine.start_offset:
            machine.log_start_moved(log.log_start_offset)
        offset = machine.next_fetch_offset(self._clock.steady_ms())
        if offset is None or offset >= self.visible_end:
            return None
        if self.filter is not None:
            return self._read_filtered(log, offset, self.filter)
        try:
            return read_shared(
                log,
                offset,
                max_bytes,
                self.visible_end,
                at_least_one=at_least_one,
                is_committed=self.settings.is_read_committed,
            )
        except OffsetOutOfRange:
            return None

    def _read_filtered(self, log: Log, offset: int, shown: ShownRecords) -> FilteredShare | None:
        """Returns the visible records from an offset on, if they are known. Else starts a lookup, which wakes fetches."""
        prepared = self._prepared
        if (
            prepared is not None
            and prepared.read.is_of(log)
            and prepared.offset <= offset < prepared.end_offset
        ):
            return prepared.since(offset)
        self._prepared = None
        if not self._is_preparing:
            self._is_preparing = True
            begin = partial(
                read_filtered,
                shown(log, offset, _PREPARED_BYTES),
                offset,
                self.visible_end,
                _PREPARED_BYTES,
                is_committed=self.settings.is_read_committed,
            )
            self._host.filtered_work.submit(begin, self._did_prepare)
        return None

    def _did_prepare(self, prepared: FilteredShare | None, error: Exception | None) -> None:
        self._is_preparing = False
        machine = self.machine
        if isinstance(error, StorageError):
            self.report_damage(str(error))
        elif error is not None:
            logger.error("share partition %s could not be read", self.key, exc_info=error)
        if prepared is None or machine is None or self.end_if_replaced():
            return
        if prepared.end_offset == prepared.offset:
            return
        if any(span.has_records for span in prepared.spans()):
            self._prepared = prepared
        else:
            # Nothing to acquire: go past it.
            machine.acquire("", prepared.spans(), 1, 1, self._clock.steady_ms())
        self.wake()

    @property
    def visible_end(self) -> int:
        partition = self.partition
        return partition.last_stable_offset if self.settings.is_read_committed else partition.high_watermark

    def steady_ms(self) -> int:
        return self._clock.steady_ms()

    def report_damage(self, reason: str) -> None:
        self._host.report_damage(self.partition, reason)

    def locked(self) -> None:
        """Records were acquired: the timer must know of their deadline."""
        self._timer.schedule(self._clock.steady_ms() + self.settings.limits.lock_duration_ms)

    def configure(self, settings: ShareSettings) -> None:
        if settings != self.settings:
            self.settings = settings
            if self.machine is not None:
                self.machine.configure(settings.limits)
            self.wake()

    # -- waiting ---------------------------------------------------------------------------------------------

    @property
    def has_queue(self) -> bool:
        """Whether fetches that came earlier are about to be served."""
        return bool(self._waiting) and (self._has_news or self._serving is not None)

    def wait(self, waiting: Waiting) -> None:
        if not self._waiting:
            self.partition.reader.wait(self._grew, for_stable=self.settings.is_read_committed)
        self._waiting[waiting] = None

    def stop_waiting(self, waiting: Waiting) -> None:
        self._waiting.pop(waiting, None)
        if not self._waiting:
            self.partition.reader.stop_waiting(self._grew)

    def _grew(self, _added_bytes: int) -> None:
        self.wake()

    def wake(self) -> None:
        """Something may have become available, or this is over."""
        if not self._waiting or self._has_news:
            return
        self._has_news = True
        if self._serving is None:
            # Not at once: the producer's ack goes first, and what else arrives in this turn comes along.
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        until_s = self._loop.time() + _SLICE_S
        if self._serving is None:
            self._has_news = False
            self._serving = iter(list(self._waiting))
        for waiting in self._serving:
            if waiting in self._waiting:
                waiting.try_complete()
            if self._loop.time() >= until_s:
                self._loop.call_soon(self._serve)
                return
        self._serving = None
        if self._has_news and self._waiting:
            self._loop.call_soon(self._serve)

    # -- time ------------------------------------------------------------------------------------------------

    def _deadline_passed(self) -> None:
        machine = self.machine
        if machine is None or self.end_if_replaced():
            return
        steady_ms = self._clock.steady_ms()
        machine.expire(steady_ms)
        self._write_soon()
        self.wake()
        self._timer.schedule(machine.next_deadline_ms(steady_ms))

    # -- writing ---------------------------------------------------------------------------------------------

    def _write_soon(self) -> None:
        machine = self.machine
        if machine is not None and self.error is None and machine.needs_write and self._task.done():
            self._task = self._loop.create_task(self._write())

    async def _write(self) -> None:
        machine = self.machine
        assert machine is not None
        while self.error is None and machine.needs_write:
            write = machine.next_write()
            try:
                await self._states.write(
                    self.key,
                    ShareStateChange(
                        self._state_epoch,
                        self._leader_epoch,
                        write.start_offset,
                        write.batches,
                        write.delivery_complete_count,
                        self._creation_offset,
                    ),
                )
            except Exception as failure:
                self._failed(machine, write, failure)
                return
            machine.written(write, is_durable=True)
            self._answer(write, None)
            if self.settings.limits.backoff_ms:
                self._timer.schedule(machine.next_deadline_ms(self._clock.steady_ms()))
            self._bury_soon()
            self.wake()

    def _failed(self, machine: SharePartition, write: Write, failure: Exception) -> None:
        machine.written(write, is_durable=False)
        if isinstance(failure, ApiError):
            error = _shown(failure)
        else:
            logger.error("the state of share partition %s was not written", self.key, exc_info=failure)
            error = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(failure))
        self._answer(write, error)
        if isinstance(failure, ApiError) and failure.code in _FENCED:
            logger.info("share partition %s is over: %s", self.key, failure)
            self._end(error)
            return
        machine.expire(self._clock.steady_ms())
        self.wake()
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self._loop.call_later(_RETRY_S, self._deadline_passed)

    # -- dead letters ----------------------------------------------------------------------------------------

    def _bury_soon(self) -> None:
        machine = self.machine
        is_busy = self._burying is not None and not self._burying.done()
        if machine is not None and self.error is None and not is_busy and machine.owed(1):
            self._burying = self._loop.create_task(self._bury(machine))

    async def _bury(self, machine: SharePartition) -> None:
        """Write the dead letters that are owed; each of them may be there already."""
        topic = self.settings.dead_letter_topic
        for dead in machine.owed(_LETTERS_AT_ONCE):
            if topic:
                try:
                    written = await self._letters.write(
                        self.key, self._state_epoch, self._creation_offset, self.partition, topic, dead
                    )
                except Exception as error:
                    if not isinstance(error, ApiError):
                        logger.error("dead letters of %s were not written", self.key, exc_info=error)
                    self._loop.call_later(_RETRY_S, self._bury_soon)
                    return
                # Only now: others that lead the partition on this broker later count in the same place.
                self._counts.dead_letters += written
            if self.error is not None:
                return
            machine.buried([dead])
        self._write_soon()

    def _answer(self, write: Write, error: ApiError | None) -> None:
        for transition in write.transitions:
            answer = self._answers.pop(transition, None)
            if answer is None or answer.done():
                continue
            if error is None:
                answer.set_result(None)
            else:
                _fail(answer, error)


def _fail(answer: asyncio.Future[None], error: ApiError) -> None:
    answer.set_exception(error)
    # The request that awaits it may have been given up, because the broker stops.
    answer.exception()


def _shown(error: ApiError) -> ApiError:
    """Returns the error that a member gets for one of the share coordinator, as in Kafka."""
    code = error.code
    if code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH):
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, error.message)
    if code in (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
    ):
        return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND):
        return error
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, error.message)
