"""Chooses the listener and the client properties with which the gateway of a node reaches that node.

A listener with SASL comes first: callers log in there with users of the cluster, so the gateway needs no login of its
own and opens no way around one. Where the node's settings do not say how to connect, the operator has to, in the file that
`tidemill.gateway.client.config` names.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.cli.serving.addresses import dialled
from tidemill.cli.serving.http_listeners import CLIENT_CONFIG_KEY
from tidemill.client.connections.connection import Address
from tidemill.config import BrokerConfig, Listener, ListenerSecurity
from tidemill.errors import ConfigError
from tidemill.tls.settings import TrustStore

_PROTOCOLS = ("SASL_SSL", "SASL_PLAINTEXT", "PLAINTEXT", "SSL")
_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER")


def gateway_access(config: BrokerConfig, given: Mapping[str, str] | None) -> tuple[Listener, dict[str, str]]:
    """The listener to dial, and the client's properties. `given` are those of the operator's own file."""
    listeners = config.network.listeners
    if given is not None:
        protocol = given.get("security.protocol", "PLAINTEXT").upper()
        found = next((each for each in listeners if each.security_protocol == protocol), None)
        if found is None:
            has = ", ".join(f"{each.name} ({each.security_protocol})" for each in listeners)
            raise ConfigError(
                f"{CLIENT_CONFIG_KEY} has security.protocol={protocol}, but no listener for clients: there are {has}"
            )
        return found, dict(given)
    # Nodes' own listener is the last resort: its users may be the nodes alone.
    nodes = config.network.inter_broker_listener_name
    chosen = min(listeners, key=lambda each: (_PROTOCOLS.index(each.security_protocol), each.name == nodes))
    return chosen, _client_properties(chosen.name, config.security.listeners[chosen.name])


def reached(config: BrokerConfig, listener: Listener, port: int) -> Address:
    """Returns the address at which a process on this machine reaches a listener."""
    if config.security.listeners[listener.name].tls is not None:
        for each in config.network.advertised_listeners:
            if each.name == listener.name and each.host:
                # The certificate has the name that clients use.
                return Address(each.host, each.port or port)
    return dialled(Address(listener.host, port))


def has_login(client_properties: Mapping[str, str]) -> bool:
    return client_properties.get("security.protocol", "").upper().startswith("SASL_")


def _client_properties(name: str, security: ListenerSecurity) -> dict[str, str]:
    properties = {"security.protocol": security.protocol}
    if security.tls is not None:
        if security.protocol == "SSL" and security.tls.client_auth == "required":
            raise _missing(
                name, "wants a certificate of its clients", "security.protocol and ssl.keystore.location"
            )
        properties |= _trust(name, security.tls.trust_store)
    if security.sasl is not None:
        properties["sasl.mechanism"] = next(each for each in _MECHANISMS if each in security.sasl.mechanisms)
    return properties


def _trust(name: str, store: TrustStore | None) -> dict[str, str]:
    if store is None or (store.type or "PEM").upper() != "PEM":
        raise _missing(
            name,
            "has TLS, and ssl.truststore.location names no PEM file",
            "security.protocol and ssl.truststore.location",
        )
    if store.location is not None:
        return {"ssl.truststore.type": "PEM", "ssl.truststore.location": store.location}
    assert store.certificates is not None
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": store.certificates.value}


def _missing(name: str, why: str, what: str) -> ConfigError:
    return ConfigError(
        f"the gateway cannot connect to this broker: listener {name} {why}; set {CLIENT_CONFIG_KEY} to a file with {what}"
    )
