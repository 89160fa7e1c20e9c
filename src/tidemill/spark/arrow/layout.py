"""The records of many batches, end to end in one buffer.

Uncompressed records are copied there, compressed ones are decompressed to their place, with nothing between. The
buffer is used again for the next batches, because fresh memory costs more than what is done with it; so nothing that
outlives a call may refer to it. It grows by what compressed batches turn out to hold, never by what they claim.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.errors import ProtocolError
from tidemill.protocol import compression
from tidemill.protocol.records import DECOMPRESSED_BYTES_MAX, HEADER_SIZE, BatchHeader
from tidemill.spark.arrow.varints import PADDING, RECORD_LENGTH_MIN, Buffer, Bytes, Ints
from tidemill.types import TopicPartition

Batches = Sequence[tuple[BatchHeader, memoryview]]

_GUESS_RATIO = 3


def damaged(partition: TopicPartition, header: BatchHeader, reason: str) -> ProtocolError:
    return ProtocolError(f"{partition}: the batch at offset {header.base_offset} is damaged: {reason}")


class Layout:
    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._raw: Bytes = np.empty(0, dtype=np.uint8)

    def fill(self, batches: Batches, bytes_max: int) -> tuple[Buffer, Ints]:
        """Records of the first of these batches, until there are at least that many bytes; and where each batch's begin."""
        starts: list[int] = []
        size = 0
        for header, batch in batches:
            if size >= bytes_max:
                break
            starts.append(size)
            end = self._put(header, batch[HEADER_SIZE : header.size], size)
            count = header.record_count
            if not 0 <= count * (1 + RECORD_LENGTH_MIN) <= end - size:
                raise damaged(self._partition, header, f"{count} records do not fit {end - size} bytes")
            if count == 0 and end > size:
                raise damaged(self._partition, header, f"{end - size} bytes follow the last record")
            size = end
        self._reserve(size + PADDING, size)
        self._raw[size : size + PADDING] = 0
        return Buffer(self._raw[: size + PADDING], size), np.array(starts, dtype=np.int64)

    def _put(self, header: BatchHeader, body: memoryview, start: int) -> int:
        """Put a batch's records there; returns where they end."""
        if not header.codec:
            end = start + len(body)
            self._reserve(end, start)
            self._raw.data[start:end] = body
            return end
        room = len(body) * _GUESS_RATIO
        while True:
            self._reserve(start + min(room, DECOMPRESSED_BYTES_MAX), start)
            out = self._raw.data[start : start + DECOMPRESSED_BYTES_MAX]
            try:
                size = compression.decompress_into(header.codec, body, out)
            except ProtocolError as error:
                raise damaged(self._partition, header, str(error)) from None
            if size is not None:
                return start + size
            if len(out) >= DECOMPRESSED_BYTES_MAX:
                reason = f"it decompresses to more than {DECOMPRESSED_BYTES_MAX} bytes"
                raise damaged(self._partition, header, reason)
            room = 2 * len(out)

    def _reserve(self, capacity: int, kept: int) -> None:
        """Have room for so many bytes, of which the first `kept` stay."""
        if len(self._raw) < capacity:
            grown = np.empty(capacity + (capacity >> 2), dtype=np.uint8)
            grown[:kept] = self._raw[:kept]
            self._raw = grown
