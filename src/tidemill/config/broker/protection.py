"""The settings that request a protection which the broker lacks: they prevent the start.

A broker that only warned would expose what its operator considers protected. `UNSERVED` is the table of missing
protections; a row is removed when its protection is implemented. A key of a row requests protection unless its value
is empty or the default. An unknown key of these families requests protection too: it may be misspelt. A listener's
protection is settled when the broker starts: no dynamic setting changes it (`dynamic`).
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


UNSERVED = (
    Unserved(
        "a TLS engine of Java",
        "remove the key: TLS is OpenSSL's",
        re.compile(r"ssl\.engine\.factory\.class"),
    ),
    Unserved(
        "Kerberos",
        "use SCRAM-SHA-512 or OAUTHBEARER over SASL_SSL",
        re.compile(r"sasl\.kerberos\.service\.name"),
    ),
    Unserved(
        "a class of Java",
        "remove the key: PLAIN and SCRAM users, and the keys of OAUTHBEARER tokens, come from the settings alone",
        re.compile(r"sasl\.(?:(?:client|server|login)\.callback\.handler\.class|login\.class)"),
    ),
    Unserved(
        "delegation tokens",
        "remove the key: clients log in with SCRAM or OAUTHBEARER",
        re.compile(r"delegation\.token\.(?:master|secret)\.key"),
    ),
)
# What Kafka's own classes for signed tokens do is done here too.
_SERVED_CLASSES = ("OAuthBearerValidatorCallbackHandler", "OAuthBearerLoginCallbackHandler")
_SECURITY_KEY = re.compile(r"(?:ssl|sasl)\..+|connections\.max\.reauth\.ms")
# What says how a protection works, and demands none alone.
_MODIFIERS = re.compile(
    r"ssl\.(allow\.(dn|san)\.changes|cipher\.suites|enabled\.protocols|endpoint\.identification\.algorithm"
    r"|(keymanager|trustmanager)\.algorithm|(keystore|truststore)\.type|principal\.mapping\.rules|protocol"
    r"|provider|secure\.random\.implementation)"
    r"|sasl\.(kerberos\.(kinit\.cmd|min\.time\.before\.relogin|principal\.to\.local\.rules|ticket\.renew\..+)"
    r"|login\.(refresh\..+|(connect|read)\.timeout\.ms|retry\.backoff(\.max)?\.ms)"
    r"|oauthbearer\.(clock\.skew\.seconds|header\.urlencode|(scope|sub)\.claim\.name"
    r"|jwks\.endpoint\.(refresh|retry)\..+)"
    r"|server\.max\.receive\.size)"
)
# Kafka lets a key begin with the listener that it is for, and after that with a SASL mechanism.
_LISTENER_PREFIX = re.compile(r"listener\.name\..+?\.(?=(?:ssl|sasl)\.|connections\.max\.reauth\.ms$)")


def check_protection(properties: Mapping[str, str]) -> None:
    """Raises ConfigError that names the keys which ask for one thing that is not there, and what to do."""
    for row in UNSERVED:
        asking = [name for name, text in properties.items() if _asks_for(row, name, text)]
        if asking:
            verb = "asks" if len(asking) == 1 else "ask"
            raise ConfigError(
                f"Configuration {', '.join(asking)} {verb} for {row.what}, which this broker does not have: {row.remedy}"
            )
    for name, text in properties.items():
        bare = _bare(name)
        is_unknown = _SECURITY_KEY.fullmatch(bare) and bare not in BROKER_KEYS
        if is_unknown and not _MODIFIERS.fullmatch(bare) and text.strip():
            raise ConfigError(
                f"Configuration {name} asks for protection by a key that is not known: is it misspelt?"
            )


def is_security_key(name: str) -> bool:
    return _SECURITY_KEY.fullmatch(_bare(name)) is not None


def _bare(name: str) -> str:
    prefix = _LISTENER_PREFIX.match(name)
    return name[prefix.end() :] if prefix else name


def _asks_for(row: Unserved, name: str, text: str) -> bool:
    bare = _bare(name)
    if not row.keys.fullmatch(bare) or text.strip().rpartition(".")[2] in _SERVED_CLASSES:
        return False
    return not _is_default(bare, text)


def _is_default(bare: str, text: str) -> bool:
    key = BROKER_KEYS.get(bare)
    if not text.strip():
        return True
    return key is not None and key.default is not None and key.parse(text) == key.parse(key.default)
