"""Event streams and what is remembered over time: the live overview, lag and throughput, rebalances and their causes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer

from tests.brokers import start_broker
from tests.gateway.conftest import HTTP_TIMEOUT_S, Gateway, start_gateway
from tests.gateway.test_console_cluster import API, await_true, get
from tests.gateway.test_console_messages import events
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.cluster import Cluster
from tidemill.gateway.console_api import cluster_view, history, live, trends
from tidemill.gateway.settings import Settings
from tidemill.testing import InProcessBroker
from tidemill.types import TopicPartition


@pytest.fixture
def fast_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SAMPLE_S", 0.05)
    monkeypatch.setattr(cluster_view, "INTERVAL_S", 0.05)
    # A cost is time that passes. On a busy machine its share of a core allows one picture a minute.
    monkeypatch.setattr(cluster_view, "_SHARES", dict.fromkeys(cluster_view._SHARES, 1000.0))


# --- live ---


def test_live_stream_sends_what_changed(gateway: Gateway) -> None:
    with gateway.client.stream("GET", f"{API}/live") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = events(response)
        first: dict[str, Any] = {}
        while set(first) != {"overview", "topics", "groups"}:
            name, content = next(stream)
            first[name] = content
        gateway.broker.create_topic("announced", 5)
        partitions = first["overview"]["totals"]["partitions"]
        version = first["topics"]["version"]
        changed = set()
        for name, content in stream:
            if name == "overview" and content["totals"]["partitions"] == partitions + 5:
                changed.add(name)
            if name == "topics" and content["version"] > version:
                changed.add(name)
            if changed == {"overview", "topics"}:
                break
    assert get(gateway.client, "topics", query="announced")["total"] == 1


def test_a_new_topic_gets_its_number_of_messages_although_the_disks_are_dear(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The interval of the disks is their longest one, a minute, as on a machine that is busy.
    monkeypatch.setitem(cluster_view._SHARES, "disks", 1e-9)

    def messages_of(topic: str) -> int | None:
        found = get(gateway.client, "topics", query=topic)["items"]
        return found[0]["records"] if found else None

    with gateway.client.stream("GET", f"{API}/live") as response:
        stream = events(response)
        gateway.broker.create_topic("early")
        await_true(lambda: messages_of("early") == 0, "the messages of early are counted")
        gateway.broker.create_topic("late")
        await_true(lambda: messages_of("late") == 0, "the messages of late are counted")
        next(stream)


def test_the_live_stream_shows_rates(gateway: Gateway) -> None:
    topic = gateway.broker.create_topic("busy")
    with gateway.client.stream("GET", f"{API}/live") as response:
        stream = events(response)
        for name, content in stream:
            if name == "overview":
                gateway.broker.produce(topic, "x")
                if content["rates"]["records_in_per_s"]:
                    break
    assert get(gateway.client, "topics/busy")["records_in_per_s"] is not None


def is_admitted(gateway: Gateway) -> bool:
    with gateway.client.stream("GET", f"{API}/live") as response:
        return response.status_code == 200


@pytest.mark.parametrize("path", ["live", "topics/left/tail"])
def test_a_client_that_goes_away_makes_room(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    if path != "live":
        gateway.broker.create_topic("left")
    with gateway.client.stream("GET", f"{API}/{path}") as response:
        # Held on to: the response is closed with it.
        lines = response.iter_lines()
        assert next(lines).startswith("retry: ")
        monkeypatch.setattr(live, "STREAMS_MAX", 1)
        assert not is_admitted(gateway)
    await_true(lambda: is_admitted(gateway), "the stream is closed")


def test_a_browser_that_does_not_read_is_hung_up_on(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "STALLED_S", 0.3)
    topic = gateway.broker.create_topic("unread")
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect((gateway.host, gateway.port))
        lazy.sendall(f"GET {API}/topics/{topic}/tail HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert lazy.recv(15) == b"HTTP/1.1 200 OK"
        monkeypatch.setattr(live, "STREAMS_MAX", 1)
        assert not is_admitted(gateway)

        def is_gone() -> bool:
            # Sooner or later more than all buffers on the way hold.
            for _ in range(20):
                gateway.broker.produce(topic, "x" * 60_000)
            return is_admitted(gateway)

        await_true(is_gone, "a stream that nobody reads is closed")


def test_there_is_a_limit_on_streams(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    with gateway.client.stream("GET", f"{API}/live") as response:
        # Held on to: the response is closed with it.
        lines = response.iter_lines()
        assert next(lines).startswith("retry: ")
        monkeypatch.setattr(live, "STREAMS_MAX", 1)
        refused = gateway.client.get(f"{API}/live")
        assert refused.status_code == 503
        assert "event streams" in refused.json()["message"]


def test_silence_is_filled_with_comments(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_S", 0.05)
    with gateway.client.stream("GET", f"{API}/live") as response:
        assert ("", None) in (event for event in events(response))


def test_a_gateway_that_stops_ends_its_streams(gateway_broker: InProcessBroker) -> None:
    gateway_broker.create_topic("stopping")
    with httpx.Client(timeout=20.0) as client:
        # Requests may take longer to end by themselves than `start_gateway` waits for the end.
        settings = Settings(bootstrap=gateway_broker.bootstrap, drain_s=10 * HTTP_TIMEOUT_S)
        with start_gateway(settings) as gateway:
            streams = [
                client.send(client.build_request("GET", f"{gateway.url}{API}/{path}"), stream=True)
                for path in ("live", "topics/stopping/tail")
            ]
        for response in streams:
            response.read()
            assert response.text.startswith("retry: ")


# --- history ---


@pytest.mark.usefixtures("fast_samples")
def test_lag_and_throughput_are_remembered() -> None:
    with InProcessBroker() as broker, start_gateway(Settings(bootstrap=broker.bootstrap)) as gateway:
        topic = broker.create_topic("watched")
        for number in range(10):
            broker.produce(topic, f"{number}")
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "watchers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        try:
            consumer.subscribe([topic])
            message = consumer.poll(20.0)
            assert message is not None
            consumer.commit(message=message, asynchronous=False)

            def lags() -> list[int]:
                return [lag for _, lag in get(gateway.client, "groups/watchers/lag")["points"]]

            await_true(lambda: 9 in lags(), "the lag is 9")
            rest = consumer.consume(9, 10.0)
            assert len(rest) == 9
            consumer.commit(asynchronous=False)
            await_true(lambda: lags()[-1:] == [0], "the lag has fallen")
            assert lags().index(9) < len(lags()) - 1
        finally:
            consumer.close()
        broker.produce(topic, "one more")

        def rates() -> list[Any]:
            return [each[1] for each in get(gateway.client, "throughput")["points"]]

        await_true(lambda: any(rates()), "something was written")
        times = [each[0] for each in get(gateway.client, "throughput")["points"]]
        assert times == sorted(times)
        assert get(gateway.client, "groups/nobody/lag")["points"] == []


def commit(broker: InProcessBroker, group_id: str, topic: str, offset: int) -> None:
    with Cluster(broker.bootstrap) as cluster:
        GroupAdmin(cluster).commit(group_id, {TopicPartition(topic, 0): offset})


@pytest.mark.usefixtures("fast_samples")
def test_so_many_groups_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "GROUPS_MAX", 2)
    with InProcessBroker() as broker, start_gateway(Settings(bootstrap=broker.bootstrap)) as gateway:
        topic = broker.create_topic("crowded")
        broker.produce(topic, "x")
        for name in ("first", "second", "third"):
            commit(broker, name, topic, 0)

        def lags() -> dict[str, Any]:
            return {name: get(gateway.client, f"groups/{name}/lag") for name in ("first", "second")}

        await_true(lambda: all(each["points"] for each in lags().values()), "two groups are remembered")
        # A group that is requested takes the place of the one whose last request is the oldest.
        await_true(
            lambda: get(gateway.client, "groups/third/lag")["points"], "the third is remembered as well"
        )
        kept = [name for name, each in lags().items() if each["is_kept"]]
        assert len(kept) == 1


@pytest.mark.usefixtures("fast_samples")
def test_group_without_members_and_growing_lag_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trends, "STUCK_S", 0.1)
    with InProcessBroker() as broker, start_gateway(Settings(bootstrap=broker.bootstrap)) as gateway:
        topic = broker.create_topic("neglected")
        broker.produce(topic, "x")
        commit(broker, "sleepers", topic, 0)
        await_true(lambda: get(gateway.client, "groups")["items"], "the group is shown")
        assert get(gateway.client, "overview")["problems"] == []

        def problems() -> list[Any]:
            broker.produce(topic, "x")
            found: list[Any] = get(gateway.client, "overview")["problems"]
            return found

        (problem,) = await_true(problems, "the lag grows")
        assert problem["severity"] == "warning"
        assert "sleepers" in problem["text"]
        commit(broker, "sleepers", topic, 1_000_000)
        await_true(lambda: get(gateway.client, "overview")["problems"] == [], "somebody helped")


# --- with a status listener ---


@pytest.fixture(scope="module")
def status_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """With the status listener of a broker, and with an address where none listens."""
    folder = tmp_path_factory.mktemp("status") / "data"
    settings = {
        "tidemill.status.listener": "127.0.0.1:0",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
    }
    with start_broker(folder, settings=settings) as broker:
        url = broker.printed.split("Metrics at ")[1].split("/metrics")[0]
        urls = (url, "http://127.0.0.1:1")
        with start_gateway(Settings(bootstrap=broker.bootstrap, status_urls=urls)) as gateway:
            yield gateway


def create_topic(gateway: Gateway, name: str) -> str:
    created = gateway.client.post(f"{gateway.v3}/topics", json={"topic_name": name, "partitions_count": 2})
    assert created.status_code == 201, created.text
    return name


def join_and_leave(consumer: Consumer, topic: str) -> None:
    try:
        consumer.subscribe([topic])
        await_true(lambda: consumer.poll(0.1) or consumer.assignment(), "it is assigned something")
    finally:
        consumer.close()


def test_rebalances_are_listed_with_their_causes(status_gateway: Gateway) -> None:
    client = status_gateway.client
    topic = create_topic(status_gateway, "shared")
    options = {"bootstrap.servers": status_gateway.settings.bootstrap, "group.id": "sharers"}
    for _ in range(2):
        join_and_leave(Consumer(options), topic)
    found = get(client, "rebalances", group="sharers")
    assert found["is_known"]
    assert len(found["items"]) >= 2
    for each in found["items"]:
        assert each["group_id"] == "sharers"
        assert each["cause"]
        assert each["broker_id"] == get(client, "brokers")["items"][0]["id"]
    generations = [each["generation"] for each in found["items"]]
    assert generations == sorted(generations, reverse=True)
    assert get(client, "rebalances", group="nobody")["items"] == []
    assert get(client, "rebalances", limit=1)["items"] == found["items"][:1]


def test_bytes_are_counted_by_the_status_listeners(status_gateway: Gateway) -> None:
    topic = create_topic(status_gateway, "heavy")
    producer = Producer({"bootstrap.servers": status_gateway.settings.bootstrap})

    def has_rate() -> bool:
        producer.produce(topic, "x" * 1000)
        producer.flush(10)
        return (get(status_gateway.client, "overview")["rates"]["bytes_in_per_s"] or 0) > 0

    assert await_true(has_rate, "a rate of bytes")


def test_without_a_status_listener_rebalances_are_not_known(client: httpx.Client) -> None:
    assert get(client, "rebalances") == {"is_known": False, "items": []}
