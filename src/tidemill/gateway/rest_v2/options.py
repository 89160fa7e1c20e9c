"""The options of a consumer instance (`InstanceOptions`), by the names that Kafka's consumers have for them.

Numbers and booleans may be strings, as in REST Proxy's examples. What is wrong, or not an option, is refused by its
name (42204).
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any

from tidemill.gateway.http.openapi import Schema, nullable, obj
from tidemill.gateway.problems import Problem
from tidemill.gateway.rest_v2.media import FORMATS, SCHEMA_FORMATS

# The proxy's word for it, librdkafka's word.
RESETS = {"earliest": "earliest", "latest": "latest", "none": "error"}
_ISOLATION_LEVELS = ("read_committed", "read_uncommitted")
_NAME_PATTERN = "^[A-Za-z0-9_][A-Za-z0-9._~:@+ -]{0,248}$"
_BYTES_MIN_MAX = 10_000_000
_TIMEOUT_MS, _TIMEOUT_MS_MAX = 1000, 2**31 - 1


def _number_schema(low: int, high: int, pattern: str) -> Schema:
    number: Schema = {"type": "integer", "minimum": low, "maximum": high}
    return nullable({"anyOf": [number, {"type": "string", "pattern": pattern}]})


_NAME = nullable({"type": "string", "pattern": _NAME_PATTERN})
OPTIONS: Schema = obj(
    {},
    {
        "id": _NAME,
        "name": _NAME,
        "format": nullable({"enum": list(FORMATS)}),
        "auto.offset.reset": nullable({"enum": list(RESETS)}),
        "auto.commit.enable": nullable({"enum": ["true", "false", True, False]}),
        "fetch.min.bytes": _number_schema(-1, _BYTES_MIN_MAX, "^(-1|[0-9]{1,7})$"),
        "consumer.request.timeout.ms": _number_schema(0, _TIMEOUT_MS_MAX, "^[0-9]{1,9}$"),
        "isolation.level": nullable({"enum": list(_ISOLATION_LEVELS)}),
    },
    additionalProperties=False,
)


@dataclass(frozen=True)
class InstanceOptions:
    name: str
    format: str
    offset_reset: str
    commits_itself: bool
    bytes_min: int
    timeout_s: float
    isolation_level: str

    @classmethod
    def parse(cls, document: dict[str, Any]) -> InstanceOptions:
        unknown = sorted(document.keys() - OPTIONS["properties"].keys())
        if unknown:
            raise _invalid(f"{unknown[0]!r} is not an option; they are {', '.join(OPTIONS['properties'])}")
        options = {name: value for name, value in document.items() if value is not None}
        timeout_ms = _integer(options, "consumer.request.timeout.ms", _TIMEOUT_MS, 0, _TIMEOUT_MS_MAX)
        return cls(
            name=_name(options),
            format=_format(options.get("format", "binary")),
            offset_reset=_one_of(options, "auto.offset.reset", tuple(RESETS), "latest"),
            commits_itself=_boolean(options, "auto.commit.enable"),
            # REST Proxy's -1 is "whatever there is".
            bytes_min=max(1, _integer(options, "fetch.min.bytes", 1, -1, _BYTES_MIN_MAX)),
            timeout_s=timeout_ms / 1000,
            isolation_level=_one_of(options, "isolation.level", _ISOLATION_LEVELS, "read_committed"),
        )


def _invalid(reason: str) -> Problem:
    return Problem(422, 42204, f"this consumer configuration is not valid: {reason}")


def _name(options: dict[str, Any]) -> str:
    for member in ("name", "id"):
        value = options.get(member)
        if value is not None and (not isinstance(value, str) or not re.fullmatch(_NAME_PATTERN[1:-1], value)):
            raise _invalid(
                f"{member} should have 1 to 249 letters, digits or . _ ~ : @ + - and begin with one of the first"
            )
    name: str = options.get("name") or options.get("id") or f"rest-consumer-{uuid.uuid4()}"
    return name


def _format(value: Any) -> str:
    if isinstance(value, str) and value.lower() in FORMATS:
        return value.lower()
    if isinstance(value, str) and value.lower() in SCHEMA_FORMATS:
        raise _invalid(
            f"format {value} needs a schema registry, and the gateway has none; use {', '.join(FORMATS)}"
        )
    raise _invalid(f"format should be {', '.join(FORMATS)}, not {value!r}")


def _one_of(options: dict[str, Any], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = options.get(name, default)
    if not isinstance(value, str) or value.lower() not in allowed:
        raise _invalid(f"{name} should be {', '.join(allowed)}, not {value!r}")
    return value.lower()


def _boolean(options: dict[str, Any], name: str) -> bool:
    value = options.get(name, True)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise _invalid(f"{name} should be true or false, not {value!r}")
    return value


def _integer(options: dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = options.get(name, default)
    if (isinstance(value, str) and re.fullmatch("-?[0-9]{1,10}", value)) or (
        isinstance(value, float) and value.is_integer()
    ):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _invalid(f"{name} should be an integer from {low} to {high}, not {value!r}")
    return value
