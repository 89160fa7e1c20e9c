"""Snapshots of delays as bytes in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from crc32c import crc32c

from tidemill.delays.snapshot import FrozenDelays, packed_crc, pieces_of
from tidemill.delays.snapshot import restore as restore_in_steps
from tidemill.delays.state import PartitionDelays
from tidemill.protocol.steps import run_steps


def snapshot(delays: PartitionDelays, last_epoch: int) -> bytes:
    frozen = FrozenDelays(delays)
    pieces = list(pieces_of(frozen, last_epoch))
    frozen.thaw()
    return with_crc(pieces)


def with_crc(pieces: Iterable[bytes]) -> bytes:
    body = b"".join(pieces)
    return packed_crc(crc32c(body)) + body


def restore(
    data: bytes, start: int, end: int, high_watermark: int, epoch_before: Callable[[int], int]
) -> PartitionDelays | None:
    def read(length: int, position: int) -> bytes:
        return data[position : position + length]

    return run_steps(restore_in_steps(read, start, end, high_watermark, epoch_before))
