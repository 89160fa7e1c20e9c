"""A caller of REST Proxy v2, for tests: its media types, and consumer instances by their base URI."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import httpx

V2 = "application/vnd.kafka.v2+json"
BINARY = "application/vnd.kafka.binary.v2+json"
JSON = "application/vnd.kafka.json.v2+json"
TEXT = "application/vnd.kafka.text.v2+json"
TIMEOUT_S = 20.0

_numbers = itertools.count(1)


def post(client: httpx.Client, path: str, body: Any = None, media_type: str = V2) -> httpx.Response:
    if body is None:
        return client.post(path)
    return client.post(path, json=body, headers={"Content-Type": media_type})


def error_of(response: httpx.Response) -> tuple[int, int]:
    """Status and error code. There is always a sentence with them."""
    body = response.json()
    assert response.headers["content-type"] == "application/json"
    assert isinstance(body["message"], str)
    assert len(body["message"]) > 10
    return response.status_code, body["error_code"]


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"not in time: {what}"
        time.sleep(0.01)
    return value


class RestConsumer:
    """One instance, used as a caller does: only by the `base_uri` it was given."""

    def __init__(self, client: httpx.Client, group: str | None = None, /, **options: Any) -> None:
        self.client = client
        self.group = group or f"group-{next(_numbers)}"
        options.setdefault("auto.offset.reset", "earliest")
        options.setdefault("auto.commit.enable", "false")
        created = post(client, f"/consumers/{self.group}", options)
        assert created.status_code == 200, created.text
        self.name = created.json()["instance_id"]
        self.uri = created.json()["base_uri"]

    def post(self, what: str, body: Any = None) -> httpx.Response:
        return post(self.client, f"{self.uri}/{what}", body)

    def get(self, what: str, **query: Any) -> httpx.Response:
        return self.client.get(f"{self.uri}/{what}", params=query)

    def subscribe(self, *topics: str) -> RestConsumer:
        answer = self.post("subscription", {"topics": list(topics)})
        assert answer.status_code == 204, answer.text
        return self

    def read(self, timeout_ms: int = 1000, **query: Any) -> list[dict[str, Any]]:
        answer = self.get("records", timeout=timeout_ms, **query)
        assert answer.status_code == 200, answer.text
        records: list[dict[str, Any]] = answer.json()
        return records

    def read_until(self, count: int) -> list[dict[str, Any]]:
        """Returns at least so many records, from as many requests as needed."""
        found: list[dict[str, Any]] = []
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(found) < count:
            assert time.monotonic() < deadline_s, f"{len(found)} records in time, not {count}"
            found += self.read()
        return found

    def partitions(self) -> set[int]:
        """Those that it reads now."""
        return {each["partition"] for each in self.get("assignments").json()["partitions"]}

    def committed(self) -> dict[int, int]:
        return {each["partition"]: each["offset"] for each in self.get("offsets").json()["offsets"]}

    def delete(self) -> None:
        answer = self.client.delete(self.uri)
        assert answer.status_code == 204, answer.text
