"""REST Proxy v2's consumer instances: options, subscriptions, reading, positions, commits, and what is refused."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.gateway.conftest import Gateway, start_gateway
from tests.gateway.v2_caller import BINARY, JSON, TEXT, V2, RestConsumer, error_of, post, until
from tidemill.gateway.settings import Settings


def values(records: list[dict[str, Any]]) -> list[Any]:
    return [record["value"] for record in records]


def at(topic: str, partition: int, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, **more}


def test_an_instance_has_a_name_and_an_address(gateway: Gateway) -> None:
    created = post(gateway.client, "/consumers/named", {"name": "mine", "format": "json"})
    assert created.headers["content-type"] == V2
    assert created.json() == {
        "instance_id": "mine",
        "base_uri": f"{gateway.url}/consumers/named/instances/mine",
    }
    assert error_of(post(gateway.client, "/consumers/named", {"name": "mine"})) == (409, 40902)
    # The name is the group's own, and free again afterwards.
    for group in ("other", "named"):
        if group == "named":
            assert gateway.client.delete("/consumers/named/instances/mine").status_code == 204
        assert post(gateway.client, f"/consumers/{group}", {"name": "mine"}).status_code == 200
    first, second = (post(gateway.client, "/consumers/named").json()["instance_id"] for _ in range(2))
    assert re.fullmatch(r"[\w-]+", first)
    assert first != second


def test_names_with_odd_characters_work_by_their_base_uri(gateway: Gateway, topic: str) -> None:
    gateway.broker.produce(topic, "x")
    consumer = RestConsumer(gateway.client, "my group+%25ü", name="a: b+c@d", format="text").subscribe(topic)
    assert values(consumer.read_until(1)) == ["x"]
    consumer.delete()


def test_base_uri_uses_forwarded_headers_only_when_trusted(gateway: Gateway) -> None:
    forwarded = {
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "kafka.example.com",
        "X-Forwarded-Prefix": "/rest/",
    }
    made = gateway.client.post("/consumers/proxied", headers=forwarded).json()
    assert made["base_uri"].startswith(f"{gateway.url}/consumers/proxied/")
    named = gateway.client.post("/consumers/proxied", headers={"Host": "localhost:1234"}).json()
    assert named["base_uri"].startswith("http://localhost:1234/consumers/proxied/")
    settings = Settings(bootstrap=gateway.broker.bootstrap, trusts_forwarded=True)
    with start_gateway(settings) as behind:
        made = behind.client.post("/consumers/proxied", headers=forwarded).json()
        assert made["base_uri"].startswith("https://kafka.example.com/rest/consumers/proxied/instances/")
        wrong = {"X-Forwarded-Host": "evil.com/a", "X-Forwarded-Prefix": "//x", "X-Forwarded-Proto": "ftp"}
        made = behind.client.post("/consumers/proxied", headers=wrong).json()
        assert made["base_uri"].startswith(f"{behind.url}/consumers/proxied/")


@pytest.mark.parametrize(
    ("format_name", "media_type", "key", "value"),
    [
        (
            "binary",
            BINARY,
            base64.b64encode(b"\x00key").decode(),
            base64.b64encode(bytes(range(256))).decode(),
        ),
        ("json", JSON, 7, {"deep": [1.10, "ü", None], "big": 12345678901234567890}),
        ("text", TEXT, "ключ", "line\nbreak\t\U0001f30a"),
    ],
)
def test_each_format_comes_back_as_it_went_in(
    gateway: Gateway, topic: str, format_name: str, media_type: str, key: Any, value: Any
) -> None:
    gateway.broker.create_topic(topic)
    records = {"records": [{"key": key, "value": value}, {"value": None}]}
    assert post(gateway.client, f"/topics/{topic}", records, media_type).status_code == 200
    consumer = RestConsumer(gateway.client, format=format_name).subscribe(topic)
    answer = until(lambda: (found := consumer.get("records")) and found.json() and found, "records")
    assert answer.headers["content-type"] == media_type
    assert answer.json() == [
        {"topic": topic, "key": key, "value": value, "partition": 0, "offset": 0},
        {"topic": topic, "key": None, "value": None, "partition": 0, "offset": 1},
    ]


def test_an_instance_reads_what_a_kafka_client_wrote(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    producer = Producer({"bootstrap.servers": gateway.broker.bootstrap, "compression.type": "zstd"})
    sent = [b"%d" % number * 100 for number in range(300)]
    for value in sent:
        producer.produce(topic, value, b"\xff")
    producer.flush()
    consumer = RestConsumer(gateway.client).subscribe(topic)
    found = consumer.read_until(300)
    assert [base64.b64decode(record["value"]) for record in found] == sent
    assert [record["offset"] for record in found] == list(range(300))
    assert {record["key"] for record in found} == {base64.b64encode(b"\xff").decode()}


def test_json_numbers_are_not_changed_on_their_way(gateway: Gateway, topic: str) -> None:
    stored = '{"price": 1.10, "id": 123456789012345678901234567890.125}'
    gateway.broker.produce(topic, stored)
    consumer = RestConsumer(gateway.client, format="json").subscribe(topic)
    answer = until(lambda: (found := consumer.get("records").text) != "[]" and found, "the record")
    assert stored in answer


def test_accept_has_to_fit_the_format(gateway: Gateway, topic: str) -> None:
    gateway.broker.produce(topic, "1")
    consumer = RestConsumer(gateway.client, format="json").subscribe(topic)
    records = f"{consumer.uri}/records"
    assert error_of(gateway.client.get(records, headers={"Accept": BINARY})) == (406, 40601)
    assert error_of(gateway.client.get(records, headers={"Accept": "text/html"})) == (406, 40601)
    for accept in (JSON, V2, "application/json", "*/*"):
        answer = gateway.client.get(records, headers={"Accept": accept}, params={"timeout": 0})
        assert answer.headers["content-type"] == (JSON if accept == "*/*" else accept)


def test_record_of_another_format_is_an_error_and_can_be_skipped(gateway: Gateway, topic: str) -> None:
    for value in ('"good"', "not json", "2"):
        gateway.broker.produce(topic, value)
    consumer = RestConsumer(gateway.client, format="json").subscribe(topic)
    assert values(consumer.read_until(1)) == ["good"]
    for _ in range(2):
        refused = consumer.get("records")
        assert error_of(refused) == (422, 42206)
        assert f"{topic}-0 at offset 1" in refused.json()["message"]
    assert consumer.post("positions", {"offsets": [at(topic, 0, offset=2)]}).status_code == 204
    assert values(consumer.read_until(1)) == [2]


def test_max_bytes_bounds_an_answer_and_one_record_always_comes(gateway: Gateway, topic: str) -> None:
    for number in range(6):
        gateway.broker.produce(topic, f"{number}" * 1000)
    consumer = RestConsumer(gateway.client, format="text").subscribe(topic)
    sizes = [len(consumer.read_until(1)) for _ in range(1)]
    consumer.post("positions/beginning", {"partitions": [at(topic, 0)]})
    sizes = []
    while sum(sizes) < 6:
        sizes.append(len(consumer.read(max_bytes=2500)))
    assert sizes == [2, 2, 2]
    consumer.post("positions/beginning", {"partitions": [at(topic, 0)]})
    assert values(consumer.read(max_bytes=1)) == ["0" * 1000]
    # REST Proxy's word for "as much as there is".
    assert len(consumer.read_until(5)) == 5
    consumer.post("positions/beginning", {"partitions": [at(topic, 0)]})
    assert len(consumer.read(max_bytes=-1)) >= 1


def test_read_waits_for_records_up_to_its_timeout(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    consumer = RestConsumer(gateway.client, format="text", **{"consumer.request.timeout.ms": 10}).subscribe(
        topic
    )
    until(consumer.partitions, "an assignment")
    assert consumer.get("records").json() == []
    assert consumer.read(timeout_ms=0) == []
    # Written while the caller waits.
    gateway.broker.faults.slow(topic, 0.2, optional=True)
    gateway.broker.produce(topic, "late")
    assert values(consumer.read(timeout_ms=20_000)) == ["late"]


def test_fetch_min_bytes_waits_for_more_than_one_record(gateway: Gateway, topic: str) -> None:
    gateway.broker.produce(topic, "x" * 100)
    consumer = RestConsumer(gateway.client, format="text", **{"fetch.min.bytes": "1000"}).subscribe(topic)
    until(consumer.partitions, "an assignment")
    # Too little for this instance until the time is over; then it gets what there is.
    assert len(consumer.read(timeout_ms=600)) == 1
    for _ in range(10):
        gateway.broker.produce(topic, "y" * 100)
    assert sum(map(len, values(consumer.read(timeout_ms=20_000)))) >= 1000


def test_positions_move_reading(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic, partitions=2)
    for number in range(5):
        gateway.broker.produce(topic, f"{number}", partition=0)
    consumer = RestConsumer(gateway.client, format="json").subscribe(topic)
    assert error_of(consumer.post("positions", {"offsets": [at("elsewhere", 0, offset=1)]})) == (409, 40903)
    assert values(consumer.read_until(5)) == [0, 1, 2, 3, 4]
    assert consumer.post("positions", {"offsets": [at(topic, 0, offset=3)]}).status_code == 204
    assert values(consumer.read_until(2)) == [3, 4]
    assert consumer.post("positions/beginning", {"partitions": [at(topic, 0)]}).status_code == 204
    assert values(consumer.read(max_bytes=1)) == [0]
    assert consumer.post("positions/end", {"partitions": [at(topic, 0)]}).status_code == 204
    assert consumer.read(timeout_ms=200) == []
    gateway.broker.produce(topic, "5", partition=0)
    assert values(consumer.read_until(1)) == [5]


def test_partitions_can_be_assigned_by_hand(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic, partitions=3)
    for partition in range(3):
        gateway.broker.produce(topic, f"{partition}", partition=partition)
    consumer = RestConsumer(gateway.client, format="json")
    assert consumer.post("assignments", {"partitions": [at(topic, 2)]}).status_code == 204
    # At once after the assignment, as scripts do it.
    assert consumer.post("positions/beginning", {"partitions": [at(topic, 2)]}).status_code == 204
    assert consumer.get("assignments").json() == {"partitions": [at(topic, 2)]}
    assert values(consumer.read_until(1)) == [2]
    # What stays assigned goes on where it was.
    assert consumer.post("assignments", {"partitions": [at(topic, 1), at(topic, 2)]}).status_code == 204
    assert values(consumer.read_until(1)) == [1]
    assert consumer.read(timeout_ms=200) == []
    assert error_of(consumer.post("subscription", {"topics": [topic]})) == (409, 40903)
    assert consumer.client.delete(f"{consumer.uri}/subscription").status_code == 204
    consumer.subscribe(topic)
    assert sorted(values(consumer.read_until(3))) == [0, 1, 2]


def test_subscriptions_are_listed_replaced_and_ended(gateway: Gateway, topic: str) -> None:
    names = [f"{topic}-{letter}" for letter in "abc"]
    for name in names:
        gateway.broker.produce(name, f'"{name[-1]}"')
    consumer = RestConsumer(gateway.client, format="json").subscribe(*names[:2])
    assert consumer.get("subscription").json() == {"topics": names[:2]}
    assert sorted(values(consumer.read_until(2))) == ["a", "b"]
    consumer.subscribe(names[2])
    assert consumer.get("subscription").json() == {"topics": [names[2]]}
    assert values(consumer.read_until(1)) == ["c"]
    assert error_of(consumer.post("subscription", {"topic_pattern": ".*"})) == (409, 40903)
    assert error_of(consumer.post("assignments", {"partitions": [at(topic, 0)]})) == (409, 40903)
    assert consumer.client.delete(f"{consumer.uri}/subscription").status_code == 204
    assert consumer.get("subscription").json() == {"topics": []}
    assert error_of(consumer.get("records")) == (409, 40903)


def test_a_pattern_is_for_whole_names(gateway: Gateway, topic: str) -> None:
    for name in (f"{topic}-1", f"{topic}-22", f"x{topic}-1"):
        gateway.broker.produce(name, f'"{name}"')
    consumer = RestConsumer(gateway.client, format="json")
    assert consumer.post("subscription", {"topic_pattern": f"{topic}-[0-9]+"}).status_code == 204
    assert sorted(values(consumer.read_until(2))) == [f"{topic}-1", f"{topic}-22"]
    assert consumer.get("subscription").json() == {"topics": [f"{topic}-1", f"{topic}-22"]}


def test_a_new_instance_goes_on_after_the_commit(gateway: Gateway, topic: str) -> None:
    for number in range(6):
        gateway.broker.produce(topic, f"{number}")
    first = RestConsumer(gateway.client, format="json").subscribe(topic)
    assert values(first.read_until(6)) == [0, 1, 2, 3, 4, 5]
    assert first.committed() == {}
    # REST Proxy's commit names the last record that is done.
    done = {"offsets": [at(topic, 0, offset=2, metadata="up to two")]}
    assert first.post("offsets", done).json() == {"offsets": [at(topic, 0, offset=2)]}
    asked = [at(topic, 0, offset=3, metadata="up to two")]
    assert first.get("offsets", topic=topic, partition=0).json() == {"offsets": asked}
    body = {"partitions": [at(topic, 0), at(topic, 9)]}
    answer = gateway.client.request("GET", f"{first.uri}/offsets", json=body, headers={"Content-Type": V2})
    assert answer.json() == {"offsets": asked}
    first.delete()
    second = RestConsumer(gateway.client, first.group, format="json").subscribe(topic)
    assert values(second.read_until(3)) == [3, 4, 5]
    # Without a body: everything answered.
    assert second.post("offsets").json() == {"offsets": [at(topic, 0, offset=5)]}
    second.delete()
    third = RestConsumer(gateway.client, first.group, format="json").subscribe(topic)
    gateway.broker.produce(topic, "6")
    assert values(third.read_until(1)) == [6]
    # Back to the very beginning.
    assert third.post("offsets", {"offsets": [at(topic, 0, offset=-1)]}).status_code == 200
    assert third.committed() == {0: 0}


def test_auto_commit_commits_only_what_an_earlier_request_answered(gateway: Gateway, topic: str) -> None:
    for number in range(4):
        gateway.broker.produce(topic, f"{number}")
    consumer = RestConsumer(gateway.client, format="json", **{"auto.commit.enable": True}).subscribe(topic)
    until(consumer.partitions, "an assignment")
    assert values(consumer.read(20_000, max_bytes=1)) == [0]
    assert consumer.committed() == {}
    assert values(consumer.read(20_000, max_bytes=1)) == [1]
    until(lambda: consumer.committed() == {0: 1}, "the first record's commit")
    # Deleting says that the work is done.
    consumer.delete()
    assert list(gateway.broker.committed(consumer.group).values()) == [2]


@pytest.mark.parametrize(
    "options",
    [
        {"format": "avro"},
        {"format": "protobuf"},
        {"format": "xml"},
        {"format": 1},
        {"auto.offset.reset": "sometimes"},
        {"auto.commit.enable": "perhaps"},
        {"fetch.min.bytes": "many"},
        {"fetch.min.bytes": 10_000_001},
        {"consumer.request.timeout.ms": -1},
        {"isolation.level": "dirty"},
        {"name": ""},
        {"name": "a/b"},
        {"name": 7},
        {"maxWindowSize": "100000"},
    ],
)
def test_options_that_are_wrong_are_named(gateway: Gateway, options: dict[str, Any]) -> None:
    refused = post(gateway.client, "/consumers/wrong", options)
    assert error_of(refused) == (422, 42204)
    assert next(iter(options)) in refused.json()["message"]


def test_every_operation_on_an_unknown_instance_is_404(gateway: Gateway) -> None:
    uri = "/consumers/nobody/instances/nothing"
    client = gateway.client
    assert error_of(client.delete(uri)) == (404, 40403)
    for what in ("records", "offsets", "assignments", "subscription"):
        assert error_of(client.get(f"{uri}/{what}")) == (404, 40403)
    one = [at("t", 0)]
    bodies = {
        "subscription": {"topics": ["t"]},
        "assignments": {"partitions": one},
        "positions": {"offsets": [at("t", 0, offset=1)]},
        "positions/beginning": {"partitions": one},
        "positions/end": {"partitions": one},
        "offsets": {"offsets": [at("t", 0, offset=1)]},
    }
    for what, body in bodies.items():
        assert error_of(post(client, f"{uri}/{what}", body)) == (404, 40403)


@pytest.mark.parametrize(
    ("what", "body", "expected"),
    [
        ("subscription", {}, (422, 42206)),
        ("subscription", {"topics": []}, (422, 42206)),
        ("subscription", {"topics": "t"}, (422, 42206)),
        ("subscription", {"topics": ["a b"]}, (422, 42206)),
        ("subscription", {"topic_pattern": ""}, (422, 42206)),
        ("subscription", {"topics": ["t"], "topic_pattern": "t"}, (409, 40903)),
        ("assignments", {"partitions": [{"topic": "t"}]}, (422, 42206)),
        ("assignments", {"partitions": [{"topic": "t", "partition": "0"}]}, (422, 42206)),
        ("assignments", {"partitions": [{"partition": 0}]}, (422, 42206)),
        ("positions", {"offsets": [{"topic": "t", "partition": 0, "offset": -5}]}, (422, 42206)),
        ("positions/end", {}, (422, 42206)),
        ("offsets", {"offsets": [{"topic": "t", "partition": 0}]}, (422, 42206)),
        ("offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": 1, "metadata": 3}]}, (422, 42206)),
    ],
)
def test_wrong_bodies_are_refused(gateway: Gateway, what: str, body: Any, expected: tuple[int, int]) -> None:
    uri = RestConsumer(gateway.client).uri
    assert error_of(post(gateway.client, f"{uri}/{what}", body)) == expected
    assert error_of(gateway.client.post(f"{uri}/{what}", content=b"{", headers={"Content-Type": V2})) == (
        400,
        400,
    )
    answer = gateway.client.post(f"{uri}/{what}", content=b"{}", headers={"Content-Type": "text/plain"})
    assert error_of(answer) == (415, 415)


def test_a_pattern_that_is_no_regular_expression_is_refused(gateway: Gateway) -> None:
    consumer = RestConsumer(gateway.client)
    refused = consumer.post("subscription", {"topic_pattern": "a(["})
    assert refused.status_code in (400, 422)
    assert consumer.get("subscription").json() == {"topics": []}


def test_queries_that_are_wrong_are_refused(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    consumer = RestConsumer(gateway.client).subscribe(topic)
    for query in ({"timeout": "soon"}, {"timeout": -1}, {"max_bytes": "x"}, {"max_bytes": -2}):
        assert error_of(consumer.get("records", **query)) == (400, 400)
    assert error_of(consumer.get("offsets", topic=topic, partition="x")) == (400, 400)


def test_a_commit_for_a_topic_that_is_not_there_is_refused(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    consumer = RestConsumer(gateway.client).subscribe(topic)
    until(consumer.partitions, "an assignment")
    refused = consumer.post("offsets", {"offsets": [at(f"{topic}-not", 0, offset=1)]})
    assert error_of(refused) == (404, 40402)


def test_without_a_position_and_a_reset_the_caller_decides(gateway: Gateway, topic: str) -> None:
    gateway.broker.produce(topic, "1")
    consumer = RestConsumer(gateway.client, format="json", **{"auto.offset.reset": "none"}).subscribe(topic)
    until(consumer.partitions, "an assignment")
    refused = until(lambda: (found := consumer.get("records")).status_code != 200 and found, "the refusal")
    assert error_of(refused) == (409, 40903)
    assert consumer.post("positions/beginning", {"partitions": [at(topic, 0)]}).status_code == 204
    assert values(consumer.read_until(1)) == [1]
