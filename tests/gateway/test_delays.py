"""Delayed records through the gateway: written, listed, cancelled, given another time."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import Gateway
from tests.gateway.secured_cluster import PASSWORD, SecuredCluster, secured_cluster
from tests.gateway.v2_caller import error_of
from tidemill.security.acls import Operation, ResourceType

DELAYS = {"tidemill.delays.enable": "true"}
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def later(gateway: Gateway, topic: str) -> str:
    return gateway.broker.create_topic(topic, configs=DELAYS)


def iso(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat()


def produce(gateway: Gateway, topic: str, record: Any, **query: Any) -> httpx.Response:
    return gateway.client.post(f"/v1/topics/{topic}/produce", json=record, params=query)


def listed(gateway: Gateway, topic: str, **query: Any) -> list[dict[str, Any]]:
    answer = gateway.client.get(f"/v1/topics/{topic}/delays", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


def shown(gateway: Gateway, topic: str) -> list[bytes | None]:
    return [record.value for record in gateway.broker.records(topic)]


def test_a_record_waits_for_its_time(gateway: Gateway, later: str) -> None:
    before_ms = gateway.broker.clock.wall_ms()
    noon_ms = before_ms + DAY_MS
    records = [
        {"value": "now"},
        {"value": {"mail": 7}, "key": "ann", "delay": "2h"},
        {"value": "at noon", "format": "text", "deliver_at": iso(noon_ms)},
        {
            "key": "bob",
            "value": None,
            "cron": "0 8 * * *",
            "time_zone": "Europe/Berlin",
            "schedule_id": "report",
        },
    ]
    for record in records:
        assert produce(gateway, later, record).status_code == 200
    assert shown(gateway, later) == [b'"now"']
    found = {each["offset"]: each for each in listed(gateway, later)}
    assert sorted(found) == [1, 2, 3]
    mail, noon, report = found[1], found[2], found[3]
    assert (mail["key"], mail["value"], mail["size"]) == ("ann", {"mail": 7}, 10)
    assert mail["due_ms"] >= before_ms + 2 * 3600 * 1000
    assert (noon["value"], noon["format"], noon["due_ms"]) == ("at noon", "text", noon_ms)
    assert (report["cron"], report["time_zone"], report["schedule_id"]) == (
        "0 8 * * *",
        "Europe/Berlin",
        "report",
    )


def test_pages_follow_the_log_and_each_is_sorted_by_due_times(gateway: Gateway) -> None:
    topic = gateway.broker.create_topic("paged", 2, configs={"tidemill.delays.enable": True})
    for hours in (5, 1, 3, 4, 2):
        produce(gateway, topic, {"value": hours, "delay": f"{hours}h", "partition": hours % 2})
    produce(gateway, topic, {"value": "now", "partition": 0})
    pages: list[list[int]] = []
    query: dict[str, str | int] = {"limit": 2}
    while True:
        answer = gateway.client.get(f"/v1/topics/{topic}/delays", params=query).json()
        pages.append([each["value"] for each in answer["messages"]])
        if answer["next"] is None:
            break
        query["after"] = answer["next"]
    assert pages == [[2, 4], [1, 5], [3]]


def test_page_goes_on_although_its_place_is_gone(gateway: Gateway, later: str) -> None:
    for hours in (1, 2, 3):
        produce(gateway, later, {"value": hours, "delay": f"{hours}h"})
    path = f"/v1/topics/{later}/delays"
    following = gateway.client.get(path, params={"limit": 1}).json()["next"]
    assert gateway.client.delete(f"{path}/{following.replace(':', '/')}").status_code == 204
    answer = gateway.client.get(path, params={"after": following}).json()
    assert ([each["value"] for each in answer["messages"]], answer["next"]) == ([3], None)


@pytest.mark.parametrize("after", ["", "1", "0:x", "-1:0", "0:-1", f"0:{2**63}", "0:0:0"])
def test_place_that_no_page_names_is_refused(gateway: Gateway, later: str, after: str) -> None:
    answer = gateway.client.get(f"/v1/topics/{later}/delays", params={"after": after})
    assert answer.status_code == 400
    assert "after" in answer.json()["message"]


def test_a_large_value_is_not_listed(gateway: Gateway, later: str) -> None:
    produce(gateway, later, {"value": "x" * 5000, "format": "text", "delay": "1h"})
    (message,) = listed(gateway, later)
    assert message["size"] == 5000
    assert "value" not in message


def test_plain_bodies_are_delayed_by_the_query(gateway: Gateway, later: str) -> None:
    query = {"delay": "1h", "schedule_id": "a", "key": "k"}
    answer = gateway.client.post(
        f"/v1/topics/{later}/produce",
        content=b"later",
        headers={"Content-Type": "text/plain"},
        params=query,
    )
    assert answer.status_code == 200
    (message,) = listed(gateway, later)
    assert (message["key"], message["value"], message["schedule_id"]) == ("k", "later", "a")


def test_headers_of_v3_delay_a_record(gateway: Gateway, later: str) -> None:
    header = {"name": "tidemill-delay", "value": base64.b64encode(b"1h").decode()}
    record = {"value": {"type": "STRING", "data": "later"}, "headers": [header]}
    answer = gateway.client.post(f"{gateway.v3}/topics/{later}/records", json=record).json()
    assert answer["error_code"] == 200
    assert [each["value"] for each in listed(gateway, later)] == ["later"]


def test_a_cancelled_record_never_comes(gateway: Gateway, later: str) -> None:
    produce(gateway, later, {"value": "no", "delay": "1h"})
    place = f"/v1/topics/{later}/delays/0/0"
    assert gateway.client.delete(place).status_code == 204
    assert listed(gateway, later) == []
    assert error_of(gateway.client.delete(place)) == (404, 404)


def test_a_rescheduled_record_has_its_new_time_only(gateway: Gateway, later: str) -> None:
    record = {"key": "k", "value": 1, "headers": {"trace": "7"}, "delay": "1h", "schedule_id": "a"}
    produce(gateway, later, record)
    place = f"/v1/topics/{later}/delays/0/0"
    due_ms = gateway.broker.clock.wall_ms() + DAY_MS
    moved = gateway.client.patch(place, json={"deliver_at": due_ms})
    assert (moved.status_code, moved.json()) == (200, {"partition": 0, "offset": 1})
    (message,) = listed(gateway, later)
    assert (message["due_ms"], message["schedule_id"]) == (due_ms, "a")
    assert error_of(gateway.client.patch(place, json={"delay": "1h"})) == (404, 404)
    again = gateway.client.patch(f"/v1/topics/{later}/delays/0/1", json={"delay": "0s"})
    assert again.status_code == 200
    (copy,) = gateway.broker.records(later, count=1)
    assert (copy.key, copy.value, dict(copy.headers)["trace"]) == (b"k", b"1", b"7")
    assert listed(gateway, later) == []


@pytest.mark.parametrize(
    ("members", "expected", "words"),
    [
        ({"delay": "soon"}, (400, 40002), "tidemill-delay"),
        ({"delay": "-5s"}, (400, 40002), "tidemill-delay"),
        ({"delay": 5}, (422, 42206), "should be a string"),
        ({"delay": None}, (422, 42206), "should be a string"),
        ({"deliver_at": "tomorrow"}, (400, 40002), "ISO 8601"),
        ({"deliver_at": "2030-01-01T00:00:00"}, (400, 40002), "offset from UTC"),
        ({"deliver_at": -1}, (422, 42206), "negative"),
        ({"deliver_at": True}, (422, 42206), "a string or an integer"),
        ({"cron": "* * * * *"}, (400, 40002), "tidemill-schedule-id"),
        ({"cron": "0 0 31 2 *", "schedule_id": "a"}, (400, 40002), "never fires"),
        ({"cron": "@daily", "time_zone": "Mars/Base", "schedule_id": "a"}, (400, 40002), "Mars/Base"),
        ({"time_zone": "UTC", "delay": "1h"}, (400, 40002), "belongs to"),
        ({"schedule_id": "a"}, (400, 40002), "needs a time"),
        ({"schedule_id": "", "delay": "1h"}, (400, 40002), "between 1 and 256"),
        ({"delay": "1h", "deliver_at": 5}, (400, 40002), "not both"),
    ],
)
def test_times_that_make_no_sense_are_refused_with_a_reason(
    gateway: Gateway, later: str, members: dict[str, Any], expected: tuple[int, int], words: str
) -> None:
    refused = produce(gateway, later, {"value": 1, **members})
    assert error_of(refused) == expected
    assert words in refused.json()["message"]
    assert listed(gateway, later) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (422, 42206)),
        ({"value": 1}, (422, 42206)),
        ({"delay": "soon"}, (400, 40002)),
        ([], (400, 400)),
    ],
)
def test_another_time_that_makes_no_sense_changes_nothing(
    gateway: Gateway, later: str, body: Any, expected: tuple[int, int]
) -> None:
    produce(gateway, later, {"value": 1, "delay": "1h"})
    assert error_of(gateway.client.patch(f"/v1/topics/{later}/delays/0/0", json=body)) == expected
    assert [each["offset"] for each in listed(gateway, later)] == [0]


def test_a_topic_without_delays_takes_none(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    refused = produce(gateway, topic, {"value": 1, "delay": "1h"})
    assert error_of(refused) == (400, 40002)
    assert "tidemill.delays.enable" in refused.json()["message"]
    assert shown(gateway, topic) == []
    assert error_of(gateway.client.get(f"/v1/topics/{topic}/delays")) == (400, 40002)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("0/5", (404, 404)), ("9/0", (404, 40402)), ("x/0", (404, 404)), ("0/-1", (404, 404))],
)
def test_a_place_where_nothing_waits_is_a_404(
    gateway: Gateway, later: str, path: str, expected: tuple[int, int]
) -> None:
    assert error_of(gateway.client.delete(f"/v1/topics/{later}/delays/{path}")) == expected


def test_an_unknown_topic_is_a_404(gateway: Gateway, topic: str) -> None:
    assert error_of(gateway.client.get(f"/v1/topics/{topic}/delays")) == (404, 40403)


# --- who may see what waits ---


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as started:
        started.admin.create_topic("later", partition_count=1, configs=DELAYS)
        started.add_user("owner")
        started.allow_all("owner", "later")
        started.add_user("reader")
        started.allow("reader", Operation.READ, ResourceType.TOPIC, "later")
        yield started


def test_a_reader_does_not_see_or_cancel_what_waits(cluster: SecuredCluster) -> None:
    with cluster.gateway() as gateway:
        owner, reader = ("owner", PASSWORD), ("reader", PASSWORD)
        record = {"value": "a secret until then", "delay": "1h"}
        written = gateway.client.post("/v1/topics/later/produce", json=record, auth=owner)
        assert written.status_code == 200
        assert gateway.client.get("/v1/topics/later/delays", auth=owner).json()["messages"]
        for refused in (
            gateway.client.get("/v1/topics/later/delays", auth=reader),
            gateway.client.delete("/v1/topics/later/delays/0/0", auth=reader),
            gateway.client.patch("/v1/topics/later/delays/0/0", auth=reader, json={"delay": "0s"}),
        ):
            assert error_of(refused) == (403, 40301)
            assert "secret" not in refused.text
        assert gateway.client.get("/v1/topics/later/records", auth=reader).json()["records"] == []
        assert gateway.client.get("/v1/topics/later/delays", auth=owner).json()["messages"]
