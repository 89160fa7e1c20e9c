"""Makes record batches of every codec for Produce: sound ones, and unsound in header, checksum or payload."""

from __future__ import annotations

import functools
import random
import time

import crc32c

from tests.wire.batches import (
    CONTROL,
    HEADER_SIZE,
    PREFIX,
    TRANSACTIONAL,
    Header,
    Record,
    encode,
    encode_records,
)
from tidemill.protocol.compression import CompressionType, compress

_INT32 = (-(1 << 31), -1, 0, 1, (1 << 31) - 1)
_INT64 = (-(1 << 63), -1, 0, 1, (1 << 63) - 1)
# Length 6; attributes, timestamp delta, offset delta, no key, no value, no headers.
_DELAY_HEADERS: dict[str, tuple[bytes, ...]] = {
    "tidemill-delay": (b"1ms", b"50ms", b"2s", b"1h", b"-1s", b"999999999d", b"9" * 300, b"\xff", b""),
    "tidemill-deliver-at": (b"0", b"2026-01-01T00:00:00Z", b"9223372036854775807", b"-1", b"soon"),
    "tidemill-schedule": (
        b"@every 1s",
        b"* * * * *",
        b"0 0 30 2 *",
        b"@every 0s",
        b"* * * * * * *",
        b"," * 200,
    ),
    "tidemill-timezone": (b"UTC", b"Europe/Berlin", b"../../etc/passwd", b"No/Where"),
    "tidemill-schedule-id": (b"a", b"b", b"", b"x" * 300),
    "tidemill-cancel": (b"", b"0", b"1", b"-1", b"9223372036854775808"),
    "tidemill-original-offset": (b"0", b"x"),
    "tidemill-carried": (b"",),
    "a": (b"b", b"", b"\xff" * 10),
}
_TINY_RECORD = b"\x0c\0\0\0\x01\x01\0"


@functools.cache
def _bomb(codec: int, count: int) -> bytes:
    return compress(codec, _TINY_RECORD * count)


@functools.cache
def _zeros(codec: int, size: int) -> bytes:
    return compress(codec, bytes(size))


def with_right_crc(batch: bytes) -> bytes:
    """The batch with the checksum of what it holds now."""
    if len(batch) < HEADER_SIZE:
        return batch
    base_offset, length, epoch, magic, _ = PREFIX.unpack_from(batch)
    crc = crc32c.crc32c(batch[PREFIX.size :])
    return PREFIX.pack(base_offset, length, epoch, magic, crc) + batch[PREFIX.size :]


def _headers(rng: random.Random) -> tuple[tuple[str, bytes], ...]:
    """Mostly none; else those of delays, sound and not."""
    if rng.random() < 0.7:
        return ()
    names = rng.choices(list(_DELAY_HEADERS), k=rng.choice((1, 1, 2, 3)))
    return tuple((name, rng.choice(_DELAY_HEADERS[name])) for name in names)


class BatchMaker:
    def make(self, rng: random.Random, producer: tuple[int, int] | None) -> bytes:
        """`producer` is an id and an epoch that exist."""
        codec = rng.randrange(5)
        chance = rng.random()
        if chance < 0.35:
            return self._sound(rng, codec, producer)
        if chance < 0.45:
            return self._bomb(rng, codec)
        batch = self._sound(rng, codec, producer)
        if chance < 0.65:
            return self._lying_header(rng, codec, producer)
        if chance < 0.75:
            return batch[: rng.randrange(len(batch))]
        damaged = bytearray(batch)
        for _ in range(rng.randrange(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        if chance < 0.9:
            return with_right_crc(bytes(damaged))
        return bytes(damaged) if chance < 0.95 else batch + batch[: rng.randrange(len(batch))]

    def _records(self, rng: random.Random) -> list[Record]:
        keys = (None, b"", b"key", rng.randbytes(4))
        values = (None, b"", b"value", bytes(rng.randrange(300)))
        return [
            Record(
                rng.choice(values), rng.choice(keys), rng.choice((0, 0, 1, -1, 1000)), headers=_headers(rng)
            )
            for _ in range(rng.choice((1, 1, 2, 3, 20)))
        ]

    def _header(self, rng: random.Random, codec: int, producer: tuple[int, int] | None) -> Header:
        wall_ms = int(time.time() * 1000) - 5_000
        if producer is None:
            return Header(attributes=codec, base_timestamp_ms=wall_ms)
        flags = TRANSACTIONAL if rng.random() < 0.5 else 0
        return Header(
            attributes=codec | flags,
            base_timestamp_ms=wall_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=rng.choice((0, 0, 1, 2, -1, (1 << 31) - 1)),
        )

    def _sound(self, rng: random.Random, codec: int, producer: tuple[int, int] | None) -> bytes:
        records = self._records(rng)
        payload = compress(codec, encode_records(records))
        return encode(records, self._header(rng, codec, producer), payload=payload)

    def _lying_header(self, rng: random.Random, codec: int, producer: tuple[int, int] | None) -> bytes:
        """The checksum is right. What it covers is not."""
        records = self._records(rng)
        payload = rng.choice(
            (
                compress(codec, encode_records(records)),
                rng.randbytes(100),
                b"",
                _zeros(codec, 10_000),
                b"\xff" * 300,
            )
        )
        header = self._header(rng, codec, producer)
        changes = {
            "count": _INT32,
            "last_offset_delta": _INT32,
            "length": (*_INT32, 48, 49, 50),
            "magic": (0, 1, 3, -1, 127),
            "attributes": (5, 6, 7, CONTROL, CONTROL | TRANSACTIONAL, TRANSACTIONAL, 0x40, -1, (1 << 15) - 1),
            "base_timestamp_ms": _INT64,
            "max_timestamp_ms": (*_INT64, header.base_timestamp_ms + 1_800_000),
            "base_offset": _INT64,
            "leader_epoch": _INT32,
            "producer_id": _INT64,
            "producer_epoch": (-(1 << 15), -1, 0, (1 << 15) - 1),
            "base_sequence": _INT32,
        }
        fields = vars(header) | {
            name: rng.choice(changes[name]) for name in rng.sample(list(changes), rng.choice((0, 1, 1, 2)))
        }
        if fields["max_timestamp_ms"] is None:
            fields["max_timestamp_ms"] = fields["base_timestamp_ms"]
        return encode(records, Header(**fields), payload=payload)

    def _bomb(self, rng: random.Random, codec: int) -> bytes:
        """Few bytes that become very many, or that hold very many records."""
        far_ms = int(time.time() * 1000) + rng.choice((0, 1_800_000, 864_000_000))
        codec = codec or CompressionType.ZSTD
        if rng.random() < 0.5:
            payload, count = _zeros(codec, rng.choice((100_000, 4_000_000))), rng.choice((1, 3, 1000))
        else:
            count = rng.choice((500, 5_000, 50_000))
            payload = _bomb(codec, count)
            count = rng.choice((count, count, count * 100, (1 << 31) - 1))
        header = Header(
            attributes=codec,
            count=count,
            last_offset_delta=count - 1,
            base_timestamp_ms=far_ms,
            max_timestamp_ms=far_ms,
        )
        return encode([], header, payload=payload)
