"""Fetch responses without message objects: records are sent as file slices and received as views, never copied.

`pack_fetched` builds the response of every version as a list of parts; a partition's records are any payload with a
length. `walk_fetched` reads the response of a follower or client in place. The message classes in `api/data.py`
describe the same layout, and tests compare both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from tidemill.errors import ProtocolError
from tidemill.protocol.api.data import FetchResponse, NodeEndpoint
from tidemill.protocol.schema import encode
from tidemill.protocol.wire import read_uvarint, skip_tagged_fields, write_uvarint

# The first versions of Fetch with these parts of the response.
_LOG_START_OFFSET = 5
_SESSIONS = 7
_PREFERRED_READ_REPLICA = 11
_FLEXIBLE = 12
_CURRENT_LEADERS = 16  # KIP-951

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_TOP = struct.Struct(">ihi")
_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
# The tag, the size of the field, and the field without tags of its own.
_DIVERGING = struct.Struct(">BBiqB")
_CURRENT_LEADER = struct.Struct(">BBiiB")
_EPOCH_END = struct.Struct(">iq")
_NO_TAGS = b"\0"


class Payload(Protocol):
    """The records of a partition: any object with a length."""

    @property
    def length(self) -> int: ...


PayloadT = TypeVar("PayloadT", bound=Payload)


class Fetched(NamedTuple):
    """One partition of the response, without its records."""

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    # None, not an empty list, unless the fetch is read_committed.
    aborted: list[tuple[int, int]] | None = None
    # (epoch, end offset) where the follower's log diverges from this one.
    diverging: tuple[int, int] | None = None
    preferred_read_replica: int = -1
    # (leader, epoch) for a client that sent the request to another broker.
    current_leader: tuple[int, int] | None = None


def pack_fetched(
    topics: Iterable[tuple[str | bytes, list[tuple[Fetched, PayloadT | None]]]],
    version: int,
    *,
    error_code: int = 0,
    session_id: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
    throttle_time_ms: int = 0,
) -> list[bytearray | PayloadT]:
    """Build the response body. Topics are named as the version requires."""
    flexible = version >= _FLEXIBLE
    grouped = list(topics)
    out = bytearray()
    parts: list[bytearray | PayloadT] = [out]
    if version >= _SESSIONS:
        out += _TOP.pack(throttle_time_ms, error_code, session_id)
    else:
        out += _INT32.pack(throttle_time_ms)
    _write_count(out, len(grouped), flexible)
    for name, partitions in grouped:
        _write_topic(out, name, flexible)
        _write_count(out, len(partitions), flexible)
        for fetched, records in partitions:
            _write_partition(out, fetched, version)
            length = records.length if records is not None else 0
            if flexible:
                write_uvarint(out, length + 1)
            else:
                out += _INT32.pack(length)
            if records is not None and length:
                parts.append(records)
                out = bytearray()
                parts.append(out)
            if flexible:
                has_tags = fetched.diverging or fetched.current_leader
                out += _partition_tags(fetched, version) if has_tags else _NO_TAGS
        if flexible:
            out += _NO_TAGS
    if flexible:
        out += _endpoint_tags(node_endpoints, version) if node_endpoints else _NO_TAGS
    return parts


def _endpoint_tags(endpoints: Sequence[NodeEndpoint], version: int) -> bytes:
    """KIP-951: the endpoints of the leaders that the partitions name, as the last tagged field."""
    if version < _CURRENT_LEADERS:
        return _NO_TAGS
    empty = len(encode(FetchResponse(), version)) - len(_NO_TAGS)
    return encode(FetchResponse(node_endpoints=list(endpoints)), version)[empty:]


def _write_topic(out: bytearray, name: str | bytes, flexible: bool) -> None:
    if isinstance(name, bytes):
        out += name
        return
    encoded = name.encode()
    if flexible:
        write_uvarint(out, len(encoded) + 1)
    else:
        out += _INT16.pack(len(encoded))
    out += encoded


def _write_partition(out: bytearray, fetched: Fetched, version: int) -> None:
    flexible = version >= _FLEXIBLE
    if version >= _LOG_START_OFFSET:
        out += _PARTITION_V5.pack(*fetched[:5])
    else:
        out += _PARTITION_V4.pack(*fetched[:4])
    aborted = fetched.aborted
    if aborted is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        _write_count(out, len(aborted), flexible)
        for producer_id, first_offset in aborted:
            out += _ABORTED.pack(producer_id, first_offset)
            if flexible:
                out += _NO_TAGS
    if version >= _PREFERRED_READ_REPLICA:
        out += _INT32.pack(fetched.preferred_read_replica)


def _write_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, count + 1)
    else:
        out += _INT32.pack(count)


def _partition_tags(fetched: Fetched, version: int) -> bytes:
    tags = []
    if fetched.diverging:
        tags.append(_DIVERGING.pack(0, 13, *fetched.diverging, 0))
    if fetched.current_leader and version >= _CURRENT_LEADERS:
        tags.append(_CURRENT_LEADER.pack(1, 9, *fetched.current_leader, 0))
    return bytes((len(tags),)) + b"".join(tags)


# -- the reader's side ---------------------------------------------------------------------------------------

# The first version that names topics by id.
WALKED_SINCE = 13


class FetchedRecords(NamedTuple):
    """One partition of a response, with a view of its records."""

    topic_id: bytes
    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    records: memoryview
    last_stable_offset: int = -1
    # (producer id, first offset) of each aborted transaction; empty unless the fetch is read_committed.
    aborted: tuple[tuple[int, int], ...] = ()


class FetchWalk(NamedTuple):
    """The result of `walk_fetched`."""

    error_code: int
    session_id: int
    partitions: Iterator[FetchedRecords]


def walk_fetched(body: memoryview, version: int) -> FetchWalk:
    """Read a response of version 13 or later. Raises `ProtocolError` now, or while its partitions are read."""
    if version < WALKED_SINCE:
        raise ProtocolError(f"a Fetch response of version {version} names no topic ids")
    try:
        _, error_code, session_id = _TOP.unpack_from(body, 0)
    except struct.error as error:
        raise ProtocolError(f"a Fetch response is malformed: {error}") from None
    return FetchWalk(error_code, session_id, _walk_partitions(body, _TOP.size))


def _walk_partitions(body: memoryview, position: int) -> Iterator[FetchedRecords]:
    try:
        topic_count, position = read_uvarint(body, position)
        for _ in range(topic_count - 1):
            topic_id = bytes(body[position : position + 16])
            partition_count, position = read_uvarint(body, position + 16)
            for _ in range(partition_count - 1):
                fetched, position = _walk_partition(body, position, topic_id)
                yield fetched
            position = skip_tagged_fields(body, position)
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"a Fetch response is malformed: {error}") from None


def _walk_partition(body: memoryview, position: int, topic_id: bytes) -> tuple[FetchedRecords, int]:
    index, error_code, high_watermark, last_stable_offset, log_start_offset = _PARTITION_V5.unpack_from(
        body, position
    )
    aborted_count, position = read_uvarint(body, position + _PARTITION_V5.size)
    aborted = []
    for _ in range(aborted_count - 1):
        aborted.append(_ABORTED.unpack_from(body, position))
        position = skip_tagged_fields(body, position + _ABORTED.size)
    length, position = read_uvarint(body, position + _INT32.size)
    end = position + max(0, length - 1)
    if end > len(body):
        raise ProtocolError(f"a Fetch response is cut off within {length - 1} bytes of records")
    records = body[position:end]
    diverging, position = _diverging_at(body, end)
    fetched = FetchedRecords(
        topic_id,
        index,
        error_code,
        high_watermark,
        log_start_offset,
        diverging,
        records,
        last_stable_offset,
        tuple(aborted),
    )
    return fetched, position


def _diverging_at(body: memoryview, position: int) -> tuple[tuple[int, int] | None, int]:
    if body[position] == 0:
        return None, position + 1
    diverging = None
    count, position = read_uvarint(body, position)
    for _ in range(count):
        tag, position = read_uvarint(body, position)
        size, position = read_uvarint(body, position)
        if tag == 0:
            diverging = _EPOCH_END.unpack_from(body, position)
        position += size
    return diverging, position
