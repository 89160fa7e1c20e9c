"""The addresses that a node binds and advertises, and the limits of its connections.

A listener in `controller.listener.names` is the controller's, any other the broker's. The roles of a node decide which
it must have. A node that is the whole quorum needs no controller listener: it serves both kinds of requests at one
address, so `tidemill serve` works without settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tidemill.config.broker.listeners import (
    Listener,
    check_advertised,
    check_ports_differ,
    parse_listeners,
    parse_protocol_map,
)
from tidemill.config.definitions import invalid_value
from tidemill.config.values import Values
from tidemill.errors import ConfigError

_INTER_BROKER_NAME = "inter.broker.listener.name"
_INTER_BROKER_PROTOCOL = "security.inter.broker.protocol"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of connections, which change while a node runs. Those by listener have the names of listeners."""

    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: Mapping[str, int]
    max_connection_creation_rate: int
    listener_max_connections: Mapping[str, int]
    listener_max_connection_creation_rate: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """The network settings of a node."""

    listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]
    controller_listeners: tuple[Listener, ...]
    advertised_controller_listeners: tuple[Listener, ...]
    controller_listener_names: tuple[str, ...]
    # The security protocol by the name of a listener, of this node or another.
    protocol_map: Mapping[str, str]
    inter_broker_listener_name: str
    connections_max_idle_ms: int
    connection_limits: ConnectionLimits
    socket_listen_backlog_size: int
    socket_receive_buffer_bytes: int
    socket_request_max_bytes: int
    socket_send_buffer_bytes: int
    telemetry_max_bytes: int


def load_network(values: Values, roles: tuple[str, ...]) -> NetworkConfig:
    names = tuple(name.upper() for name in values.texts("controller.listener.names"))
    protocol_map = parse_protocol_map(
        values.text("listener.security.protocol.map"),
        names,
        is_set=values.is_set("listener.security.protocol.map"),
    )
    _check_controller_protocols(names, protocol_map, values.text("listener.security.protocol.map"))
    bound = parse_listeners("listeners", values.texts("listeners"), protocol_map)
    check_ports_differ("listeners", bound)
    advertised = parse_listeners("advertised.listeners", values.texts("advertised.listeners"), protocol_map)
    check_advertised(advertised, bound)
    listeners = tuple(listener for listener in bound if listener.name not in names)
    controller_listeners = tuple(listener for listener in bound if listener.name in names)
    _check_roles(roles, names, listeners, controller_listeners)
    advertised_listeners = tuple(listener for listener in advertised if listener.name not in names)
    return NetworkConfig(
        listeners=listeners,
        advertised_listeners=advertised_listeners,
        controller_listeners=controller_listeners,
        advertised_controller_listeners=tuple(each for each in advertised if each.name in names),
        controller_listener_names=names,
        protocol_map=MappingProxyType(protocol_map),
        inter_broker_listener_name=_inter_broker_name(values, roles, names, listeners, advertised_listeners),
        connections_max_idle_ms=values.number("connections.max.idle.ms"),
        connection_limits=_connection_limits(values, [listener.name for listener in bound]),
        socket_listen_backlog_size=values.number("socket.listen.backlog.size"),
        socket_receive_buffer_bytes=values.number("socket.receive.buffer.bytes"),
        telemetry_max_bytes=values.number("telemetry.max.bytes"),
        socket_request_max_bytes=values.number("socket.request.max.bytes"),
        socket_send_buffer_bytes=values.number("socket.send.buffer.bytes"),
    )


def _check_controller_protocols(names: tuple[str, ...], protocol_map: Mapping[str, str], text: str) -> None:
    for name in names:
        if name not in protocol_map:
            raise invalid_value(
                "listener.security.protocol.map",
                text,
                f"a map that also has {name}, which controller.listener.names names: add {name}:PLAINTEXT",
            )


def _check_roles(
    roles: tuple[str, ...],
    names: tuple[str, ...],
    listeners: tuple[Listener, ...],
    controller_listeners: tuple[Listener, ...],
) -> None:
    text = ",".join(str(listener) for listener in (*listeners, *controller_listeners))
    if "controller" not in roles:
        if not names:
            raise ConfigError(
                "Configuration controller.listener.names is missing: a node with process.roles=broker reaches "
                "the controllers at their listener; name it, as CONTROLLER"
            )
        if controller_listeners:
            raise invalid_value(
                "listeners",
                text,
                f"without {controller_listeners[0].name}, which controller.listener.names gives to controllers "
                "and this node, with process.roles=broker, is none",
            )
    elif "broker" not in roles and (listeners or not controller_listeners):
        missing = "" if names else "; controller.listener.names is not set, name the listener there"
        raise invalid_value(
            "listeners",
            text,
            f"only listeners of controller.listener.names when process.roles is controller{missing}",
        )
    if "broker" in roles and not listeners:
        raise invalid_value(
            "listeners", text, "a list with at least one listener that is not the controller's"
        )
    unbound = [name for name in names if name not in {listener.name for listener in controller_listeners}]
    if "controller" in roles and unbound:
        raise invalid_value(
            "controller.listener.names",
            ",".join(names),
            f"names of this controller's listeners: add {unbound[0]}://host:port to listeners",
        )


def _inter_broker_name(
    values: Values,
    roles: tuple[str, ...],
    controller_names: tuple[str, ...],
    listeners: tuple[Listener, ...],
    advertised: tuple[Listener, ...],
) -> str:
    """The name that is set, the listener named like the protocol, or else the only listener."""
    own_name, protocol = values.optional_text(_INTER_BROKER_NAME), values.text(_INTER_BROKER_PROTOCOL)
    if own_name is not None and values.is_set(_INTER_BROKER_PROTOCOL):
        raise invalid_value(
            _INTER_BROKER_PROTOCOL, protocol, f"left out when {_INTER_BROKER_NAME} is set, as {own_name} is"
        )
    name = (own_name or protocol).upper()
    if own_name is not None and name in controller_names:
        raise invalid_value(_INTER_BROKER_NAME, own_name, "a broker's listener, not one of controllers")
    if "broker" not in roles:
        return name
    reachable = [listener.name for listener in advertised or listeners]
    if name in reachable:
        return name
    if own_name is not None:
        raise invalid_value(_INTER_BROKER_NAME, own_name, f"one of {', '.join(reachable)}")
    if values.is_set(_INTER_BROKER_PROTOCOL) or len(reachable) > 1:
        raise ConfigError(
            f"Configuration {_INTER_BROKER_NAME} is missing: no listener is named {name}, so it has to say "
            f"which of {', '.join(reachable)} brokers use among themselves"
        )
    return reachable[0]


def _connection_limits(values: Values, listener_names: Sequence[str]) -> ConnectionLimits:
    def by_listener(name: str) -> Mapping[str, int]:
        found = {each: values.listener_number(each, name) for each in listener_names}
        return MappingProxyType({each: number for each, number in found.items() if number is not None})

    return ConnectionLimits(
        max_connections=values.number("max.connections"),
        max_connections_per_ip=values.number("max.connections.per.ip"),
        max_connections_per_ip_overrides=_ip_overrides(values.text("max.connections.per.ip.overrides")),
        max_connection_creation_rate=values.number("max.connection.creation.rate"),
        listener_max_connections=by_listener("max.connections"),
        listener_max_connection_creation_rate=by_listener("max.connection.creation.rate"),
    )


def _ip_overrides(text: str) -> Mapping[str, int]:
    overrides: dict[str, int] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = pair.rpartition(":")
        overrides[host] = int(count)
    return MappingProxyType(overrides)
