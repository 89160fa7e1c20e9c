"""The security of a client's connections, by the option names of Kafka's clients.

`SecurityOptions.parse` takes the `security.*`, `ssl.*` and `sasl.*` options of Apache Kafka's Java client, and the
names that librdkafka has for the same things. An unknown option is never ignored: it is refused by its name, with what
to do instead. What it returns is plain values, so it can be sent to another process; passwords and keys are in no
`repr` and no error.

    security.protocol                  PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    ssl.ca.location, ssl.ca.pem        who is trusted: a PEM file or folder, or PEM text; without any, the system's own
    ssl.truststore.location, .certificates             the same, with ssl.truststore.type=PEM
    ssl.certificate.location, .pem     this client's certificate chain, with ssl.key.location or ssl.key.pem
    ssl.keystore.location              both in one PEM file; as text, ssl.keystore.certificate.chain and ssl.keystore.key
    ssl.key.password                   of an encrypted key
    ssl.endpoint.identification.algorithm              https (the certificate must name the broker's host), or nothing
    sasl.mechanism                     PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER
    sasl.username, sasl.password       or sasl.jaas.config with a PlainLoginModule or ScramLoginModule

    sasl.oauthbearer.token.endpoint.url                file:///PATH of the token, or the https:// address of a server that
                                       gives one for sasl.oauthbearer.client.credentials.client.id and .secret
    sasl.oauthbearer.scope             what is asked for there

Java's own stores (JKS, PKCS12) and Kerberos are not supported. TLS is 1.2 or 1.3.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidemill.client.connections import sasl
from tidemill.client.connections.sasl import AuthenticationFailed, Exchange
from tidemill.client.connections.tokens import TokenSource
from tidemill.errors import ConfigError
from tidemill.jaas import parse_jaas
from tidemill.security import oauthbearer
from tidemill.security.sasl import ClientLogin
from tidemill.tls.contexts import client_context
from tidemill.tls.settings import KeyStore, Password, TlsSettings, TrustStore

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PREFIXES = ("security.", "ssl.", "sasl.")

_PEM_INSTEAD = "only PEM is supported: export the store with `openssl pkcs12 -in STORE -nodes -out FILE.pem`"
# Name of ours, names of theirs; the first is the one that errors use.
_NAMES = {
    "protocol": ("security.protocol",),
    "ca_location": ("ssl.ca.location", "ssl.truststore.location"),
    "ca_pem": ("ssl.ca.pem", "ssl.truststore.certificates"),
    "certificate_location": ("ssl.certificate.location", "ssl.keystore.location"),
    "certificate_pem": ("ssl.certificate.pem", "ssl.keystore.certificate.chain"),
    "key_location": ("ssl.key.location",),
    "key_pem": ("ssl.key.pem", "ssl.keystore.key"),
    "key_password": ("ssl.key.password",),
    "identification": ("ssl.endpoint.identification.algorithm",),
    "mechanism": ("sasl.mechanism", "sasl.mechanisms"),
    "username": ("sasl.username",),
    "password": ("sasl.password",),
    "jaas": ("sasl.jaas.config",),
    "token_url": ("sasl.oauthbearer.token.endpoint.url",),
    "client_id": ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id"),
    "client_secret": ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret"),
    "scope": ("sasl.oauthbearer.scope",),
    "truststore_type": ("ssl.truststore.type",),
    "keystore_type": ("ssl.keystore.type",),
}
_KNOWN = {name for names in _NAMES.values() for name in names}
# What is refused although Kafka's clients have it, by the beginning of its name, and what to do instead.
_REFUSED = {
    "ssl.truststore.password": f"a PEM file has no password; {_PEM_INSTEAD}",
    "ssl.keystore.password": f"a PEM key's password is ssl.key.password; {_PEM_INSTEAD}",
    "ssl.protocol": "TLS 1.3 or 1.2 is agreed on with the broker; leave it out",
    "ssl.enabled.protocols": "TLS 1.3 or 1.2 is agreed on with the broker; leave it out",
    "ssl.cipher.suites": "the suites are agreed on with the broker; leave it out",
    "ssl.engine.": "there is no Java here; leave it out",
    "ssl.provider": "there is no Java here; leave it out",
    "security.providers": "there is no Java here; leave it out",
    "sasl.kerberos.": "Kerberos is not supported; use SCRAM-SHA-512 over SASL_SSL",
    "sasl.oauthbearer.": "a token comes from sasl.oauthbearer.token.endpoint.url, a file or a server",
    "sasl.login.": "there is no Java here; use sasl.username and sasl.password",
    "sasl.client.": "there is no Java here; use sasl.username and sasl.password",
}


@dataclass(frozen=True)
class SecurityOptions:
    """Checked security options; plain text without a login by default."""

    protocol: str = "PLAINTEXT"
    ca_location: str | None = None
    ca_pem: str | None = field(default=None, repr=False)
    certificate_location: str | None = None
    certificate_pem: str | None = field(default=None, repr=False)
    key_location: str | None = None
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    checks_hostname: bool = True
    mechanism: str | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    token_source: TokenSource | None = None
    # The token of OAUTHBEARER itself, instead of a source.
    token: str = field(default="", repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, needs_login: bool = True) -> SecurityOptions:
        """From Kafka's names. `ConfigError` names the option that is wrong, and never shows a secret.

        Without `needs_login` user and password may be missing: `as_user` adds them.
        """
        for name in options:
            _refuse_unknown(name)
        values = {ours: _sole_value(options, names) for ours, names in _NAMES.items()}
        protocol = (values["protocol"] or "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise ConfigError(
                f"security.protocol={protocol} is not known; it is one of {', '.join(PROTOCOLS)}"
            )
        _check_stores(options, values)
        identification = values["identification"]
        if identification is not None and identification.lower() not in ("https", "", "none"):
            raise ConfigError(
                f"ssl.endpoint.identification.algorithm={identification} is not known; it is https, or empty to "
                "accept a certificate for another host"
            )
        mechanism, username, password, token_source = _login(protocol, values, needs_login)
        return cls(
            protocol=protocol,
            ca_location=values["ca_location"],
            ca_pem=values["ca_pem"],
            certificate_location=values["certificate_location"],
            certificate_pem=values["certificate_pem"],
            key_location=values["key_location"],
            key_pem=values["key_pem"],
            key_password=values["key_password"],
            checks_hostname=identification is None or identification.lower() == "https",
            mechanism=mechanism,
            username=username,
            password=password,
            token_source=token_source,
        )

    def as_user(self, username: str, password: str) -> SecurityOptions:
        """The same connection for another user. With OAUTHBEARER the password is the user's token."""
        if self.mechanism == oauthbearer.MECHANISM:
            return replace(self, token=password, token_source=None)
        return replace(self, username=username, password=password)

    @property
    def has_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def has_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def hint(self) -> str:
        """For the user whose broker hangs up without a word."""
        if not self.has_tls:
            return "if it is a listener with TLS, set security.protocol to SSL or SASL_SSL"
        if self.certificate_location is None and self.certificate_pem is None:
            return (
                "if it wants a certificate of its clients, set ssl.certificate.location and ssl.key.location"
            )
        return "is its listener one for clients, and does it trust this client's certificate?"

    def librdkafka_options(self) -> dict[str, Any]:
        """Returns the options under librdkafka's names, for confluent-kafka."""
        is_one_file = self.certificate_location is not None and self.key_location is None and not self.key_pem
        options = {
            "security.protocol": self.protocol,
            "ssl.ca.location": self.ca_location,
            "ssl.ca.pem": self.ca_pem,
            "ssl.certificate.location": self.certificate_location,
            "ssl.certificate.pem": self.certificate_pem,
            "ssl.key.location": self.certificate_location if is_one_file else self.key_location,
            "ssl.key.pem": self.key_pem,
            "ssl.key.password": self.key_password,
            "ssl.endpoint.identification.algorithm": None if self.checks_hostname else "none",
            "sasl.mechanisms": self.mechanism,
            "sasl.username": self.username or None,
            "sasl.password": self.password or None,
            "oauth_cb": None if self.token_source is None else self.token_source.for_librdkafka,
        }
        return {name: value for name, value in options.items() if value is not None}

    def secured(self, plain: socket.socket, host: str) -> socket.socket:
        """The socket to use from now on. `OSError` when TLS fails for a reason that may pass."""
        if not self.has_tls:
            return plain
        try:
            return client_context(self.tls_settings()).wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            reason = error.verify_message.rstrip(".")
            raise AuthenticationFailed(
                f"the broker's certificate is not trusted: {reason} (ssl.ca.location or ssl.truststore.location names "
                "who is trusted)"
            ) from None

    def authenticate(self, exchange: Exchange) -> float | None:
        """Log in. Returns the seconds that the session lasts, None when it has no end."""
        if self.mechanism is None:
            return None
        if self.token:
            login = ClientLogin(self.mechanism, token=self.token)
        elif self.token_source is None:
            login = ClientLogin(self.mechanism, self.username, self.password)
        else:
            login = ClientLogin(self.mechanism, token=self.token_source.token().value)
        return sasl.authenticate(exchange, login)

    def tls_settings(self) -> TlsSettings:
        """Returns the certificates that are trusted and shown, for connections of any protocol."""
        key_store = trust_store = None
        if self.certificate_location is not None or self.certificate_pem is not None:
            key_store = KeyStore(
                location=self.certificate_location,
                key_location=self.key_location,
                certificate_chain=_secret(self.certificate_pem),
                key=_secret(self.key_pem),
                key_password=_secret(self.key_password),
                type="PEM",
            )
        if self.ca_location is not None or self.ca_pem is not None:
            trust_store = TrustStore(self.ca_location, _secret(self.ca_pem), type="PEM")
        return TlsSettings(key_store, trust_store, checks_hostname=self.checks_hostname)


def _secret(text: str | None) -> Password | None:
    return None if text is None else Password(text)


# --- the options ---


def _refuse_unknown(name: str) -> None:
    if name in _KNOWN:
        return
    for prefix, instead in _REFUSED.items():
        if name.startswith(prefix):
            raise ConfigError(f"{name} is not supported: {instead}")
    raise ConfigError(f"{name} is not a known security option; known are {', '.join(sorted(_KNOWN))}")


def _sole_value(options: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    given = [name for name in names if name in options]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} say the same; give one of them")
    return options[given[0]] if given else None


def _check_stores(options: Mapping[str, str], values: Mapping[str, str | None]) -> None:
    for kind in ("truststore", "keystore"):
        store_type, location = values[f"{kind}_type"], options.get(f"ssl.{kind}.location")
        if store_type is not None and store_type.upper() != "PEM":
            raise ConfigError(f"ssl.{kind}.type={store_type} is not supported; {_PEM_INSTEAD}")
        if location is not None and store_type is None and _is_binary(location):
            raise ConfigError(f"ssl.{kind}.location={location} is a Java store; {_PEM_INSTEAD}")
    if values["ca_location"] is not None and values["ca_pem"] is not None:
        raise ConfigError("the certificates to trust are given as a file and as text; give one of them")
    has_key = values["key_location"] is not None or values["key_pem"] is not None
    has_certificate = values["certificate_location"] is not None or values["certificate_pem"] is not None
    if has_key and not has_certificate:
        raise ConfigError("a key is given without its certificate: set ssl.certificate.location")
    if values["certificate_pem"] is not None and not has_key:
        raise ConfigError("ssl.keystore.certificate.chain is given without its key: set ssl.keystore.key")


def _is_binary(location: str) -> bool:
    """Java's stores are binary. A file that cannot be read here may be there where it is used."""
    with contextlib.suppress(OSError):
        return b"-----BEGIN" not in Path(location).read_bytes()
    return False


_Login = tuple[str | None, str, str, TokenSource | None]


def _login(protocol: str, values: Mapping[str, str | None], needs_login: bool) -> _Login:
    """The mechanism, the user and the password, or the source of tokens."""
    mechanism = values["mechanism"]
    if not protocol.startswith("SASL_"):
        for name in ("mechanism", "username", "password", "jaas", "token_url", "client_id", "client_secret"):
            if values[name] is not None:
                raise ConfigError(
                    f"{_NAMES[name][0]} is given, but security.protocol={protocol} logs nobody in: "
                    "set it to SASL_SSL or SASL_PLAINTEXT"
                )
        return None, "", "", None
    if mechanism is None:
        raise ConfigError(f"security.protocol={protocol} needs sasl.mechanism: {', '.join(sasl.MECHANISMS)}")
    mechanism = mechanism.upper()
    if mechanism not in sasl.MECHANISMS:
        raise ConfigError(f"sasl.mechanism={mechanism} is not supported; use {', '.join(sasl.MECHANISMS)}")
    if mechanism == oauthbearer.MECHANISM:
        if values["token_url"] is None and not needs_login:
            return mechanism, "", "", None
        return mechanism, "", "", _token_source(values)
    username, password = values["username"], values["password"]
    if values["jaas"] is not None:
        if username is not None or password is not None:
            raise ConfigError("sasl.jaas.config and sasl.username say the same; give one of them")
        username, password = _parse_jaas(values["jaas"], mechanism)
    if username is None and password is None and not needs_login:
        return mechanism, "", "", None
    if not username or password is None:
        raise ConfigError(
            f"sasl.mechanism={mechanism} needs sasl.username and sasl.password, or sasl.jaas.config"
        )
    return mechanism, username, password, None


def _token_source(values: Mapping[str, str | None]) -> TokenSource:
    if not values["token_url"]:
        raise ConfigError(
            "sasl.mechanism=OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url: file:///PATH of a token, or https://…"
        )
    given = {name: values[name] for name in ("client_id", "client_secret", "scope")}
    if values["jaas"] is not None:
        # As it was before Kafka 4.1 (KIP-768).
        options = parse_jaas(values["jaas"], oauthbearer.MECHANISM).options
        named = {"client_id": "clientId", "client_secret": "clientSecret", "scope": "scope"}
        given = {ours: given[ours] or options.get(theirs) for ours, theirs in named.items()}
    return TokenSource(values["token_url"], **{name: value or "" for name, value in given.items()})


def _parse_jaas(text: str, mechanism: str) -> tuple[str | None, str | None]:
    """The user and the password."""
    entry = parse_jaas(text, mechanism)
    for name in entry.options:
        if name not in ("username", "password"):
            raise ConfigError(f"sasl.jaas.config has the option {name}, which is not supported")
    return entry.options.get("username"), entry.options.get("password")
