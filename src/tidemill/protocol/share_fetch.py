"""ShareFetch responses without a message object for their records, which are sent as slices of files.

`api/share.py` describes the same layout, and a test compares both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from tidemill.protocol.api.share import NodeEndpoint, ShareFetchResponse
from tidemill.protocol.fetch import Payload
from tidemill.protocol.schema import encode
from tidemill.protocol.wire import write_nullable_compact_string, write_uvarint

_HEAD = struct.Struct(">ih")
_INT32 = struct.Struct(">i")
_PARTITION = struct.Struct(">ih")
_CODE = struct.Struct(">h")
_LEADER = struct.Struct(">iiB")
_ACQUIRED = struct.Struct(">qqhB")
_NO_TAGS = b"\0"

PayloadT = TypeVar("PayloadT", bound=Payload)


class ShareFetched(NamedTuple):
    """One partition of the response, without its records."""

    partition: int
    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    # (leader, epoch) for a member that sent the request to another broker.
    current_leader: tuple[int, int] = (0, 0)
    # (first offset, last offset, delivery count)
    acquired: Sequence[tuple[int, int, int]] = ()


def pack_share_fetched(
    topics: Iterable[tuple[bytes, Sequence[tuple[ShareFetched, Sequence[PayloadT | bytearray]]]]],
    version: int,
    *,
    acquisition_lock_timeout_ms: int,
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[bytearray | PayloadT]:
    """Build the body of a response without an error of its own."""
    out = bytearray(_HEAD.pack(throttle_time_ms, 0))
    write_nullable_compact_string(out, None)
    out += _INT32.pack(acquisition_lock_timeout_ms)
    parts: list[bytearray | PayloadT] = [out]
    grouped = list(topics)
    write_uvarint(out, len(grouped) + 1)
    for topic_id, partitions in grouped:
        out += topic_id
        write_uvarint(out, len(partitions) + 1)
        for fetched, records in partitions:
            _write_partition(out, fetched)
            length = sum(len(each) if isinstance(each, bytearray) else each.length for each in records)
            write_uvarint(out, length + 1)
            if length:
                parts += records
                out = bytearray()
                parts.append(out)
            write_uvarint(out, len(fetched.acquired) + 1)
            for first_offset, last_offset, delivery_count in fetched.acquired:
                out += _ACQUIRED.pack(first_offset, last_offset, delivery_count, 0)
            out += _NO_TAGS
        out += _NO_TAGS
    out += _endpoints(node_endpoints, version)
    return parts


def _write_partition(out: bytearray, fetched: ShareFetched) -> None:
    out += _PARTITION.pack(fetched.partition, fetched.error_code)
    write_nullable_compact_string(out, fetched.error_message)
    out += _CODE.pack(fetched.acknowledge_error_code)
    write_nullable_compact_string(out, fetched.acknowledge_error_message)
    out += _LEADER.pack(*fetched.current_leader, 0)


def _endpoints(endpoints: Sequence[NodeEndpoint], version: int) -> bytes:
    """The end of the response, from the endpoints on."""
    # The count of an empty list, and no tags.
    before = len(encode(ShareFetchResponse(), version)) - 2
    return encode(ShareFetchResponse(node_endpoints=list(endpoints)), version)[before:]
