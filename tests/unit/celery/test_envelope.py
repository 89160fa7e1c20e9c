"""A kombu message as a record: what is checked, its priority, and when it is due."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tidemill.celery.envelope import NotAMessage, decode, due_headers, encode, priority_of
from tidemill.protocol.records import Header

MESSAGE: dict[str, Any] = {
    "body": "aGk=",
    "headers": {"id": "1"},
    "content-type": "text/plain",
    "content-encoding": "utf-8",
    "properties": {"body_encoding": "base64", "delivery_info": {}, "priority": 4},
}


def with_eta(eta: object) -> dict[str, Any]:
    return {**MESSAGE, "headers": {"eta": eta}}


def test_message_is_the_same_after_a_round_trip() -> None:
    assert decode(encode(MESSAGE)) == MESSAGE


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"hello",
        b"\xff\xfe",
        b"[1, 2]",
        b"{}",
        b'{"properties": {}}',
        b'{"properties": {"delivery_info": 3}}',
        json.dumps({**MESSAGE, "headers": [1]}).encode(),
        json.dumps({**MESSAGE, "body": "***"}).encode(),
        json.dumps({**MESSAGE, "body": {"a": 1}}).encode(),
        json.dumps({**MESSAGE, "properties": {"delivery_info": {}, "body_encoding": "rot13"}}).encode(),
        b"[" * 100_000,
    ],
)
def test_foreign_record_is_not_a_message(value: bytes | None) -> None:
    with pytest.raises(NotAMessage):
        decode(value)


@pytest.mark.parametrize(
    ("given", "priority"), [(0, 0), (4, 4), (9, 9), (12, 9), (-1, 0), (None, 0), ("x", 0), ("7", 7)]
)
def test_priority_is_held_to_0_to_9(given: object, priority: int) -> None:
    assert priority_of({"properties": {"priority": given}}) == priority


def test_eta_with_a_zone_delays_until_then() -> None:
    due = datetime(2030, 1, 1, tzinfo=UTC)
    expected = [Header("tidemill-deliver-at", b"1893456000000")]
    assert due_headers(with_eta(due.isoformat()), 0) == expected
    assert due_headers(with_eta(due), 0) == expected
    assert due_headers(with_eta("2030-01-01T01:00:00+01:00"), 0) == expected


@pytest.mark.parametrize(
    "eta", [None, "", "soon", "2030-01-01T00:00:00", 17, [], "1970-01-01T00:00:00+00:00"]
)
def test_no_time_no_zone_or_a_time_that_has_passed_delays_nothing(eta: object) -> None:
    assert due_headers(with_eta(eta), 1000) == []
    assert due_headers({"headers": None}, 1000) == []
