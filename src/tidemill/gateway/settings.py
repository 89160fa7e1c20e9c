"""The settings of a gateway: plain values, checked where they are made. Nothing here touches the network.

`client_options` are Kafka's client options for security (`security.*`, `ssl.*`, `sasl.*`), by the names of the Java
client or of librdkafka; both of the gateway's clients get them from here. `authenticate` decides which requests
are allowed. Without it all are, so the gateway listens on 127.0.0.1 by default.

With `login` the callers log in with users of the cluster, and each request is carried out as its caller's own user:
`as_user` are the settings for one of them. The gateway then has no rights of its own.

    def authenticate(headers: Headers, scope: Scope) -> str: ...      # the principal, or raise Problem(401 or 403, ...)

It may be a coroutine function too. `load_authenticate("module:function")` finds one by name.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from tidemill.claims.large_payloads import LargePayloads
from tidemill.client.cluster import parse_bootstrap
from tidemill.client.connections.security import PREFIXES, SecurityOptions
from tidemill.config.broker.listeners import is_loopback
from tidemill.errors import ConfigError
from tidemill.security import oauthbearer
from tidemill.tls.settings import TlsSettings

# How long librdkafka uses a token before it asks for one again.
_TOKEN_S = 3600.0

Authenticate = Callable[[Headers, Scope], str | Awaitable[str]]


@dataclass(frozen=True)
class Limits:
    """A limit on everything that a caller decides."""

    # One request's body. A stream of records may be longer.
    body_bytes_max: int = 16 * 1024 * 1024
    # A body that is no list of records, such as a topic's settings: it is parsed at once.
    document_bytes_max: int = 512 * 1024
    # Of one request whose records are written all or none. A stream of records may have more.
    request_records_max: int = 50_000
    # What is held in memory of all bodies that have not come as a whole.
    bodies_bytes_max: int = 256 * 1024 * 1024
    # Key, value and headers of one record, as they are written.
    record_bytes_max: int = 1024 * 1024
    # Arrays and objects in the JSON of one record. Each takes some 60 bytes of memory, and three of the body.
    record_containers_max: int = 100_000
    # Of the request's line and headers together.
    header_bytes_max: int = 32 * 1024
    # A body may pause for so long, and has to arrive at this rate on the whole.
    body_pause_s: float = 10.0
    body_bytes_per_s_min: int = 1024
    # A stream of records may pause for so long between two records.
    stream_pause_s: float = 300.0
    # Request line and headers have to be there after so long.
    header_s: float = 10.0
    # Requests under way, long polls and event streams included.
    requests_max: int = 1000
    # Records that wait for their acknowledgement, in all and in one stream.
    records_pending_max: int = 100_000
    records_pending_bytes_max: int = 256 * 1024 * 1024
    stream_records_pending_max: int = 1000
    # Questions to the cluster at the same time, and those that wait for their turn.
    asks_max: int = 8
    asks_waiting_max: int = 256
    # Consumer instances, each with a thread of its own; one without requests for so long leaves its group.
    instances_max: int = 100
    instance_idle_s: float = 300.0
    # How long a request for records may wait for them, and how much it may answer with.
    poll_s_max: float = 60.0
    answer_bytes_max: int = 16 * 1024 * 1024

    @property
    def bodies_max(self) -> int:
        """Requests whose bodies are still to come: others always find a place beside them."""
        return max(1, self.requests_max // 2)

    @property
    def connections_max(self) -> int:
        """Twice as many, because most connections wait for their next request."""
        return 2 * self.requests_max

    @property
    def record_text_bytes_max(self) -> int:
        """The most bytes of a record as JSON, where a character may take six times as many bytes as when it is written."""
        return min(self.body_bytes_max, 6 * self.record_bytes_max)


@dataclass(frozen=True)
class LoginLimits:
    """The lifetimes of log-ins, and how many there may be."""

    # A session ends when it was not used for so long, and after so long in any case.
    session_idle_s: float = 1800.0
    session_s_max: float = 12 * 3600.0
    sessions_max: int = 10_000
    user_sessions_max: int = 100
    # The cluster is asked again after so long whether a user still has this password.
    verified_s: float = 60.0
    # Users that are connected to the cluster at the same time; one that is idle for so long is disconnected.
    accesses_max: int = 100
    access_idle_s: float = 600.0
    # Questions to the cluster at the same time, for each user.
    user_asks_max: int = 4
    # Passwords that are tried at the cluster at the same time, and how long an attempt waits after many failures.
    attempts_max: int = 4
    wait_s_max: float = 5.0


@dataclass(frozen=True)
class Credentials:
    """A user of the cluster with the password, or with OAUTHBEARER the token, which no `repr` shows."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Settings:
    bootstrap: str = "127.0.0.1:9092"
    listen_host: str = "127.0.0.1"
    listen_port: int = 8080
    client_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    # The brokers' status listeners, with metrics and rebalances: http://HOST:PORT.
    status_urls: tuple[str, ...] = ()
    authenticate: Authenticate | None = None
    # Origins (https://host[:port]) whose pages may use the API from a browser.
    allow_origins: tuple[str, ...] = ()
    # Whether a proxy stands before the gateway whose X-Forwarded-Proto, -Host and -Prefix are believed.
    trusts_forwarded: bool = False
    # The certificate that callers are shown; None for plain HTTP.
    tls: TlsSettings | None = None
    # Callers log in with users of the cluster; None where all of them act with `client_options`.
    login: LoginLimits | None = None
    # Whose connections these settings are for, where it is not `client_options` that say so.
    user: Credentials | None = None
    # How long the cluster may take for an answer before the caller gets an error.
    timeout_s: float = 10.0
    # How long requests under way may take to end when the gateway is stopped.
    drain_s: float = 10.0
    limits: Limits = Limits()
    # Where values above a threshold are; None where all values are in their records.
    large_payloads: LargePayloads | None = None

    def __post_init__(self) -> None:
        parse_bootstrap(self.bootstrap)
        for origin in self.allow_origins:
            scheme, separator, host = origin.partition("://")
            if origin != "*" and (
                scheme not in ("http", "https") or not separator or not host or "/" in host
            ):
                raise ConfigError(
                    f"{origin!r} is not an origin: it should be https://HOST or http://HOST:PORT"
                )
        security = self.security  # Errors in it are raised before anything is started.
        if self.login is not None and not security.has_sasl:
            raise ConfigError(
                f"users cannot log in with security.protocol={security.protocol}: set it to SASL_SSL or SASL_PLAINTEXT"
            )

    @property
    def security(self) -> SecurityOptions:
        """The security in `client_options`. Options that are not about security are for other tools."""
        options = {name: value for name, value in self.client_options.items() if name.startswith(PREFIXES)}
        is_anonymous = self.login is not None or self.user is not None
        found = SecurityOptions.parse(options, needs_login=not is_anonymous)
        return found if self.user is None else found.as_user(self.user.username, self.user.password)

    def as_user(self, user: Credentials) -> Settings:
        """Returns the settings with which one caller uses the cluster."""
        assert self.login is not None
        limits = replace(self.limits, asks_max=self.login.user_asks_max)
        return replace(self, login=None, user=user, limits=limits)

    @property
    def has_tokens(self) -> bool:
        """Whether users of the cluster have tokens (OAUTHBEARER) and no passwords."""
        return self.security.mechanism == oauthbearer.MECHANISM

    def client_config(self) -> dict[str, Any]:
        """The options of confluent-kafka that say where the cluster is and how to log in."""
        addresses = ",".join(str(address) for address in parse_bootstrap(self.bootstrap))
        security = self.security
        config: dict[str, Any] = {
            "bootstrap.servers": addresses,
            # Metrics of clients (KIP-714) are for users of the cluster; the gateway is part of it.
            "enable.metrics.push": "false",
            **security.librdkafka_options(),
        }
        if security.token:
            # The cluster knows when the token expires; librdkafka needs to be given a time.
            config["oauth_cb"] = lambda _: (security.token, time.time() + _TOKEN_S)
        return config

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.listen_host)


def load_authenticate(name: str) -> Authenticate:
    """`module:function`, importable from where the gateway is started."""
    module_name, separator, function_name = name.partition(":")
    if not separator or not module_name or not function_name:
        raise ConfigError(f"{name!r} does not name a function: it should be MODULE:FUNCTION")
    try:
        found: Authenticate = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the authentication function {name} cannot be loaded: {error}") from None
    if not callable(found):
        raise ConfigError(f"{name} is not a function")
    return found
