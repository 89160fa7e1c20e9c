"""The settings that request a protection which the broker lacks: they prevent the start, and cannot be set later.

A broker that only warned would expose what its operator considers protected. `UNSERVED` is the table of missing
protections; a row is removed when its protection is implemented. A key of a row requests protection unless its value
is empty or the default, or the key is one of `modifiers`. Modifiers only configure a protection (formats, algorithms,
timings), so they get the warning of a key without effect. An unknown key of these families requests protection too: it
may be misspelt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.config.layers import BROKER_KEYS
from tidemill.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Unserved:
    """One missing protection and its keys."""

    what: str
    remedy: str
    keys: re.Pattern[str]
    modifiers: re.Pattern[str] = re.compile(r"(?!)")


_TRUSTED_NETWORK = "let only machines that you trust reach the listeners (docs/security.md)"

UNSERVED = (
    Unserved(
        "TLS",
        f"remove the key, and {_TRUSTED_NETWORK} or put a proxy with TLS before them",
        re.compile(r"ssl\..+"),
        re.compile(
            r"ssl\.(allow\.(dn|san)\.changes|cipher\.suites|enabled\.protocols|endpoint\.identification\.algorithm"
            r"|(keymanager|trustmanager)\.algorithm|(keystore|truststore)\.type|principal\.mapping\.rules|protocol"
            r"|provider|secure\.random\.implementation)"
        ),
    ),
    Unserved(
        "SASL authentication",
        f"remove the key, and {_TRUSTED_NETWORK}",
        re.compile(r"sasl\..+|connections\.max\.reauth\.ms"),
        re.compile(
            r"sasl\.(kerberos\.(kinit\.cmd|min\.time\.before\.relogin|principal\.to\.local\.rules|ticket\.renew\..+)"
            r"|login\.(refresh\..+|(connect|read)\.timeout\.ms|retry\.backoff(\.max)?\.ms)"
            r"|oauthbearer\.(clock\.skew\.seconds|(scope|sub)\.claim\.name|jwks\.endpoint\.(refresh|retry)\..+)"
            r"|server\.max\.receive\.size)"
        ),
    ),
)

# The security protocols that a listener may have.
_SERVED_PROTOCOLS = ("PLAINTEXT",)
# Kafka allows a listener prefix before a key, followed by a SASL mechanism.
_LISTENER_PREFIX = re.compile(r"listener\.name\..+?\.(?=(?:ssl|sasl)\.|connections\.max\.reauth\.ms$)")


def check_protection(properties: Mapping[str, str]) -> None:
    """Raise ConfigError with the keys that request a missing protection, and a remedy."""
    for row in UNSERVED:
        asking = [name for name, text in properties.items() if _asks_for(row, name, text)]
        if asking:
            verb = "asks" if len(asking) == 1 else "ask"
            raise ConfigError(
                f"Configuration {', '.join(asking)} {verb} for {row.what}, which this broker does not have yet: "
                f"{row.remedy}"
            )


def check_protocol(listener_name: str, security_protocol: str) -> None:
    """Raise ConfigError when the listener's security protocol is not supported."""
    if security_protocol not in _SERVED_PROTOCOLS:
        raise ConfigError(
            f"listener {listener_name} asks for {security_protocol}, which this broker does not speak yet; "
            "use PLAINTEXT, inside a network that you trust"
        )


def _asks_for(row: Unserved, name: str, text: str) -> bool:
    prefix = _LISTENER_PREFIX.match(name)
    bare = name[prefix.end() :] if prefix else name
    if not row.keys.fullmatch(bare) or row.modifiers.fullmatch(bare) or not text.strip():
        return False
    key = BROKER_KEYS.get(bare)
    return key is None or key.default is None or key.parse(text) != key.parse(key.default)
