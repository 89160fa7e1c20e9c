"""The definition of a configuration key: its type, default, allowed values and update mode.

A key is defined once, as one row of a table in `keys/`. Parsing, validation, the typed dataclasses and DescribeConfigs
all read that row. Values are text in `server.properties`, in the metadata log and on the wire. Only `ConfigKey.parse`
turns text into a typed value, and `render` returns a value's canonical text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum

from tidemill.errors import ConfigError

Value = bool | int | float | str | tuple[str, ...]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigType(IntEnum):
    """The type of a key, with the numbers of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """The source of a value, with the numbers of DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class UpdateMode(Enum):
    """Whether a broker key can change while the broker runs, and at which level.

    It is Kafka's, except for what is settled when a broker starts here: listeners and their security are read-only.
    """

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


@dataclass(frozen=True, slots=True)
class Check:
    """A limit on values of the right type; `allowed` completes the sentence "must be …"."""

    allowed: str
    accepts: Callable[[Value], bool]


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker key that sets the default of a topic key, in units of `unit_ms` when that is not 1."""

    name: str
    unit_ms: int = 1


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One configuration key."""

    name: str
    type: ConfigType
    default: str | None
    documentation: str
    check: Check | None = None
    mode: UpdateMode = UpdateMode.READ_ONLY
    synonyms: tuple[Synonym, ...] = ()
    # Can be set like any other key, but DescribeConfigs lists it only when it is set.
    is_internal: bool = False

    @property
    def is_sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def is_read_only(self) -> bool:
        return self.mode is UpdateMode.READ_ONLY

    def parse(self, text: str) -> Value:
        """Parse the text. Raises ConfigError with key, value and the allowed values."""
        value = _PARSERS[self.type](text.strip())
        if value is None or (self.check is not None and not self.check.accepts(value)):
            raise invalid_value(self.name, text, self.allowed())
        return value

    def allowed(self) -> str:
        return self.check.allowed if self.check is not None else _TYPE_ALLOWED[self.type]


def invalid_value(name: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(f"Invalid value {value} for configuration {name}: must be {allowed}")


def key(
    name: str,
    type_: ConfigType,
    default: str | None,
    documentation: str,
    check: Check | None = None,
    mode: UpdateMode = UpdateMode.READ_ONLY,
    *,
    is_internal: bool = False,
) -> ConfigKey:
    return ConfigKey(name, type_, default, documentation, check, mode, is_internal=is_internal)


def render(value: Value) -> str:
    """The canonical text of a typed value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    # Exponents in Java's form: 1.5E300, where Python has 1.5e+300.
    return re.sub(r"e\+?(-?)0*", r"E\1", repr(value)) if isinstance(value, float) else str(value)


def at_least(low: int) -> Check:
    return Check(f"a number of at least {low}", lambda value: isinstance(value, int | float) and value >= low)


def between(low: int, high: int) -> Check:
    return Check(
        f"a number from {low} to {high}",
        lambda value: isinstance(value, int | float) and low <= value <= high,
    )


def between_or(low: int, high: int, special: int) -> Check:
    return Check(
        f"a number from {low} to {high}, or {special}",
        lambda value: value == special or (isinstance(value, int) and low <= value <= high),
    )


def one_of(*choices: str) -> Check:
    return Check(f"one of {', '.join(choices)}", lambda value: value in choices)


def one_of_ignoring_case(*choices: str) -> Check:
    lowered = frozenset(choice.lower() for choice in choices)
    return Check(f"one of {', '.join(choices)}", lambda value: str(value).lower() in lowered)


def any_of(*choices: str) -> Check:
    """A list of any of the choices, possibly empty."""
    return Check(
        f"a list of {', '.join(choices)}",
        lambda value: isinstance(value, tuple) and all(item in choices for item in value),
    )


def some_of(*choices: str) -> Check:
    """A list of one or more of the choices."""
    return Check(
        f"a list of one or more of {', '.join(choices)}",
        lambda value: isinstance(value, tuple) and bool(value) and all(item in choices for item in value),
    )


NOT_EMPTY = Check("a list of at least one item", lambda value: bool(value))

NO_LIMIT_OR_POSITIVE = Check(
    "a negative number for no limit, or a number of at least 1",
    lambda value: isinstance(value, int) and value != 0,
)

SHARE_ABOVE_ZERO = Check(
    "a number above 0 and at most 1", lambda value: isinstance(value, float) and 0 < value <= 1
)

_IP_OVERRIDE = re.compile(r"\s*[^,\s]+:\d+\s*")
IP_OVERRIDES = Check(
    "a list of host:count pairs",
    lambda value: not value or all(_IP_OVERRIDE.fullmatch(pair) for pair in str(value).split(",")),
)

_POSITIVE_NUMBER = re.compile(r"[1-9][0-9]{0,9}")
_PAIR = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
_OFFSET = re.compile(r"[0-9]{1,10}:[0-9]{1,18}")
THROTTLED_REPLICAS = Check(
    "* or a list of partition:broker pairs",
    lambda value: value == ("*",) or _is_list_of(_PAIR, value),
)
PARTITION_COUNTS = Check(
    "a list of numbers of at least 1", lambda value: _is_list_of(_POSITIVE_NUMBER, value)
)
PARTITION_EPOCHS = Check("a list of partition:epoch pairs", lambda value: _is_list_of(_PAIR, value))
PARTITION_OFFSETS = Check("a list of partition:offset pairs", lambda value: _is_list_of(_OFFSET, value))


def _is_list_of(item: re.Pattern[str], value: Value) -> bool:
    return isinstance(value, tuple) and all(item.fullmatch(each) for each in value)


_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fFdD]?")


def _parse_boolean(text: str) -> Value | None:
    return {"true": True, "false": False}.get(text.lower())


def _integer_parser(bits: int) -> Callable[[str], Value | None]:
    limit = 1 << (bits - 1)

    def parse(text: str) -> Value | None:
        # int() alone would accept "1_000".
        if not _INTEGER.fullmatch(text) or len(text) > 20:
            return None
        number = int(text)
        return number if -limit <= number < limit else None

    return parse


def _parse_double(text: str) -> Value | None:
    match = _DOUBLE.fullmatch(text)
    return float(match[1]) if match else None


def _parse_list(text: str) -> Value | None:
    if not text:
        return ()
    items = tuple(item.strip() for item in text.split(","))
    return items if all(items) else None


def _parse_text(text: str) -> Value | None:
    return text


_PARSERS: dict[ConfigType, Callable[[str], Value | None]] = {
    ConfigType.BOOLEAN: _parse_boolean,
    ConfigType.STRING: _parse_text,
    ConfigType.INT: _integer_parser(32),
    ConfigType.SHORT: _integer_parser(16),
    ConfigType.LONG: _integer_parser(64),
    ConfigType.DOUBLE: _parse_double,
    ConfigType.LIST: _parse_list,
    ConfigType.CLASS: _parse_text,
    ConfigType.PASSWORD: _parse_text,
}

_TYPE_ALLOWED: dict[ConfigType, str] = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "a text",
    ConfigType.INT: "a whole number of 32 bits",
    ConfigType.SHORT: "a whole number of 16 bits",
    ConfigType.LONG: "a whole number of 64 bits",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a list separated by commas, without empty items",
    ConfigType.CLASS: "a name",
    ConfigType.PASSWORD: "a text",
}
