"""Types and limits of values. Nearly all of them were also given to the LogConfig of Apache Kafka 4.3."""

from __future__ import annotations

import pytest

from tidemill.config import BROKER_KEYS, TOPIC_KEYS_BY_NAME, ConfigKey, ConfigType, validate_topic_config
from tidemill.config.definitions import Value, render
from tidemill.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("cleanup.policy", "", ()),
        ("cleanup.policy", "compact, delete ", ("compact", "delete")),
        ("retention.ms", " 5 ", 5),
        ("retention.ms", "+5", 5),
        ("retention.bytes", "-5", -5),
        ("preallocate", " TRUE ", True),
        ("compression.type", " gzip ", "gzip"),
        ("compression.gzip.level", "-1", -1),
        ("compression.zstd.level", "0", 0),
        ("min.cleanable.dirty.ratio", "0.5f", 0.5),
        ("min.cleanable.dirty.ratio", "1e-1", 0.1),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("follower.replication.throttled.replicas", "*", ("*",)),
        ("follower.replication.throttled.replicas", "0:1,1:2", ("0:1", "1:2")),
        ("segment.bytes", "1048576", 1048576),
    ],
)
def test_good_values(name: str, text: str, expected: Value) -> None:
    assert validate_topic_config(name, text) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", "Compact"),
        ("cleanup.policy", "delete,"),
        ("cleanup.policy", "nope"),
        ("retention.ms", "abc"),
        ("retention.ms", ""),
        ("retention.ms", "-2"),
        ("retention.ms", "1.5"),
        ("retention.ms", "0x10"),
        ("retention.ms", "1_000"),
        ("retention.ms", "99999999999999999999"),
        ("retention.ms", "9223372036854775808"),
        ("preallocate", "yes"),
        ("preallocate", ""),
        ("compression.type", "GZIP"),
        ("compression.type", "none"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "18"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "x"),
        ("min.cleanable.dirty.ratio", ""),
        ("segment.bytes", "1048575"),
        ("segment.bytes", "2147483648"),
        ("message.timestamp.type", "createtime"),
        ("follower.replication.throttled.replicas", "nope"),
        ("follower.replication.throttled.replicas", "*,0:1"),
        ("min.insync.replicas", "0"),
        ("local.retention.ms", "-3"),
    ],
)
def test_bad_values_name_key_and_value(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_topic_config(name, text)
    assert f"Invalid value {text} for configuration {name}: must be " in str(caught.value)


def test_bad_value_says_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match="must be one of uncompressed, zstd, lz4, snappy, gzip, producer"):
        validate_topic_config("compression.type", "brotli")
    with pytest.raises(ConfigError, match="at least 1048576"):
        validate_topic_config("segment.bytes", "1")


def test_unknown_topic_key() -> None:
    with pytest.raises(ConfigError, match=r"message\.format\.version"):
        validate_topic_config("message.format.version", "2.0")


def test_passwords_are_sensitive() -> None:
    assert BROKER_KEYS["ssl.keystore.password"].is_sensitive
    assert BROKER_KEYS["sasl.jaas.config"].is_sensitive
    assert not BROKER_KEYS["node.id"].is_sensitive


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (5, "5"),
        (0.5, "0.5"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (("a", "b"), "a,b"),
        ((), ""),
        ("x", "x"),
    ],
)
def test_render(value: Value, text: str) -> None:
    assert render(value) == text


@pytest.mark.parametrize(
    "key", [*BROKER_KEYS.values(), *TOPIC_KEYS_BY_NAME.values()], ids=lambda key: key.name
)
def test_every_default_is_allowed_and_canonical(key: ConfigKey) -> None:
    if key.default is not None:
        assert render(key.parse(key.default)) == key.default
    assert key.documentation.endswith(".")


def test_every_topic_synonym_is_a_broker_key_with_the_same_default() -> None:
    for key in TOPIC_KEYS_BY_NAME.values():
        for synonym in key.synonyms:
            assert synonym.name in BROKER_KEYS
        if len(key.synonyms) == 1:
            assert BROKER_KEYS[key.synonyms[0].name].default == key.default, key.name
            assert BROKER_KEYS[key.synonyms[0].name].type is key.type, key.name


def test_numbers_of_types_are_those_of_the_wire() -> None:
    assert [(each.name, each.value) for each in ConfigType] == [
        ("BOOLEAN", 1),
        ("STRING", 2),
        ("INT", 3),
        ("SHORT", 4),
        ("LONG", 5),
        ("DOUBLE", 6),
        ("LIST", 7),
        ("CLASS", 8),
        ("PASSWORD", 9),
    ]
