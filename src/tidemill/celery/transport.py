"""kombu's transport: what a URL and its options mean, and how events are waited for.

Threads of the inboxes fetch; nothing polls. A socket pair tells that something came: `drain_events` waits for it, and
Celery's event loop watches it. A broker that goes away is waited for by those threads, so a worker goes on when it is
back. Locks are lost meanwhile, so tasks in hand are delivered again.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from amqp.exceptions import RecoverableConnectionError
from kombu.transport import virtual
from kombu.utils.compat import detect_environment

import tidemill
from tidemill.celery.backend import Backend, Options
from tidemill.celery.channel import Channel
from tidemill.celery.failures import translated
from tidemill.celery.inboxes import TransientQueue
from tidemill.client.cluster import DEFAULT_PORT
from tidemill.client.connections.security import SecurityOptions
from tidemill.errors import ConfigError

_SECURITY_PREFIXES = ("security_", "ssl_", "sasl_")
_WAIT_S = 1.0
# Messages that one turn of the event loop delivers.
_TURN_MESSAGES_MAX = 50


class Waker:
    """Wakes one thread, or an event loop, from any other."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)

    def fileno(self) -> int:
        return self._reader.fileno()

    def wake(self) -> None:
        # A full buffer wakes as well; a closed one has nothing to wake.
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            self._reader.recv(4096)

    def wait(self, timeout_s: float) -> None:
        self._poll.poll(timeout_s * 1000)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class Transport(virtual.Transport):
    Channel = Channel
    default_port = DEFAULT_PORT
    driver_type = "tidemill"
    driver_name = "tidemill"
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    recoverable_connection_errors = (RecoverableConnectionError,)
    # What a channel refuses once it refuses again.
    recoverable_channel_errors = ()

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.transients: dict[str, TransientQueue] = {}
        self._pid = os.getpid()
        self._backend: Backend | None = None
        self._waker: Waker | None = None
        self._loop: Any = None

    def driver_version(self) -> str:
        return tidemill.__version__

    # -- connecting ------------------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        assert self._backend is not None, "channels come from connections that are established"
        return self._backend

    @property
    def is_forked(self) -> bool:
        """Whether the connection is the parent process's."""
        return os.getpid() != self._pid

    def establish_connection(self) -> Any:
        if detect_environment() == "eventlet":
            # Not an error of the connection: Celery would try again for ever.
            raise ConfigError(
                "the pool eventlet is not supported; start the worker with --pool gevent, threads, prefork or solo"
            )
        with translated():
            self._backend = Backend(options_of(self.client))
        self._backend.connect()
        self._waker = Waker()
        if self.is_forked:
            # What is there belongs to the parent.
            self._pid = os.getpid()
            self.channels.clear()
            self._avail_channels.clear()
            self.transients.clear()
        return super().establish_connection()

    def verify_connection(self, connection: Any) -> bool:
        del connection
        return self._backend is not None and not self.is_forked

    def close_connection(self, connection: Any) -> None:
        self.unregister_from_event_loop(connection, self._loop)
        super().close_connection(connection)
        if self._backend is not None and not self.is_forked:
            self._backend.close()
            assert self._waker is not None
            self._waker.close()
        self._backend = self._waker = None

    # -- events ----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """From any thread: there may be something to deliver."""
        waker = self._waker
        if waker is not None:
            waker.wake()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Delivers one message. `TimeoutError` when none came in time."""
        del connection
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._waker is None:
                raise RecoverableConnectionError("the connection is closed")
            self._waker.clear()
            if self._deliver_next():
                return
            left_s = _WAIT_S if deadline_s is None else deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("no message came in time")
            self._waker.wait(min(left_s, _WAIT_S))

    def _deliver_next(self) -> bool:
        for channel in list(self.channels):
            if channel.deliver_next():
                # The other channels are first next time.
                if channel in self.channels:
                    self.channels.remove(channel)
                    self.channels.append(channel)
                return True
        return False

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        assert self._waker is not None
        self._loop = loop
        loop.add_reader(self._waker.fileno(), self.on_readable, connection, loop)
        self._waker.wake()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        del connection
        if loop is not None and self._waker is not None and not self.is_forked:
            loop.remove_reader(self._waker.fileno())
        self._loop = None

    def on_readable(self, connection: Any, loop: Any) -> None:
        del connection, loop
        if self._waker is None:
            return
        self._waker.clear()
        for _ in range(_TURN_MESSAGES_MAX):
            if not self._deliver_next():
                return
        self.wake()


def options_of(client: Any) -> Options:
    """`ConfigError` names what is wrong."""
    given = dict(client.transport_options or {})
    known = {each.name for each in fields(Options)} - {"bootstrap", "virtual_host", "security"}
    chosen = {name: given[name] for name in known & given.keys()}
    host = client.hostname or "127.0.0.1"
    address = f"[{host}]" if ":" in host else host
    return Options(
        bootstrap=f"{address}:{client.port or DEFAULT_PORT}",
        virtual_host=client.virtual_host or "/",
        security=_security_of(client, given),
        **chosen,
    )


def _security_of(client: Any, given: Mapping[str, Any]) -> SecurityOptions:
    options = {
        name.replace("_", "."): str(value)
        for name, value in given.items()
        if name.startswith(_SECURITY_PREFIXES)
    }
    if client.userid:
        options.setdefault("sasl.username", client.userid)
        options.setdefault("sasl.password", client.password or "")
    if client.ssl and "security.protocol" not in options:
        raise ConfigError(
            "broker_use_ssl is not for this transport; give security_protocol='SSL' and ssl_ca_location in "
            "broker_transport_options"
        )
    return SecurityOptions.parse(options)
