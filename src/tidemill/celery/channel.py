"""kombu's channel: declares, publishes, consumes and acknowledges.

All inboxes of a channel share one capacity, the prefetch count: what is handed out and not settled, and what waits here
under a lock, are together never more. A cancelled consumer's messages can still be settled, as a worker does that stops:
so its inbox stays until the last one is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from queue import Empty
from typing import Any, Protocol

from amqp.exceptions import IrrecoverableChannelError, NotFound
from amqp.protocol import queue_declare_ok_t
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from tidemill.celery.backend import LOGGER, Backend
from tidemill.celery.envelope import Message
from tidemill.celery.inboxes import Inbox, QueueInbox, StreamInbox, TransientQueue
from tidemill.celery.routing import Binding
from tidemill.client.share.deliveries import Capacity
from tidemill.client.share.session import Acknowledge

# Where a consumer sets no prefetch count.
_PREFETCH_DEFAULT = 500


class Unacknowledged(virtual.QoS):
    """Messages that were handed out and not settled; an acknowledgement of kombu's becomes one of the share group."""

    def ack(self, delivery_tag: str) -> None:
        self.channel.settle(delivery_tag, Acknowledge.ACCEPT)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self.channel.settle(delivery_tag, Acknowledge.RELEASE if requeue else Acknowledge.REJECT)
        super().ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        self._flush()
        for delivery_tag in list(self._delivered):
            self.reject(delivery_tag, requeue=True)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        # Inboxes release what is in hand when they are closed.
        del stderr
        self._on_collect.cancel()


class ChannelHost(Protocol):
    """The part of the transport that a channel uses. The names with an underscore are kombu's."""

    transients: dict[str, TransientQueue]
    _callbacks: dict[str, Any]

    @property
    def backend(self) -> Backend: ...
    @property
    def is_forked(self) -> bool: ...
    def wake(self) -> None: ...
    def _deliver(self, message: Any, queue: str) -> None: ...


class Channel(virtual.Channel):
    QoS = Unacknowledged
    connection: ChannelHost

    def __init__(self, connection: ChannelHost, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._backend: Backend = connection.backend
        self._capacity = Capacity(_PREFETCH_DEFAULT)
        # By consumer tag.
        self._inboxes: dict[str, Inbox] = {}
        # Of cancelled consumers.
        self._stopped: list[Inbox] = []
        # Of `basic_get`, by queue; what they have in hand is not counted.
        self._getters: dict[str, Inbox] = {}
        # Where messages that are not settled came from, by delivery tag.
        self._origins: dict[str, Inbox] = {}
        # Of consumers that acknowledge nothing.
        self._no_ack_tags: set[str] = set()

    # -- exchanges and queues --------------------------------------------------------------------------------

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = "direct",  # noqa: A002
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        del durable, auto_delete, arguments, nowait
        kind = type or "direct"
        name = exchange or f"amq.{kind}"
        if not passive:
            self._backend.declare_exchange(name, kind)
        elif name not in self._backend.routes().exchanges:
            raise NotFound(f"there is no exchange {name!r}")

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        del nowait
        is_used = any(each.exchange == exchange for each in self._backend.routes().bindings)
        if not (if_unused and is_used):
            self._backend.delete_exchange(exchange)

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        name = queue or f"amq.gen-{uuid()}"
        if passive:
            if not self._has_queue(name):
                raise NotFound(f"there is no queue {name!r}")
        else:
            self._new_queue(name, **kwargs)
        try:
            message_count = self._size(name)
        except IrrecoverableChannelError as failure:
            # A producer may write to the queue without seeing its group.
            LOGGER.debug("size of queue %s: %s", name, failure)
            message_count = 0
        return queue_declare_ok_t(name, message_count, 0)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return queue in self._transients or self._backend.has_queue(queue)

    def _new_queue(
        self,
        queue: str,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        **_: Any,
    ) -> None:
        if exclusive or auto_delete:
            if queue not in self._transients:
                # It is reached by its name, too.
                self._transients[queue] = TransientQueue(positions=self._backend.open_stream(""))
        else:
            self._backend.ensure_queue(queue, has_priorities=bool((arguments or {}).get("x-max-priority")))

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **_: Any,
    ) -> None:
        del arguments
        binding = _binding(queue, exchange, routing_key)
        transient = self._transients.get(queue)
        if transient is None:
            self._backend.bind(binding)
        elif binding not in transient.bindings:
            positions = self._backend.open_stream(binding.exchange)
            known = self._backend.routes().exchanges[binding.exchange]
            transient.bindings[binding] = known.type
            transient.positions = {**positions, **transient.positions}

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **_: Any,
    ) -> None:
        del arguments
        binding = _binding(queue, exchange, routing_key)
        transient = self._transients.get(queue)
        if transient is None:
            self._backend.unbind(binding)
        else:
            transient.bindings.pop(binding, None)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        if if_empty and self._size(queue):
            return
        if if_unused and queue in self.connection._callbacks:
            return
        if self._transients.pop(queue, None) is None:
            self._backend.delete(queue)

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        return (
            (each.queue, each.exchange, each.routing_key) for each in sorted(self._backend.routes().bindings)
        )

    def _purge(self, queue: str) -> int:
        if queue in self._transients or not self._backend.has_queue(queue):
            return 0
        return self._backend.purge(queue)

    def _size(self, queue: str) -> int:
        if queue in self._transients or not self._backend.has_queue(queue):
            return 0
        return self._backend.size(queue)

    @property
    def _transients(self) -> dict[str, TransientQueue]:
        return self.connection.transients

    # -- publishing ------------------------------------------------------------------------------------------

    def basic_publish(self, message: Message, exchange: str, routing_key: str, **_: Any) -> None:
        """Returns when the message is in every queue that it goes to. One that goes nowhere is dropped, as in AMQP."""
        self._inplace_augment_message(message, exchange or "", routing_key or "")
        backend = self._backend
        if exchange:
            queues = backend.routes().queues(exchange, routing_key or "")
        else:
            queues = [routing_key] if backend.has_queue(routing_key) else []
        for queue in queues:
            backend.publish(queue, message)
        is_routed = bool(queues)
        if (exchange or not queues) and backend.has_stream(exchange):
            backend.publish_to_stream(exchange, message)
            is_routed = True
        if not is_routed and self.deadletter_queue:
            backend.publish(self.deadletter_queue, message)
        elif not is_routed:
            # Broadcasts without a receiver are usual: a worker sends an event every two seconds.
            known = backend.routes().exchanges.get(exchange)
            is_broadcast = known is not None and known.type != "direct"
            level = logging.DEBUG if is_broadcast else logging.WARNING
            LOGGER.log(
                level, "a message for exchange %r, key %r has no queue: dropped", exchange, routing_key
            )

    # -- consuming -------------------------------------------------------------------------------------------

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        self._close_idle()
        self._inboxes[consumer_tag] = self._open(queue, self._capacity, None)
        if no_ack:
            self._no_ack_tags.add(consumer_tag)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

    def _open(self, queue: str, capacity: Capacity, ready_max: int | None) -> Inbox:
        transient = self._transients.get(queue)
        if transient is not None:
            return StreamInbox(self._backend, queue, transient, self.connection.wake)
        if not self._backend.has_queue(queue):
            raise NotFound(f"there is no queue {queue!r}")
        return QueueInbox(self._backend, queue, capacity, self.connection.wake, ready_max)

    def basic_cancel(self, consumer_tag: str) -> None:
        super().basic_cancel(consumer_tag)
        self._no_ack_tags.discard(consumer_tag)
        inbox = self._inboxes.pop(consumer_tag, None)
        if inbox is not None:
            inbox.stop()
            self._stopped.append(inbox)

    def _close_idle(self) -> None:
        for inbox in [each for each in self._stopped if each.is_idle]:
            self._stopped.remove(inbox)
            inbox.close()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._capacity.set_limit(prefetch_count or _PREFETCH_DEFAULT)

    def deliver_next(self) -> bool:
        """Hands one message to its consumer. False when there is none."""
        # What is broadcast, such as remote control, goes before tasks.
        for consumer_tag, inbox in sorted(
            self._inboxes.items(), key=lambda each: isinstance(each[1], QueueInbox)
        ):
            message = self._handed_out(inbox, inbox.take())
            if message is not None:
                if consumer_tag in self._no_ack_tags:
                    self.settle(message["properties"]["delivery_tag"], Acknowledge.ACCEPT)
                self.connection._deliver(message, inbox.queue)
                return True
        return False

    def _handed_out(self, inbox: Inbox, message: Message | None) -> Message | None:
        if message is not None:
            self._origins[message["properties"]["delivery_tag"]] = inbox
        return message

    def _get(self, queue: str, timeout: float | None = None) -> Message:
        del timeout
        if queue not in self._getters:
            self._getters[queue] = self._open(queue, Capacity(_PREFETCH_DEFAULT), ready_max=0)
        inbox = self._getters[queue]
        message = self._handed_out(inbox, inbox.get())
        if message is None:
            raise Empty
        return message

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        message = super().basic_get(queue, no_ack, **kwargs)
        if message is not None and no_ack:
            self.settle(message.delivery_tag, Acknowledge.ACCEPT)
        return message

    def settle(self, delivery_tag: str, kind: Acknowledge) -> None:
        """From any thread. What is not in hand any more is settled, or its connection is gone."""
        inbox = self._origins.pop(delivery_tag, None)
        if inbox is not None:
            inbox.settle(delivery_tag, kind)

    def close(self) -> None:
        if self.closed:
            return
        is_forked = self.connection.is_forked
        inboxes = [*self._inboxes.values(), *self._stopped, *self._getters.values()]
        if is_forked:
            # The threads are the parent's.
            self._inboxes.clear()
        super().close()
        for each in (self._stopped, self._getters, self._origins):
            each.clear()
        if not is_forked:
            for inbox in inboxes:
                inbox.stop()
            for inbox in inboxes:
                inbox.close()


def _binding(queue: str, exchange: str | None, routing_key: str | None) -> Binding:
    """The binding that kombu's arguments mean. Without an exchange it is AMQP's `amq.direct`."""
    return Binding(exchange or "amq.direct", routing_key or "", queue)
