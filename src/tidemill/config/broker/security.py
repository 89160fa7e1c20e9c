"""The security of each listener: TLS, SASL, and the login of this node where it dials one.

A key may be for all listeners (`ssl.client.auth`), for one (`listener.name.external.ssl.client.auth`), or for one
mechanism of one (`listener.name.external.scram-sha-256.sasl.jaas.config`); the most specific text is in force. Nothing is
read from files here, and secrets are `Password` values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tidemill.config.broker.network import NetworkConfig
from tidemill.config.definitions import Value, invalid_value
from tidemill.config.layers import BROKER_KEYS, BrokerLayers
from tidemill.config.values import Values
from tidemill.errors import ConfigError
from tidemill.jaas import JaasEntry, parse_jaas
from tidemill.tls.settings import TLS_VERSIONS, KeyStore, Password, TlsSettings, TrustStore

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


# The same on all nodes: a stranger that asks two of them, or asks again after a restart, sees one salt for each name.
DECOY_SECRET = "tidemill.scram.decoy.secret"
# A file with users of PLAIN beside those of `sasl.jaas.config`, for one listener or for all.
PLAIN_USERS_FILE = "tidemill.plain.users.file"


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """`sasl.oauthbearer.*`: whose tokens are believed."""

    jwks_url: str
    issuer: str = ""
    audiences: frozenset[str] = frozenset()
    clock_skew_ms: int = 30_000
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    refresh_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class Login:
    """The credentials with which this node logs in. An OAUTHBEARER token is read from a file each time."""

    mechanism: str
    username: str = ""
    password: Password = field(default_factory=lambda: Password(""))
    token_file: str | None = None


@dataclass(frozen=True, slots=True)
class SaslSettings:
    mechanisms: tuple[str, ...]
    plain_users: Mapping[str, Password]
    plain_users_file: str | None
    # What nodes of this cluster log in with, by mechanism: it counts before there is any metadata.
    own_logins: Mapping[str, Login]
    max_reauth_ms: Mapping[str, int]
    receive_bytes_max: int
    oauth: OAuthSettings | None


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    protocol: str
    tls: TlsSettings | None = None
    principal_mapping_rules: str = "DEFAULT"
    sasl: SaslSettings | None = None
    # None where this node does not dial that listener of others, or needs no login for it.
    login: Login | None = None

    @property
    def authenticates(self) -> bool:
        """Whether every peer is authenticated."""
        is_shown = self.tls is not None and self.tls.client_auth == "required"
        return self.sasl is not None or (self.protocol == "SSL" and is_shown)


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    listeners: Mapping[str, ListenerSecurity]
    failed_authentication_delay_ms: int
    # `super.users`, and what nodes of this cluster log in as, each as `User:NAME`.
    node_principals: frozenset[str]
    # What the salts of unknown SCRAM users are made from; None when the node is to make up one of its own.
    decoy_secret: Password | None = None


def load_security(values: Values, complete: Mapping[str, str], network: NetworkConfig) -> SecurityConfig:
    bound = {each.name for each in (*network.listeners, *network.controller_listeners)}
    dialled = {network.inter_broker_listener_name, *network.controller_listener_names}
    listeners = {}
    for name in sorted(bound | dialled):
        protocol = network.protocol_map.get(name)
        if protocol is not None:
            settings = _ListenerValues(values, complete, f"listener.name.{name.lower()}.")
            listeners[name] = _listener_security(
                settings, protocol, name, network, is_bound=name in bound, is_dialled=name in dialled
            )
    values.read.add(DECOY_SECRET)
    decoy_secret = complete.get(DECOY_SECRET)
    return SecurityConfig(
        listeners=MappingProxyType(listeners),
        decoy_secret=Password(decoy_secret) if decoy_secret else None,
        failed_authentication_delay_ms=values.number("connection.failed.authentication.delay.ms"),
        node_principals=_node_principals(values, complete, listeners.values()),
    )


def load_https(properties: Mapping[str, str]) -> TlsSettings:
    """The TLS of a listener that speaks HTTP, from keys as `ssl.keystore.location`."""
    return _tls(_ListenerValues(Values(BrokerLayers(static={})), properties, ""), "SSL")


def _node_principals(
    values: Values, complete: Mapping[str, str], listeners: Iterable[ListenerSecurity]
) -> frozenset[str]:
    values.read.add("super.users")
    named = (each.strip() for each in complete.get("super.users", "").split(";"))
    logins = (f"User:{each.login.username}" for each in listeners if each.login and each.login.username)
    return frozenset(filter(None, (*named, *logins)))


class _ListenerValues:
    """Typed reads of one listener's settings, the most specific first."""

    def __init__(self, values: Values, complete: Mapping[str, str], prefix: str) -> None:
        """Keys with the prefix are this listener's own."""
        self._values = values
        self._complete = complete
        self._prefix = prefix

    def found(self, name: str, mechanism: str | None = None) -> tuple[str, str] | None:
        """The key that is in force and its text; None where only a default could be."""
        names = [self._prefix + name, name]
        if mechanism is not None:
            names.insert(0, f"{self._prefix}{mechanism.lower()}.{name}")
        self._values.read.add(name)
        for candidate in names:
            if candidate in self._complete:
                self._values.read.add(candidate)
                return candidate, self._complete[candidate]
        return None

    def get(self, name: str, mechanism: str | None = None) -> Value | None:
        found = self.found(name, mechanism)
        text = found[1] if found is not None else BROKER_KEYS[name].default
        return None if text is None else BROKER_KEYS[name].parse(text)

    def text(self, name: str, mechanism: str | None = None) -> str | None:
        value = self.get(name, mechanism)
        return str(value) if value else None

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.get(name)
        return value if isinstance(value, tuple) else ()

    def number(self, name: str, mechanism: str | None = None) -> int:
        value = self.get(name, mechanism)
        assert isinstance(value, int), name
        return value

    def password(self, name: str) -> Password | None:
        text = self.text(name)
        return None if text is None else Password(text)

    def jaas(self, mechanism: str) -> JaasEntry | None:
        found = self.found("sasl.jaas.config", mechanism)
        if found is None or not found[1].strip():
            return None
        try:
            return parse_jaas(found[1], mechanism, found[0])
        except ConfigError:
            # One text for all listeners and mechanisms is for the one whose module it names.
            if found[0] == "sasl.jaas.config":
                return None
            raise


def _listener_security(
    values: _ListenerValues,
    protocol: str,
    name: str,
    network: NetworkConfig,
    *,
    is_bound: bool,
    is_dialled: bool,
) -> ListenerSecurity:
    has_sasl = protocol.startswith("SASL_")
    login = None
    if has_sasl and is_dialled:
        of = "controller" if name in network.controller_listener_names else "inter.broker"
        key = f"sasl.mechanism.{of}.protocol"
        login = _login(values, key, values.text(key) or "", name)
    sasl = None
    if has_sasl and is_bound:
        sasl = _sasl(values, name, login)
    return ListenerSecurity(
        protocol=protocol,
        tls=_tls(values, protocol) if protocol.endswith("SSL") else None,
        principal_mapping_rules=values.text("ssl.principal.mapping.rules") or "DEFAULT",
        sasl=sasl,
        login=login,
    )


def _tls(values: _ListenerValues, protocol: str) -> TlsSettings:
    location = values.text("ssl.keystore.location")
    chain, key = values.password("ssl.keystore.certificate.chain"), values.password("ssl.keystore.key")
    if (chain is None) != (key is None):
        raise ConfigError("ssl.keystore.certificate.chain and ssl.keystore.key are given together")
    if location is not None and chain is not None:
        raise ConfigError(
            "ssl.keystore.location and ssl.keystore.certificate.chain say the same; give one of them"
        )
    key_store = None
    if location is not None or chain is not None:
        key_store = KeyStore(
            location=location,
            certificate_chain=chain,
            key=key,
            password=values.password("ssl.keystore.password"),
            key_password=values.password("ssl.key.password"),
            type=_store_type(values, "keystore"),
        )
    trust_location = values.text("ssl.truststore.location")
    certificates = values.password("ssl.truststore.certificates")
    trust_store = None
    if trust_location is not None or certificates is not None:
        trust_store = TrustStore(
            location=trust_location,
            certificates=None if trust_location is not None else certificates,
            password=values.password("ssl.truststore.password"),
            type=_store_type(values, "truststore"),
        )
    versions = values.texts("ssl.enabled.protocols") or TLS_VERSIONS
    for version in versions:
        if version not in TLS_VERSIONS:
            allowed = f"a list of {', '.join(TLS_VERSIONS)}: older versions of TLS are not safe"
            raise invalid_value("ssl.enabled.protocols", ",".join(versions), allowed)
    return TlsSettings(
        key_store=key_store,
        trust_store=trust_store,
        versions=versions,
        cipher_suites=values.texts("ssl.cipher.suites"),
        client_auth=_client_auth(values, protocol),
        checks_hostname=(values.text("ssl.endpoint.identification.algorithm") or "").lower() == "https",
    )


def _client_auth(values: _ListenerValues, protocol: str) -> str:
    """With SASL the login identifies a client; only a key of that listener requires a certificate too (KIP-684)."""
    found = values.found("ssl.client.auth")
    if found is None or (protocol == "SASL_SSL" and found[0] == "ssl.client.auth"):
        return "none"
    return str(BROKER_KEYS["ssl.client.auth"].parse(found[1]))


def _store_type(values: _ListenerValues, kind: str) -> str | None:
    """None where it is not set: Kafka's default, JKS, says nothing about what the file is."""
    found = values.found(f"ssl.{kind}.type")
    return found[1].strip() if found is not None else None


def _sasl(values: _ListenerValues, name: str, login: Login | None) -> SaslSettings:
    mechanisms = values.texts("sasl.enabled.mechanisms")
    _check_mechanisms("sasl.enabled.mechanisms", mechanisms)
    plain_users: dict[str, Password] = {}
    plain_users_file = None
    if "PLAIN" in mechanisms:
        entry = values.jaas("PLAIN")
        found = values.found(PLAIN_USERS_FILE)
        plain_users_file = found[1].strip() if found is not None else None
        if not plain_users_file and (entry is None or not entry.users):
            raise ConfigError(
                f"listener {name} has sasl.enabled.mechanisms=PLAIN and no user: set listener.name.{name.lower()}.plain."
                'sasl.jaas.config to org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD"; '
                f"or {PLAIN_USERS_FILE} to a file of them"
            )
        if entry is not None:
            plain_users = {user: Password(password) for user, password in entry.users.items()}
    logins = {each.mechanism: each for each in _own_logins(values, mechanisms)}
    if login is not None:
        logins[login.mechanism] = login
    return SaslSettings(
        mechanisms=mechanisms,
        plain_users=MappingProxyType(plain_users),
        plain_users_file=plain_users_file or None,
        own_logins=MappingProxyType(logins),
        max_reauth_ms={each: values.number("connections.max.reauth.ms", each) for each in mechanisms},
        receive_bytes_max=values.number("sasl.server.max.receive.size"),
        oauth=_oauth(values) if "OAUTHBEARER" in mechanisms else None,
    )


def _own_logins(values: _ListenerValues, mechanisms: Iterable[str]) -> Iterable[Login]:
    for mechanism in mechanisms:
        entry = values.jaas(mechanism) if mechanism.startswith("SCRAM-") else None
        if entry is not None and entry.options.get("username"):
            yield Login(mechanism, entry.options["username"], Password(entry.options.get("password", "")))


def _login(values: _ListenerValues, key: str, mechanism: str, listener: str) -> Login:
    _check_mechanisms(key, (mechanism,))
    if mechanism == "OAUTHBEARER":
        url = values.text("sasl.oauthbearer.token.endpoint.url") or ""
        if not url.startswith("file:///"):
            raise invalid_value(
                "sasl.oauthbearer.token.endpoint.url",
                url or "(empty)",
                "file:///PATH of a file with the token of this node",
            )
        return Login(mechanism, token_file=url.removeprefix("file://"))
    entry = values.jaas(mechanism)
    if entry is None or not entry.options.get("username") or "password" not in entry.options:
        raise ConfigError(
            f"{key}={mechanism} needs what this node logs in with: set listener.name.{listener.lower()}."
            f'{mechanism.lower()}.sasl.jaas.config to MODULE required username="NODE" password="PASSWORD";'
        )
    return Login(mechanism, entry.options["username"], Password(entry.options["password"]))


def _check_mechanisms(key: str, mechanisms: tuple[str, ...]) -> None:
    for mechanism in mechanisms or ("",):
        if mechanism not in MECHANISMS:
            hint = " (Kerberos is not supported)" if mechanism == "GSSAPI" else ""
            raise invalid_value(
                key, mechanism or "(empty)", f"of {', '.join(MECHANISMS)} for a listener with SASL{hint}"
            )


def _oauth(values: _ListenerValues) -> OAuthSettings:
    url = values.text("sasl.oauthbearer.jwks.endpoint.url") or ""
    if not url.startswith(("file:///", "http://", "https://")):
        raise invalid_value(
            "sasl.oauthbearer.jwks.endpoint.url",
            url or "(empty)",
            "the URL of the keys that sign tokens: file:///PATH, https://HOST/PATH or http://HOST/PATH",
        )
    values.found("sasl.server.callback.handler.class", "OAUTHBEARER")
    return OAuthSettings(
        jwks_url=url,
        issuer=values.text("sasl.oauthbearer.expected.issuer") or "",
        audiences=frozenset(values.texts("sasl.oauthbearer.expected.audience")),
        clock_skew_ms=1000 * values.number("sasl.oauthbearer.clock.skew.seconds"),
        subject_claim=values.text("sasl.oauthbearer.sub.claim.name") or "sub",
        scope_claim=values.text("sasl.oauthbearer.scope.claim.name") or "scope",
        refresh_ms=values.number("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
    )
