"""`Instance`: one consumer of the REST API, that is one confluent-kafka Consumer in a thread of its own.

Callers (the event loop) put work into a queue and get a future; the thread alone touches the consumer and the
`Buffer`. So a slow instance, or one whose coordinator is gone, delays no other.

**Reading.** A read waits in the thread for records, until it has enough of them or its time is over. Its answer is
under way until `settle` says whether the caller got all of it; if not, the records are given back and the next read
has them again. Reads of one instance come one after the other, and none begins while an answer is under way.

**Between reads** the thread goes on polling, so that the instance takes part in rebalances and stays in its group
however seldom its caller reads. Records are kept, up to `_KEPT_BYTES`; then the partitions are paused.

**Commits.** `commit()` without offsets commits what was answered. With `auto.commit.enable` a read commits what
earlier reads have answered, and deleting the instance commits everything answered. An instance that expires, or loses
its partitions, does not commit its last answer, because it is unknown whether the caller has used it: the records come
again.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from tidemill.gateway.problems import Problem, problem_of
from tidemill.gateway.rest_v2.buffer import Batch, Buffer
from tidemill.types import TopicPartition

T = TypeVar("T")

# How long the thread waits for work before it looks after the consumer, and for records before it looks for work.
_TEND_S, _POLL_S = 0.25, 0.1
_KEPT_BYTES = 1024 * 1024
# A partition that was just assigned cannot be sought in until its fetcher has begun.
_SEEK_S, _SEEK_PAUSE_S = 0.5, 0.02
_TIMEOUT_S = 10.0

_log = logging.getLogger("tidemill.gateway")


class Read:
    """One request for records. Its future has the answer's text."""

    def __init__(self, timeout_s: float, bytes_min: int, bytes_max: int) -> None:
        self.future: Future[bytes] = Future()
        self.deadline_s = time.monotonic() + timeout_s
        self.bytes_min = bytes_min
        self.bytes_max = bytes_max
        self.batch: Batch | None = None
        self.has_begun = False


class Instance:
    def __init__(
        self,
        consumer_config: Mapping[str, Any],
        *,
        encode: Callable[[Message], bytes],
        commits_itself: bool,
    ) -> None:
        self._config = {**consumer_config, "error_cb": self._on_error}
        self._encode = encode
        self._commits_itself = commits_itself
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Guards the end of the queue: work is put into it, or comes after the thread has emptied it for the last time.
        self._lock = threading.Lock()
        self._is_over = False
        self._buffer = Buffer()
        self._reads: deque[Read] = deque()
        self._answering: Read | None = None
        self._consumer: Consumer | None = None
        self._error: KafkaError | None = None
        self._is_paused = False
        self._is_closing = False
        self._is_cluster_gone = False
        self._tend_at_s = 0.0
        # What earlier reads have answered: committed by itself, and when partitions are taken away.
        self._committable: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self.started: Future[None] = Future()
        self.closed: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="gateway-instance", daemon=True)

    # --- what callers do, from any thread ---

    def start(self) -> Future[None]:
        self._thread.start()
        return self.started

    def read(self, timeout_s: float, bytes_min: int, bytes_max: int) -> Read:
        """The caller must call `settle` afterwards, whatever happened."""
        read = Read(timeout_s, bytes_min, bytes_max)
        self._put(lambda: self._begin(read))
        return read

    def settle(self, read: Read, *, is_delivered: bool) -> None:
        self._put(lambda: self._settle(read, is_delivered))

    def subscribe(self, topics: Sequence[str]) -> Future[None]:
        return self._call(lambda consumer: self._subscribe(consumer, topics))

    def unsubscribe(self) -> Future[None]:
        return self._call(self._unsubscribe)

    def assign(self, partitions: Sequence[TopicPartition]) -> Future[None]:
        return self._call(lambda consumer: self._assign(consumer, partitions))

    def assignment(self) -> Future[list[TopicPartition]]:
        return self._call(lambda consumer: sorted(map(_ours, consumer.assignment())))

    def seek(self, offsets: Mapping[TopicPartition, int]) -> Future[None]:
        """Offsets may be confluent-kafka's OFFSET_BEGINNING and OFFSET_END."""
        return self._call(lambda consumer: self._seek(consumer, offsets))

    def commit(
        self, offsets: Mapping[TopicPartition, tuple[int, str | None]] | None
    ) -> Future[dict[TopicPartition, int]]:
        """The offsets are those to go on from. None stands for what was answered."""
        return self._call(lambda consumer: self._commit(consumer, offsets))

    def committed(
        self, partitions: Sequence[TopicPartition] | None
    ) -> Future[dict[TopicPartition, tuple[int, str]]]:
        """Without partitions, of those that are assigned."""
        return self._call(lambda consumer: self._find_committed(consumer, partitions))

    def close(self, *, is_finished: bool) -> Future[None]:
        """Leaves the group. `is_finished`: the caller has said that it has done its work."""

        def begin() -> None:
            self._is_closing = True
            if is_finished and self._commits_itself:
                self._committable = self._buffer.answered()

        self._put(begin)
        return self.closed

    def _call(self, work: Callable[[Consumer], T]) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = work(self._open_consumer())
            except KafkaException as error:
                future.set_exception(_problem(error.args[0]))
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._put(run)
        return future

    def _put(self, work: Callable[[], None]) -> None:
        with self._lock:
            if not self._is_over:
                self._work.put(work)
                return
        work()

    def _open_consumer(self) -> Consumer:
        if self._consumer is None:
            raise Problem(404, 40403, "the consumer instance was deleted")
        return self._consumer

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._consumer = Consumer(self._config, logger=_log)
        except (KafkaException, ValueError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            self.started.set_exception(
                Problem(422, 42204, f"this consumer configuration is not valid: {reason}")
            )
            self._refuse_rest()
            return
        self.started.set_result(None)
        try:
            while not self._is_closing:
                try:
                    self._serve(self._consumer)
                except KafkaException as error:
                    self._on_failure(error.args[0])
        finally:
            self._leave_group(self._consumer)
            self._consumer = None
            self._refuse_rest()

    def _serve(self, consumer: Consumer) -> None:
        """One piece of work, and then a look at the consumer: neither keeps the other waiting."""
        is_reading = bool(self._reads) and self._answering is None
        patience_s = 0.0 if is_reading else max(0.0, self._tend_at_s - time.monotonic())
        with contextlib.suppress(queue.Empty):
            self._work.get(timeout=patience_s)()
        if self._reads and self._answering is None:
            self._advance(consumer, self._reads[0])
        elif time.monotonic() >= self._tend_at_s:
            self._tend_at_s = time.monotonic() + _TEND_S
            self._tend(consumer)

    def _tend(self, consumer: Consumer) -> None:
        """Takes part in the group, and keeps some records at hand."""
        while self._buffer.waiting_bytes < _KEPT_BYTES:
            self._resume(consumer)
            message = consumer.poll(0)
            if message is None:
                return
            self._take_in(message)
        self._pause(consumer)
        message = consumer.poll(0)
        if message is not None:
            self._take_in(message)

    def _advance(self, consumer: Consumer, read: Read) -> None:
        if read.future.cancelled():
            self._reads.popleft()
            return
        if not read.has_begun:
            read.has_begun = True
            self._commit_earlier(consumer)
        message: Message | None = None
        while self._buffer.waiting_bytes < read.bytes_max:
            self._resume(consumer)
            message = consumer.poll(0)
            if message is None:
                break
            self._take_in(message)
        left_s = read.deadline_s - time.monotonic()
        is_enough = not self._buffer.is_empty and self._buffer.waiting_bytes >= read.bytes_min
        if (
            is_enough
            or self._buffer.waiting_bytes >= read.bytes_max
            or left_s <= 0
            or self._error is not None
        ):
            self._reads.popleft()
            self._check_cluster(consumer)
            self._answer(read)
            return
        message = consumer.poll(min(_POLL_S, left_s))
        if message is not None:
            self._take_in(message)

    def _answer(self, read: Read) -> None:
        if not read.future.set_running_or_notify_cancel():
            return
        if self._buffer.is_empty and self._error is not None:
            error, self._error = self._error, None
            read.future.set_exception(_problem(error))
            return
        try:
            batch = self._buffer.take(read.bytes_max, self._encode)
        except Problem as problem:
            read.future.set_exception(problem)
            return
        if batch.messages:
            read.batch = batch
            self._answering = read
        read.future.set_result(batch.body)

    def _check_cluster(self, consumer: Consumer) -> None:
        """Probes the cluster when the buffer is empty; an unreachable cluster becomes the error of the next answer."""
        if self._is_cluster_gone and self._buffer.is_empty and self._error is None:
            try:
                consumer.list_topics(timeout=_POLL_S * 5)
            except KafkaException as error:
                self._error = error.args[0]
            else:
                self._is_cluster_gone = False

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._is_cluster_gone = True

    def _on_failure(self, error: KafkaError) -> None:
        """Keeps an error that belongs to no call, and answers the waiting read with it, or the next one."""
        _log.warning("a consumer instance failed: %s", error.str())
        self._error = error
        if self._reads and self._answering is None:
            self._answer(self._reads.popleft())

    def _begin(self, read: Read) -> None:
        try:
            self._open_consumer()
        except Problem as problem:
            if read.future.set_running_or_notify_cancel():
                read.future.set_exception(problem)
        else:
            self._reads.append(read)

    def _settle(self, read: Read, is_delivered: bool) -> None:
        if read in self._reads:
            self._reads.remove(read)
        if self._answering is not read:
            return
        self._answering = None
        assert read.batch is not None
        if is_delivered:
            self._buffer.confirm(read.batch)
        else:
            self._buffer.give_back(read.batch)

    def _take_in(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self._buffer.add(message)
        elif error.code() in (KafkaError._PARTITION_EOF, KafkaError.UNKNOWN_TOPIC_OR_PART):
            # A topic may come to be after it was subscribed to.
            return
        else:
            self._error = error

    # --- the consumer's position and its group ---

    def _subscribe(self, consumer: Consumer, topics: Sequence[str]) -> None:
        self._forget(consumer)
        consumer.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _unsubscribe(self, consumer: Consumer) -> None:
        self._forget(consumer)
        consumer.unsubscribe()
        consumer.unassign()

    def _assign(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        before = {_ours(theirs) for theirs in consumer.assignment()}
        kept = {
            partition: self._position(consumer, partition) for partition in before.intersection(partitions)
        }
        self._forget(consumer)
        consumer.assign(
            [
                _theirs(partition, kept.get(partition, confluent_kafka.OFFSET_STORED))
                for partition in partitions
            ]
        )
        self._is_paused = False

    def _position(self, consumer: Consumer, partition: TopicPartition) -> int:
        waiting = self._buffer.first_waiting(partition)
        return _fetch_position(consumer, partition) if waiting is None else waiting

    def _seek(self, consumer: Consumer, offsets: Mapping[TopicPartition, int]) -> None:
        assigned = {_ours(theirs) for theirs in consumer.assignment()}
        for partition in offsets:
            if partition not in assigned:
                raise Problem(409, 40903, f"{partition} is not assigned to this consumer instance")
        # Paused partitions go on from where they were paused.
        self._resume(consumer)
        for partition, offset in offsets.items():
            if not _try_seek(consumer, _theirs(partition, offset)):
                # Its fetcher has stopped, as after an offset that could not be found: all are begun anew.
                others = {other: _fetch_position(consumer, other) for other in assigned}
                consumer.assign([_theirs(*item) for item in {**others, **offsets}.items()])
                break
        self._buffer.forget(offsets)
        self._error = None
        for partition in offsets:
            self._committable.pop(partition, None)

    def _forget(self, consumer: Consumer) -> None:
        gone = [_ours(theirs) for theirs in consumer.assignment()]
        self._leave(consumer, gone)

    def _leave(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Commits and forgets partitions that this instance gives up."""
        self._commit_now(consumer, partitions)
        self._buffer.forget(partitions)
        for partition in partitions:
            self._committable.pop(partition, None)
            self._committed.pop(partition, None)

    def _on_assign(self, *_: object) -> None:
        self._is_paused = False

    def _on_revoke(self, consumer: Consumer, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self._is_paused = False
        self._leave(consumer, [_ours(theirs) for theirs in partitions])

    def _on_lost(self, _: Consumer, partitions: list[confluent_kafka.TopicPartition]) -> None:
        # Another member may own them already, so nothing is committed.
        self._is_paused = False
        for partition in map(_ours, partitions):
            self._committable.pop(partition, None)
            self._committed.pop(partition, None)
        self._buffer.forget(map(_ours, partitions))

    def _pause(self, consumer: Consumer) -> None:
        if not self._is_paused:
            consumer.pause(consumer.assignment())
            self._is_paused = True

    def _resume(self, consumer: Consumer) -> None:
        if self._is_paused:
            consumer.resume(consumer.assignment())
            self._is_paused = False

    # --- commits ---

    def _commit(
        self, consumer: Consumer, offsets: Mapping[TopicPartition, tuple[int, str | None]] | None
    ) -> dict[TopicPartition, int]:
        if offsets is None:
            offsets = {partition: (offset, None) for partition, offset in self._buffer.answered().items()}
        if not offsets:
            return {}
        theirs = [_theirs(partition, offset, metadata) for partition, (offset, metadata) in offsets.items()]
        for done in consumer.commit(offsets=theirs, asynchronous=False):
            if done.error is not None:
                raise _problem(done.error)
        return {partition: offset for partition, (offset, _) in offsets.items()}

    def _commit_earlier(self, consumer: Consumer) -> None:
        """Commits what earlier reads returned. A caller that reads again has received it."""
        if not self._commits_itself:
            return
        self._committable = self._buffer.answered()
        changed = {p: offset for p, offset in self._committable.items() if self._committed.get(p) != offset}
        if changed:
            consumer.commit(offsets=[_theirs(*item) for item in changed.items()], asynchronous=True)
            self._committed.update(changed)

    def _commit_now(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        mine = {
            partition: self._committable[partition]
            for partition in partitions
            if partition in self._committable
        }
        if not self._commits_itself or not mine:
            return
        try:
            consumer.commit(offsets=[_theirs(*item) for item in mine.items()], asynchronous=False)
        except KafkaException as error:
            _log.warning(
                "offsets of %s were not committed: %s", ", ".join(map(str, mine)), error.args[0].str()
            )

    def _find_committed(
        self, consumer: Consumer, partitions: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, tuple[int, str]]:
        asked = (
            consumer.assignment() if partitions is None else [_theirs(partition) for partition in partitions]
        )
        if not asked:
            return {}
        found: dict[TopicPartition, tuple[int, str]] = {}
        for theirs in consumer.committed(asked, timeout=_TIMEOUT_S):
            if theirs.error is not None:
                raise _problem(theirs.error)
            if theirs.offset >= 0:
                found[_ours(theirs)] = theirs.offset, theirs.metadata or ""
        return found

    # --- the end ---

    def _leave_group(self, consumer: Consumer) -> None:
        try:
            self._leave(consumer, [_ours(theirs) for theirs in consumer.assignment()])
            consumer.close()
        except (KafkaException, RuntimeError) as error:
            _log.warning("a consumer instance did not leave its group: %s", error)

    def _refuse_rest(self) -> None:
        """Runs the work that came too late, which `_open_consumer` refuses."""
        with self._lock:
            self._is_over = True
        while not self._work.empty():
            self._work.get()()
        while self._reads:
            self._begin(self._reads.popleft())
        self.closed.set_result(None)


def _fetch_position(consumer: Consumer, partition: TopicPartition) -> int:
    offset: int = consumer.position([_theirs(partition)])[0].offset
    return offset if offset >= 0 else confluent_kafka.OFFSET_STORED


def _try_seek(consumer: Consumer, target: confluent_kafka.TopicPartition) -> bool:
    deadline_s = time.monotonic() + _SEEK_S
    while True:
        try:
            consumer.seek(target)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_SEEK_PAUSE_S)
        else:
            return True


def _problem(error: KafkaError) -> Problem:
    match error.code():
        case KafkaError.UNKNOWN_TOPIC_OR_PART | KafkaError._UNKNOWN_TOPIC | KafkaError._UNKNOWN_PARTITION:
            return Problem(404, 40402, f"a topic or partition does not exist: {error.str()}")
        case KafkaError._AUTO_OFFSET_RESET | KafkaError.OFFSET_OUT_OF_RANGE:
            return Problem(
                409, 40903, f"there is no position to read from, and auto.offset.reset is none: {error.str()}"
            )
        case KafkaError.ILLEGAL_GENERATION | KafkaError.UNKNOWN_MEMBER_ID | KafkaError._STATE:
            return Problem(409, 40903, f"the consumer instance is not in a state for this: {error.str()}")
        case KafkaError.REBALANCE_IN_PROGRESS:
            return Problem(503, 50003, f"the group is being rebalanced; try again: {error.str()}")
    return problem_of(error)


def _ours(theirs: confluent_kafka.TopicPartition) -> TopicPartition:
    return TopicPartition(theirs.topic, theirs.partition)


def _theirs(
    partition: TopicPartition, offset: int = confluent_kafka.OFFSET_INVALID, metadata: str | None = None
) -> confluent_kafka.TopicPartition:
    if metadata is None:
        return confluent_kafka.TopicPartition(partition.topic, partition.partition, offset)
    return confluent_kafka.TopicPartition(partition.topic, partition.partition, offset, metadata)
