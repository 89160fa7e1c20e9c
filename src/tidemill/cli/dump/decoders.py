"""The decoders of internal topics: the metadata log and the coordinators' topics.

The folder's name identifies the topic. A record that cannot be decoded is printed like any other, with the reason.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any

from tidemill.errors import ProtocolError
from tidemill.internal_topics import METADATA_TOPIC, OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from tidemill.protocol.api import coordinator_records, metadata, quorum
from tidemill.protocol.records import Record
from tidemill.protocol.schema import DataMessage, Struct, decode
from tidemill.types import uuid_text

Decoded = dict[str, object]
Decoder = Callable[[Record], Decoded]

_UUID_BYTES = 16
_ID_WORDS = {"id", "ids", "directories"}
_CONTROL_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_MARKERS = {0: "abort", 1: "commit"}
_VERSION = struct.Struct(">h")
# The quorum's control records (ControlRecordType). Each starts with its version.
_QUORUM: dict[int, type[DataMessage]] = {
    2: quorum.LeaderChangeMessage,
    3: quorum.SnapshotHeaderRecord,
    4: quorum.SnapshotFooterRecord,
    5: quorum.KRaftVersionRecord,
    6: quorum.VotersRecord,
}


def plain(record: Record) -> Decoded:
    return {"key": data_json(record.key), "value": data_json(record.value)}


def control(record: Record) -> Decoded:
    """Decode a record of a control batch: a transaction marker, or a control record of the quorum."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise ProtocolError("a control record without its type")
    kind = _CONTROL_KEY.unpack_from(record.key)[1]
    value = record.value or b""
    if kind in _MARKERS:
        if len(value) < _MARKER_VALUE.size:
            raise ProtocolError("a transaction marker that is cut off")
        return {"control": _MARKERS[kind], "coordinator_epoch": _MARKER_VALUE.unpack_from(value)[1]}
    message = _QUORUM.get(kind)
    if message is None:
        return {"control": f"type {kind}", **plain(record)}
    (version,) = _VERSION.unpack_from(value)
    known = decode(message, min(version, message.versions.max), value)
    return {"control": message.__name__, "value": message_json(known)}


def _metadata(record: Record) -> Decoded:
    message = metadata.decode_record(record.value or b"")
    return {"type": type(message).__name__, "value": message_json(message)}


def _coordinator(records: dict[int, coordinator_records.RecordTypes]) -> Decoder:
    def decode_pair(record: Record) -> Decoded:
        key = coordinator_records.decode_key(records, record.key or b"")
        value = coordinator_records.decode_value(records, key, record.value)
        return {
            "type": type(key).__name__.removesuffix("Key"),
            "key": message_json(key),
            "value": None if value is None else message_json(value),
        }

    return decode_pair


DECODERS: dict[str, Decoder] = {
    "none": plain,
    "metadata": _metadata,
    "offsets": _coordinator(coordinator_records.GROUP_RECORDS),
    "transactions": _coordinator(coordinator_records.TRANSACTION_RECORDS),
    "share": _coordinator(coordinator_records.SHARE_RECORDS),
}
_BY_TOPIC = {
    METADATA_TOPIC: "metadata",
    OFFSETS_TOPIC: "offsets",
    TRANSACTIONS_TOPIC: "transactions",
    SHARE_STATE_TOPIC: "share",
}


def decoder_of(folder: str) -> Decoder:
    """The decoder for a partition's folder, which may have been renamed as stray or deleted."""
    return DECODERS[_BY_TOPIC.get(folder.partition(".")[0].rpartition("-")[0], "none")]


def decoded(decoder: Decoder, record: Record) -> Decoded:
    try:
        return decoder(record)
    except (ProtocolError, struct.error, IndexError, ValueError) as error:
        return {**plain(record), "undecoded": str(error)}


# -- as JSON ---------------------------------------------------------------------------------------------------


def message_json(message: Any) -> object:
    if isinstance(message, Struct):
        return {name: _field_json(name, getattr(message, name)) for name in vars(type(message))["__slots__"]}
    return message


def _field_json(name: str, value: Any) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        is_id = len(data) == _UUID_BYTES and not _ID_WORDS.isdisjoint(name.split("_"))
        return uuid_text(data) if is_id else data_json(data)
    if isinstance(value, list | tuple):
        return [_field_json(name, each) for each in value]
    return message_json(value)


def data_json(data: bytes | None) -> object:
    """Text for UTF-8, else `{"base64": ...}`."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
