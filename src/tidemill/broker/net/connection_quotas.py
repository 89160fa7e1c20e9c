"""The limits of connections (Kafka: ConnectionQuotas): how many are open, by address and listener, and how fast they come.

The limits change while the node runs. As in Kafka, the listener that brokers use among themselves is protected when there
are others: the limits of all listeners together do not count there, so that clients cannot cut a broker off.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping

from tidemill.broker.net.network import ServerLimits
from tidemill.config import NetworkConfig
from tidemill.config.definitions import INT_MAX
from tidemill.errors import ConfigError
from tidemill.security.addresses import is_address, normal_address
from tidemill.security.quotas import Rate, throttle_ms

# A listener that has to wait looks again after this time at the latest: the limit may be another one by then.
_WAIT_MS_MAX = 1_000


class ConnectionQuotas:
    def __init__(self, limits: ServerLimits) -> None:
        """Looks up the names of hosts with a limit of their own, as Kafka does at its start."""
        self.limits = limits
        self.total = 0
        self._per_ip: Counter[str] = Counter()
        self._per_listener: Counter[str] = Counter()
        self._rate = Rate()
        self._rates: dict[str, Rate] = {}
        self._per_ip_max: Mapping[str, int] = addresses_of(limits.connections_per_ip_overrides)

    def configure(self, limits: ServerLimits, per_ip_max: Mapping[str, int]) -> None:
        self.limits = limits
        self._per_ip_max = per_ip_max

    def ip_limit(self, ip: str) -> int:
        return self._per_ip_max.get(ip, self.limits.connections_per_ip_max)

    def refusal(self, ip: str, listener: str) -> str | None:
        """The limit that one more connection would exceed; None when there is room for it."""
        limits = self.limits
        of_listener = limits.listener_connections_max.get(listener)
        if of_listener is not None and self._per_listener[listener] >= of_listener:
            return f"listener.name.{listener.lower()}.max.connections={of_listener}"
        if self.total >= limits.connections_max and not self.is_protected(listener):
            return f"max.connections={limits.connections_max}"
        if self._per_ip[ip] >= self.ip_limit(ip):
            return f"max.connections.per.ip={self.ip_limit(ip)}"
        return None

    def is_protected(self, listener: str) -> bool:
        return listener in self.limits.protected_listeners

    @property
    def excess(self) -> int:
        """How many connections are open beyond the limit. It may have been lowered."""
        return max(0, self.total - self.limits.connections_max)

    def opened(self, ip: str, listener: str) -> None:
        self.total += 1
        self._per_ip[ip] += 1
        self._per_listener[listener] += 1

    def closed(self, ip: str, listener: str) -> None:
        self.total -= 1
        self._per_listener[listener] -= 1
        self._per_ip[ip] -= 1
        if self._per_ip[ip] <= 0:
            del self._per_ip[ip]

    # -- rates -----------------------------------------------------------------------------------------------

    def accepted(self, listener: str, steady_ms: int) -> None:
        """Counts a connection that was accepted, admitted or not. Without limits of rates nothing is measured."""
        if self.limits.connection_rate_max is not None and not self.is_protected(listener):
            self._rate.record(1, steady_ms)
        if listener in self.limits.listener_connection_rate_max:
            self._rates.setdefault(listener, Rate()).record(1, steady_ms)

    def wait_ms(self, listener: str, steady_ms: int) -> int:
        """How long the listener accepts no connection: until the rate is back at its limit."""
        waits = [0]
        if self.limits.connection_rate_max is not None and not self.is_protected(listener):
            waits.append(throttle_ms(self._rate, self.limits.connection_rate_max, steady_ms))
        of_listener = self.limits.listener_connection_rate_max.get(listener)
        if of_listener is not None and listener in self._rates:
            waits.append(throttle_ms(self._rates[listener], of_listener, steady_ms))
        return min(max(waits), _WAIT_MS_MAX)


def addresses_of(counts: Mapping[str, int], *, is_strict: bool = True) -> dict[str, int]:
    """The counts of `max.connections.per.ip.overrides` by address. Blocks while it looks up names.

    A name that is not found is a ConfigError, or left out when it is not strict.
    """
    found: dict[str, int] = {}
    for host, count in counts.items():
        try:
            entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            if not is_strict:
                continue
            raise ConfigError(
                f"Configuration max.connections.per.ip.overrides names {host}: {error}"
            ) from None
        found.update((normal_address(str(entry[4][0])), count) for entry in entries)
    return found


def literal_addresses(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts of hosts that are addresses: they need no lookup."""
    return {normal_address(host): count for host, count in counts.items() if is_address(host)}


def server_limits(network: NetworkConfig, throttle_ms: Callable[[str], int]) -> ServerLimits:
    """The limits that a node's settings say. `throttle_ms` knows the quotas of addresses."""
    limits = network.connection_limits
    rate = limits.max_connection_creation_rate
    return ServerLimits(
        frame_bytes_max=network.socket_request_max_bytes,
        connections_max=limits.max_connections,
        connections_per_ip_max=limits.max_connections_per_ip,
        connections_per_ip_overrides=limits.max_connections_per_ip_overrides,
        connection_rate_max=None if rate == INT_MAX else rate,
        listener_connections_max=limits.listener_max_connections,
        listener_connection_rate_max=limits.listener_max_connection_creation_rate,
        protected_listeners=_protected(network),
        idle_ms_max=network.connections_max_idle_ms,
        send_buffer_bytes=network.socket_send_buffer_bytes,
        receive_buffer_bytes=network.socket_receive_buffer_bytes,
        backlog=network.socket_listen_backlog_size,
        throttle_ms=throttle_ms,
    )


def _protected(network: NetworkConfig) -> frozenset[str]:
    """The listeners of nodes, where clients have others."""
    if not network.listeners:
        return frozenset()
    inter_broker = (network.inter_broker_listener_name,) if len(network.listeners) > 1 else ()
    return frozenset((*inter_broker, *network.controller_listener_names))
