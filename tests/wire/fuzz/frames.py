"""Makes frame number n of a seed: a request of any API and version.

It is valid, or has extreme values, or lies about its own lengths, or has changed bytes. A frame depends on the seed, its
number and the pools only. Since the pools change with what the target answers, a finding reports the bytes.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.wire.fuzz.schemas import Api, Field, Struct, all_apis
from tests.wire.fuzz.values import Pools, extreme, sane

# Their answer may rightly come late when mutated bytes ask for a long wait.
WAITING_APIS = frozenset({"fetch", "join_group", "sync_group", "share_fetch", "add_raft_voter", "produce"})
# Without an answer when `acks` is 0.
SILENT_APIS = frozenset({"produce"})
_ENVELOPE = "envelope"
_FAVOURED = {
    "produce": 8,
    "fetch": 6,
    "join_group": 2,
    "list_offsets": 2,
    "txn_offset_commit": 2,
    "offset_commit": 2,
}
_FRAME_BYTES_MAX = 2_000_000
_INTS = {"int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "uint16": ">H", "float64": ">d"}
_PACK: dict[str, Callable[..., bytes]] = {kind: struct.Struct(code).pack for kind, code in _INTS.items()}
_HEADER = struct.Struct(">hhi")
_HEADER_SIZE = _HEADER.size


@dataclass(frozen=True, slots=True)
class Frame:
    number: int
    api: str
    version: int
    # How it was made.
    kind: str
    payload: bytes

    @property
    def wire(self) -> bytes:
        return struct.pack(">i", len(self.payload)) + self.payload

    @property
    def correlation_id(self) -> int | None:
        return None if len(self.payload) < _HEADER_SIZE else int(_HEADER.unpack_from(self.payload)[2])

    @property
    def may_be_silent(self) -> bool:
        """The key is read from the bytes, which may have been changed."""
        return len(self.payload) >= 2 and self.payload[:2] == b"\0\0"

    @property
    def may_wait(self) -> bool:
        return self.kind != "valid" and self.api in WAITING_APIS


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Writer:
    """Writes one request. `wildness` is the share of extreme values, `lies` that of lengths which are not true."""

    def __init__(
        self, maker: FrameMaker, rng: random.Random, wildness: float, lies: float, depth: int
    ) -> None:
        self._maker = maker
        self._rng = rng
        self._wildness = wildness
        self._lies = lies
        self._depth = depth
        # Set within a long list whose entries differ: the number of the entry.
        self._entry: int | None = None

    def struct(self, shape: Struct) -> bytes:
        out = []
        given: dict[str, Any] = {}
        for field in shape.plain:
            out.append(self._field(field, shape, given))
        if shape.is_flexible:
            out.append(self._tagged(shape, given))
        return b"".join(out)

    def _tagged(self, shape: Struct, given: dict[str, Any]) -> bytes:
        rng = self._rng
        present = [field for field in shape.tagged if rng.random() < 0.5]
        parts = []
        for field in present:
            body = self._field(field, shape, given)
            size = rng.choice((0, 1, len(body) + 1, 1 << 31)) if self._is_lying() else len(body)
            parts.append(varint(field.tag or 0) + varint(size) + body)
        if self._is_lying():
            unknown = varint(rng.choice((0, 7, 99, 1 << 31))) + b"\3abc"
            parts.append(unknown)
        count = rng.choice((1, 5, 1 << 31)) if self._is_lying() else len(parts)
        return varint(count) + b"".join(parts)

    def _is_lying(self) -> bool:
        return self._lies > 0 and self._rng.random() < self._lies

    def _field(self, field: Field, shape: Struct, given: dict[str, Any]) -> bytes:
        rng = self._rng
        if field.is_array:
            return self._array(field, shape, given)
        if field.struct is not None:
            body = self.struct(field.struct)
            if not field.is_nullable or field.tag is not None:
                return body
            return b"\xff" if rng.random() < 0.3 else b"\1" + body
        return self._scalar(field, shape, given)

    def _array(self, field: Field, shape: Struct, given: dict[str, Any]) -> bytes:
        rng = self._rng
        is_flexible = shape.is_flexible
        if field.is_nullable and rng.random() < 0.2:
            return b"\0" if is_flexible else b"\xff\xff\xff\xff"
        count = 1 if self._entry is not None else rng.choice((0, 1, 1, 1, 2, 3))
        if self._entry is None and self._wildness and rng.random() < 0.01:
            body, count = self._long_list(field, shape, given)
        else:
            body = b"".join([self._element(field, shape, given) for _ in range(count)])
        if self._is_lying():
            count = rng.choice((count + 1, 1_000, 1 << 20, (1 << 31) - 2))
        return (varint(count + 1) if is_flexible else _PACK["int32"](count)) + body

    def _long_list(self, field: Field, shape: Struct, given: dict[str, Any]) -> tuple[bytes, int]:
        """One entry very many times, or very many entries with names and ids of their own."""
        rng = self._rng
        one = self._element(field, shape, given)
        count = min(rng.choice((100, 2_000, 20_000)), _FRAME_BYTES_MAX // (8 * max(1, len(one))))
        if rng.random() < 0.5:
            return one * count, count
        entries = []
        for self._entry in range(count):
            entries.append(self._element(field, shape, given))
        self._entry = None
        return b"".join(entries), count

    def _of_entry(self, value: Any, entry: int) -> Any:
        if isinstance(value, str):
            return f"{value[:20]}-{entry}"
        return value[:12] + entry.to_bytes(4) if isinstance(value, bytes) and len(value) == 16 else value

    def _element(self, field: Field, shape: Struct, given: dict[str, Any]) -> bytes:
        return self.struct(field.struct) if field.struct is not None else self._scalar(field, shape, given)

    def _scalar(self, field: Field, shape: Struct, given: dict[str, Any]) -> bytes:
        rng = self._rng
        kind = field.kind
        if kind == "bytes" and field.name == "request_data" and self._depth == 0 and rng.random() < 0.9:
            value: Any = self._maker.inner_request(rng)
        elif (
            self._wildness
            and self._entry is None
            and rng.random() < self._wildness
            and not self._is_wait(field)
        ):
            value = None if field.may_be_null and rng.random() < 0.2 else extreme(rng, field)
        else:
            value = sane(self._maker.pools, rng, field, shape, given)
        if self._entry is not None:
            value = self._of_entry(value, self._entry)
        given[field.name] = value
        if kind in ("string", "bytes"):
            return self._sized(value, kind, shape.is_flexible)
        if kind == "uuid":
            return bytes(value)
        if kind == "bool":
            return b"\1" if value else b"\0"
        try:
            return _PACK[kind](value)
        except struct.error:
            return _PACK[kind](0)

    def _is_wait(self, field: Field) -> bool:
        """A wait that the answer would really take; what is too short does no harm."""
        return field.name in ("max_wait", "rebalance_timeout", "session_timeout", "timeout")

    def _sized(self, value: str | bytes | None, kind: str, is_flexible: bool) -> bytes:
        if value is None:
            if is_flexible:
                return b"\0"
            return b"\xff\xff" if kind == "string" else b"\xff\xff\xff\xff"
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        if kind == "string":
            # A legacy string has a length of two bytes.
            data = data[:32_767]
        size = len(data)
        if self._is_lying():
            size = self._rng.choice((size + 1, max(0, size - 1), 30_000, 32_767))
        if is_flexible:
            return varint(size + 1) + data
        return _PACK["int16" if kind == "string" else "int32"](size) + data


class FrameMaker:
    def __init__(self, seed: int, pools: Pools, leave_out: frozenset[str] = frozenset()) -> None:
        self.seed = seed
        self.pools = pools
        by_name: dict[str, list[Api]] = {}
        for api in all_apis():
            if api.name not in leave_out:
                by_name.setdefault(api.name, []).append(api)
        self._by_name = by_name
        self._names = [name for name in by_name for _ in range(_FAVOURED.get(name, 1))]

    def frame(self, number: int) -> Frame:
        rng = random.Random(self.seed << 40 | number)
        versions = self._by_name[rng.choice(self._names)]
        api = versions[int(rng.random() * len(versions))]
        chance = rng.random()
        if chance < 0.01:
            return Frame(number, "garbage", 0, "garbage", rng.randbytes(rng.randrange(1, 80)))
        kind = (
            "valid" if chance < 0.4 else "extreme" if chance < 0.65 else "lies" if chance < 0.75 else "bytes"
        )
        payload = self._request(api, rng, number, kind, depth=0)
        return Frame(number, api.name, api.version, kind, payload)

    def valid_body(self, api: Api, rng: random.Random) -> bytes:
        return _Writer(self, rng, 0.0, 0.0, 0).struct(api.body)

    def inner_request(self, rng: random.Random) -> bytes:
        """For an Envelope."""
        versions = self._by_name[rng.choice(self._names)]
        kind = rng.choice(("valid", "valid", "extreme", "lies", "bytes"))
        return self._request(rng.choice(versions), rng, rng.randrange(1000), kind, depth=1)

    def _request(self, api: Api, rng: random.Random, number: int, kind: str, depth: int) -> bytes:
        wildness = 0.0 if kind in ("valid", "lies") else rng.choice((0.03, 0.15, 0.6))
        lies = rng.choice((0.05, 0.3)) if kind == "lies" else 0.0
        body = _Writer(self, rng, wildness, lies, depth).struct(api.body)
        client = rng.choice((b"\xff\xff", b"\0\4fuzz", b"\0\0", b"\0\6client"))
        header = _HEADER.pack(api.key, api.version, number & 0x7FFFFFFF)
        payload = header + client + (b"\0" if api.body.is_flexible else b"") + body
        if kind == "bytes":
            payload = _mutated(rng, payload)
        return payload


def _mutated(rng: random.Random, payload: bytes) -> bytes:
    """Key, version and number stay, so that the change reaches the decoder; in one of fifty the version changes."""
    body = bytearray(payload[_HEADER_SIZE:])
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        if not body:
            break
        rng.choice(_MUTATIONS)(rng, body)
    head = payload[:_HEADER_SIZE]
    if rng.random() < 0.02:
        head = head[:2] + struct.pack(">h", rng.choice((-1, 0, 1, 5, 20, 32_767))) + head[4:]
    return head + bytes(body)


def _flip(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at : at + 4] = rng.choice(
        (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", bytes(4), b"\xff\xff\xff\x07")
    )


def _cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]
    data += b"\0"


def _insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.randrange(1, 9))


def _repeat(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + 16]


def _append(rng: random.Random, data: bytearray) -> None:
    data += rng.randbytes(rng.randrange(1, 40))


_MUTATIONS: list[Callable[[random.Random, bytearray], None]] = [
    _flip,
    _flip,
    _overwrite,
    _cut,
    _insert,
    _repeat,
    _append,
]
