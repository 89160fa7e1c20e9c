"""Dead letters over HTTP: listed with their reasons, and put back where they came from, once."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.conftest import Gateway


def letter(gateway: Gateway, dead: str, value: bytes, **headers: str) -> None:
    named = {f"__dlq.errors.{name.replace('_', '.')}": text for name, text in headers.items()}
    gateway.broker.produce(dead, value, partition=0, headers=named)


@pytest.fixture
def dead(gateway: Gateway, topic: str) -> str:
    """A topic of dead letters: two that came from `topic`, and one that nothing says where to put."""
    name = f"{topic[:200]}-dlq"
    gateway.broker.create_topic(topic)
    gateway.broker.create_topic(name)
    letter(gateway, name, b"first", topic=topic, partition="0", offset="3", group="g", message="declined")
    letter(gateway, name, b"\xff", topic=topic, delivery_count="5", message="poison")
    gateway.broker.produce(name, b"x" * 5000, partition=0)
    return name


def replay(client: httpx.Client, dead: str, **body: Any) -> Any:
    answer = client.post(f"/v1/topics/{dead}/dead-letters/replay", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def values(gateway: Gateway, topic: str) -> list[str | None]:
    found = gateway.client.get(f"/v1/topics/{topic}/records").json()["records"]
    return [each["value"] for each in found]


def test_letters_are_listed_with_their_reasons(gateway: Gateway, topic: str, dead: str) -> None:
    found = gateway.client.get(f"/v1/topics/{dead}/dead-letters").json()["letters"]
    first, poison, unknown = sorted(found, key=lambda each: each["offset"])
    assert (first["reason"], first["convention"], first["value"]) == ("declined", "Share group", "first")
    assert (first["original_topic"], first["original_partition"], first["original_offset"]) == (topic, 0, 3)
    assert (poison["attempts"], poison["format"], poison["group"]) == (5, "binary", None)
    # Too large to be shown.
    assert "value" not in unknown
    assert (unknown["reason"], unknown["original_topic"]) == ("unknown", None)
    newest = gateway.client.get(f"/v1/topics/{dead}/dead-letters", params={"limit": 1}).json()["letters"]
    assert len(newest) == 1


def test_letter_is_replayed_once(gateway: Gateway, topic: str, dead: str) -> None:
    assert replay(gateway.client, dead, partition=0, offset=0)["published"] == 1
    again = replay(gateway.client, dead, partition=0, offset=0)
    assert (again["published"], again["replayed_before"]) == (0, 1)
    assert values(gateway, topic) == ["first"]
    rest = replay(gateway.client, dead)
    assert (rest["published"], rest["replayed_before"], rest["failed"]) == (1, 1, 1)
    assert "nothing says where it came from" in rest["reason"]
    shown = gateway.client.get(f"/v1/topics/{dead}/dead-letters").json()["letters"]
    assert {each["offset"]: each["is_replayed"] for each in shown} == {0: True, 1: True, 2: False}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"partition": 0}, 422),
        ({"offset": 0}, 422),
        ({"partition": 0, "offset": -1}, 422),
        ({"partition": 0, "offset": "0"}, 422),
        ({"more": 1}, 422),
        ({"partition": 0, "offset": 99}, 404),
        ({"partition": 7, "offset": 0}, 404),
    ],
)
def test_bad_replay_is_refused(gateway: Gateway, dead: str, body: Any, status: int) -> None:
    refused = gateway.client.post(f"/v1/topics/{dead}/dead-letters/replay", json=body)
    assert refused.status_code == status, refused.text


def test_topic_that_does_not_exist(client: httpx.Client) -> None:
    assert client.get("/v1/topics/there-is-none/dead-letters").status_code == 404
    assert client.post("/v1/topics/there-is-none/dead-letters/replay", json={}).status_code == 404
