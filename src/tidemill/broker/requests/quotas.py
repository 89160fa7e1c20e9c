"""Quotas at work: measures what clients use, and says how long they are throttled.

A client over its quota is answered at once with `throttle_time_ms`, and its connection is not read for that long
(KIP-219). Produced bytes are kept and counted, and so are those of a ShareFetch. Any other fetch over the quota gets an
empty response that is not counted. Request time is the time that handlers take on the event loop; 100 percent is one core.
New connections of an address over its quota are not read, and closed after the wait.

`ClientQuotas` exists only while the metadata has a quota for clients, so produce and fetch pay one test of an attribute
without one. Its sensors outlive a change of the quotas: a new limit applies to what was used already.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator
from time import perf_counter
from typing import Any, TypeVar

from tidemill.broker.net.network import Peer
from tidemill.security.quotas import (
    CLIENT_KEYS,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    SAMPLE_MS,
    SAMPLES,
    QuotaEntity,
    Quotas,
    Rate,
    TokenBucket,
    client_quota,
    ip_quotas,
    throttle_ms,
)

_SENSORS_MAX = 10_000
# Longer than the window: a sensor that is dropped has nothing to remember.
_IDLE_MS = 60_000
# Kafka bounds the throttling for request time and for connections by one sample.
_REQUEST_THROTTLE_MS_MAX = SAMPLE_MS
_CONNECTION_THROTTLE_MS_MAX = SAMPLE_MS
_NO_LIMIT_BYTES = 1 << 62

ResultT = TypeVar("ResultT")


def limits_clients(quotas: Quotas) -> bool:
    return any(not CLIENT_KEYS.isdisjoint(limits) for limits in quotas.values())


class Sensor:
    """Measures the usage of one kind of quota by the clients of one entity."""

    __slots__ = ("_bucket", "_throttled", "_throttles", "limit", "rate", "used_ms")

    def __init__(self, limit: float, steady_ms: int) -> None:
        self.rate = Rate()
        # Controller mutations alone use it.
        self._bucket: TokenBucket | None = None
        self.limit = limit
        self.used_ms = steady_ms
        # How often, and for how many milliseconds.
        self._throttles = Rate()
        self._throttled = Rate()

    def record(self, amount: float, steady_ms: int) -> int:
        """Counts the amount. Returns how long its client is throttled."""
        self.used_ms = steady_ms
        self.rate.record(amount, steady_ms)
        return throttle_ms(self.rate, self.limit, steady_ms)

    def note_throttled(self, wait_ms: int, steady_ms: int) -> None:
        self._throttles.record(1, steady_ms)
        self._throttled.record(wait_ms, steady_ms)

    def average_throttle_ms(self, steady_ms: int) -> float:
        """Returns the average over the throttled requests in the window."""
        often = self._throttles.per_second(steady_ms)
        return self._throttled.per_second(steady_ms) / often if often else 0.0

    def bucket(self, steady_ms: int) -> TokenBucket:
        self.used_ms = steady_ms
        if self._bucket is None:
            self._bucket = TokenBucket(self.limit, steady_ms)
        self._bucket.rate = self.limit
        return self._bucket


class ClientQuotas:
    """Finds the sensor of a client for each kind of quota."""

    def __init__(self, steady_ms: Callable[[], int], quotas: Quotas) -> None:
        self.steady_ms = steady_ms
        self._quotas = quotas
        # The least recently made or found first.
        self._sensors: dict[tuple[str, QuotaEntity], Sensor] = {}
        # By kind, user and client id; None where no quota applies.
        self._found: dict[tuple[str, str, str], Sensor | None] = {}

    def follow(self, quotas: Quotas) -> None:
        """Apply other quotas to the clients that are known."""
        self._quotas = quotas
        self._found.clear()

    @property
    def version(self) -> Quotas:
        """The quotas that apply. Their identity is their version."""
        return self._quotas

    def sensor(self, kind: str, user: str, client_id: str) -> Sensor | None:
        name = (kind, user, client_id)
        try:
            return self._found[name]
        except KeyError:
            return self._find(name)

    def sensors(self) -> list[tuple[str, QuotaEntity, Sensor]]:
        """Returns all sensors, for the metrics."""
        return [(kind, entity, sensor) for (kind, entity), sensor in self._sensors.items()]

    def _find(self, name: tuple[str, str, str]) -> Sensor | None:
        kind, user, client_id = name
        # Clients choose their ids: what is remembered of them is bounded.
        if len(self._found) >= _SENSORS_MAX:
            self._found.clear()
        quota = client_quota(self._quotas, kind, user, client_id)
        if quota is None:
            self._found[name] = None
            return None
        key = (kind, quota.entity)
        sensor = self._sensors.pop(key, None)
        if sensor is None:
            self._drop_idle()
            sensor = Sensor(quota.limit, self.steady_ms())
        sensor.limit = quota.limit
        self._sensors[key] = self._found[name] = sensor
        return sensor

    def _drop_idle(self) -> None:
        """Makes room for a sensor. When all are in use, the one that was found first is dropped."""
        sensors = self._sensors
        if len(sensors) < _SENSORS_MAX:
            return
        idle_since_ms = self.steady_ms() - _IDLE_MS
        for key in [key for key, sensor in sensors.items() if sensor.used_ms < idle_since_ms]:
            del sensors[key]
        if len(sensors) >= _SENSORS_MAX:
            del sensors[next(iter(sensors))]
        self._found.clear()


class RequestUsage:
    """Measures the usage of one request and charges it to its client's quotas."""

    __slots__ = ("_client_id", "_peer", "_quotas", "_since_s", "_spent_s", "_user", "throttle_ms")

    def __init__(self, quotas: ClientQuotas, peer: Peer, client_id: str | None) -> None:
        self._quotas = quotas
        self._peer = peer
        self._user = peer.principal.name
        self._client_id = client_id or ""
        self._spent_s = 0.0
        # None while the request waits.
        self._since_s: float | None = perf_counter()
        self.throttle_ms = 0

    # -- the time on the event loop --------------------------------------------------------------------------

    def pause(self) -> None:
        """The handler gives the loop back."""
        if self._since_s is not None:
            self._spent_s += perf_counter() - self._since_s
            self._since_s = None

    def resume(self) -> None:
        self._since_s = perf_counter()

    @types.coroutine
    def timed(self, handling: Awaitable[ResultT]) -> Generator[Any, None, ResultT]:
        """Runs a handler that waits now and then, and measures what it computes in between."""
        steps = handling.__await__()
        failure: BaseException | None = None
        while True:
            self.resume()
            try:
                awaited = next(steps) if failure is None else steps.throw(failure)
            except StopIteration as done:
                result: ResultT = done.value
                return result
            self.pause()
            try:
                failure = None
                yield awaited
            except BaseException as raised:
                failure = raised

    # -- charging --------------------------------------------------------------------------------------------

    def produced(self, size: int) -> None:
        """Counts a produce request, over the quota or not."""
        sensor = self._sensor(PRODUCER_BYTE_RATE)
        if sensor is not None:
            self._throttle(sensor, sensor.record(size, self._quotas.steady_ms()))

    def fetch_bytes_max(self) -> int:
        """Returns the largest size of a response: that of a whole window. A larger one could never be sent."""
        sensor = self._sensor(CONSUMER_BYTE_RATE)
        if sensor is None:
            return _NO_LIMIT_BYTES
        return int(sensor.limit * (SAMPLES - 1) * SAMPLE_MS / 1000)

    def fetched(self, size: int) -> int:
        """Counts a response of that size, or returns how long the client waits before it may try again."""
        self.completed()
        sensor = self._sensor(CONSUMER_BYTE_RATE)
        if sensor is None:
            return self.throttle_ms
        steady_ms = self._quotas.steady_ms()
        # One batch that is larger than the window's worth passes when the window is empty. Kafka never sends it.
        is_first = sensor.rate.per_second(steady_ms) == 0
        wait_ms = sensor.record(size, steady_ms)
        if not is_first:
            self._throttle(sensor, wait_ms)
        if self.throttle_ms:
            sensor.record(-size, steady_ms)
        return self.throttle_ms

    def shared(self, size: int) -> int:
        """Counts a response to a ShareFetch, over the quota or not. Returns its `throttle_time_ms`.

        Its records are locked for the member. Kafka sends an empty response and leaves them locked until they time out;
        here they are sent, as a produce is kept, and the member waits for them.
        """
        self.completed()
        sensor = self._sensor(CONSUMER_BYTE_RATE)
        if sensor is not None:
            self._throttle(sensor, sensor.record(size, self._quotas.steady_ms()))
        return self.throttle_ms

    @property
    def limits_mutations(self) -> bool:
        return self._sensor(CONTROLLER_MUTATION_RATE) is not None

    def mutated(self, partitions: int, *, is_strict: bool) -> bool:
        """Counts partitions that are created or deleted (KIP-599). A strict client is refused while it is over its quota."""
        sensor = self._sensor(CONTROLLER_MUTATION_RATE)
        if sensor is None:
            return True
        steady_ms = self._quotas.steady_ms()
        bucket = sensor.bucket(steady_ms)
        if not is_strict:
            sensor.rate.record(partitions, steady_ms)
            self._throttle(sensor, bucket.overdraw(partitions, steady_ms))
            return True
        wait_ms = bucket.take(partitions, steady_ms)
        if wait_ms:
            self._throttle(sensor, wait_ms)
        else:
            sensor.rate.record(partitions, steady_ms)
        return wait_ms == 0

    def completed(self) -> int:
        """Counts the request's time. Returns the `throttle_time_ms` of its response."""
        self.pause()
        sensor = self._sensor(REQUEST_PERCENTAGE)
        if sensor is not None:
            wait_ms = sensor.record(self._spent_s * 100, self._quotas.steady_ms())
            self._throttle(sensor, min(wait_ms, _REQUEST_THROTTLE_MS_MAX))
        return self.throttle_ms

    def _sensor(self, kind: str) -> Sensor | None:
        return self._quotas.sensor(kind, self._user, self._client_id)

    def _throttle(self, sensor: Sensor, wait_ms: int) -> None:
        if wait_ms:
            sensor.note_throttled(wait_ms, self._quotas.steady_ms())
        if wait_ms > self.throttle_ms:
            self.throttle_ms = wait_ms
            self._peer.mute_for(wait_ms)


class ConnectionRates:
    """The rate at which each address opens connections (KIP-612)."""

    def __init__(self, steady_ms: Callable[[], int], quotas: Callable[[], Quotas]) -> None:
        self._steady_ms = steady_ms
        self._quotas = quotas
        # The quotas that were read last, and what they say of addresses.
        self._version: Quotas = {}
        self._limits: dict[str | None, float] = {}
        # The address that was measured first comes first.
        self._sensors: dict[str, Sensor] = {}

    def throttle_ms(self, address: str) -> int:
        """Counts a new connection, or returns how long it is kept waiting before it is closed."""
        quotas = self._quotas()
        if quotas is not self._version:
            self._version, self._limits = quotas, ip_quotas(quotas)
        limit = self._limits.get(address, self._limits.get(None))
        if limit is None:
            self._sensors.pop(address, None)
            return 0
        steady_ms = self._steady_ms()
        sensor = self._sensors.get(address)
        if sensor is None:
            if len(self._sensors) >= _SENSORS_MAX:
                del self._sensors[next(iter(self._sensors))]
            sensor = self._sensors[address] = Sensor(limit, steady_ms)
        sensor.limit = limit
        wait_ms = min(sensor.record(1, steady_ms), _CONNECTION_THROTTLE_MS_MAX)
        if wait_ms:
            sensor.rate.record(-1, steady_ms)
            sensor.note_throttled(wait_ms, steady_ms)
        return wait_ms

    def sensors(self) -> list[tuple[str, Sensor]]:
        """Returns all sensors by address, for the metrics."""
        return list(self._sensors.items())
