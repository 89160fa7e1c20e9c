"""Quota arithmetic: whose quota counts, how much of it is used, and how long a client has to wait.

A rate is measured over eleven samples of one second, as Kafka's `quota.window.num` and `quota.window.size.seconds` have it.
A client over its quota waits until its average is back at the quota. Controller mutations (KIP-599) have a token bucket,
which may be overdrawn once by one request and then refills.

Time is passed in, in milliseconds of a steady clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tidemill.security.addresses import normal_address

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
CLIENT_KEYS = frozenset(
    (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
)
IP_KEYS = frozenset((CONNECTION_CREATION_RATE,))
# The others are whole numbers.
FRACTIONAL_KEYS = frozenset((REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE))

SAMPLES = 11
SAMPLE_MS = 1_000
# `throttle_time_ms` has 32 bits in every response.
THROTTLE_MS_MAX = (1 << 31) - 1


class QuotaEntity(NamedTuple):
    """Whom a quota is for: types with names, sorted by type. A name that is None is the default of its type."""

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
        return cls(tuple(sorted(parts, key=lambda part: part[0])))

    @property
    def is_ip(self) -> bool:
        return any(kind == IP for kind, _ in self.parts)


Quotas = Mapping[QuotaEntity, Mapping[str, float]]


class ClientQuota(NamedTuple):
    """The quota that counts, and the entity that shares it: all clients of that entity are measured together."""

    limit: float
    entity: QuotaEntity


def client_quota(quotas: Quotas, key: str, user: str, client_id: str) -> ClientQuota | None:
    """The closest quota of Kafka's eight levels that has the key; None when there is none.

    A default is shared by name: each user, client or pair under it is measured apart.
    """
    for configured, measured in _levels(user, client_id):
        limit = quotas.get(configured, {}).get(key)
        if limit is not None:
            return ClientQuota(limit, measured)
    return None


def ip_quotas(quotas: Quotas) -> dict[str | None, float]:
    """Connections a second by address, in one spelling; None stands for all others."""
    limits: dict[str | None, float] = {}
    for entity, values in quotas.items():
        limit = values.get(CONNECTION_CREATION_RATE)
        if entity.is_ip and limit is not None:
            name = entity.parts[0][1]
            address = None if name is None else normal_address(name)
            # Spellings of one address may have a quota each.
            limits[address] = min(limit, limits.get(address, limit))
    return limits


def _levels(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, QuotaEntity]]:
    """Yields the entities that may have a client's quota, the closest first, each with the entity that it measures."""
    pair = QuotaEntity.of([(USER, user), (CLIENT_ID, client_id)])
    user_alone, client_alone = QuotaEntity.of([(USER, user)]), QuotaEntity.of([(CLIENT_ID, client_id)])
    yield pair, pair
    yield QuotaEntity.of([(USER, user), (CLIENT_ID, None)]), pair
    yield user_alone, user_alone
    yield QuotaEntity.of([(USER, None), (CLIENT_ID, client_id)]), pair
    yield QuotaEntity.of([(USER, None), (CLIENT_ID, None)]), pair
    yield QuotaEntity.of([(USER, None)]), user_alone
    yield client_alone, client_alone
    yield QuotaEntity.of([(CLIENT_ID, None)]), client_alone


class Rate:
    """An average over the samples that are not older than the window."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        # The second in which a sample began, and what it holds.
        self._samples: deque[list[float]] = deque()

    def record(self, amount: float, steady_ms: int) -> None:
        self._drop_old(steady_ms)
        if not self._samples or steady_ms - self._samples[-1][0] >= SAMPLE_MS:
            self._samples.append([steady_ms, 0.0])
        self._samples[-1][1] += amount

    def per_second(self, steady_ms: int) -> float:
        self._drop_old(steady_ms)
        if not self._samples:
            return 0.0
        return sum(amount for _, amount in self._samples) / (self.window_ms(steady_ms) / 1000)

    def window_ms(self, steady_ms: int) -> float:
        """Samples that are not there yet count as full ones: a first burst is measured over ten seconds."""
        if not self._samples:
            return (SAMPLES - 1) * SAMPLE_MS
        elapsed_ms = steady_ms - self._samples[0][0]
        full_samples = elapsed_ms // SAMPLE_MS
        missing = max(0, SAMPLES - 1 - full_samples)
        return max(elapsed_ms + missing * SAMPLE_MS, SAMPLE_MS)

    def _drop_old(self, steady_ms: int) -> None:
        oldest_ms = steady_ms - SAMPLES * SAMPLE_MS
        while self._samples and self._samples[0][0] <= oldest_ms:
            self._samples.popleft()


def throttle_ms(rate: Rate, limit: float, steady_ms: int) -> int:
    """Returns how long a client waits until its average over the window has come down to the quota.

    With an observed rate O over a window W and a quota T: (O - T) / T * W.
    """
    observed = rate.per_second(steady_ms)
    if observed <= limit:
        return 0
    return round(min((observed - limit) / limit * rate.window_ms(steady_ms), THROTTLE_MS_MAX))


class TokenBucket:
    """Tokens for controller mutations: `rate` comes in each second, and the bucket holds a window's worth.

    A request is accepted while there are tokens at all, and may overdraw. So a large one passes once and is paid for by
    those that follow.
    """

    __slots__ = ("_last_ms", "_tokens", "rate")

    def __init__(self, rate: float, steady_ms: int) -> None:
        self.rate = rate
        self._last_ms = steady_ms
        self._tokens = self.capacity

    @property
    def capacity(self) -> float:
        return self.rate * SAMPLES * SAMPLE_MS / 1000

    def tokens(self, steady_ms: int) -> float:
        self._refill(steady_ms)
        return self._tokens

    def overdraw(self, amount: float, steady_ms: int) -> int:
        """Takes the tokens in any case. Returns how long the bucket is overdrawn."""
        self._refill(steady_ms)
        self._tokens -= amount
        return self.throttle_ms(steady_ms)

    def take(self, amount: float, steady_ms: int) -> int:
        """Milliseconds to wait before the next try; 0 when the tokens were taken. Nothing is taken otherwise."""
        self._refill(steady_ms)
        if self._tokens < 0:
            return self.throttle_ms(steady_ms)
        self._tokens -= amount
        return 0

    def throttle_ms(self, steady_ms: int) -> int:
        """Returns how long the bucket is overdrawn."""
        self._refill(steady_ms)
        return 0 if self._tokens >= 0 else math.ceil(min(-self._tokens / self.rate * 1000, THROTTLE_MS_MAX))

    def _refill(self, steady_ms: int) -> None:
        elapsed_ms = max(0, steady_ms - self._last_ms)
        self._tokens = min(self.capacity, self._tokens + self.rate * elapsed_ms / 1000)
        self._last_ms = steady_ms
