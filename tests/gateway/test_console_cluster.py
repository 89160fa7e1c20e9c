"""What the console shows of a cluster, over HTTP: overview, brokers, topics, partitions and groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.gateway.conftest import Gateway, start_gateway
from tidemill.gateway.console_api.picture import stuck_group_problem
from tidemill.gateway.settings import Settings
from tidemill.testing import InProcessBroker, InProcessCluster

T = TypeVar("T")
API = "/console/api"


def get(client: httpx.Client, path: str, **parameters: Any) -> Any:
    response = client.get(f"{API}/{path}", params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


def await_true(condition: Callable[[], T], what: str, timeout_s: float = 20.0) -> T:
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)
    return value


@pytest.fixture(scope="module")
def shop(gateway_broker: InProcessBroker) -> InProcessBroker:
    """A broker with topics of different sizes, and a group that has read a part."""
    gateway_broker.create_topic("shop.orders", 3)
    gateway_broker.create_topic("shop.payments", 1, configs={"retention.ms": 1000000})
    gateway_broker.create_topic("shop.empty", 2)
    for number in range(30):
        gateway_broker.produce("shop.orders", f"order {number}", partition=number % 3)
    for number in range(5):
        gateway_broker.produce("shop.payments", f"payment {number}", partition=0)
    consumer = Consumer({"bootstrap.servers": gateway_broker.bootstrap, "group.id": "shop.packers"})
    consumer.commit(
        offsets=[TopicPartition("shop.orders", 0, 4), TopicPartition("shop.payments", 0, 5)],
        asynchronous=False,
    )
    consumer.close()
    return gateway_broker


@pytest.fixture
def shown(gateway: Gateway, shop: InProcessBroker) -> httpx.Client:
    """A client that sees the shop: a picture may be a second old."""
    await_true(
        lambda: "shop.packers" in {each["group_id"] for each in get(gateway.client, "groups")["items"]},
        "the group is in the picture",
    )
    return gateway.client


def topic_row(client: httpx.Client, name: str) -> Any:
    (row,) = [each for each in get(client, "topics")["items"] if each["name"] == name]
    return row


# --- the cluster ---


def test_the_overview_counts_what_the_cluster_has(shown: httpx.Client, shop: InProcessBroker) -> None:
    overview = get(shown, "overview")
    assert overview["totals"]["brokers"] == 1
    assert overview["totals"]["topics"] == get(shown, "topics", internal="true")["total"]
    assert overview["totals"]["under_replicated"] == overview["totals"]["offline"] == 0
    assert overview["totals"]["bytes"] > 0
    assert overview["problems"] == []
    assert abs(overview["as_of_ms"] - time.time() * 1000) < 60_000
    # Without a status listener the bytes are not known.
    assert overview["rates"]["bytes_in_per_s"] is None


def test_the_overview_shows_the_quorum(shown: httpx.Client) -> None:
    overview = get(shown, "overview")
    quorum = overview["quorum"]
    assert quorum["leader_id"] == overview["controller_id"]
    (voter,) = quorum["voters"]
    assert voter["is_leader"]
    assert voter["lag"] == 0
    assert quorum["high_watermark"] <= voter["log_end_offset"]


def test_brokers_show_what_they_hold(shown: httpx.Client, shop: InProcessBroker) -> None:
    listed = get(shown, "brokers")
    (broker,) = listed["items"]
    assert listed["total"] == 1
    assert (broker["host"], broker["port"]) == (shop.host, shop.port)
    assert broker["is_controller"]
    assert broker["is_up"]
    assert broker["leaders"] == broker["replicas"] == get(shown, "overview")["totals"]["partitions"]
    assert broker["out_of_sync"] == 0


# --- topics ---


def test_a_topic_shows_its_records_and_size(shown: httpx.Client) -> None:
    row = topic_row(shown, "shop.orders")
    assert (row["partitions"], row["replication_factor"], row["records"]) == (3, 1, 30)
    assert row["bytes"] > 30 * len("order 0")
    assert topic_row(shown, "shop.empty")["records"] == 0


def test_internal_topics_are_listed_on_request(shown: httpx.Client) -> None:
    assert all(not each["is_internal"] for each in get(shown, "topics")["items"])
    names = {each["name"] for each in get(shown, "topics", internal="true")["items"] if each["is_internal"]}
    assert "__consumer_offsets" in names


def test_topics_are_pages_that_can_be_searched_and_sorted(shown: httpx.Client) -> None:
    def names(**parameters: Any) -> list[str]:
        return [each["name"] for each in get(shown, "topics", query="SHOP.", **parameters)["items"]]

    assert names(sort="records") == ["shop.empty", "shop.payments", "shop.orders"]
    assert names(sort="-records") == ["shop.orders", "shop.payments", "shop.empty"]
    assert names(sort="name", limit=1) == ["shop.empty"]
    assert names(sort="name", offset=1, limit=1) == ["shop.orders"]
    assert names(offset=100) == []
    assert get(shown, "topics", query="shop.", limit=1)["total"] == 3


def test_one_topic_has_its_configurations_and_groups(shown: httpx.Client) -> None:
    topic = get(shown, "topics/shop.payments")
    configs = {each["name"]: each for each in topic["configs"]}
    assert configs["retention.ms"]["value"] == "1000000"
    assert configs["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert not configs["retention.ms"]["is_default"]
    assert configs["cleanup.policy"]["is_default"]
    assert topic["groups"] == ["shop.packers"]
    assert get(shown, "topics/shop.empty")["groups"] == []


def test_partitions_show_leaders_offsets_and_sizes(shown: httpx.Client) -> None:
    listed = get(shown, "topics/shop.orders/partitions", sort="-partition", limit=2)
    assert listed["total"] == 3
    assert [each["partition"] for each in listed["items"]] == [2, 1]
    for each in listed["items"]:
        assert (each["start_offset"], each["end_offset"], each["state"]) == (0, 10, "ok")
        assert each["replicas"] == each["isr"] == [each["leader"]]
        assert each["bytes"] > 0
    assert get(shown, "topics/shop.orders/partitions", state="offline")["total"] == 0


def test_a_topic_that_was_just_created_is_found(gateway: Gateway) -> None:
    get(gateway.client, "topics")
    gateway.broker.create_topic("just-now", 2)
    assert get(gateway.client, "topics/just-now")["partitions"] == 2
    assert get(gateway.client, "topics/just-now/partitions")["total"] == 2


def test_a_change_through_v3_is_in_the_next_picture(gateway: Gateway) -> None:
    get(gateway.client, "topics")
    created = gateway.client.post(
        f"{gateway.v3}/topics", json={"topic_name": "from-v3", "partitions_count": 4}
    )
    assert created.status_code == 201, created.text
    await_true(lambda: get(gateway.client, "topics", query="from-v3")["total"] == 1, "it is listed")
    gateway.client.delete(f"{gateway.v3}/topics/from-v3").raise_for_status()
    await_true(lambda: get(gateway.client, "topics", query="from-v3")["total"] == 0, "it is gone")
    assert gateway.client.get(f"{API}/topics/from-v3").status_code == 404


# --- groups ---


def test_groups_show_their_lag(shown: httpx.Client) -> None:
    (row,) = get(shown, "groups", query="packers")["items"]
    assert (row["group_id"], row["state"], row["members"]) == ("shop.packers", "Empty", 0)
    # Two partitions of three have no commit.
    assert row["lag"] == 10 - 4 + 10 + 10
    assert row["topics"] == ["shop.orders", "shop.payments"]
    assert row["coordinator"] == get(shown, "brokers")["items"][0]["id"]


def test_a_group_shows_each_partition(shown: httpx.Client) -> None:
    group = get(shown, "groups/shop.packers")
    assert group["members"] == []
    assert group["offsets"] == [
        {"topic": "shop.orders", "partition": 0, "committed": 4, "end": 10, "lag": 6, "member_id": None},
        {"topic": "shop.orders", "partition": 1, "committed": None, "end": 10, "lag": 10, "member_id": None},
        {"topic": "shop.orders", "partition": 2, "committed": None, "end": 10, "lag": 10, "member_id": None},
        {"topic": "shop.payments", "partition": 0, "committed": 5, "end": 5, "lag": 0, "member_id": None},
    ]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_shows_its_members(gateway: Gateway, protocol: str) -> None:
    topic, group_id = f"members-{protocol}", f"readers/{protocol}"
    gateway.broker.create_topic(topic, 2)
    options = {
        "bootstrap.servers": gateway.broker.bootstrap,
        "group.id": group_id,
        "group.protocol": protocol,
    }
    consumer = Consumer({**options, "client.id": "reader-1"})
    try:
        consumer.subscribe([topic])
        await_true(lambda: consumer.poll(0.1) or consumer.assignment(), "it is assigned something")

        def members() -> Any:
            response = gateway.client.get(f"{API}/groups/readers%2F{protocol}")
            return response.json().get("members") if response.status_code == 200 else None

        (member,) = await_true(
            lambda: (found := members()) and found[0]["partitions"] and found, "the member has its partitions"
        )
        assert member["client_id"] == "reader-1"
        assert member["partitions"] == [{"topic": topic, "partition": each} for each in (0, 1)]
        offsets = gateway.client.get(f"{API}/groups/readers%2F{protocol}").json()["offsets"]
        assert {each["member_id"] for each in offsets} == {member["member_id"]}
    finally:
        consumer.close()


# --- what is refused ---


@pytest.mark.parametrize(
    "path",
    [
        "topics?limit=0",
        "topics?limit=1001",
        "topics?limit=ten",
        "topics?offset=-1",
        "topics?sort=colour",
        "topics?internal=perhaps",
        "topics/shop.orders/partitions?state=fine",
        "groups?sort=-nothing",
        "brokers?limit=1e3",
        "rebalances?limit=0",
    ],
)
def test_bad_parameters_are_refused_with_a_reason(shown: httpx.Client, path: str) -> None:
    response = shown.get(f"{API}/{path}")
    assert response.status_code == 400
    name = path.split("?")[1].split("=")[0]
    assert response.json()["error_code"] == 40002
    assert name in response.json()["message"]


@pytest.mark.parametrize(
    "path",
    [
        "topics/nowhere",
        "topics/nowhere/partitions",
        "topics/nowhere/messages",
        "topics/nowhere/tail",
        "groups/nobody",
    ],
)
def test_missing_resource_is_404(shown: httpx.Client, path: str) -> None:
    response = shown.get(f"{API}/{path}")
    assert response.status_code == 404
    assert response.json()["message"].startswith("there is no")


# --- a cluster that is not well ---


@pytest.fixture(scope="module")
def limping() -> Iterator[tuple[InProcessCluster, Gateway]]:
    with InProcessCluster() as cluster, start_gateway(Settings(bootstrap=cluster.bootstrap)) as gateway:
        cluster.create_topic("spread", 6)
        cluster.produce("spread", "before", partition=0)
        yield cluster, gateway


def test_the_controller_is_the_leader_of_the_quorum(limping: tuple[InProcessCluster, Gateway]) -> None:
    """Each broker names itself in Metadata, as in Kafka; the console and REST v3 show the quorum's leader."""
    cluster, _ = limping
    for broker in cluster.brokers:
        with start_gateway(Settings(bootstrap=broker.bootstrap)) as gateway:
            overview = await_true(
                lambda: (shown := get(gateway.client, "overview"))["quorum"] and shown, "the quorum is shown"
            )
            leader_id = overview["quorum"]["leader_id"]
            assert overview["controller_id"] == leader_id
            controllers = [
                each["id"] for each in get(gateway.client, "brokers")["items"] if each["is_controller"]
            ]
            assert controllers == [leader_id]
            (shown,) = gateway.client.get("/v3/clusters").json()["data"]
            assert shown["controller"]["related"].endswith(f"/brokers/{leader_id}")


def test_a_stopped_broker_is_a_problem_in_words(limping: tuple[InProcessCluster, Gateway]) -> None:
    cluster, gateway = limping
    client = gateway.client
    before = await_true(
        lambda: (shown := get(client, "overview"))["totals"]["partitions"] == 6 and shown,
        "the topic is shown",
    )
    assert before["totals"]["brokers"] == 3
    assert before["problems"] == []
    assert {each["id"] for each in before["quorum"]["voters"]} == {1, 2, 3}

    victim = next(each for each in cluster.brokers if each.id != before["controller_id"])
    victim.stop()
    is_down = f"Broker {victim.id} is down or fenced."

    def shows_both() -> Any:
        """Brokers and partitions are parts of the picture that are refreshed apart: either may come first."""
        shown = get(client, "overview")
        found = [each["text"] for each in shown["problems"]]
        return shown if shown["totals"]["under_replicated"] == 6 and is_down in found else None

    overview = await_true(shows_both, "the broker is down, and all partitions are under-replicated")
    texts = [each["text"] for each in overview["problems"]]
    assert any(text.startswith("6 partitions are under-replicated") for text in texts), texts
    (down,) = [each for each in get(client, "brokers")["items"] if not each["is_up"]]
    assert (down["id"], down["out_of_sync"]) == (victim.id, 6)
    assert get(client, "topics/spread/partitions", state="under_replicated")["total"] == 6
    assert get(client, "topics/spread/messages")["items"][0]["value"]["data"] == "before"

    victim.start()
    await_true(lambda: get(client, "overview")["problems"] == [], "everything is well again")


def test_a_broker_that_was_killed_is_missed_before_its_session_ends() -> None:
    # Longer than the test: what is shown cannot come from the controller, which takes the broker for alive.
    with (
        InProcessCluster(settings={"broker.session.timeout.ms": 600_000}) as cluster,
        start_gateway(Settings(bootstrap=cluster.bootstrap)) as gateway,
    ):
        cluster.create_topic("spread", 3)
        controller_id = await_true(
            lambda: (shown := get(gateway.client, "overview"))["totals"]["partitions"] == 3 and shown,
            "the topic is shown",
        )["controller_id"]
        victim = next(each for each in cluster.brokers if each.id != controller_id)
        thread, victim.thread = victim.thread, None
        assert thread is not None
        thread.crash()
        overview = await_true(
            lambda: (shown := get(gateway.client, "overview"))["totals"]["brokers"] == 2 and shown,
            "it is not counted",
        )
        texts = [each["text"] for each in overview["problems"] if each["severity"] == "critical"]
        assert any(text.startswith(f"Broker {victim.id} does not answer") for text in texts), texts
        assert any("led by a broker that does not answer" in text for text in texts), texts
        (row,) = [each for each in get(gateway.client, "brokers")["items"] if not each["is_up"]]
        assert (row["id"], row["state"]) == (victim.id, "silent")


def test_a_problem_advises_nothing_that_the_console_does_not_offer() -> None:
    """It can neither start brokers and consumers nor delete groups."""
    text = stuck_group_problem(["billing", "mail"]).text
    assert text == "2 groups are without members while the lag grows: billing, mail."


def test_a_partition_without_a_leader_is_offline(limping: tuple[InProcessCluster, Gateway]) -> None:
    cluster, gateway = limping
    client = gateway.client
    cluster.create_topic("single", 3, replication_factor=1)
    home = cluster.leader_of("single", 0)
    cluster.broker(home).stop()
    try:
        listed = await_true(
            lambda: (found := get(client, "topics/single/partitions", state="offline"))["total"] and found,
            "it is offline",
        )
        assert listed["items"][0]["leader"] is None
        await_true(
            lambda: any(
                each["severity"] == "critical" and "offline" in each["text"] and "single-0" in each["text"]
                for each in get(client, "overview")["problems"]
            ),
            "it is a problem of the cluster",
        )
        refused = client.get(f"{API}/topics/single/messages", params={"partition": 0})
        assert refused.status_code == 503
        assert "leader" in refused.json()["message"]
        # The others can still be read, and the answer does not claim to be all.
        assert get(client, "topics/single/messages")["is_complete"] is False
    finally:
        cluster.broker(home).start()


def test_a_cluster_that_is_gone_is_said_in_words() -> None:
    with InProcessBroker() as broker, start_gateway(Settings(bootstrap=broker.bootstrap)) as gateway:
        broker.create_topic("left-behind")
        await_true(lambda: get(gateway.client, "overview")["totals"]["topics"] == 1, "it is shown")
        broker.stop()
        overview = await_true(
            lambda: (shown := get(gateway.client, "overview"))["problems"] and shown, "the problem is shown"
        )
        assert overview["problems"][0]["severity"] == "critical"
        assert "does not answer" in overview["problems"][0]["text"]
        assert [each["name"] for each in get(gateway.client, "topics")["items"]] == ["left-behind"]


def test_without_a_cluster_the_answer_is_503() -> None:
    broker = InProcessBroker()
    try:
        with start_gateway(Settings(bootstrap=broker.bootstrap, timeout_s=2.0)) as gateway:
            response = gateway.client.get(f"{API}/overview")
            assert response.status_code == 503
            assert "cannot be reached" in response.json()["message"]
    finally:
        broker.close()
