"""Jobs of share groups over HTTP: taken with receipts, and each acknowledged by itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.brokers import eventually
from tests.gateway.conftest import Gateway, start_gateway
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.share_groups import ShareGroupAdmin
from tidemill.client.cluster import Cluster
from tidemill.gateway.cluster import inquiries
from tidemill.gateway.settings import Limits, Settings
from tidemill.testing import InProcessBroker

WAIT_MS = 15_000


class RestWorker:
    def __init__(self, client: httpx.Client, group: str, *topics: str, **options: str) -> None:
        self._client = client
        created = client.post(f"/v1/queues/{group}/workers", json={"topics": topics, **options})
        assert created.status_code == 201, created.text
        self.uri = f"/v1/queues/{group}/workers/{created.json()['worker']}"

    def jobs(self, limit: int = 10, wait_ms: int = WAIT_MS) -> list[dict[str, Any]]:
        answer = self._client.post(f"{self.uri}/jobs", params={"limit": limit, "wait_ms": wait_ms})
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["jobs"]
        return found

    def some(self, count: int) -> list[dict[str, Any]]:
        """Jobs until there are so many."""
        found: list[dict[str, Any]] = []

        def is_enough() -> bool:
            found.extend(self.jobs(count - len(found), 500))
            return len(found) >= count

        eventually(is_enough, "jobs")
        assert len(found) == count
        return found

    def settle(self, **receipts: list[str] | str) -> list[str]:
        answer = self.post_outcomes(**receipts)
        assert answer.status_code == 200, answer.text
        return [each["outcome"] for each in answer.json()["outcomes"]]

    def post_outcomes(self, **body: list[str] | str) -> httpx.Response:
        return self._client.post(f"{self.uri}/outcomes", json=body)

    def delete(self) -> None:
        assert self._client.delete(self.uri).status_code == 204


@pytest.fixture
def group(topic: str) -> str:
    return f"{topic}-workers"


@pytest.fixture
def admin(gateway_broker: InProcessBroker) -> Iterator[ShareGroupAdmin]:
    with Cluster(gateway_broker.bootstrap) as cluster:
        yield ShareGroupAdmin(cluster)


def left(admin: ShareGroupAdmin, group: str) -> int:
    return sum(each.lag or 0 for each in admin.positions(group))


def test_each_job_is_acknowledged_by_itself(
    gateway: Gateway, admin: ShareGroupAdmin, topic: str, group: str
) -> None:
    for name in ("mail ann", "mail bob", "mail nobody", "mail eve"):
        gateway.broker.produce(topic, name, key="k")
    worker = RestWorker(gateway.client, group, topic)
    jobs = worker.some(4)
    assert [(each["topic"], each["offset"], each["value"], each["attempt"]) for each in jobs] == [
        (topic, offset, f"mail {name}", 1) for offset, name in enumerate(("ann", "bob", "nobody", "eve"))
    ]
    assert all(0 < each["lock_ms"] <= 30_000 for each in jobs)
    ann, bob, nobody, eve = (each["receipt"] for each in jobs)
    assert worker.settle(done=[ann], retry=[bob], fail=[nobody], extend=[eve]) == [
        "done",
        "retried",
        "failed",
        "extended",
    ]
    (again,) = worker.some(1)
    assert (again["value"], again["attempt"]) == ("mail bob", 2)
    assert again["receipt"] != bob
    assert worker.settle(done=[again["receipt"], eve]) == ["done", "done"]
    eventually(lambda: left(admin, group) == 0, "all jobs are done")
    worker.delete()


def test_receipt_that_is_not_held_is_unknown(gateway: Gateway, topic: str, group: str) -> None:
    gateway.broker.produce(topic, "a")
    worker = RestWorker(gateway.client, group, topic)
    (job,) = worker.some(1)
    assert worker.settle(done=[]) == []
    assert worker.settle(done=["nothing", job["receipt"]], fail=[job["receipt"]]) == [
        "unknown",
        "done",
        "unknown",
    ]
    assert worker.settle(extend=[job["receipt"]], retry=["again"]) == ["unknown", "unknown"]
    worker.delete()


def test_retry_after_a_time_comes_again_then_as_the_next_attempt(
    gateway: Gateway, admin: ShareGroupAdmin, topic: str, group: str
) -> None:
    gateway.broker.create_topic(topic, configs={"tidemill.delays.enable": "true"})
    gateway.broker.produce(topic, "mail ann", key="k", headers={"trace": "7"})
    worker = RestWorker(gateway.client, group, topic)
    (job,) = worker.some(1)
    assert worker.settle(retry=[job["receipt"], "nothing"], after="1m") == ["retried", "unknown"]
    assert worker.jobs(wait_ms=300) == []
    gateway.broker.clock.advance(seconds=61)
    (again,) = worker.some(1)
    shown = {name: again[name] for name in ("key", "value", "headers", "attempt")}
    assert shown == {"key": "k", "value": "mail ann", "headers": {"trace": "7"}, "attempt": 2}
    # A release counts as well.
    assert worker.settle(retry=[again["receipt"]]) == ["retried"]
    (third,) = worker.some(1)
    assert third["attempt"] == 3
    assert worker.settle(done=[third["receipt"]]) == ["done"]
    eventually(lambda: left(admin, group) == 0, "all jobs are done")
    worker.delete()


def test_last_attempt_with_a_delayed_retry_fails_the_job(
    gateway: Gateway, admin: ShareGroupAdmin, topic: str, group: str
) -> None:
    gateway.broker.create_topic(topic, configs={"tidemill.delays.enable": "true"})
    gateway.broker.produce(topic, "poison")
    worker = RestWorker(gateway.client, group, topic)
    for attempt in range(1, 6):
        (job,) = worker.some(1)
        assert job["attempt"] == attempt
        outcome = "retried" if attempt < 5 else "failed"
        assert worker.settle(retry=[job["receipt"]], after="0s") == [outcome]
    eventually(lambda: left(admin, group) == 0, "the job is given up")
    worker.delete()


def test_delayed_retry_that_is_refused_leaves_the_job_in_hand(
    gateway: Gateway, topic: str, group: str
) -> None:
    limited = {"tidemill.delays.enable": "true", "tidemill.delays.max.ms": "60000"}
    gateway.broker.create_topic(topic, configs=limited)
    gateway.broker.create_topic(f"{topic}-plain")
    gateway.broker.produce(topic, "a")
    gateway.broker.produce(f"{topic}-plain", "b")
    worker = RestWorker(gateway.client, group, topic, f"{topic}-plain")
    job, plain = sorted(worker.some(2), key=lambda each: str(each["value"]))
    answer = worker.post_outcomes(retry=[job["receipt"]], after="1d")
    (row,) = answer.json()["outcomes"]
    assert row["outcome"] == "unanswered"
    assert row["error"] == "A record breaks a rule of its topic."
    refused = worker.post_outcomes(retry=[plain["receipt"]], after="1s")
    assert (refused.status_code, refused.json()["error_code"]) == (400, 40002)
    assert worker.settle(done=[job["receipt"], plain["receipt"]]) == ["done", "done"]
    worker.delete()


def test_job_whose_lock_ended_is_lost_and_goes_to_another_worker(
    gateway: Gateway, topic: str, group: str
) -> None:
    gateway.broker.produce(topic, "a")
    slow, other = (RestWorker(gateway.client, group, topic) for _ in range(2))
    (job,) = slow.some(1)
    assert other.jobs(wait_ms=300) == []
    gateway.broker.clock.advance(seconds=31)
    (again,) = other.some(1)
    assert (again["value"], again["attempt"]) == ("a", 2)
    assert slow.settle(done=[job["receipt"]]) == ["lost"]
    assert slow.settle(done=[job["receipt"]]) == ["unknown"]
    assert other.settle(done=[again["receipt"]]) == ["done"]
    slow.delete()
    other.delete()


def test_jobs_are_not_locked_for_a_caller_that_does_not_ask(
    gateway: Gateway, admin: ShareGroupAdmin, topic: str, group: str
) -> None:
    for number in range(20):
        gateway.broker.produce(topic, f"{number}")
    worker = RestWorker(gateway.client, group, topic)
    jobs = worker.some(3)
    # A fetch that was under way has ended when this is answered: a worker has one request to a broker at a time.
    assert worker.settle(extend=[each["receipt"] for each in jobs]) == ["extended"] * 3
    partitions = [each.partition for each in admin.positions(group)]
    assert sum(each.acquired for each in admin.in_flight(group, partitions).values()) == 3
    worker.delete()
    eventually(
        lambda: not any(each.acquired for each in admin.in_flight(group, partitions).values()), "a release"
    )


def test_caller_that_goes_away_while_it_waits_takes_nothing_with_it(
    gateway: Gateway, topic: str, group: str
) -> None:
    gateway.broker.create_topic(topic)
    worker = RestWorker(gateway.client, group, topic)
    assert worker.jobs(wait_ms=0) == []
    connection = socket.create_connection((gateway.host, gateway.port))
    connection.sendall(
        f"POST {worker.uri}/jobs?wait_ms=20000 HTTP/1.1\r\nHost: {gateway.host}\r\nContent-Length: 0\r\n\r\n".encode()
    )
    connection.close()
    gateway.broker.produce(topic, "a")
    (job,) = worker.some(1)
    assert job["value"] == "a"
    worker.delete()


def test_idle_worker_leaves_its_group(gateway_broker: InProcessBroker, topic: str, group: str) -> None:
    gateway_broker.produce(topic, "a")
    settings = Settings(bootstrap=gateway_broker.bootstrap, limits=Limits(instance_idle_s=0.6))
    with start_gateway(settings, gateway_broker) as gateway, Cluster(gateway_broker.bootstrap) as cluster:
        worker = RestWorker(gateway.client, group, topic)
        worker.some(1)
        admin = ShareGroupAdmin(cluster)
        eventually(lambda: admin.describe(group).members == (), "an empty group")
        refused = gateway.client.post(f"{worker.uri}/jobs")
        assert (refused.status_code, refused.json()["error_code"]) == (404, 40403)


def test_workers_are_limited(gateway_broker: InProcessBroker, topic: str, group: str) -> None:
    gateway_broker.create_topic(topic)
    settings = Settings(bootstrap=gateway_broker.bootstrap, limits=Limits(instances_max=1))
    with start_gateway(settings, gateway_broker) as gateway:
        worker = RestWorker(gateway.client, group, topic)
        refused = gateway.client.post(f"/v1/queues/{group}/workers", json={"topics": [topic]})
        assert refused.status_code == 429
        worker.delete()
        RestWorker(gateway.client, group, topic).delete()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"topics": []}, 422),
        ({"topics": [1]}, 422),
        ({"topics": ["there-is-none"]}, 404),
        ({"topics": ["t"], "start": "now"}, 422),
        ({"topics": ["t"], "more": 1}, 422),
        ([], 400),
    ],
)
def test_bad_worker_is_refused(client: httpx.Client, body: Any, status: int) -> None:
    refused = client.post("/v1/queues/g/workers", json=body)
    assert refused.status_code == status, refused.text


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"done": "r"},
        {"done": [1]},
        {"finished": ["r"]},
        {"done": [f"{number}" for number in range(1001)]},
        {"after": "30s"},
        {"done": ["r"], "after": "30s"},
        {"retry": ["r"], "after": 30},
        {"retry": ["r"], "after": "soon"},
    ],
)
def test_bad_outcomes_are_refused(client: httpx.Client, body: Any) -> None:
    refused = client.post("/v1/queues/g/workers/w/outcomes", json=body)
    assert (refused.status_code, refused.json()["error_code"]) == (422, 42206)


def test_consumer_group_is_no_queue(gateway: Gateway, topic: str, group: str) -> None:
    gateway.broker.produce(topic, "a")
    consumer = gateway.client.post(
        f"/consumers/{group}", json={"name": "c"}, headers={"Content-Type": "application/vnd.kafka.v2+json"}
    )
    base = httpx.URL(consumer.json()["base_uri"]).raw_path.decode()
    gateway.client.post(
        f"{base}/subscription",
        json={"topics": [topic]},
        headers={"Content-Type": "application/vnd.kafka.v2+json"},
    )
    eventually(lambda: gateway.client.get(f"{base}/assignments").json()["partitions"], "an assignment")
    worker = RestWorker(gateway.client, group, topic)
    refused = gateway.client.post(f"{worker.uri}/jobs", params={"wait_ms": WAIT_MS})
    assert refused.status_code in (400, 404), refused.text
    assert gateway.client.post(f"{worker.uri}/jobs").status_code == 404
    gateway.client.delete(base)


def test_queue_that_no_picture_has_yet_is_found(gateway: Gateway, topic: str, group: str) -> None:
    """The console's page of a new group asks for it by its name."""
    gateway.broker.produce(topic, "job")
    worker = RestWorker(gateway.client, group, topic)
    assert len(worker.some(1)) == 1
    with Cluster(gateway.broker.bootstrap) as cluster:
        found = inquiries.group(GroupAdmin(cluster), group)
        assert found is not None
        assert (found[0].group_id, found[0].shares is not None) == (group, True)
        assert inquiries.group(GroupAdmin(cluster), f"{group}-none") is None
    worker.delete()
