"""Listeners: the bound addresses, the advertised addresses, and the security protocol of each."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.config.definitions import invalid_value

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_ENDPOINT = re.compile(
    r"(?P<name>[\w.-]+)://(?:\[(?P<ipv6>[^\[\]]*)\]|(?P<host>[^\[\]:/]*)):(?P<port>\d{1,5})"
)


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener. An empty host means every interface; port 0 means any free port."""

    name: str
    host: str
    port: int
    security_protocol: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host. An empty one is every interface."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_listeners(
    key: str, endpoints: tuple[str, ...], protocol_map: Mapping[str, str]
) -> tuple[Listener, ...]:
    """Parse the endpoints of one setting. Names must differ, and so must ports unless they are 0."""
    listeners = tuple(_parse_listener(key, endpoint, protocol_map) for endpoint in endpoints)
    text = ",".join(endpoints)
    if len({listener.name for listener in listeners}) != len(listeners):
        raise invalid_value(key, text, "a list in which each listener has another name")
    return listeners


def check_ports_differ(key: str, listeners: tuple[Listener, ...]) -> None:
    """Two listeners may share a port only as one IPv4 and one IPv6 address."""
    seen: dict[int, Listener] = {}
    for listener in listeners:
        other = seen.setdefault(listener.port, listener)
        is_dual_stack = (":" in listener.host) != (":" in other.host) and listener.host and other.host
        if other is not listener and listener.port != 0 and not is_dual_stack:
            text = ",".join(str(each) for each in listeners)
            raise invalid_value(key, text, "a list in which each listener has another port")


def _parse_listener(key: str, endpoint: str, protocol_map: Mapping[str, str]) -> Listener:
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or int(match["port"]) > 65535:
        raise invalid_value(
            key, endpoint, "NAME://host:port with a port from 0 to 65535, as PLAINTEXT://localhost:9092"
        )
    name = match["name"].upper()
    protocol = protocol_map.get(name)
    if protocol is None:
        known = ", ".join(protocol_map)
        allowed = (
            f"named by listener.security.protocol.map, which knows {known}, or by controller.listener.names"
        )
        raise invalid_value(key, endpoint, allowed)
    host = match["ipv6"] if match["ipv6"] is not None else match["host"]
    return Listener(name, host, int(match["port"]), protocol)


def parse_protocol_map(text: str, controller_names: tuple[str, ...], is_set: bool) -> dict[str, str]:
    """Parse the map of listener names to security protocols. The default map also covers the controller's listeners."""
    protocol_map: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = (part.strip().upper() for part in pair.partition(":"))
        if not name or protocol not in SECURITY_PROTOCOLS:
            allowed = f"NAME:PROTOCOL pairs with a protocol of {', '.join(SECURITY_PROTOCOLS)}"
            raise invalid_value("listener.security.protocol.map", text, allowed)
        if name in protocol_map:
            raise invalid_value(
                "listener.security.protocol.map", text, "a map in which each name occurs once"
            )
        protocol_map[name] = protocol
    if not is_set:
        for name in controller_names:
            protocol_map.setdefault(name, "PLAINTEXT")
    return protocol_map


def check_advertised(advertised: tuple[Listener, ...], bound: tuple[Listener, ...]) -> None:
    for listener in advertised:
        if listener.host in ("", "0.0.0.0", "::"):
            allowed = "an address that clients can reach, not every interface"
            raise invalid_value("advertised.listeners", str(listener), allowed)
    names = [listener.name for listener in bound]
    for listener in advertised:
        if listener.name not in names:
            allowed = f"a listener that this broker has: {', '.join(names)}"
            raise invalid_value("advertised.listeners", str(listener), allowed)
