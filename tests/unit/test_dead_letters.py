"""Headers of dead letters, and the decision about each letter."""

from __future__ import annotations

import struct

import pytest

from tidemill.dead_letters import (
    EXHAUSTED,
    FAILED,
    LEFT,
    PUBLISH,
    REPUBLISHED,
    DeadLetter,
    Failure,
    Header,
    decide,
    failure_headers,
    failure_of,
    number,
    read,
    unknown_headers,
)
from tidemill.spark.pipelines import PipelineError
from tidemill.spark.pipelines.fixes import load_fix

SPRING = [
    Header(
        "kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"
    ),
    Header("kafka_dlt-exception-cause-fqcn", b"java.lang.IllegalStateException"),
    Header("kafka_dlt-exception-message", b"Listener failed"),
    Header("kafka_dlt-exception-stacktrace", b"at ..."),
    Header("kafka_dlt-original-topic", b"orders"),
    Header("kafka_dlt-original-partition", struct.pack(">i", 3)),
    Header("kafka_dlt-original-offset", struct.pack(">q", 77)),
    Header("kafka_dlt-original-timestamp", struct.pack(">q", 1_700_000_000_123)),
    Header("kafka_dlt-original-timestamp-type", b"CreateTime"),
    Header("trace-id", b"abc"),
]
CONNECT = [
    Header("__connect.errors.topic", b"orders"),
    Header("__connect.errors.partition", b"2"),
    Header("__connect.errors.offset", b"41"),
    Header("__connect.errors.connector.name", b"s3"),
    Header("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
    Header("__connect.errors.exception.message", b"bad json"),
]
STREAMS = [
    Header("__streams.errors.exception", b"java.lang.RuntimeException"),
    Header("__streams.errors.message", b"no field"),
    Header("__streams.errors.topic", b"orders"),
    Header("__streams.errors.partition", b"0"),
    Header("__streams.errors.offset", b"5"),
]
RETRIED = [
    Header("kafka_original-topic", b"orders"),
    Header("kafka_exception-message", b"too slow"),
    Header("retry_topic-attempts", struct.pack(">i", 4)),
]
OURS = [Header(*each) for each in failure_headers("orders", 2, 41, "billing", 6, "ValueError: no amount")]


def letter(*headers: Header, to_topic: str | None = None) -> DeadLetter:
    return read("orders.dlq", 1, 9, 1_000, b"k", b"v", headers, to_topic)


@pytest.mark.parametrize(
    ("headers", "failure"),
    [
        (
            SPRING,
            Failure(
                "Spring",
                "orders",
                3,
                77,
                1_700_000_000_123,
                "java.lang.IllegalStateException",
                "Listener failed",
            ),
        ),
        (
            CONNECT,
            Failure(
                "Kafka Connect",
                "orders",
                2,
                41,
                None,
                "org.apache.kafka.connect.errors.DataException",
                "bad json",
            ),
        ),
        (STREAMS, Failure("Kafka Streams", "orders", 0, 5, None, "java.lang.RuntimeException", "no field")),
        (RETRIED, Failure("Spring", "orders", None, None, None, None, "too slow")),
        (OURS, Failure("Share group", "orders", 2, 41, None, None, "ValueError: no amount", "billing", 6)),
        ([Header("error", b"x")], Failure()),
        ([], Failure()),
    ],
    ids=["Spring", "Connect", "Streams", "Spring's retry topics", "ours", "unknown", "none"],
)
def test_each_convention_is_understood(headers: list[Header], failure: Failure) -> None:
    assert failure_of(headers) == failure


def test_the_headers_of_the_failure_are_taken_off_and_others_are_kept() -> None:
    found = letter(*SPRING, Header(REPUBLISHED, b"2"))
    assert found.headers == (Header("trace-id", b"abc"),)
    assert (found.topic, found.timestamp_ms, found.attempts) == ("orders", 1_700_000_000_123, 2)
    assert letter(*RETRIED, Header("app", None)).headers == (Header("app", None),)
    assert unknown_headers([*SPRING, *RETRIED, Header(REPUBLISHED, b"1"), Header("app", None)]) == [
        "app",
        "trace-id",
    ]


def test_a_letter_is_published_with_its_count() -> None:
    decision = decide(letter(*CONNECT), None, 3)
    assert decision.outcome == PUBLISH
    assert decision.letter.topic == "orders"
    assert decision.letter.headers == (Header(REPUBLISHED, b"1"),)
    again = decide(letter(*CONNECT, *decision.letter.headers), None, 3)
    assert again.letter.headers == (Header(REPUBLISHED, b"2"),)
    assert decide(letter(*CONNECT, Header(REPUBLISHED, b"3")), None, 3).outcome == EXHAUSTED
    assert decide(letter(*CONNECT, Header(REPUBLISHED, b"3")), None, 4).outcome == PUBLISH


def test_replay_leaves_out_what_is_of_a_delay_or_a_retry() -> None:
    """A topic with delays refuses some of it, and a replayed job would go on with its old attempt."""
    left_out = [
        Header("tidemill-original-offset", b"3"),
        Header("tidemill-due", b"1700000000000"),
        Header("tidemill.retry.attempt", b"4"),
        Header("tidemill.retry.group", b"billing"),
    ]
    found = letter(*OURS, *left_out, Header("app", b"x"))
    assert set(left_out) < set(found.headers)
    decision = decide(found, lambda record: record.replace(value="new"), 3)
    assert decision.letter.headers == (Header("app", b"x"), Header(REPUBLISHED, b"1"))


def test_fix_decides() -> None:
    changed = decide(letter(*CONNECT), lambda record: record.replace(value="new", topic="orders-2"), 3)
    assert (changed.outcome, changed.letter.value, changed.letter.topic) == (PUBLISH, b"new", "orders-2")
    assert changed.letter.key == b"k"
    assert decide(letter(*CONNECT), lambda record: record.replace(key=None), 3).letter.key is None
    assert decide(letter(*CONNECT), lambda _: None, 3).outcome == LEFT


def test_a_count_survives_a_fix_that_replaces_the_headers() -> None:
    decision = decide(letter(*CONNECT), lambda record: record.replace(headers=[("a", b"b")]), 3)
    assert decision.letter.headers == (Header("a", b"b"), Header(REPUBLISHED, b"1"))


@pytest.mark.parametrize(
    ("fix", "why"),
    [
        ("def fix(record): return record.value['amount']", "fix() raised TypeError"),
        ("def fix(record): return 'yes'", "fix() returned str, not the record or None"),
        ("def fix(record): return record.replace(topic='orders.dlq')", "would go back into orders.dlq"),
    ],
)
def test_errors_of_fix_are_named(fix: str, why: str) -> None:
    decision = decide(letter(*CONNECT), load_fix(fix, "fix.py"), 3)
    assert decision.outcome == FAILED
    assert why in (decision.why or "")


def test_a_letter_without_an_origin_needs_a_topic() -> None:
    homeless = decide(letter(Header("error", b"x")), None, 3)
    assert homeless.outcome == FAILED
    assert "--to-topic" in (homeless.why or "")
    assert decide(letter(Header("error", b"x"), to_topic="orders"), None, 3).outcome == PUBLISH
    assert decide(letter(*CONNECT, to_topic="elsewhere"), None, 3).letter.topic == "elsewhere"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def fixes(record): return record", "fix.py has no function fix(record)"),
        ("def fix(:", "fix.py cannot be loaded: SyntaxError"),
        ("import no_such_module", "fix.py cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_file_that_is_no_fix_is_refused(source: str, why: str) -> None:
    with pytest.raises(PipelineError, match=r"fix\.py") as raised:
        load_fix(source, "fix.py")
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"17", 17),
        (b"-1", -1),
        (b"1234", 1234),
        (struct.pack(">i", 1234), 1234),
        (struct.pack(">q", -1), -1),
        (b"x", None),
        (b"", None),
        (None, None),
    ],
)
def test_numbers_are_text_or_big_endian(value: bytes | None, expected: int | None) -> None:
    assert number(value) == expected
