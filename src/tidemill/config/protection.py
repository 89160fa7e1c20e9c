"""Settings that ask for protection which the broker does not give: they stop the start, and cannot be set later.

A broker that only warned would serve to everybody what its operator takes for protected. `UNSERVED` is the table of what
is asked for and not there; a row goes when its protection comes. In a row, a key asks for protection unless its value is
empty or the default, or the key is one of `modifiers`: these say how a protection works (formats, algorithms, timings)
and demand nothing alone, so they get the warning that any key without effect gets. A key of these families that Kafka
does not know asks too: a misspelt key store is no reason to serve without one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.config.layers import BROKER_KEYS
from tidemill.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Unserved:
    what: str
    remedy: str
    keys: re.Pattern[str]
    modifiers: re.Pattern[str] = re.compile(r"(?!)")


_TRUSTED_NETWORK = "let only machines that you trust reach the listeners (docs/security.md)"

UNSERVED = (
    Unserved(
        "an authorizer",
        f"remove the key, and {_TRUSTED_NETWORK}",
        re.compile(r"authorizer\.class\.name"),
    ),
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
# Kafka lets a key begin with the listener that it is for, and after that with a SASL mechanism.
_LISTENER_PREFIX = re.compile(r"listener\.name\..+?\.(?=(?:ssl|sasl)\.|connections\.max\.reauth\.ms$)")


def check_protection(properties: Mapping[str, str]) -> None:
    """Raises ConfigError that names the keys which ask for one thing that is not there, and what to do."""
    for row in UNSERVED:
        asking = [name for name, text in properties.items() if _asks_for(row, name, text)]
        if asking:
            verb = "asks" if len(asking) == 1 else "ask"
            raise ConfigError(
                f"Configuration {', '.join(asking)} {verb} for {row.what}, which this broker does not have yet: "
                f"{row.remedy}"
            )


def check_protocol(listener_name: str, security_protocol: str) -> None:
    """Raises ConfigError when the listener's security protocol is not served."""
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
