"""Client metrics (KIP-714): which client pushes what and when, and what it pushed last (Kafka: ClientMetricsManager).

Subscriptions are settings of the cluster. A client asks for its own, pushes at their interval, and is refused before it is
due. What it pushed is shown among this broker's metrics until it is silent for three intervals. Everything is limited:
clients, series of a client, series of all, the length of names, the bytes of all pushes under way, and what a push
expands to. One push is expanded at a time, so the last limit holds for all pushes together.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tidemill.broker.net.network import Peer
from tidemill.config import Subscription, subscription
from tidemill.controller.image import MetadataImage, ResourceType
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.otlp import Point
from tidemill.protocol.schema import NO_UUID
from tidemill.types import uuid_text

INTERVAL_MS_DEFAULT = 300_000
_EXPIRY_MS_MIN = 60_000
_ALL_METRICS = "*"
# As Kafka; a client has one instance for each broker that it asks.
_CLIENTS_MAX = 16_384
SERIES_PER_CLIENT_MAX = 500
_SERIES_MAX = 20_000
_NAME_CHARS_MAX = 200
# Metrics are repetitive text: a push that expands to more than this times the largest push is no telemetry.
_EXPANSION_MAX = 20
_EXPANDED_BYTES_MAX = 32 << 20
# In pushes of the largest size. A push beyond that is throttled.
_PUSHES_UNDER_WAY_MAX = 16
_RETRIED = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
# In the order in which clients should prefer them.
ACCEPTED_COMPRESSIONS = (
    CompressionType.ZSTD,
    CompressionType.LZ4,
    CompressionType.GZIP,
    CompressionType.SNAPPY,
)
# A reserved id beside the one that is not set.
_RESERVED_IDS = (NO_UUID, bytes(15) + b"\x01")

SeriesKey = tuple[str, str]


@dataclass(slots=True)
class ClientInstance:
    id: bytes
    facts: Mapping[str, str]
    subscriptions: object
    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int
    got_ms: int | None = None
    pushed_ms: int | None = None
    seen_ms: int = 0
    is_terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE
    series: dict[SeriesKey, float] = field(default_factory=dict)

    def may_get(self, steady_ms: int) -> bool:
        known = [each for each in (self.got_ms, self.pushed_ms) if each is not None]
        return not known or steady_ms - max(known) >= self.interval_ms

    def may_push(self, steady_ms: int) -> bool:
        """Whether a push is not too early. The first push after a Get may come at any time: clients spread them."""
        pushed_ms = self.pushed_ms
        is_first = self.got_ms is not None and (pushed_ms is None or self.got_ms > pushed_ms)
        return is_first or pushed_ms is None or steady_ms - pushed_ms >= self.interval_ms


class ClientMetrics:
    def __init__(
        self, image: Callable[[], MetadataImage], steady_ms: Callable[[], int], max_bytes: int
    ) -> None:
        self._image = image
        self._steady_ms = steady_ms
        self.max_bytes = max_bytes
        self._clients: OrderedDict[bytes, ClientInstance] = OrderedDict()
        self._software: dict[Peer, tuple[str, str]] = {}
        self._configs: object = None
        self._subscriptions: tuple[Subscription, ...] = ()
        self._series_count = 0
        self._bytes_under_way = 0
        self._expanding = asyncio.Lock()

    # -- clients ---------------------------------------------------------------------------------------------

    def note_software(self, connection: Peer, name: str, version: str) -> None:
        """Keeps the software name and version that a client sent in ApiVersions, as long as its connection is open."""
        if connection not in self._software:
            connection.close_callbacks.append(lambda: self._software.pop(connection, None) and None)
        self._software[connection] = name, version

    def facts_of(self, connection: Peer, client_id: str | None, instance_id: bytes) -> dict[str, str]:
        """Returns the facts of a client that subscriptions match."""
        address, _, port = connection.peer.rpartition(":")
        name, version = self._software.get(connection, ("", ""))
        return {
            "client_instance_id": uuid_text(instance_id),
            "client_id": client_id or "",
            "client_software_name": name,
            "client_software_version": version,
            "client_source_address": address.strip("[]"),
            "client_source_port": port,
        }

    def instance(self, instance_id: bytes, facts: Mapping[str, str]) -> ClientInstance:
        """The client's state; a new one when the subscriptions have changed."""
        current = self._current()
        found = self._clients.get(instance_id)
        if found is None or found.subscriptions is not current:
            matching = [each for each in current if each.matches(facts)]
            metrics = tuple(dict.fromkeys(name for each in matching for name in each.metrics))
            if _ALL_METRICS in metrics:
                metrics = (_ALL_METRICS,)
            interval_ms = min((each.interval_ms for each in matching), default=INTERVAL_MS_DEFAULT)
            text = f"{metrics}{interval_ms}".encode() + instance_id
            number = zlib.crc32(text) - (1 << 31)
            series = {} if found is None else found.series
            found = ClientInstance(instance_id, facts, current, metrics, interval_ms, number, series=series)
            self._clients[instance_id] = found
        self._clients.move_to_end(instance_id)
        found.seen_ms = self._steady_ms()
        self._forget()
        return found

    def _current(self) -> tuple[Subscription, ...]:
        configs = self._image().configs
        if configs is not self._configs:
            self._configs = configs
            found = tuple(
                subscription(values)
                for resource, values in configs.items()
                if resource.type == ResourceType.CLIENT_METRICS
            )
            if found != self._subscriptions:
                self._subscriptions = found
        return self._subscriptions

    def _forget(self) -> None:
        """The oldest, when they are silent or too many."""
        steady_ms = self._steady_ms()
        while self._clients:
            oldest = next(iter(self._clients.values()))
            limit_ms = max(_EXPIRY_MS_MIN, 3 * oldest.interval_ms)
            if len(self._clients) <= _CLIENTS_MAX and steady_ms - oldest.seen_ms < limit_ms:
                return
            self._series_count -= len(oldest.series)
            del self._clients[oldest.id]

    # -- what is allowed -------------------------------------------------------------------------------------

    def check_get(self, client: ClientInstance) -> None:
        steady_ms = self._steady_ms()
        if client.may_get(steady_ms):
            client.got_ms = steady_ms
        elif client.last_error not in _RETRIED:
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        client.last_error = ErrorCode.NONE

    def check_push(
        self, client: ClientInstance, subscription_id: int, is_terminating: bool, codec: int, size: int
    ) -> None:
        try:
            self._check_push(client, subscription_id, is_terminating, codec, size)
        except ApiError as error:
            client.last_error = error.code
            raise
        finally:
            client.is_terminating = is_terminating

    def _check_push(
        self, client: ClientInstance, subscription_id: int, is_terminating: bool, codec: int, size: int
    ) -> None:
        if client.is_terminating:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        steady_ms = self._steady_ms()
        if client.may_push(steady_ms):
            client.pushed_ms = steady_ms
        elif not is_terminating:
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if subscription_id != client.subscription_id:
            raise ApiError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
        if codec not in CompressionType.__members__.values():
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if size > self.max_bytes:
            raise ApiError(ErrorCode.TELEMETRY_TOO_LARGE)

    # -- what a push costs -----------------------------------------------------------------------------------

    @property
    def expanded_bytes_max(self) -> int:
        """The size that a push may expand to; at least the size that it may have without compression."""
        return max(self.max_bytes, min(_EXPANSION_MAX * self.max_bytes, _EXPANDED_BYTES_MAX))

    @asynccontextmanager
    async def expanding(self, client: ClientInstance, size: int) -> AsyncIterator[None]:
        """Holds the turn to expand a push of that many bytes; refuses it when too many bytes wait for theirs."""
        if self._bytes_under_way + size > _PUSHES_UNDER_WAY_MAX * self.max_bytes:
            # Pushing again is not too early then.
            client.pushed_ms = None
            client.last_error = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self._bytes_under_way += size
        try:
            async with self._expanding:
                yield
        finally:
            self._bytes_under_way -= size

    # -- what was pushed -------------------------------------------------------------------------------------

    def keep(self, client: ClientInstance, points: Iterable[Point]) -> None:
        """Gauges and totals take the place of older ones; what was added since the last push is added."""
        before = len(client.series)
        fresh: dict[SeriesKey, float] = {}
        for point in points:
            attributes = ",".join(f"{key}={value}" for key, value in point.attributes)
            key = point.name[:_NAME_CHARS_MAX], attributes[:_NAME_CHARS_MAX]
            fresh[key] = point.value + (client.series.get(key, 0.0) if point.is_delta else 0.0)
        for key, value in fresh.items():
            is_full = len(client.series) >= SERIES_PER_CLIENT_MAX
            total = self._series_count + len(client.series) - before
            if key in client.series or not (is_full or total >= _SERIES_MAX):
                client.series[key] = value
        if client.id in self._clients:
            self._series_count += len(client.series) - before
        client.last_error = ErrorCode.NONE

    def rows(self) -> list[tuple[Mapping[str, str], str, str, float]]:
        """Facts of the client, name, attributes and value of each series."""
        self._forget()
        return [
            (client.facts, name, attributes, value)
            for client in self._clients.values()
            for (name, attributes), value in client.series.items()
        ]


def is_reserved(instance_id: bytes) -> bool:
    return instance_id in _RESERVED_IDS
