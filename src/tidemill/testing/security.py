"""TLS, SASL and ACLs of a test broker: the wishes of a test, and the settings, files and client options for them.

    Security("SASL_SSL", users={"alice": "secret"}, acls={"alice": ["write topic:orders", "read group:billing"]})

Every listener gets the same protocol. The user `admin` is a super user: nodes log in with it, and so do the fixture's own
operations. Certificates are signed by an authority that is made for this broker alone.
"""

from __future__ import annotations

import secrets
import shutil
import ssl
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tidemill.client.connections.security import SecurityOptions
from tidemill.errors import ApiError, ConfigError
from tidemill.jaas import LOGIN_MODULES
from tidemill.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_binding,
)
from tidemill.security.scram import MECHANISMS, ScramMechanism

Protocol = Literal["SSL", "SASL_PLAINTEXT", "SASL_SSL"]

ADMIN = "admin"
_PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_DAYS = 2
_RULE_FORM = "'write topic:orders', 'read topic:app.*', 'deny read group:billing' or 'describe cluster'"


@dataclass(frozen=True)
class Security:
    """The security of a test broker.

    `users` are names with passwords, or names alone. `acls` has the rules of each user; without it there is no authorizer,
    and each user may do everything. With SSL a user is a client certificate, and passwords have no meaning.
    """

    protocol: Protocol = "SASL_SSL"
    users: Mapping[str, str] | Iterable[str] = field(default=(), repr=False)
    acls: Mapping[str, Sequence[str]] | None = None
    mechanisms: Sequence[str] = _MECHANISMS

    def __post_init__(self) -> None:
        if self.protocol not in _PROTOCOLS:
            raise ConfigError(f"security is {' or '.join(_PROTOCOLS)}, not {self.protocol!r}")
        for each in self.mechanisms:
            if each not in _MECHANISMS:
                raise ConfigError(f"mechanisms are {', '.join(_MECHANISMS)}, not {each!r}")
        for user, rules in (self.acls or {}).items():
            for rule in rules:
                binding(user, rule)

    @classmethod
    def of(cls, wanted: Security | str | None) -> Security | None:
        """A protocol's name stands for its defaults."""
        if wanted is None or isinstance(wanted, Security):
            return wanted
        return cls(wanted)  # type: ignore[arg-type]


def binding(user: str, rule: str) -> AclBinding:
    """The ACL of `[deny] OPERATION TYPE:NAME`; a name that ends with `*` is a prefix. `ConfigError` shows the form."""
    words = rule.split()
    permission = Permission.DENY if words[:1] == ["deny"] else Permission.ALLOW
    words = words[1:] if words[:1] in (["deny"], ["allow"]) else words
    kind, _, name = words[1].partition(":") if len(words) == 2 else ("", "", "")
    try:
        resource_type = ResourceType[kind.upper().replace("-", "_")]
        operation = Operation[words[0].upper().replace("-", "_")]
        name = CLUSTER_NAME if resource_type is ResourceType.CLUSTER else name
        is_prefix = name.endswith(WILDCARD) and name != WILDCARD
        found = AclBinding(
            resource_type,
            name.removesuffix(WILDCARD) if is_prefix else name,
            PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
            f"User:{user}",
            WILDCARD,
            operation,
            permission,
        )
        check_binding(found)
    except (KeyError, IndexError, ApiError):
        raise ConfigError(f"the rule {rule!r} of user {user} cannot be read; write {_RULE_FORM}") from None
    return found


@dataclass(frozen=True)
class ClientOptions:
    """One user's options for each client library, as mappings to unpack."""

    bootstrap: str
    protocol: str
    mechanism: str | None
    user: str
    password: str = field(repr=False)
    authority: Path | None
    certificate: Path | None
    _folder: Path = field(repr=False)

    @property
    def confluent_kafka(self) -> dict[str, Any]:
        """For confluent-kafka, and everything else on librdkafka."""
        return {"bootstrap.servers": self.bootstrap, **self.security.librdkafka_options()}

    @property
    def sdk(self) -> dict[str, Any]:
        """Keyword arguments of `tidemill.Client` and `tidemill.AsyncClient`."""
        options = self.security.librdkafka_options()
        return {
            "bootstrap": self.bootstrap,
            **{name.replace(".", "_"): value for name, value in options.items()},
        }

    @property
    def aiokafka(self) -> dict[str, Any]:
        options = {"bootstrap_servers": self.bootstrap, "security_protocol": self.protocol}
        return {**options, **self._tls_context, **self._sasl_plain}

    @property
    def kafka_python(self) -> dict[str, Any]:
        return self.aiokafka

    @property
    def properties(self) -> dict[str, str]:
        """In the names of Kafka's Java client, which `--command-config` and Spark take too."""
        found = {"bootstrap.servers": self.bootstrap, "security.protocol": self.protocol}
        if self.mechanism is not None:
            found["sasl.mechanism"] = self.mechanism
            found["sasl.jaas.config"] = _jaas(
                self.mechanism, {"username": self.user, "password": self.password}
            )
        if self.authority is not None:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority)}
        if self.certificate is not None:
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.certificate)}
        return found

    @property
    def properties_file(self) -> Path:
        """A file of `properties`, for commands. It is removed with the broker."""
        path = self._folder / f"{secrets.token_hex(8)}.properties"
        lines = (f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in self.properties.items())
        path.write_text("".join(lines), encoding="utf-8")
        return path

    @property
    def security(self) -> SecurityOptions:
        """For `tidemill.client`."""
        own = {name: value for name, value in self.properties.items() if name != "bootstrap.servers"}
        return SecurityOptions.parse(own)

    @property
    def _tls_context(self) -> dict[str, Any]:
        if self.authority is None:
            return {}
        context = ssl.create_default_context(cafile=str(self.authority))
        if self.certificate is not None:
            context.load_cert_chain(self.certificate)
        return {"ssl_context": context}

    @property
    def _sasl_plain(self) -> dict[str, Any]:
        if self.mechanism is None:
            return {}
        return {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


class SecuredListeners:
    """The settings of the listeners of one broker or cluster, and the files they name."""

    def __init__(self, security: Security, hosts: Sequence[str]) -> None:
        self.security = security
        given = security.users
        named = (
            dict(given) if isinstance(given, Mapping) else {each: secrets.token_urlsafe(12) for each in given}
        )
        self.passwords = {ADMIN: secrets.token_urlsafe(12)} | named
        self._folder = Path(tempfile.mkdtemp(prefix="tidemill-"))
        self._certificates: dict[str, Path] = {}
        if self.has_tls:
            # The package that makes certificates is an extra.
            from tidemill.tls import certificates

            authority = certificates.new_authority(_DAYS)
            (self._folder / "ca.pem").write_text(authority.certificate)
            for name in (ADMIN, *(named if security.protocol == "SSL" else ())):
                self._certificates[name] = self._folder / f"{secrets.token_hex(8)}.pem"
                pem = certificates.broker_certificate(authority, name, hosts, _DAYS)
                self._certificates[name].write_text(pem)

    @property
    def has_tls(self) -> bool:
        return self.security.protocol != "SASL_PLAINTEXT"

    @property
    def scram_mechanisms(self) -> list[ScramMechanism]:
        return [MECHANISMS[each] for each in self.security.mechanisms if each in MECHANISMS]

    def settings(self, listeners: Sequence[str]) -> dict[str, str]:
        """Broker configurations that secure the listeners of these names."""
        protocol = self.security.protocol
        found = {"listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name in listeners)}
        if self.has_tls:
            found |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self._certificates[ADMIN]),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self._folder / "ca.pem"),
            }
        if protocol == "SSL":
            found |= {
                "ssl.client.auth": "required",
                "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/,DEFAULT",
            }
        else:
            own = self.security.mechanisms[0]
            found |= {
                "sasl.enabled.mechanisms": ",".join(self.security.mechanisms),
                "sasl.mechanism.inter.broker.protocol": own,
                "sasl.mechanism.controller.protocol": own,
                # A wrong password is what a test may be about; it should not wait for the answer.
                "connection.failed.authentication.delay.ms": "0",
            }
            for name in listeners:
                for mechanism in self.security.mechanisms:
                    key = f"listener.name.{name.lower()}.{mechanism.lower()}.sasl.jaas.config"
                    found[key] = self._listener_login(mechanism)
        if self.security.acls is not None:
            found |= {"authorizer.class.name": _AUTHORIZER, "super.users": f"User:{ADMIN}"}
        return found

    def _listener_login(self, mechanism: str) -> str:
        options = {"username": ADMIN, "password": self.passwords[ADMIN]}
        if mechanism == "PLAIN":
            options |= {f"user_{name}": password for name, password in self.passwords.items()}
        return _jaas(mechanism, options)

    def client_options(self, bootstrap: str, user: str, mechanism: str | None) -> ClientOptions:
        if user not in self.passwords:
            raise ConfigError(f"there is no user {user!r}, only {', '.join(self.passwords)}")
        has_sasl = self.security.protocol != "SSL"
        return ClientOptions(
            bootstrap=bootstrap,
            protocol=self.security.protocol,
            mechanism=(mechanism or self.security.mechanisms[0]) if has_sasl else None,
            user=user,
            password=self.passwords[user],
            authority=self._folder / "ca.pem" if self.has_tls else None,
            certificate=None if has_sasl else self._certificates[user],
            _folder=self._folder,
        )

    def acl_bindings(self) -> list[AclBinding]:
        rules = self.security.acls or {}
        return [binding(user, rule) for user, of_user in rules.items() for rule in of_user]

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _jaas(mechanism: str, options: Mapping[str, str]) -> str:
    module = next(name for name, fits in LOGIN_MODULES.items() if mechanism in fits)
    words = " ".join(f"{name}={_quoted(value)}" for name, value in options.items())
    return f"{module} required {words};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
