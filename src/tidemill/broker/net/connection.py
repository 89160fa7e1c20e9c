"""One client connection: frames in, responses out in the order of their requests.

Works on a raw non-blocking socket with the loop's `add_reader`/`add_writer`, so that the kernel receives into the
frame's own place and sends file slices by `sendfile`; transports would copy both.

Receiving. A frame is handed on as a view of the connection's `ReceiveBuffer` and must not be kept: once `dispatch`
returns, the bytes are overwritten. The socket is read only while the buffer holds no whole frame. So there is always
room for more, and a read of no bytes means the end of the stream.

Sending. Each request takes a `Reply` slot in a queue. A slot may be filled later (a parked fetch, a produce that waits
for the disk); nothing overtakes it. When too many replies wait, reading stops until the client has taken some: a slow
client slows itself down and costs no memory. The frames that are left in the buffer then come first. Produced batches that
wait until they can be appended count like replies (`add_kept_bytes`).

Turns. Requests are handled for a millisecond at most, then the other connections have their turns (`turns.py`).

Throttling. A client over its quota is muted for a while (`mute_for`): no frame is read or handled, replies go out.

Order. A request that has to wait for the answer of an earlier one (`request_order.py`) stays in the buffer until that is
there.

A reply that is completed after its connection closed is dropped: it belongs to this object, not to a descriptor
number that another connection may have by then.
"""

from __future__ import annotations

import logging
import os
import socket
from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter

from tidemill.broker.net.network import Part
from tidemill.broker.net.receive_buffer import ReceiveBuffer
from tidemill.broker.net.request_order import InFlight, Order, order_of
from tidemill.broker.net.tls_socket import ByteSocket
from tidemill.broker.net.turns import TURN_S, Turns
from tidemill.errors import ProtocolError
from tidemill.log.files import FileSlice
from tidemill.security.principals import ANONYMOUS

logger = logging.getLogger(__name__)

_REPLIES_QUEUED_MAX = 512
# Of replies that are not sent, and of requests that are kept.
_BYTES_QUEUED_MAX = 4 << 20
_SEND_JOIN_BYTES_MAX = 64 * 1024
_PARTS_AT_ONCE = 256
# Not everywhere (macOS has no MSG_MORE): then a header goes out as a packet of its own.
_MSG_MORE = getattr(socket, "MSG_MORE", 0)


class Reply:
    """A place in a connection's queue. `send` fills it, once; with nothing where the request has no response."""

    __slots__ = ("_connection", "order", "parts")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Set when the request was not answered at once, so that later ones may have to wait.
        self.order: Order | None = None
        self.parts: Sequence[Part] | None = None

    def send(self, parts: Sequence[Part]) -> None:
        assert self.parts is None, "a reply is sent once"
        self.parts = parts
        self._connection.reply_ready(self, parts)


class Connection:
    __slots__ = (
        "_dispatch",
        "_has_turn",
        "_in_flight",
        "_is_dispatching",
        "_is_drained",
        "_is_halted",
        "_is_held",
        "_is_reading",
        "_is_writing",
        "_loop",
        "_on_close",
        "_outgoing",
        "_queued_bytes",
        "_received",
        "_replies",
        "_sock",
        "_turns",
        "_unmuting",
        "close_callbacks",
        "fd",
        "is_closed",
        "is_node",
        "last_active_s",
        "listener_name",
        "local_address",
        "on_authenticated",
        "peer",
        "principal",
        "received_s",
    )

    def __init__(
        self,
        loop: AbstractEventLoop,
        sock: ByteSocket,
        peer: str,
        local_address: tuple[str, int],
        listener_name: str,
        *,
        turns: Turns,
        dispatch: Callable[[Connection, memoryview], None],
        on_close: Callable[[Connection, str | None], None],
        frame_bytes_max: int,
    ) -> None:
        """`dispatch` handles one request frame: it takes a `Reply`, unless none is due, and fills it now or later.

        `on_close` gets the reason, which is None when the peer closed the connection.
        """
        self._loop = loop
        self._sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.local_address = local_address
        self.listener_name = listener_name
        self.close_callbacks: list[Callable[[], None]] = []
        self.principal = ANONYMOUS
        # Called when the peer has logged in, where it has to.
        self.on_authenticated: Callable[[], None] | None = None
        self._turns = turns
        self._dispatch = dispatch
        self._on_close = on_close
        self._received = ReceiveBuffer(frame_bytes_max)
        self._replies: deque[Reply] = deque()
        self._outgoing: deque[Part] = deque()
        self._queued_bytes = 0
        self._in_flight = InFlight()
        # Whether no whole frame can be in the buffer.
        self._is_drained = True
        # Whether the next request waits for the answer of an earlier one.
        self._is_held = False
        self._has_turn = False
        self.is_node = False
        self._is_dispatching = False
        self._is_writing = False
        self._is_reading = False
        self.is_closed = False
        # Whether it is closed or muted: one test for both on the path of every request.
        self._is_halted = False
        self._unmuting: TimerHandle | None = None
        self.received_s = self.last_active_s = perf_counter()
        self._resume_reading()

    # -- receiving -------------------------------------------------------------------------------------------

    def _resume_reading(self) -> None:
        if not self._is_reading and not self.is_closed:
            self._is_reading = True
            self._loop.add_reader(self.fd, self._on_readable)

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self.fd)

    def mark_as_node(self) -> None:
        """The other side is a node of the cluster: it does not wait in line with clients."""
        self.is_node = True

    def mute_for(self, throttle_ms: int) -> None:
        """Handle no further request for that long. The longest of several pauses counts."""
        if self.is_closed:
            return
        until_s = self._loop.time() + throttle_ms / 1000
        if self._unmuting is not None:
            if self._unmuting.when() >= until_s:
                return
            self._unmuting.cancel()
        self._is_halted = True
        self._pause_reading()
        self._unmuting = self._loop.call_at(until_s, self._unmute)

    def _unmute(self) -> None:
        self._unmuting = None
        self._is_halted = False
        self._go_on_reading()

    def mark_as_authenticated(self) -> None:
        on_authenticated, self.on_authenticated = self.on_authenticated, None
        if on_authenticated is not None:
            on_authenticated()

    def allow_frames_of(self, frame_bytes_max: int) -> None:
        self._received.allow_frames_of(frame_bytes_max)

    def _on_readable(self) -> None:
        if self._has_turn:
            return
        now_s = perf_counter()
        turns = self._turns
        # A turn within the round, or later with the connections that wait.
        if self.is_node or (now_s < turns.ends_s and not turns.waiting):
            self._receive(now_s)
        else:
            self._request_turn()

    def _request_turn(self) -> None:
        if self._has_turn or self._is_halted:
            return
        self._has_turn = True
        if self.is_node:
            self._loop.call_soon(self.take_turn)
        else:
            self._turns.wait(self)

    def take_turn(self) -> None:
        """First what is in the buffer, then what is in the socket."""
        self._has_turn = False
        if self._is_halted:
            return
        if not self._is_drained:
            self._consume(perf_counter())
        elif self._is_reading:
            self._receive(perf_counter())
        else:
            self._resume_reading()

    def _receive(self, now_s: float) -> None:
        try:
            received = self._received.receive_from(self._sock)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(None if isinstance(error, ConnectionError) else str(error))
            return
        if received == 0:
            self.close(None)
            return
        self.received_s = self.last_active_s = now_s
        self._consume(now_s)

    def _consume(self, now_s: float) -> None:
        """Dispatch frames of the buffer. Reading goes on when none is left, and another turn is due when some are."""
        self._is_dispatching = True
        try:
            is_drained = self._is_drained = self._dispatch_frames(now_s + TURN_S)
        except ProtocolError as error:
            self.close(str(error))
            return
        except Exception:
            # A bug of what handles frames: left to the loop, it would come again with every frame.
            logger.exception("closed the connection of %s: its request could not be handled", self.peer)
            self.close(None)
            return
        finally:
            self._is_dispatching = False
        if self.is_closed:
            return
        if is_drained:
            self._received.make_room()
        self._flush()
        if self._is_halted or self._is_held or self._is_full:
            self._pause_reading()
        elif is_drained:
            self._resume_reading()
        else:
            self._request_turn()

    @property
    def _is_full(self) -> bool:
        return len(self._replies) >= _REPLIES_QUEUED_MAX or self._queued_bytes >= _BYTES_QUEUED_MAX

    def _dispatch_frames(self, ends_s: float) -> bool:
        """Whether no whole frame is left. False when the turn is over, too many replies wait, or one must be sent first."""
        next_frame, dispatch, replies = self._received.next_frame, self._dispatch, self._replies
        in_flight = self._in_flight
        self._is_held = False
        frame = next_frame()
        while frame is not None:
            if in_flight.count and not in_flight.admits(order_of(frame)):
                self._is_held = True
                break
            dispatch(self, frame)
            if replies and replies[-1].parts is None:
                self._note_unanswered(replies[-1], frame)
            frame.release()
            if self._is_halted:
                # What comes next is looked at when the connection is no longer muted: it may be no frame at all.
                return self.is_closed
            frame = next_frame()
            # `_is_full`, written out: this is on the path of every request.
            if (
                len(replies) >= _REPLIES_QUEUED_MAX
                or self._queued_bytes >= _BYTES_QUEUED_MAX
                or (frame is not None and perf_counter() >= ends_s)
            ):
                break
        if frame is not None:
            self._received.put_back(frame)
            return False
        return True

    def _note_unanswered(self, reply: Reply, frame: memoryview) -> None:
        # A produce without an answer (acks=0) leaves the reply of an earlier request there.
        if reply.order is None:
            reply.order = order_of(frame)
            self._in_flight.began(reply.order)

    def release_memory(self) -> None:
        """Give back a large buffer that holds nothing."""
        self._received.release_memory()

    # -- sending ---------------------------------------------------------------------------------------------

    def expect_reply(self) -> Reply:
        reply = Reply(self)
        self._replies.append(reply)
        return reply

    def reply_ready(self, reply: Reply, parts: Sequence[Part]) -> None:
        if self.is_closed:
            return
        if reply.order is not None:
            self._in_flight.ended(reply.order)
        queued_bytes = self._queued_bytes
        for part in parts:
            if not isinstance(part, FileSlice):
                queued_bytes += len(part)
        self._queued_bytes = queued_bytes
        # Replies completed while frames are dispatched go out together when the last frame is done.
        if self._is_dispatching:
            return
        if self._replies and self._replies[0] is reply:
            self._flush()
        self._go_on_reading()

    def add_kept_bytes(self, count: int) -> None:
        self._queued_bytes += count
        if count < 0 and not self._is_dispatching and not self.is_closed:
            self._go_on_reading()

    def _go_on_reading(self) -> None:
        """After a pause, once there is room again or a reply is there: first what is already in the buffer."""
        if not self._is_reading and not self._is_full:
            self._request_turn()

    def _flush(self) -> None:
        """Send every reply that is complete and has nothing unfinished before it, as far as the socket takes them."""
        replies, outgoing = self._replies, self._outgoing
        while replies and not self._is_writing:
            while replies and len(outgoing) < _PARTS_AT_ONCE:
                parts = replies[0].parts
                if parts is None:
                    break
                outgoing.extend(parts)
                replies.popleft()
            if not outgoing:
                return
            if not self._send():
                self._is_writing = True
                self._loop.add_writer(self.fd, self._on_writable)

    def _on_writable(self) -> None:
        if self._send() and self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self.fd)
            self._flush()
            self._go_on_reading()

    def _send(self) -> bool:
        """Whether everything is out (or the connection is closed)."""
        outgoing = self._outgoing
        try:
            while outgoing:
                part = outgoing[0]
                if isinstance(part, FileSlice):
                    self._send_slice(part)
                else:
                    self._send_bytes()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.close(None if isinstance(error, ConnectionError) else str(error))
        return True

    def _send_bytes(self) -> None:
        outgoing = self._outgoing
        data = outgoing.popleft()
        assert not isinstance(data, FileSlice)
        if outgoing:
            run = [data]
            length = len(data)
            while outgoing and length < _SEND_JOIN_BYTES_MAX:
                following = outgoing[0]
                if isinstance(following, FileSlice):
                    break
                outgoing.popleft()
                run.append(following)
                length += len(following)
            data = b"".join(run)
        try:
            sent = self._sock.send(data, _MSG_MORE if outgoing else 0)
        except (BlockingIOError, InterruptedError):
            outgoing.appendleft(data)
            raise
        self._queued_bytes -= sent
        if sent < len(data):
            outgoing.appendleft(memoryview(data)[sent:])
        self.last_active_s = perf_counter()

    def _send_slice(self, part: FileSlice) -> None:
        file, position, length = part
        sent = os.sendfile(self.fd, file.fd, position, length)
        if sent == 0:
            raise OSError(f"a segment ends {length} bytes before what was promised from it")
        if sent == length:
            self._outgoing.popleft()
        else:
            self._outgoing[0] = FileSlice(file, position + sent, length - sent)
        self.last_active_s = perf_counter()

    # -- closing ---------------------------------------------------------------------------------------------

    def close(self, reason: str | None) -> None:
        """Idempotent. Purges what is parked, so that nothing can reach this socket's number later."""
        if self.is_closed:
            return
        self.is_closed = self._is_halted = True
        self._pause_reading()
        if self._unmuting is not None:
            self._unmuting.cancel()
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self.fd)
        self._sock.close()
        self._replies.clear()
        self._outgoing.clear()
        for callback in self.close_callbacks:
            callback()
        self.close_callbacks.clear()
        self._on_close(self, reason)
