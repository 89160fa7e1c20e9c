"""The rules for settings that change while brokers run (Kafka: DynamicBrokerConfig).

A change is refused as a whole, with Kafka's words, when it names a read-only key, when a value is not allowed, or when
values do not fit together. Values that have no effect are refused only where they ask for what a broker cannot do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tidemill.config.broker.protection import is_security_key
from tidemill.config.definitions import UpdateMode, invalid_value
from tidemill.config.layers import BROKER_KEYS, LISTENER_PREFIX, BrokerLayers, base_name
from tidemill.config.values import Values
from tidemill.errors import ConfigError

# Only these may be set for one listener of all brokers.
_CLUSTER_WIDE_OF_LISTENERS = ("max.connections", "max.connection.creation.rate", "num.network.threads")
_THREADS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)
_REPORTER = "org.apache.kafka.common.metrics.JmxReporter"
_BUFFER_BYTES_PER_THREAD_MIN = 1 << 20


def check_dynamic_values(values: Mapping[str, str], *, is_for_all: bool) -> None:
    """Checks the keys and values that a change sets, each by itself. Raises ConfigError."""
    fixed = [name for name in values if _is_fixed(name)]
    if fixed:
        raise ConfigError(
            f"Cannot update these configs dynamically: [{', '.join(fixed)}]; they take effect when a broker starts: "
            "set them in the broker's file. Files of certificates are read again when they change"
        )
    for name, text in values.items():
        key = BROKER_KEYS.get(base_name(name))
        if key is not None:
            key.parse(text)
    single = [name for name in values if is_for_all and _is_for_one_broker(name)]
    if single:
        raise ConfigError(
            "Cannot update these configs at default cluster level, broker id must be specified: "
            f"[{', '.join(single)}]"
        )


def check_dynamic_change(before: BrokerLayers, after: BrokerLayers, changed: Collection[str]) -> None:
    """Checks the values in force after a change, with those that they depend on. Raises ConfigError."""
    checks = {name: check for names, check in _CHECKS for name in names if name in changed}
    for check in dict.fromkeys(checks.values()):
        check(Values(after))
    for name in changed:
        if base_name(name) in _THREADS:
            _check_threads(name, before, after)
        elif name != base_name(name):
            _check_listener(name, after)


def _is_fixed(name: str) -> bool:
    """Whether the key has its effect at the start of a broker only. Unknown keys are kept, as Kafka keeps them."""
    key = BROKER_KEYS.get(name)
    return is_security_key(name) or (key is not None and key.is_read_only)


def _is_for_one_broker(name: str) -> bool:
    if LISTENER_PREFIX.match(name):
        return base_name(name) not in _CLUSTER_WIDE_OF_LISTENERS
    key = BROKER_KEYS.get(name)
    return key is not None and key.mode is UpdateMode.PER_BROKER


def _check_threads(name: str, before: BrokerLayers, after: BrokerLayers) -> None:
    """As in Kafka, one change at most doubles or halves a number of threads."""
    old, new = (_number(name, layers) for layers in (before, after))
    if new > 2 * old:
        reason = f"value should not be greater than double the current value {old}"
    elif new < old // 2 or new == 0:
        reason = f"value should be at least half the current value {old}"
    else:
        return
    raise ConfigError(f"Dynamic thread count update validation failed for {name}={new}, {reason}")


def _number(name: str, layers: BrokerLayers) -> int:
    text = layers.set_text(name)
    if text is None:
        text = layers.text(base_name(name))
    value = BROKER_KEYS[base_name(name)].parse(text or "")
    assert isinstance(value, int), name
    return value


def _check_listener(name: str, after: BrokerLayers) -> None:
    if base_name(name) in _CLUSTER_WIDE_OF_LISTENERS and after.set_text(name) is not None:
        _check_limit(name, _number(name, after))


def _check_connections(values: Values) -> None:
    for name in ("max.connections", "max.connection.creation.rate"):
        _check_limit(name, values.number(name))
    if not values.number("max.connections.per.ip") and not values.text("max.connections.per.ip.overrides"):
        raise ConfigError(
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set."
        )


def _check_limit(name: str, number: int) -> None:
    if number < 1:
        raise invalid_value(name, str(number), "a number of at least 1: the broker would be out of reach")


def _check_cleaner(values: Values) -> None:
    threads = max(1, values.number("log.cleaner.threads"))
    if values.number("log.cleaner.dedupe.buffer.size") // threads <= _BUFFER_BYTES_PER_THREAD_MIN:
        raise ConfigError("log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.")


def _check_assignment_intervals(values: Values) -> None:
    for kind in ("consumer", "share"):
        name = f"group.{kind}.assignment.interval.ms"
        least, most = (f"group.{kind}.{end}.assignment.interval.ms" for end in ("min", "max"))
        if values.number(name) > values.number(most):
            raise ConfigError(f"{name} must be less than or equal to {most}")
        if values.number(name) < values.number(least):
            raise ConfigError(f"{name} must be greater than or equal to {least}")


def _check_reporters(values: Values) -> None:
    for each in values.texts("metric.reporters"):
        if each != _REPORTER:
            raise ConfigError(
                f"Validation of dynamic config update of [metric.reporters] failed: {each} is a class of Java, "
                "and a broker loads none"
            )


_CHECKS: tuple[tuple[tuple[str, ...], Callable[[Values], None]], ...] = (
    (
        (
            "max.connections",
            "max.connections.per.ip",
            "max.connections.per.ip.overrides",
            "max.connection.creation.rate",
        ),
        _check_connections,
    ),
    (("log.cleaner.threads", "log.cleaner.dedupe.buffer.size"), _check_cleaner),
    (
        ("group.consumer.assignment.interval.ms", "group.share.assignment.interval.ms"),
        _check_assignment_intervals,
    ),
    (("metric.reporters",), _check_reporters),
)
