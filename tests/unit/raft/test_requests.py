"""Requests in flight: one per destination, until it is answered or has timed out."""

from __future__ import annotations

import pytest

from tidemill.protocol.api.data import FetchRequest
from tidemill.raft.effects import SendFetch
from tidemill.raft.requests import Requests

TIMEOUT_MS = 100
NODE = 2


def fetch(number: int) -> SendFetch:
    return SendFetch(number, NODE, FetchRequest())


def test_readiness_query_leaves_timed_out_request_in_flight() -> None:
    requests = Requests(TIMEOUT_MS, retry_backoff_ms=10)
    requests.sent(fetch(1), 0)
    assert not requests.is_ready(NODE, TIMEOUT_MS - 1)
    assert requests.is_ready(NODE, TIMEOUT_MS)
    assert requests.answered(1) == fetch(1)


def test_next_request_replaces_timed_out_one() -> None:
    requests = Requests(TIMEOUT_MS, retry_backoff_ms=10)
    requests.sent(fetch(1), 0)
    requests.sent(fetch(2), TIMEOUT_MS)
    assert requests.answered(1) is None
    assert requests.answered(2) == fetch(2)


def test_second_request_before_timeout_is_a_bug() -> None:
    requests = Requests(TIMEOUT_MS, retry_backoff_ms=10)
    requests.sent(fetch(1), 0)
    with pytest.raises(AssertionError):
        requests.sent(fetch(2), TIMEOUT_MS - 1)
