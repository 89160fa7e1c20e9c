"""The settings of a client-metrics subscription (KIP-714): metrics, interval and client patterns.

A subscription exists while it has settings. Its name is the name of the configuration resource.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from tidemill.config.definitions import (
    ConfigKey,
    ConfigSource,
    ConfigType,
    key,
    render,
)
from tidemill.config.describe import ConfigEntry, ConfigSynonym
from tidemill.errors import ApiError, ErrorCode
from tidemill.regex import Regex

INTERVAL_MS_DEFAULT = 300_000
_INTERVAL_MS_MIN, _INTERVAL_MS_MAX = 100, 3_600_000
# The characters of client facts; a client id with other characters matches no pattern.
_ALPHABET = frozenset(string.printable)
# The client facts that a pattern may match.
MATCHED = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)

CLIENT_METRICS_KEYS: dict[str, ConfigKey] = {
    each.name: each
    for each in (
        key(
            "interval.ms",
            ConfigType.INT,
            str(INTERVAL_MS_DEFAULT),
            "How often a client pushes its metrics: 100 to 3,600,000 ms.",
        ),
        key(
            "match",
            ConfigType.LIST,
            "",
            f"Which clients push: a list of NAME=REGEX, of which all must match. NAME is one of {', '.join(MATCHED)}.",
        ),
        key(
            "metrics",
            ConfigType.LIST,
            "",
            "Which metrics are pushed: a list of prefixes of names, or * for all.",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription."""

    metrics: tuple[str, ...]
    interval_ms: int
    match: tuple[tuple[str, Regex], ...]

    def matches(self, facts: Mapping[str, str]) -> bool:
        """Whether a client with these facts pushes for this subscription."""
        return all(pattern.matches(facts.get(name, "")) for name, pattern in self.match)


def validate_client_metrics(configs: Mapping[str, str]) -> None:
    """Validate settings as Kafka does: INVALID_REQUEST for a key or interval, INVALID_CONFIG for a value that does not
    parse.
    """
    for name in configs:
        if name not in CLIENT_METRICS_KEYS:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    for name, text in configs.items():
        CLIENT_METRICS_KEYS[name].parse(text)
    interval_ms = int(configs.get("interval.ms", INTERVAL_MS_DEFAULT))
    if not _INTERVAL_MS_MIN <= interval_ms <= _INTERVAL_MS_MAX:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval_ms} for interval.ms, interval must be between {_INTERVAL_MS_MIN} and "
            f"{_INTERVAL_MS_MAX}",
        )
    _patterns(configs.get("match", ""))


def subscription(configs: Mapping[str, str]) -> Subscription:
    """The subscription of validated settings."""
    return Subscription(
        metrics=tuple(each for each in configs.get("metrics", "").split(",") if each),
        interval_ms=int(configs.get("interval.ms", INTERVAL_MS_DEFAULT)),
        match=_patterns(configs.get("match", "")),
    )


@lru_cache(256)
def _patterns(text: str) -> tuple[tuple[str, Regex], ...]:
    found: dict[str, Regex] = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        name, _, pattern = (part.strip() for part in each.partition("="))
        if name not in MATCHED or not pattern or "=" in pattern:
            raise _illegal(each)
        try:
            found[name] = Regex(pattern, _ALPHABET)
        except ApiError:
            raise _illegal(each) from None
    return tuple(found.items())


def _illegal(pattern: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pattern}")


def describe_client_metrics(configs: Mapping[str, str]) -> list[ConfigEntry]:
    return [_entry(each, configs) for each in CLIENT_METRICS_KEYS.values()]


def _entry(each: ConfigKey, configs: Mapping[str, str]) -> ConfigEntry:
    """As in Kafka, the default is not listed as a synonym."""
    own = each.name in configs
    value = render(each.parse(configs[each.name])) if own else each.default or ""
    source = ConfigSource.CLIENT_METRICS_CONFIG if own else ConfigSource.DEFAULT_CONFIG
    return ConfigEntry(
        name=each.name,
        value=value,
        source=source,
        is_read_only=False,
        is_sensitive=False,
        type=each.type,
        documentation=each.documentation,
        synonyms=(ConfigSynonym(each.name, value, source),) if own else (),
    )
