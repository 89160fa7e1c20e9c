"""The HTTP listeners of a node: its status listener and its gateway, with their keys in `server.properties`.

The keys are those of the process, not of the broker's configuration: clients do not see them. An address is `HOST:PORT`, or
`https://HOST:PORT` for TLS. The certificate is that of the key with the listener's own prefix, or else that of all listeners
(`ssl.keystore.location`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.cli.serving.addresses import dialled, listen_address
from tidemill.client.connections.connection import Address
from tidemill.config.broker.listeners import is_loopback
from tidemill.config.broker.security import load_https
from tidemill.errors import ConfigError
from tidemill.tls.contexts import server_context
from tidemill.tls.settings import TlsSettings

STATUS_PREFIX, GATEWAY_PREFIX = "tidemill.status.", "tidemill.gateway."
STATUS_KEY, GATEWAY_KEY = f"{STATUS_PREFIX}listener", f"{GATEWAY_PREFIX}listener"
INSECURE_KEY = f"{GATEWAY_PREFIX}insecure"
CLIENT_CONFIG_KEY = f"{GATEWAY_PREFIX}client.config"
LARGE_PAYLOADS_KEY = f"{GATEWAY_PREFIX}large.payloads"
# Other settings of the gateway, and the `tidemill gateway` options for them.
GATEWAY_OPTIONS = {
    f"{GATEWAY_PREFIX}auth": "--auth",
    f"{GATEWAY_PREFIX}allow.origin": "--allow-origin",
    LARGE_PAYLOADS_KEY: "--large-payloads",
    f"{GATEWAY_PREFIX}large.payload.bytes": "--large-payload-bytes",
    f"{GATEWAY_PREFIX}store.alias": "--store-alias",
}
_SSL_KEYS = (
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
)
# What each key does, for the reference.
KEYS: Mapping[str, str] = {
    STATUS_KEY: "Address of the status listener, as HOST:PORT or https://HOST:PORT.",
    GATEWAY_KEY: "Address of the gateway that runs beside the broker, as HOST:PORT or https://HOST:PORT.",
    CLIENT_CONFIG_KEY: "Properties of Kafka's clients for the gateway's connections to the brokers.",
    f"{GATEWAY_PREFIX}auth": "MODULE:FUNCTION that authenticates the gateway's callers instead of a log-in.",
    f"{GATEWAY_PREFIX}allow.origin": "An origin whose pages may use the gateway from a browser.",
    LARGE_PAYLOADS_KEY: "The object store of the gateway's large payloads: a folder, or a URL such as s3://bucket/prefix.",
    f"{GATEWAY_PREFIX}large.payload.bytes": "Values of more bytes go to that store.",
    f"{GATEWAY_PREFIX}store.alias": "Another URI of that store, such as where another machine mounts it.",
    INSECURE_KEY: "true lets the gateway listen beyond this machine without a log-in or without TLS.",
    **{
        f"{prefix}{name}": f"As `{name}` of the brokers' listeners, for the {what} alone."
        for prefix, what in ((STATUS_PREFIX, "status listener"), (GATEWAY_PREFIX, "gateway"))
        for name in _SSL_KEYS
    },
}
_TLS_SCHEME, _PLAIN_SCHEME = "https://", "http://"


@dataclass(frozen=True)
class HttpListener:
    address: Address
    # The properties that `tls` is made of, with bare keys: for another process that serves this listener.
    ssl_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: TlsSettings | None = None

    @property
    def scheme(self) -> str:
        return _PLAIN_SCHEME if self.tls is None else _TLS_SCHEME

    def url(self, address: Address) -> str:
        """Returns the URL at which a process on this machine reaches the listener that was bound to `address`."""
        return f"{self.scheme}{dialled(address)}"

    @property
    def is_local(self) -> bool:
        return is_loopback(self.address.host)


def http_listener(key: str, text: str, properties: Mapping[str, str], prefix: str) -> HttpListener:
    """Errors name `key`. A certificate that cannot be used is an error here, before anything is started."""
    own = {name: value for name, value in properties.items() if name.startswith(f"{prefix}ssl.")}
    if not text.startswith(_TLS_SCHEME):
        if own and prefix:
            raise ConfigError(
                f"{next(iter(own))} asks for TLS, but {key}={text} has none: write {_TLS_SCHEME}HOST:PORT"
            )
        return HttpListener(listen_address(key, text.removeprefix(_PLAIN_SCHEME)))
    address = listen_address(key, text.removeprefix(_TLS_SCHEME))
    # A certificate that the brokers' listeners ask of their clients is not asked of browsers.
    general = {
        name: properties[name] for name in _SSL_KEYS if name in properties and name != "ssl.client.auth"
    }
    bare = {**general, **{name.removeprefix(prefix): value for name, value in own.items()}}
    try:
        tls = load_https(bare)
        server_context(tls)
    except ConfigError as error:
        raise ConfigError(f"{key}={text}: {error}") from None
    return HttpListener(address, bare, tls)


def refuse_unknown_keys(properties: Mapping[str, str]) -> None:
    """A misspelt key might be one that protects."""
    for name in properties:
        if name.startswith((STATUS_PREFIX, GATEWAY_PREFIX)) and name not in KEYS:
            raise ConfigError(
                f"Configuration {name} is not known; `docs/configuration.md` has those that are"
            )


def check_exposure(
    listener: HttpListener, *, option: str, has_login: bool, has_auth: bool, is_proxied: bool = False
) -> None:
    """ConfigError when a gateway would give away a cluster, or passwords, to the network."""
    if listener.is_local:
        return
    host = listener.address.host or "every interface"
    if not has_login and not has_auth:
        raise ConfigError(
            f"the gateway would listen on {host}, and whoever reaches it could read and change everything: use a cluster "
            f"with SASL, so that callers log in, or {option} 127.0.0.1:PORT; --insecure allows it as it is"
        )
    if has_login and listener.tls is None and not is_proxied:
        raise ConfigError(
            f"the gateway would listen on {host} without TLS, and passwords could be read on their way: use {option} "
            f"{_TLS_SCHEME}HOST:PORT; --insecure allows it as it is"
        )
