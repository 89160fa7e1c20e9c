"""Client-metrics subscriptions: what may be set, and which clients match."""

from __future__ import annotations

import pytest

from tidemill.config import ConfigSource, describe_client_metrics, subscription, validate_client_metrics
from tidemill.errors import ApiError, ConfigError, ErrorCode

FACTS = {"client_id": "web-1", "client_software_name": "librdkafka", "client_software_version": "2.8.0"}


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ({"no.such.key": "1"}, ErrorCode.INVALID_REQUEST),
        ({"interval.ms": "99"}, ErrorCode.INVALID_REQUEST),
        ({"interval.ms": "3600001"}, ErrorCode.INVALID_REQUEST),
        ({"match": "who=me"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id=a=b"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id=("}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_client_metrics_settings_are_rejected(configs: dict[str, str], code: ErrorCode) -> None:
    with pytest.raises(ApiError) as refused:
        validate_client_metrics(configs)
    assert refused.value.code is code


def test_an_interval_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError):
        validate_client_metrics({"interval.ms": "soon"})


@pytest.mark.parametrize(
    ("match", "is_matched"),
    [
        ("", True),
        ("client_id=web-.*", True),
        ("client_id=web", False),
        ("client_software_name=librdkafka, client_software_version=2.*", True),
        ("client_software_name=librdkafka,client_id=batch", False),
        ("client_source_port=1", False),
    ],
)
def test_a_client_matches_when_all_patterns_match_the_whole_value(match: str, is_matched: bool) -> None:
    configs = {"match": match, "metrics": "org.apache.kafka.producer.", "interval.ms": "1000"}
    validate_client_metrics(configs)
    found = subscription(configs)
    assert found.matches(FACTS) is is_matched
    assert (found.metrics, found.interval_ms) == (("org.apache.kafka.producer.",), 1000)


def test_defaults_show_beside_what_is_set() -> None:
    entries = {each.name: each for each in describe_client_metrics({"interval.ms": "1000"})}
    assert entries["interval.ms"].source is ConfigSource.CLIENT_METRICS_CONFIG
    assert (entries["metrics"].value, entries["metrics"].source) == ("", ConfigSource.DEFAULT_CONFIG)


def test_a_pattern_that_would_backtrack_is_matched_in_linear_time() -> None:
    """With Python's own expressions this does not end."""
    found = subscription({"match": "client_id=(a+)+b", "metrics": "*"})
    assert not found.matches({**FACTS, "client_id": "a" * 200})
