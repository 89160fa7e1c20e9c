"""Each codec in the form that Kafka's clients use, and with hostile data."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
from collections.abc import Callable

import cramjam
import pytest

from tidemill.errors import ProtocolError
from tidemill.protocol.compression import CompressionType, compress, decompress, decompress_into

NONE, GZIP, SNAPPY, LZ4, ZSTD = CompressionType
CODECS = list(CompressionType)
LIMIT = 10_000_000

TEXT = b"the tide turns the wheel, the wheel turns the stone. " * 4000
NOISE = random.Random(1).randbytes(100_000)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE], ids=["empty", "one", "text", "noise"])
def test_round_trip(codec: CompressionType, data: bytes) -> None:
    for form in (data, bytearray(data), memoryview(data)):
        assert decompress(codec, compress(codec, form), LIMIT) == data
    assert decompress(codec, memoryview(compress(codec, data)), len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE], ids=["empty", "one", "text", "noise"])
def test_decompress_into_buffer(codec: CompressionType, data: bytes) -> None:
    """It goes to the front of what is there, and what does not fit is not taken for garbage."""
    compressed = memoryview(compress(codec, data))
    out = bytearray(b"?" * (len(data) + 10))
    assert decompress_into(codec, compressed, memoryview(out)[3:]) == len(data)
    assert out == b"???" + data + b"???????"
    assert decompress_into(codec, compressed, memoryview(bytearray(len(data)))) == len(data)
    if data:
        assert decompress_into(codec, compressed, memoryview(bytearray(len(data) - 1))) is None


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize(
    "garbage", [b"\xff" * 50, b"\x82SNAPPY\0", b"\x82SNAPPY\0" + bytes(8) + b"\0\0\0\x09."]
)
def test_invalid_data_into_buffer_raises(codec: CompressionType, garbage: bytes) -> None:
    with pytest.raises(ProtocolError):
        decompress_into(codec, garbage, memoryview(bytearray(1 << 20)))


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_compression_levels(codec: CompressionType) -> None:
    quick, thorough = compress(codec, TEXT + NOISE, level=1), compress(codec, TEXT + NOISE, level=9)
    assert decompress(codec, quick, LIMIT) == decompress(codec, thorough, LIMIT) == TEXT + NOISE
    assert len(thorough) <= len(quick)


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_is_exact(codec: CompressionType) -> None:
    compressed = compress(codec, TEXT)
    assert len(decompress(codec, compressed, len(TEXT))) == len(TEXT)
    with pytest.raises(ProtocolError):
        decompress(codec, compressed, len(TEXT) - 1)
    with pytest.raises(ProtocolError):
        decompress(codec, compressed, 0)


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD, SNAPPY])
def test_a_bomb_costs_no_more_than_the_limit(codec: CompressionType) -> None:
    bomb = compress(codec, bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decompress(codec, bomb, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("data", [b"", b"\x01", b"garbage that is not compressed", b"\xff" * 100])
def test_invalid_compressed_data_is_rejected(codec: CompressionType, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decompress(codec, data, LIMIT)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_truncated_compressed_data_is_rejected(codec: CompressionType) -> None:
    compressed = compress(codec, TEXT)
    # xerial data cut between two blocks is a shorter, valid stream; 1 and −1 are not between blocks.
    for length in (1, len(compressed) // 2, len(compressed) - 1):
        with pytest.raises(ProtocolError):
            decompress(codec, compressed[:length], LIMIT)


def test_an_unknown_codec() -> None:
    with pytest.raises(ProtocolError, match="type 5"):
        decompress(5, b"", LIMIT)
    with pytest.raises(ValueError, match="type 5"):
        compress(5, b"")


def test_gzip_is_what_the_standard_library_reads_and_writes() -> None:
    assert gzip.decompress(compress(GZIP, TEXT)) == TEXT
    assert decompress(GZIP, gzip.compress(TEXT), LIMIT) == TEXT


@pytest.mark.parametrize(
    ("codec", "one"),
    [
        (GZIP, gzip.compress),
        (ZSTD, lambda data: bytes(cramjam.zstd.compress(data))),
        (LZ4, lambda data: bytes(cramjam.lz4.compress(data))),
    ],
)
def test_concatenated_frames(codec: CompressionType, one: Callable[[bytes], bytes]) -> None:
    assert decompress(codec, one(b"first ") + one(TEXT), LIMIT) == b"first " + TEXT
    with pytest.raises(ProtocolError):
        decompress(codec, one(b"first ") + one(TEXT), len(TEXT))


def test_lz4_frames_are_the_ones_the_java_client_accepts() -> None:
    frame = compress(LZ4, TEXT)
    assert frame[:4] == bytes.fromhex("04224d18")
    flags = frame[4]
    assert flags >> 6 == 1  # version
    assert flags & 0x20  # independent blocks; Java refuses linked ones
    assert not flags & 0x01  # no dictionary
    assert bytes(cramjam.lz4.decompress(frame)) == TEXT


def test_zstd_frames() -> None:
    assert compress(ZSTD, TEXT)[:4] == bytes.fromhex("28b52ffd")
    assert bytes(cramjam.zstd.decompress(compress(ZSTD, TEXT))) == TEXT


XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def _xerial(*blocks: bytes) -> bytes:
    return XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def _raw(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def test_snappy_is_written_in_xerial_blocks() -> None:
    compressed = compress(SNAPPY, TEXT)
    assert compressed.startswith(XERIAL_HEADER)
    position, blocks = 16, []
    while position < len(compressed):
        (length,) = struct.unpack_from(">i", compressed, position)
        blocks.append(bytes(cramjam.snappy.decompress_raw(compressed[position + 4 : position + 4 + length])))
        position += 4 + length
    assert b"".join(blocks) == TEXT
    assert all(len(block) == 32 * 1024 for block in blocks[:-1])


def test_snappy_is_read_in_xerial_blocks_and_raw() -> None:
    assert decompress(SNAPPY, _xerial(_raw(b"one "), _raw(b"two")), LIMIT) == b"one two"
    assert decompress(SNAPPY, _raw(TEXT), LIMIT) == TEXT
    assert decompress(SNAPPY, XERIAL_HEADER, LIMIT) == b""


@pytest.mark.parametrize(
    "data",
    [
        XERIAL_HEADER[:12],
        XERIAL_HEADER + b"\x00\x00",
        XERIAL_HEADER + struct.pack(">i", -1),
        XERIAL_HEADER + struct.pack(">i", 0x7FFFFFFF) + b"abc",
        _xerial(b"\xff\xff\xff\xff\xff\xff"),
        # A block that claims 4 GiB, and one that claims 5 MB, within the limit but not within reason.
        b"\xff\xff\xff\xff\x0f" + b"abc",
        b"\xc0\x96\xb1\x02" + b"abc",
    ],
)
def test_broken_snappy_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decompress(SNAPPY, data, LIMIT)


def test_the_limit_counts_all_xerial_blocks() -> None:
    blocks = _xerial(_raw(bytes(600)), _raw(bytes(600)))
    assert decompress(SNAPPY, blocks, 1200) == bytes(1200)
    with pytest.raises(ProtocolError):
        decompress(SNAPPY, blocks, 1199)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_decompressing_takes_the_memory_of_the_result_and_no_second_one(codec: int) -> None:
    """A second one means that much was cleared or copied, with the interpreter held all the while."""
    size = 32_000_000
    data = compress(codec, bytes(size))
    tracemalloc.start()
    try:
        assert decompress(codec, data, size) == bytes(size)
        tracemalloc.reset_peak()
        result = decompress(codec, data, size)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(result) == size
    assert peak < 1.5 * size
