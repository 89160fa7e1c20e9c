"""The message browser and the live tail, over HTTP."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from tests.gateway.conftest import Gateway
from tests.gateway.test_console_cluster import API, get
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.producing.partitioner import partition_of_key
from tidemill.gateway.console_api import tail
from tidemill.testing import InProcessBroker
from tidemill.types import TopicPartition


def messages(client: httpx.Client, topic: str, start: str = "latest", **parameters: Any) -> Any:
    return get(client, f"topics/{topic}/messages", **{"from": start}, **parameters)


def values(answer: Any) -> list[str]:
    return [each["value"]["data"] for each in answer["items"]]


def places(answer: Any) -> list[tuple[int, int]]:
    return [(each["partition"], each["offset"]) for each in answer["items"]]


def positions(answer: dict[str, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in answer.items())


@pytest.fixture(scope="module")
def ticks(gateway_broker: InProcessBroker) -> str:
    """Sixty records, a second apart, over three partitions without an order."""
    topic = gateway_broker.create_topic("ticks", 3)
    source = random.Random(7)
    for number in range(60):
        gateway_broker.produce(
            topic, f"tick {number}", partition=source.randrange(3), timestamp_ms=1_000_000 + 1000 * number
        )
    return topic


EXPECTED = [f"tick {number}" for number in range(60)]


# --- where to begin ---


def test_the_latest_come_newest_first_over_all_partitions(client: httpx.Client, ticks: str) -> None:
    answer = messages(client, ticks, limit=10)
    assert values(answer) == EXPECTED[:-11:-1]
    assert not answer["is_complete"]
    assert values(messages(client, ticks)) == EXPECTED[: 60 - 50 - 1 : -1]


def test_the_earliest_come_oldest_first_over_all_partitions(client: httpx.Client, ticks: str) -> None:
    answer = messages(client, ticks, "earliest", limit=500)
    assert values(answer) == EXPECTED
    assert answer["is_complete"]
    assert answer["scanned"] == 60


@pytest.mark.parametrize("limit", [1, 7, 60])
def test_paging_forward_shows_each_record_once(client: httpx.Client, ticks: str, limit: int) -> None:
    found: list[str] = []
    answer = messages(client, ticks, "earliest", limit=limit)
    while not answer["is_complete"]:
        found += values(answer)
        answer = messages(client, ticks, f"offsets:{positions(answer['next'])}", limit=limit)
    assert found + values(answer) == EXPECTED


@pytest.mark.parametrize("limit", [3, 60])
def test_paging_backward_shows_each_record_once(client: httpx.Client, ticks: str, limit: int) -> None:
    found: list[str] = []
    answer = messages(client, ticks, limit=limit)
    while not answer["is_complete"]:
        found += values(answer)
        answer = messages(client, ticks, f"before:{positions(answer['previous'])}", limit=limit)
    assert found + values(answer) == EXPECTED[::-1]


def test_one_partition_from_an_offset_on(client: httpx.Client, ticks: str) -> None:
    everything = messages(client, ticks, "earliest", partition=1, limit=500)
    answer = messages(client, ticks, "offset:5", partition=1, limit=3)
    assert places(answer) == [(1, 5), (1, 6), (1, 7)]
    assert values(answer) == values(everything)[5:8]
    assert answer["next"] == {"1": 8}


def test_from_a_time_on(client: httpx.Client, ticks: str) -> None:
    assert values(messages(client, ticks, "time:1050000", limit=500)) == EXPECTED[50:]
    assert messages(client, ticks, "time:9999999999")["items"] == []


def test_beyond_the_end_there_is_nothing(client: httpx.Client, ticks: str) -> None:
    answer = messages(client, ticks, "offset:1000000")
    assert answer["items"] == []
    assert answer["is_complete"]


def test_records_that_retention_removed_are_skipped(gateway: Gateway) -> None:
    topic = gateway.broker.create_topic("shortened")
    for number in range(10):
        gateway.broker.produce(topic, f"number {number}")
    with Cluster(gateway.broker.bootstrap) as cluster:
        Admin(cluster).delete_records({TopicPartition(topic, 0): 6})
    assert places(messages(gateway.client, topic, "offset:2", limit=2)) == [(0, 6), (0, 7)]
    assert places(messages(gateway.client, topic))[-1] == (0, 6)
    assert messages(gateway.client, topic, "before:0:5")["items"] == []


# --- looking for something ---


def test_a_key_is_found_in_whatever_partition_it_lies(gateway: Gateway) -> None:
    topic = gateway.broker.create_topic("keyed", 4)
    home = partition_of_key(b"green", 4)
    elsewhere = (home + 1) % 4
    for number in range(40):
        gateway.broker.produce(topic, f"noise {number}", key=f"key {number}")
    gateway.broker.produce(topic, "at home", key="green")
    gateway.broker.produce(topic, "elsewhere", key="green", partition=elsewhere)
    answer = messages(gateway.client, topic, "earliest", key="green")
    assert sorted(values(answer)) == ["at home", "elsewhere"]
    assert answer["key_partition"] == home
    assert answer["scanned"] == 42
    assert answer["is_complete"]
    assert values(messages(gateway.client, topic, key="green", partition=home)) == ["at home"]
    assert messages(gateway.client, topic, key="gree")["items"] == []


def test_contains_looks_into_keys_values_and_headers(gateway: Gateway) -> None:
    topic = gateway.broker.create_topic("searched")
    gateway.broker.produce(topic, "a Needle in the value")
    gateway.broker.produce(topic, "nothing here")
    gateway.broker.produce(topic, "x", key="needle-key")
    gateway.broker.produce(topic, "y", headers={"trace": "needle"})
    gateway.broker.produce(topic, None, key="tombstone")
    answer = messages(gateway.client, topic, "earliest", contains="NEEDLE")
    assert [each["offset"] for each in answer["items"]] == [0, 2, 3]


def test_a_search_stops_at_max_scan_and_can_go_on(client: httpx.Client, ticks: str) -> None:
    answer = messages(client, ticks, "earliest", contains="tick 59", max_scan=25)
    assert (answer["items"], answer["scanned"], answer["is_complete"]) == ([], 25, False)
    answer = messages(
        client, ticks, f"offsets:{positions(answer['next'])}", contains="tick 59", max_scan=1000
    )
    assert values(answer) == ["tick 59"]
    assert answer["scanned"] == 35
    backward = messages(client, ticks, contains="tick 1", max_scan=30)
    assert (backward["items"], backward["is_complete"]) == ([], False)


# --- what records look like ---


@pytest.fixture(scope="module")
def zoo(gateway_broker: InProcessBroker) -> str:
    topic = gateway_broker.create_topic("zoo", configs={"max.message.bytes": 2_000_000})
    for value in (
        '{"n": 12345678901234567890, "a": [1, 2]}',
        "plain words, ünïcode",
        b"\x00\x01\xff",
        None,
        b"{broken json",
        "é" * 50_000,
        b"\xff" * 70_000,
        "[" * 5000,
        "",
    ):
        gateway_broker.produce(topic, value, key="k", headers={"h": b"\x00"})
    return topic


def test_values_are_shown_as_what_they_are(client: httpx.Client, zoo: str) -> None:
    items = messages(client, zoo, "earliest")["items"]
    shown = [each["value"] for each in items]
    assert shown[0] == {"kind": "json", "data": '{"n": 12345678901234567890, "a": [1, 2]}'}
    assert shown[1] == {"kind": "text", "data": "plain words, ünïcode"}
    assert shown[2] == {"kind": "binary", "data": base64.b64encode(b"\x00\x01\xff").decode()}
    assert shown[3] == {"kind": "null", "data": None}
    assert shown[4]["kind"] == "text"
    assert shown[5] == {"kind": "cut", "data": "é" * 32768, "is_binary": False}
    assert shown[6]["kind"] == "cut"
    assert base64.b64decode(shown[6]["data"]) == b"\xff" * 65536
    assert shown[7]["kind"] == "text"
    assert shown[8] == {"kind": "text", "data": ""}
    assert [each["value_bytes"] for each in items][2:7] == [3, None, 12, 100_000, 70_000]
    assert items[0]["key"] == {"kind": "text", "data": "k"}
    assert items[0]["headers"] == [{"name": "h", "value": {"kind": "binary", "data": "AA=="}}]
    assert items[0]["timestamp_type"] == "create_time"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_read_in_both_directions(gateway: Gateway, codec: str) -> None:
    topic = gateway.broker.create_topic(f"packed-{codec}")
    options = {"bootstrap.servers": gateway.broker.bootstrap, "compression.type": codec, "linger.ms": 1000}
    producer = Producer(options)
    for number in range(1000):
        producer.produce(topic, f"value {number}", timestamp=1_000_000 + number)
    assert producer.flush(20) == 0
    assert values(messages(gateway.client, topic, limit=3)) == ["value 999", "value 998", "value 997"]
    assert values(messages(gateway.client, topic, "offset:500", limit=2)) == ["value 500", "value 501"]


def test_transactions_are_shown_as_the_isolation_says(gateway: Gateway) -> None:
    topic = gateway.broker.create_topic("ledger")
    producer = Producer({"bootstrap.servers": gateway.broker.bootstrap, "transactional.id": "ledger-1"})
    producer.init_transactions(20)
    for name, ends in (("kept", True), ("dropped", False)):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(topic, f"{name} {number}")
        producer.flush(20)
        (producer.commit_transaction if ends else producer.abort_transaction)(20)
    kept = [f"kept {number}" for number in range(3)]
    dropped = [f"dropped {number}" for number in range(3)]
    client = gateway.client
    assert values(messages(client, topic, "earliest")) == kept + dropped
    assert values(messages(client, topic, "earliest", isolation="read_committed")) == kept
    # Markers take offsets, are never shown, and do not stop anybody.
    answer = messages(client, topic, isolation="read_committed")
    assert values(answer) == kept[::-1]
    assert answer["is_complete"]

    producer.begin_transaction()
    producer.produce(topic, "open")
    producer.flush(20)
    assert values(messages(client, topic, limit=1)) == ["open"]
    assert values(messages(client, topic, limit=1, isolation="read_committed")) == kept[-1:]
    producer.abort_transaction(20)


# --- what is refused ---


@pytest.mark.parametrize(
    "parameters",
    [
        {"from": "yesterday"},
        {"from": "offset:-1"},
        {"from": "offset:"},
        {"from": "time:noon"},
        {"from": "offsets:1"},
        {"from": "before:0:x"},
        {"from": "earliest:1"},
        {"limit": "501"},
        {"limit": "0"},
        {"max_scan": "0"},
        {"partition": "-1"},
        {"partition": "99999999999"},
        {"isolation": "serializable"},
        {"key": "k" * 2000},
    ],
)
def test_bad_parameters_are_refused_with_a_reason(
    client: httpx.Client, ticks: str, parameters: dict[str, str]
) -> None:
    for path in ("messages", "tail"):
        response = client.get(f"{API}/topics/{ticks}/{path}", params=parameters)
        assert response.status_code == 400, response.text
        assert next(iter(parameters)) in response.json()["message"]


def test_a_partition_that_is_not_there_is_404(client: httpx.Client, ticks: str) -> None:
    for path in ("messages", "tail"):
        response = client.get(f"{API}/topics/{ticks}/{path}", params={"partition": 3})
        assert response.status_code == 404
        assert response.json()["message"] == "topic ticks has no partition 3, only 0 to 2"


# --- the tail ---


@pytest.fixture
def quick_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tail that does not rest longer the longer a reading takes, which it does on a busy machine."""
    monkeypatch.setattr(tail, "_SHARE", 1.0)


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Server-sent events; a comment is an event without a name."""
    name = ""
    for line in response.iter_lines():
        if line.startswith(":"):
            yield "", None
        elif line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def next_messages(stream: Iterator[tuple[str, Any]]) -> Any:
    """The content of the next event that is no heartbeat."""
    name, content = next(event for event in stream if event[0])
    assert name == "messages", content
    return content


@pytest.mark.usefixtures("quick_tail")
def test_the_tail_shows_what_is_written_from_now_on(gateway: Gateway) -> None:
    topic = gateway.broker.create_topic("tailed", 2)
    gateway.broker.produce(topic, "before", partition=0)
    with gateway.client.stream("GET", f"{API}/topics/{topic}/tail") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = events(response)
        # The first comment says that the positions are taken.
        assert next(stream) == ("", None)
        for number in range(4):
            gateway.broker.produce(topic, f"after {number}", key="k", partition=number % 2)
        found: list[Any] = []
        while len(found) < 4:
            content = next_messages(stream)
            assert content["skipped"] == 0
            found += content["items"]
    assert sorted(each["value"]["data"] for each in found) == [f"after {number}" for number in range(4)]
    assert found[0]["key"] == {"kind": "text", "data": "k"}


@pytest.mark.usefixtures("quick_tail")
def test_the_tail_can_be_filtered(gateway: Gateway) -> None:
    topic = gateway.broker.create_topic("tail-filtered", 2)
    with gateway.client.stream(
        "GET", f"{API}/topics/{topic}/tail", params={"contains": "wanted", "partition": 1}
    ) as response:
        stream = events(response)
        next(stream)
        for partition in (0, 1):
            gateway.broker.produce(topic, "noise", partition=partition)
            gateway.broker.produce(topic, f"wanted {partition}", partition=partition)
        content = next_messages(stream)
    assert values(content) == ["wanted 1"]


@pytest.mark.usefixtures("quick_tail")
def test_a_tail_counts_what_it_does_not_show(gateway: Gateway) -> None:
    topic = gateway.broker.create_topic("torrent")
    producer = Producer({"bootstrap.servers": gateway.broker.bootstrap, "linger.ms": 50})
    with gateway.client.stream("GET", f"{API}/topics/{topic}/tail") as response:
        stream = events(response)
        next(stream)
        for number in range(3000):
            producer.produce(topic, f"drop {number}")
        assert producer.flush(20) == 0
        shown = skipped = 0
        while shown + skipped < 3000:
            content = next_messages(stream)
            assert len(content["items"]) <= 100
            shown += len(content["items"])
            skipped += content["skipped"]
    assert shown + skipped == 3000
    assert skipped > 0


@pytest.mark.usefixtures("quick_tail")
def test_a_tail_ends_when_its_topic_does(gateway: Gateway) -> None:
    topic = gateway.broker.create_topic("ends")
    with gateway.client.stream("GET", f"{API}/topics/{topic}/tail") as response:
        stream = events(response)
        next(stream)
        gateway.broker.delete_topic(topic)
        named = [(name, content) for name, content in stream if name]
    assert [name for name, _ in named] == ["failed"]
    assert topic in named[0][1]["message"]


# --- the whole of a record ---


def part(client: httpx.Client, topic: str, partition: int, offset: int, name: str) -> httpx.Response:
    return client.get(f"{API}/topics/{topic}/messages/{partition}/{offset}/{name}")


def test_the_whole_key_and_value_of_a_record(client: httpx.Client, gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic, 2)
    large = bytes(range(256)) * 1000
    gateway.broker.produce(topic, "first", partition=1)
    gateway.broker.produce(topic, large, key="<script>", partition=1)
    found = part(client, topic, 1, 1, "value")
    assert (found.status_code, found.content) == (200, large)
    # What others wrote is a file, never a page of this site.
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["content-disposition"] == f'attachment; filename="{topic}-1-1-value"'
    assert part(client, topic, 1, 1, "key").content == b"<script>"
    for offset, name, words in (
        (2, "value", "no record at offset 2"),
        (0, "key", "is null"),
        (0, "headers", "a key and a value"),
    ):
        refused = part(client, topic, 1, offset, name)
        assert refused.status_code == 404
        assert words in refused.json()["message"]
    assert part(client, topic, 2, 0, "value").status_code == 404
    assert part(client, "none", 0, 0, "value").status_code == 404
    assert client.get(f"{API}/topics/{topic}/messages/x/0/value").status_code == 400


def test_answer_has_the_number_of_remaining_offsets(client: httpx.Client, ticks: str) -> None:
    newest = messages(client, ticks, limit=10)
    assert newest["remaining"] == 50
    on = messages(client, ticks, f"before:{positions(newest['previous'])}", limit=20)
    assert on["remaining"] == 30
    oldest = messages(client, ticks, "earliest", limit=15)
    assert oldest["remaining"] == 45
    assert messages(client, ticks, "earliest", limit=60)["remaining"] == 0
    searched = messages(client, ticks, "earliest", contains="nothing like it", max_scan=40)
    assert (searched["scanned"], searched["remaining"]) == (40, 20)
