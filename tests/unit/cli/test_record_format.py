"""Records as text and as JSON, including those that are not text."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.cli.failures import UsageError
from tidemill.cli.records.record_format import BadRecord, NewRecord, json_writer, read_json, template_writer
from tidemill.client.consumer import Consumed
from tidemill.protocol.records import Header, Record
from tidemill.types import TopicPartition

RECORD = Consumed(
    TopicPartition("orders", 2), Record(7, 1000, b"k", b"caf\xc3\xa9", [Header("a", b"1"), Header("b", None)])
)
NOT_TEXT = Consumed(TopicPartition("orders", 0), Record(0, -1, None, b"\xff\x1b[31m", ()))


def test_a_template_fills_in_fields_and_escapes() -> None:
    write = template_writer(
        r"{{{topic}}}\t{partition}@{offset} {timestamp} {key}={value} [{headers}]\n", is_terminal=False
    )
    assert write(RECORD) == b"{orders}\t2@7 1000 k=caf\xc3\xa9 [a=1,b=null]\n"


def test_bytes_go_out_as_they_came_in_except_to_a_terminal() -> None:
    assert template_writer("{value}", is_terminal=False)(NOT_TEXT) == b"\xff\x1b[31m"
    assert template_writer("{value}", is_terminal=True)(NOT_TEXT) == rb"\xff\x1b[31m"


def test_a_missing_key_is_null() -> None:
    assert template_writer("{key}", is_terminal=False)(NOT_TEXT) == b"null"


@pytest.mark.parametrize("template", ["{nothing}", "{value!r}", "{offset:>9}", "{", "{0}", "{}"])
def test_a_bad_template_is_refused(template: str) -> None:
    with pytest.raises(UsageError, match="--format"):
        template_writer(template, is_terminal=False)


def test_record_as_json() -> None:
    line = json_writer(RECORD)
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 2,
        "offset": 7,
        "timestamp": 1000,
        "key": "k",
        "value": "café",
        "headers": [{"key": "a", "value": "1"}, {"key": "b", "value": None}],
    }


def test_json_of_bytes_that_are_not_text() -> None:
    document = json.loads(json_writer(NOT_TEXT))
    assert "value" not in document
    assert base64.b64decode(document["value_base64"]) == b"\xff\x1b[31m"
    assert document["key"] is None


TEXTS = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)


@given(
    TEXTS,
    TEXTS,
    st.lists(st.builds(Header, st.text(max_size=5), TEXTS), max_size=4),
    st.integers(0, (1 << 31) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
def test_json_round_trip_keeps_record(
    key: bytes | None, value: bytes | None, headers: list[Header], partition: int, timestamp: int
) -> None:
    line = json_writer(
        Consumed(TopicPartition("t", partition), Record(5, timestamp, key, value, tuple(headers)))
    )
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert read_json(line[:-1]) == NewRecord(key, value, headers, partition, timestamp)


def test_json_record_needs_only_a_value() -> None:
    assert read_json(b'{"value": "x"}') == NewRecord(None, b"x", [])
    assert read_json(b'{"key_base64": "", "value": null}') == NewRecord(b"", None, [])


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b"", "not JSON"),
        (b"plain text", "not JSON"),
        (b'{"value": "x"', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"value": "\xff"}', "not UTF-8"),
        (b'["x"]', "must be an object"),
        (b'{"key": "x"}', "neither value nor value_base64"),
        (b'{"value": {"a": 1}}', "value must be a text or null"),
        (b'{"value": 1}', "value must be a text or null"),
        (b'{"value": "x", "value_base64": "eA=="}', "both value and value_base64"),
        (b'{"value": "x", "value": "y"}', "'value' is there twice"),
        (b'{"value_base64": "e"}', "value_base64 is not base64"),
        (b'{"value_base64": "?A=="}', "value_base64 is not base64"),
        (b'{"value_base64": null}', "value_base64 is not base64"),
        (b'{"value": "\\ud800"}', "surrogate"),
        (b'{"value": "x", "vlaue": "y"}', "no 'vlaue'"),
        (b'{"value": "x", "timestamp": "now"}', "timestamp must be a whole number"),
        (b'{"value": "x", "timestamp": 1.5}', "timestamp must be a whole number"),
        (b'{"value": "x", "timestamp": 9223372036854775808}', "timestamp must be a whole number"),
        (b'{"value": "x", "partition": -1}', "partition must be a whole number"),
        (b'{"value": "x", "partition": true}', "partition must be a whole number"),
        (b'{"value": "x", "headers": {"a": "b"}}', "headers must be a list"),
        (b'{"value": "x", "headers": ["a"]}', "a header must be an object"),
        (b'{"value": "x", "headers": [{"value": "b"}]}', "a header needs a text as key"),
        (b'{"value": "x", "headers": [{"key": "b"}]}', "neither value nor value_base64"),
        (b'{"value": "x", "headers": [{"key": "\\ud800", "value": null}]}', "surrogate"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_its_cause(line: bytes, cause: str) -> None:
    with pytest.raises(BadRecord, match=cause):
        read_json(line)
