"""Records as text and as JSON, including those that are not text."""

from __future__ import annotations

import base64
import json

import pytest

from tidemill.cli.failures import UsageError
from tidemill.cli.record_format import json_writer, template_writer
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


def test_json() -> None:
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
