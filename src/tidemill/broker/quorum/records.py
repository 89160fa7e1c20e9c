"""Batches of the metadata log: the controller's records, and the quorum's own control records among them.

A control record's key is a version and a type, as Kafka writes it; its value is a message that begins with its own
version. A control batch takes up offsets like any other, but its records are never handed to the controller.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import TypeAlias

from tidemill.errors import ProtocolError
from tidemill.protocol.api.quorum import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from tidemill.protocol.records import CONTROL, BatchHeader, Record, build_batch, iterate_records
from tidemill.protocol.schema import decode, encode

_KEY = struct.Struct(">hh")
_VERSION = struct.Struct(">h")

ControlRecord: TypeAlias = (
    LeaderChangeMessage | SnapshotHeaderRecord | SnapshotFooterRecord | KRaftVersionRecord | VotersRecord
)


class ControlType(IntEnum):
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


_CLASSES: dict[int, type[ControlRecord]] = {
    ControlType.LEADER_CHANGE: LeaderChangeMessage,
    ControlType.SNAPSHOT_HEADER: SnapshotHeaderRecord,
    ControlType.SNAPSHOT_FOOTER: SnapshotFooterRecord,
    ControlType.KRAFT_VERSION: KRaftVersionRecord,
    ControlType.KRAFT_VOTERS: VotersRecord,
}
_TYPES = {message: number for number, message in _CLASSES.items()}


def data_batch(values: Sequence[bytes], base_offset: int, epoch: int, wall_ms: int) -> bytearray:
    return build_batch(
        (Record(base_offset + number, wall_ms, None, value) for number, value in enumerate(values)),
        base_offset=base_offset,
        leader_epoch=epoch,
    )


def control_batch(records: Sequence[ControlRecord], base_offset: int, epoch: int, wall_ms: int) -> bytearray:
    return build_batch(
        (
            Record(
                base_offset + number,
                wall_ms,
                _KEY.pack(0, _TYPES[type(record)]),
                encode(record, record.version),
            )
            for number, record in enumerate(records)
        ),
        base_offset=base_offset,
        leader_epoch=epoch,
        attributes=CONTROL,
    )


def control_records(batch: memoryview, header: BatchHeader) -> Iterator[tuple[int, ControlRecord]]:
    """The control records of a control batch that are known here, with their offsets."""
    for record in iterate_records(batch, header):
        if record.key is None or record.value is None or len(record.key) < _KEY.size or len(record.value) < 2:
            raise ProtocolError(f"the control record at offset {record.offset} is cut off")
        message = _CLASSES.get(_KEY.unpack_from(record.key)[1])
        if message is not None:
            (version,) = _VERSION.unpack_from(record.value)
            # A later version adds fields at the end.
            yield record.offset, decode(message, min(version, message.versions.max), record.value)
