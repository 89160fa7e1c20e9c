"""Messages that wait to be delivered to consumers, and the threads that fetch them.

A `QueueInbox` is a member of a durable queue's share group. Its locks are renewed as long as a message is not settled,
however long a task runs. A `StreamInbox` reads the streams of the exchanges that a transient queue is bound to, from the
time of the binding on.

Inboxes call `on_ready`, in any thread, when `take` may have something new.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from amqp.exceptions import AMQPError, RecoverableConnectionError
from kombu.utils.uuid import uuid

from tidemill.celery.backend import Backend
from tidemill.celery.envelope import Message, NotAMessage, decode
from tidemill.celery.routing import Binding, matches
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.consumer import Consumer
from tidemill.client.share.consumer import ShareConsumer
from tidemill.client.share.deliveries import AlreadySettled, Capacity, ShareDelivery
from tidemill.client.share.session import Acknowledge
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.types import TopicPartition

LOGGER = logging.getLogger("tidemill.celery")

# How long `get` waits for the group when the queue is not empty.
_GET_LIMIT_S = 5.0
_STREAM_WAIT_MS = 500
# Reading rests while so many wait to be taken.
_STREAM_MESSAGES_MAX = 1000
_STREAM_PAUSE_S = 0.5
_STREAM_END_LIMIT_S = 5.0


class QueueInbox:
    def __init__(
        self,
        backend: Backend,
        queue: str,
        capacity: Capacity,
        on_ready: Callable[[], None],
        ready_max: int | None = None,
    ) -> None:
        """Joins the queue's group. Holds as much as `capacity` allows, which other inboxes may share.

        With `ready_max` 0 nothing is fetched ahead: it is for `get` alone.
        """
        self.queue = queue
        self._backend = backend
        self._deliveries_max = backend.prepare_group(queue)
        self._consumer = ShareConsumer(
            backend.cluster(),
            backend.names.group(queue),
            backend.names.topics(queue),
            capacity=capacity,
            ready_max=ready_max,
            has_ranks=True,
            renews_locks=True,
            on_ready=on_ready,
        )
        # By delivery tag.
        self._in_hand: dict[str, ShareDelivery] = {}

    @property
    def is_idle(self) -> bool:
        return not self._in_hand

    def take(self, timeout_s: float = 0.0) -> Message | None:
        """The next message, which has to be settled by its delivery tag."""
        while True:
            try:
                delivery = self._consumer.take(timeout_s)
            except TidemillError as failure:
                # The member cannot go on. Celery connects anew, by its policy, and says why.
                raise RecoverableConnectionError(str(failure)) from failure
            if delivery is None:
                return None
            try:
                message = decode(delivery.record.value)
            except NotAMessage as problem:
                LOGGER.error("%s: not a message of kombu, rejected: %s", _where(delivery), problem)
                self._acknowledge(delivery, Acknowledge.REJECT)
                continue
            properties = message["properties"]
            # Of this delivery: the same message may come again while an earlier one is not settled.
            properties["delivery_tag"] = uuid()
            properties["delivery_info"]["redelivered"] = delivery.delivery_count > 1
            self._in_hand[properties["delivery_tag"]] = delivery
            return message

    def get(self) -> Message | None:
        """One message, if the queue has any."""
        if not self._backend.size(self.queue):
            return None
        self._consumer.want(1)
        try:
            return self.take(_GET_LIMIT_S)
        finally:
            self._consumer.want(0)

    def settle(self, delivery_tag: str, kind: Acknowledge) -> None:
        """Returns before the broker has confirmed it."""
        delivery = self._in_hand.pop(delivery_tag, None)
        if delivery is None:
            # The inbox was closed meanwhile.
            return
        if kind is Acknowledge.RELEASE and delivery.delivery_count >= self._deliveries_max:
            # Another release would archive it; a requeue is meant to keep it.
            try:
                self._backend.publish_again(delivery.partition.topic, delivery.record.value)
                kind = Acknowledge.ACCEPT
            except AMQPError as failure:
                # Celery only logs it, or ends; under a lock that is renewed the message would never come again.
                LOGGER.error("%s is given up: its copy was not written: %s", _where(delivery), failure)
        self._acknowledge(delivery, kind)

    def _acknowledge(self, delivery: ShareDelivery, kind: Acknowledge) -> None:
        def concluded(future: Future[None]) -> None:
            failure = future.exception()
            if failure is None:
                LOGGER.debug("%s: %s is durable", _where(delivery), kind.name.lower())
            else:
                LOGGER.warning("%s: %s has failed: %s", _where(delivery), kind.name.lower(), failure)

        try:
            self._consumer.acknowledge(delivery, kind).add_done_callback(concluded)
        except AlreadySettled:
            LOGGER.debug("%s was settled before", _where(delivery))

    def stop(self) -> None:
        """Releases what was not taken, at once, and takes no more. What is in hand can still be settled."""
        self._consumer.release_not_started()

    def close(self) -> None:
        """Releases what is in hand, and leaves the group."""
        self._in_hand.clear()
        self._consumer.close()


def _where(delivery: ShareDelivery) -> str:
    return f"{delivery.partition} offset {delivery.record.offset}, delivery {delivery.delivery_count}"


@dataclass
class TransientQueue:
    """A transient queue: its bindings, and the positions of its exchanges' streams when it was bound to them."""

    bindings: dict[Binding, str] = field(default_factory=dict)
    positions: dict[TopicPartition, int] = field(default_factory=dict)

    def is_for(self, queue: str, message: Message) -> bool:
        delivery_info = message["properties"]["delivery_info"]
        exchange = delivery_info.get("exchange") or ""
        routing_key = delivery_info.get("routing_key") or ""
        if not exchange:
            return bool(routing_key == queue)
        return any(
            binding.exchange == exchange and matches(exchange_type, binding.routing_key, routing_key)
            for binding, exchange_type in self.bindings.items()
        )


class StreamInbox:
    def __init__(
        self, backend: Backend, queue: str, transient: TransientQueue, on_ready: Callable[[], None]
    ) -> None:
        self.queue = queue
        self.is_idle = True
        self._transient = transient
        self._on_ready = on_ready
        self._messages: deque[Message] = deque()
        # Of messages that were taken and not settled, by delivery tag.
        self._in_hand: dict[str, Message] = {}
        self._is_closing = threading.Event()
        self._reader = threading.Thread(
            target=self._run,
            args=(backend.cluster(), dict(transient.positions)),
            name=f"tidemill-celery-{queue}",
            daemon=True,
        )
        self._reader.start()

    def get(self) -> Message | None:
        return self.take()

    def take(self) -> Message | None:
        if not self._messages:
            return None
        message = self._messages.popleft()
        self._in_hand[message["properties"]["delivery_tag"]] = message
        return message

    def settle(self, delivery_tag: str, kind: Acknowledge) -> None:
        message = self._in_hand.pop(delivery_tag, None)
        if message is not None and kind is Acknowledge.RELEASE:
            message["properties"]["delivery_info"]["redelivered"] = True
            self._messages.appendleft(message)
            self._on_ready()

    def stop(self) -> None:
        self._is_closing.set()

    def close(self) -> None:
        self._is_closing.set()
        self._reader.join(_STREAM_END_LIMIT_S)

    def _run(self, cluster: Cluster, positions: Mapping[TopicPartition, int]) -> None:
        consumer = Consumer(cluster, positions)
        try:
            while not self._is_closing.is_set():
                if len(self._messages) >= _STREAM_MESSAGES_MAX:
                    self._is_closing.wait(_STREAM_PAUSE_S)
                    continue
                try:
                    self._read(consumer)
                except TidemillError as failure:
                    LOGGER.warning("queue %s: %s; trying again", self.queue, failure)
                    self._is_closing.wait(_STREAM_PAUSE_S)
                    if isinstance(failure, ApiError) and failure.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                        self._find_positions(cluster, consumer)
                except Exception:
                    LOGGER.exception("queue %s", self.queue)
                    self._is_closing.wait(_STREAM_PAUSE_S)
        finally:
            cluster.close()

    def _read(self, consumer: Consumer) -> None:
        is_new = False
        for partition, record in consumer.poll(_STREAM_WAIT_MS):
            try:
                message = decode(record.value)
            except NotAMessage as problem:
                LOGGER.error("%s offset %d: not a message of kombu: %s", partition, record.offset, problem)
                continue
            if self._transient.is_for(self.queue, message):
                message["properties"]["delivery_tag"] = uuid()
                self._messages.append(message)
                is_new = True
        if is_new:
            self._on_ready()

    def _find_positions(self, cluster: Cluster, consumer: Consumer) -> None:
        """After retention, or when a stream was made anew, reading goes on where it begins."""
        try:
            consumer.positions.update(Admin(cluster).start_offsets(list(consumer.positions)))
        except TidemillError as failure:
            LOGGER.warning("queue %s: %s", self.queue, failure)


Inbox = QueueInbox | StreamInbox
