"""The buffer of a connection: what it costs to receive a large frame in small parts."""

from __future__ import annotations

import struct

import pytest

from tidemill.broker.net.receive_buffer import ReceiveBuffer

PART_BYTES = 4096


class PartsSocket:
    """Gives a few kilobytes at a time, and keeps the buffers into which they were received."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.buffers: list[object] = []

    def recv_into(self, view: memoryview) -> int:
        part = self._data[self._position : self._position + min(PART_BYTES, len(view))]
        view[: len(part)] = part
        self._position += len(part)
        if not self.buffers or self.buffers[-1] is not view.obj:
            self.buffers.append(view.obj)
        return len(part)


@pytest.mark.parametrize("size", [3_000, 100_000, 4_000_000])
def test_buffer_is_replaced_a_few_times_while_a_large_frame_arrives(size: int) -> None:
    """Each time it doubles. A frame that is copied with every part costs the square of its size."""
    payload = bytes(range(256)) * (size // 256)
    before = struct.pack(">i", 5) + b"small"
    sock = PartsSocket(before + struct.pack(">i", len(payload)) + payload)
    buffer = ReceiveBuffer(100_000_000)
    found: list[bytes] = []
    while len(found) < 2:
        frame = buffer.next_frame()
        if frame is not None:
            found.append(bytes(frame))
            continue
        buffer.make_room()
        assert buffer.receive_from(sock) > 0  # type: ignore[arg-type]
    assert found == [b"small", payload]
    assert len(sock.buffers) <= 10
