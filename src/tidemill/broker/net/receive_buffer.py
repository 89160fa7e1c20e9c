"""The bytes that arrived on a socket, cut into frames where they lie.

The kernel receives into the frame's own place; a frame is handed out as a view and is overwritten by what is received
later. The buffer grows with what has arrived, never with what a length prefix claims. It belongs to one connection,
whichever side opened it.
"""

from __future__ import annotations

import struct

from tidemill.broker.net.tls_socket import ByteSocket
from tidemill.errors import ProtocolError

_SIZE = struct.Struct(">i")
# A silent connection costs little; one that has filled its first buffer gets a roomy one.
_RECEIVE_BYTES_MIN = 2 * 1024
_RECEIVE_BYTES_ROOMY = 64 * 1024
# How a TLS record with a ClientHello begins: read as the length of a frame, it is hundreds of megabytes.
_TLS_HANDSHAKE = 0x1603


class ReceiveBuffer:
    __slots__ = ("_buffer", "_end", "_frame_bytes_max", "_needed", "_receive_end", "_start", "_view")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray(_RECEIVE_BYTES_MIN)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._receive_end = _RECEIVE_BYTES_MIN
        # How many bytes the unfinished frame at the front takes in all, as far as is known.
        self._needed = 4

    def receive_from(self, sock: ByteSocket) -> int:
        """Returns the number of bytes received; 0 at the end. Call it when no whole frame is left, and after `make_room`."""
        assert self._end < self._receive_end, "without room a read would look like the end of the stream"
        received = sock.recv_into(self._view[self._end : self._receive_end])
        self._end += received
        return received

    @property
    def has_room(self) -> bool:
        return self._end < self._receive_end

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, valid until `make_room`; None when the rest is still to come."""
        start = self._start
        arrived = self._end - start - 4
        if arrived < 0:
            self._needed = 4
            return None
        size: int = _SIZE.unpack_from(self._view, start)[0]
        if not 0 < size <= self._frame_bytes_max:
            if size >> 16 == _TLS_HANDSHAKE:
                raise ProtocolError("it speaks TLS on a listener without TLS")
            raise ProtocolError(f"a frame of {size} bytes; the limit is {self._frame_bytes_max}")
        if arrived < size:
            self._needed = size + 4
            return None
        self._needed = 4
        self._start = end = start + 4 + size
        return self._view[start + 4 : end]

    def put_back(self, frame: memoryview) -> None:
        """The frame that `next_frame` returned last is the next one again."""
        self._start -= _SIZE.size + len(frame)

    def make_room(self) -> None:
        """For what is still to come of the frame at the front."""
        needed = self._needed
        pending = self._end - self._start
        capacity = len(self._buffer)
        if needed > capacity:
            # Twice what has arrived, or the whole frame if that is less: a length prefix alone buys no memory. What is
            # there is copied only when the buffer is full, so a frame costs its own size however it arrives.
            if self._end == capacity:
                self._replace(min(needed, max(2 * pending, _RECEIVE_BYTES_ROOMY)))
        elif self._end == capacity < _RECEIVE_BYTES_ROOMY:
            self._replace(_RECEIVE_BYTES_ROOMY)
        elif pending == 0:
            self._start = self._end = 0
        elif self._start + needed > capacity:
            self._buffer[:pending] = self._view[self._start : self._end].tobytes()
            self._start, self._end = 0, pending
        # A large frame is received exactly to its end: its successor then begins at the front and never moves.
        capacity = len(self._buffer)
        self._receive_end = min(self._start + needed, capacity) if needed > _RECEIVE_BYTES_ROOMY else capacity

    def allow_frames_of(self, frame_bytes_max: int) -> None:
        """From the next frame on."""
        self._frame_bytes_max = frame_bytes_max

    def release_memory(self) -> None:
        """Give back a large buffer that holds nothing."""
        if self._start == self._end and len(self._buffer) > _RECEIVE_BYTES_ROOMY:
            self._replace(_RECEIVE_BYTES_MIN)
            self._receive_end = _RECEIVE_BYTES_MIN

    def _replace(self, capacity: int) -> None:
        pending = self._end - self._start
        buffer = bytearray(capacity)
        buffer[:pending] = self._view[self._start : self._end]
        self._buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, pending
