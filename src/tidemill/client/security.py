"""How a client's connections are secured, by the option names of Kafka's clients.

`SecurityOptions.parse` takes the `security.*`, `ssl.*` and `sasl.*` options of Apache Kafka's Java client, and the names
that librdkafka has for the same things; an option that is not known here is refused by its name, never ignored, with
what to do instead. What it returns is plain values, so it can be sent to another process; passwords and keys are in no
`repr` and no error.

    security.protocol                  PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    ssl.ca.location, ssl.ca.pem        who is trusted: a PEM file or folder, or PEM text; without any, the system's own
    ssl.truststore.location, .certificates             the same, with ssl.truststore.type=PEM
    ssl.certificate.location, .pem     this client's certificate chain, with ssl.key.location or ssl.key.pem
    ssl.keystore.location              both in one PEM file; as text, ssl.keystore.certificate.chain and ssl.keystore.key
    ssl.key.password                   of an encrypted key
    ssl.endpoint.identification.algorithm              https (the certificate must name the broker's host), or nothing
    sasl.mechanism                     PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
    sasl.username, sasl.password       or sasl.jaas.config with a PlainLoginModule or ScramLoginModule

Java's own stores (JKS, PKCS12), Kerberos and OAuth are not supported. TLS is 1.2 or 1.3.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.client import sasl
from tidemill.client.sasl import AuthenticationFailed, Exchange
from tidemill.errors import ConfigError

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
    "sasl.oauthbearer.": "OAuth is not supported; use SCRAM-SHA-512 over SASL_SSL",
    "sasl.login.": "there is no Java here; use sasl.username and sasl.password",
    "sasl.client.": "there is no Java here; use sasl.username and sasl.password",
}
_LOGIN_MODULES = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
}
_JAAS = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*);\s*", re.DOTALL
)
_JAAS_OPTION = re.compile(
    r"""\s*(?P<name>[\w.]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s";]+))"""
)
_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


@dataclass(frozen=True)
class SecurityOptions:
    """Checked; PLAINTEXT without anything else unless told otherwise."""

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

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SecurityOptions:
        """From Kafka's names. `ConfigError` names the option that is wrong, and never shows a secret."""
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
        mechanism, username, password = _login(protocol, values)
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
        )

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

    def librdkafka_options(self) -> dict[str, str]:
        """The same for confluent-kafka, which knows no names of the Java client."""
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
        }
        return {name: value for name, value in options.items() if value is not None}

    def secured(self, plain: socket.socket, host: str) -> socket.socket:
        """The socket to use from now on. `OSError` when TLS fails for a reason that may pass."""
        if not self.has_tls:
            return plain
        try:
            return self._context().wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            reason = error.verify_message.rstrip(".")
            raise AuthenticationFailed(
                f"the broker's certificate is not trusted: {reason} (ssl.ca.location or ssl.truststore.location names "
                "who is trusted)"
            ) from None

    def authenticate(self, exchange: Exchange) -> None:
        if self.mechanism is not None:
            sasl.authenticate(exchange, self.mechanism, self.username, self.password)

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.checks_hostname
        try:
            if self.ca_location is not None:
                is_folder = Path(self.ca_location).is_dir()
                context.load_verify_locations(**{"capath" if is_folder else "cafile": self.ca_location})
            elif self.ca_pem is not None:
                context.load_verify_locations(cadata=_lines(self.ca_pem))
            else:
                context.load_default_certs()
        except (OSError, ValueError) as error:
            where = self.ca_location or "the text of ssl.truststore.certificates"
            raise ConfigError(
                f"{where} cannot be used as the certificates to trust: {_reason(error)}"
            ) from None
        if self.certificate_location is not None or self.certificate_pem is not None:
            self._load_certificate(context)
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        try:
            with _as_file(self.certificate_location, self.certificate_pem) as certificate:
                if self.key_location is None and self.key_pem is None:
                    # Without a password OpenSSL would ask for one on the terminal.
                    context.load_cert_chain(certificate, password=self.key_password or "")
                    return
                with _as_file(self.key_location, self.key_pem) as key:
                    context.load_cert_chain(certificate, key, password=self.key_password or "")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"this client's certificate or key cannot be used: {_reason(error)} "
                "(are they PEM, do they belong together, is ssl.key.password right?)"
            ) from None


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


def _login(protocol: str, values: Mapping[str, str | None]) -> tuple[str | None, str, str]:
    """The mechanism, the user and the password."""
    mechanism = values["mechanism"]
    if not protocol.startswith("SASL_"):
        for name in ("mechanism", "username", "password", "jaas"):
            if values[name] is not None:
                raise ConfigError(
                    f"{_NAMES[name][0]} is given, but security.protocol={protocol} logs nobody in: "
                    "set it to SASL_SSL or SASL_PLAINTEXT"
                )
        return None, "", ""
    if mechanism is None:
        raise ConfigError(f"security.protocol={protocol} needs sasl.mechanism: {', '.join(sasl.MECHANISMS)}")
    mechanism = mechanism.upper()
    if mechanism not in sasl.MECHANISMS:
        raise ConfigError(f"sasl.mechanism={mechanism} is not supported; use {', '.join(sasl.MECHANISMS)}")
    username, password = values["username"], values["password"]
    if values["jaas"] is not None:
        if username is not None or password is not None:
            raise ConfigError("sasl.jaas.config and sasl.username say the same; give one of them")
        username, password = _parse_jaas(values["jaas"], mechanism)
    if not username or password is None:
        raise ConfigError(
            f"sasl.mechanism={mechanism} needs sasl.username and sasl.password, or sasl.jaas.config"
        )
    return mechanism, username, password


def _parse_jaas(text: str, mechanism: str) -> tuple[str | None, str | None]:
    """`MODULE required username="…" password="…";`. Errors do not show it: it holds a password."""
    entry = _JAAS.fullmatch(text)
    if entry is None:
        raise ConfigError(
            'sasl.jaas.config cannot be read; it should be: MODULE required username="USER" password="PASSWORD";'
        )
    if mechanism not in _LOGIN_MODULES.get(entry["module"], ()):
        fitting = next(name for name, fits in _LOGIN_MODULES.items() if mechanism in fits)
        raise ConfigError(
            f"sasl.jaas.config names {entry['module']}; for sasl.mechanism={mechanism} it is {fitting}"
        )
    found: dict[str, str] = {}
    position = 0
    rest = entry["options"].rstrip()
    while position < len(rest):
        option = _JAAS_OPTION.match(rest, position)
        if option is None:
            raise ConfigError('sasl.jaas.config cannot be read: its options should be NAME="VALUE"')
        quoted = option["quoted"]
        found[option["name"]] = option["plain"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = option.end()
    for name in found:
        if name not in ("username", "password"):
            raise ConfigError(f"sasl.jaas.config has the option {name}, which is not supported")
    return found.get("username"), found.get("password")


# --- certificates ---


def _lines(pem: str) -> str:
    """PEM as OpenSSL reads it: a property file may have it all in one line."""
    if "\n" in pem.strip():
        return pem
    blocks = []
    for label, body in _PEM_BLOCK.findall(pem):
        content = "".join(body.split())
        lines = [content[start : start + 64] for start in range(0, len(content), 64)]
        blocks.append("\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", "")))
    return "".join(blocks)


@contextlib.contextmanager
def _as_file(location: str | None, pem: str | None) -> Iterator[str]:
    """OpenSSL reads certificates and keys of one's own from files only; the text's is gone at once."""
    if location is not None:
        yield location
        return
    descriptor, path = tempfile.mkstemp(suffix=".pem")  # readable by its owner alone
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(_lines(pem or ""))
        yield path
    finally:
        os.unlink(path)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is not PEM").replace("_", " ").lower()
    if isinstance(error, OSError):
        return (error.strerror or "it cannot be read").lower()
    return "it is not PEM"
