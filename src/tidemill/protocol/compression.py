"""The five compression types of record batches, each exactly as Kafka's own clients read and write it.

- gzip: one member when written, any number when read.
- snappy: the framing of xerial's snappy-java (magic, two versions, then length-prefixed raw blocks) when
  written; that or one raw block, as librdkafka sends, when read.
- lz4: the LZ4 frame format. Blocks are independent of each other: the Java client refuses linked ones.
- zstd: one frame when written, any number when read.

Decompression never yields more than the caller's limit, nor allocates much more than what the data really decompresses
to. The output buffer starts at a guess and grows towards the limit. So neither a bomb nor a forged length costs memory.
Everything that does not decompress is a `DecompressionFailed`.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

import cramjam

from tidemill.errors import ProtocolError
from tidemill.protocol.wire import Buffer


class DecompressionFailed(ProtocolError):
    """Bytes that their codec rejects, or that exceed the caller's limit."""


class TooLarge(DecompressionFailed):
    """The decompressed bytes exceed the caller's limit."""


class CompressionType(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# The message of Rust's standard library for a full output buffer.
_DOES_NOT_FIT = "failed to write whole buffer"
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">i")

# The library's default is high compression: a sixth of the speed for an eighth less space.
_LZ4_FAST = 1
# The densest element of the format is a copy, which yields at most 64 bytes.
_SNAPPY_RATIO_MAX = 64
_GUESS_RATIO = 8
_GUESS_BYTES_MIN = 64 * 1024


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress with a codec. `level` is the codec's own scale; None uses the default of Kafka's clients."""
    match codec:
        case CompressionType.NONE:
            return bytes(data)
        case CompressionType.GZIP:
            return bytes(cramjam.gzip.compress(data, level=level))
        case CompressionType.SNAPPY:
            return _compress_xerial(data)
        case CompressionType.LZ4:
            level = _LZ4_FAST if level is None else level
            compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
            compressor.compress(bytes(data))
            return bytes(compressor.finish())
        case CompressionType.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=level))
    raise ValueError(f"unknown compression type {codec}")


def decompress(codec: int, data: Buffer, limit: int) -> bytes:
    match codec:
        case CompressionType.NONE:
            if len(data) > limit:
                raise _too_large(limit)
            return bytes(data)
        case CompressionType.GZIP:
            return _decompress_bounded(cramjam.gzip.decompress_into, data, limit)
        case CompressionType.SNAPPY:
            if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
                return _decompress_xerial(data, limit)
            return _decompress_snappy_block(data, limit)
        case CompressionType.LZ4:
            return _decompress_bounded(cramjam.lz4.decompress_into, data, limit)
        case CompressionType.ZSTD:
            return _decompress_bounded(cramjam.zstd.decompress_into, data, limit)
    raise DecompressionFailed(f"unknown compression type {codec}")


def decompress_into(codec: int, data: Buffer, out: memoryview) -> int | None:
    """Decompress to the front of `out`. Returns the number of bytes; None when they do not fit."""
    match codec:
        case CompressionType.NONE:
            if len(data) > len(out):
                return None
            out[: len(data)] = data
            return len(data)
        case CompressionType.GZIP:
            return _stream_into(cramjam.gzip.decompress_into, data, out)
        case CompressionType.SNAPPY:
            if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
                return _xerial_into(data, out)
            return _snappy_block_into(data, out)
        case CompressionType.LZ4:
            return _stream_into(cramjam.lz4.decompress_into, data, out)
        case CompressionType.ZSTD:
            return _stream_into(cramjam.zstd.decompress_into, data, out)
    raise DecompressionFailed(f"unknown compression type {codec}")


def _stream_into(into: Callable[[Any, Any], int], data: Buffer, out: memoryview | bytearray) -> int | None:
    try:
        return into(data, out)
    except cramjam.DecompressionError as error:
        # Invalid data must fail at once: a retry with a larger buffer would let a forged batch cost much.
        if str(error) != _DOES_NOT_FIT:
            raise DecompressionFailed(f"not decompressed: {error}") from None
        return None


class _Room:
    """An output buffer for decompression that becomes `bytes` without being cleared or copied.

    Clearing and copying would hold the interpreter: about 100 ms for 100 MB, while the decompression itself does not
    hold it. `bytes(n)` is memory that the system clears on first use. A `BytesIO` that owns it writes into it and
    returns it unchanged.
    """

    __slots__ = ("_buffer",)

    def __init__(self, capacity: int) -> None:
        self._buffer = io.BytesIO(bytes(capacity))

    def writable(self) -> memoryview:
        return self._buffer.getbuffer()

    def taken(self, size: int) -> bytes:
        """The first bytes of the buffer. No view of it may exist."""
        self._buffer.truncate(size)
        return self._buffer.getvalue()


def _decompress_bounded(into: Callable[[Any, Any], int], data: Buffer, limit: int) -> bytes:
    capacity = min(limit, max(len(data) * _GUESS_RATIO, _GUESS_BYTES_MIN))
    while True:
        room = _Room(capacity)
        with room.writable() as out:
            size = _stream_into(into, data, out)
        if size is not None:
            return room.taken(size)
        if capacity >= limit:
            raise _too_large(limit)
        capacity = min(limit, capacity * _GUESS_RATIO)


def _compress_xerial(data: Buffer) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        out += _BLOCK_LENGTH.pack(len(block))
        out += block
    return bytes(out)


def _xerial_blocks(data: Buffer) -> Iterator[memoryview]:
    view = memoryview(data)
    position = len(_XERIAL_HEADER)
    if len(view) < position:
        raise DecompressionFailed("snappy: the xerial header is cut short")
    while position < len(view):
        if len(view) - position < _BLOCK_LENGTH.size:
            raise DecompressionFailed("snappy: a block's length is cut short")
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if not 0 <= length <= len(view) - position:
            raise DecompressionFailed(f"snappy: block of {length} bytes, {len(view) - position} left")
        yield view[position : position + length]
        position += length


def _decompress_xerial(data: Buffer, limit: int) -> bytes:
    capacity = sum(_snappy_block_size(block) for block in _xerial_blocks(data))
    if capacity > limit:
        raise _too_large(limit)
    room = _Room(capacity)
    with room.writable() as out:
        size = _xerial_into(data, out)
    assert size == capacity, "the blocks' own sizes add up to it"
    return room.taken(capacity)


def _xerial_into(data: Buffer, out: memoryview) -> int | None:
    size = 0
    for block in _xerial_blocks(data):
        with out[size:] as rest:
            of_block = _snappy_block_into(block, rest)
        if of_block is None:
            return None
        size += of_block
    return size


def _decompress_snappy_block(data: Buffer, limit: int) -> bytes:
    size = _snappy_block_size(data)
    if size > limit:
        raise _too_large(limit)
    room = _Room(size)
    with room.writable() as out:
        _snappy_block_into(data, out)
    return room.taken(size)


def _snappy_block_into(data: Buffer, out: memoryview) -> int | None:
    size = _snappy_block_size(data)
    if size > len(out):
        return None
    try:
        with out[:size] as place:
            cramjam.snappy.decompress_raw_into(data, place)
    except cramjam.DecompressionError as error:
        raise DecompressionFailed(str(error)) from None
    return size


def _snappy_block_size(data: Buffer) -> int:
    """The size that a block claims, limited by the format's best ratio."""
    try:
        size: int = cramjam.snappy.decompress_raw_len(data)
    except cramjam.DecompressionError as error:
        raise DecompressionFailed(str(error)) from None
    if size > len(data) * _SNAPPY_RATIO_MAX:
        raise DecompressionFailed(f"snappy: {len(data)} bytes cannot hold {size}")
    return size


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"decompresses to more than {limit} bytes")
