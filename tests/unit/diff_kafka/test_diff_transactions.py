"""The transactional producers of `make diff-kafka`, against a broker with scripted answers."""

from __future__ import annotations

import struct
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import bench.diff.cases
import bench.diff.script
import pytest
from bench.diff.batches import CONTROL, TRANSACTIONAL, Record, batch, describe
from bench.diff.messages import decode
from bench.diff.normalise import Facts, normalise, shorten
from bench.diff.script import Script, SetupError, Topic
from bench.diff.transactions import NEWER, OLDER, TransactionalProducer, adding_request, settled

CONCURRENT = {"error_code": "CONCURRENT_TRANSACTIONS(51)"}
OK = {"error_code": "NONE(0)"}


@dataclass
class Answering(Script):
    """A script whose broker gives prepared answers; what was asked is kept."""

    host: str = ""
    port: int = 0
    shared: dict[str, range] = field(default_factory=dict)
    wall_ms: int = 1_000_000
    prepared: list[Any] = field(default_factory=list)
    asked: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)

    def tell(self, request: dict[str, Any], **options: Any) -> Any:
        self.asked.append((options["api"], options["version"], request))
        return self.prepared.pop(0)

    def topic(self, label: str, partitions: int = 1, **configs: str) -> Topic:
        raise NotImplementedError


def written(error: str) -> dict[str, Any]:
    return {"responses": [{"partition_responses": [{"error_code": error}]}]}


def test_only_the_settled_answer_is_recorded() -> None:
    nested = {"topics": [{"partitions": [{"error_code": "COORDINATOR_NOT_AVAILABLE(15)"}]}]}
    s = Answering(prepared=[CONCURRENT, nested, OK])
    settled(s, {"a": 1}, "end", api="end_txn", version=4)
    assert len(s.asked) == 3
    assert [answer.tree for answer in s.answers.values()] == [OK]


def test_a_producer_goes_on_with_what_it_was_given() -> None:
    s = Answering(prepared=[{**OK, "producer_id": 7, "producer_epoch": 0}, written("NONE(0)")])
    p, topic = TransactionalProducer(s, is_newer=True), Topic("t", uuid.UUID(int=1))
    p.init()
    p.write(topic, count=3)
    s.prepared = [written("INVALID_TXN_STATE(48)"), {**OK, "producer_id": 7, "producer_epoch": 1}]
    p.write(topic, label="refused")
    assert p.sequences == {("t", 0): 3}
    p.end()
    assert (p.id, p.epoch, p.sequences) == (7, 1, {})
    assert [(api, version) for api, version, _ in s.asked[1:]] == [
        ("produce", NEWER["produce"]),
        ("produce", NEWER["produce"]),
        ("end_txn", NEWER["end_txn"]),
    ]
    described = describe(s.asked[2][2]["topic_data"][0]["partition_data"][0]["records"])
    assert (described[0]["base_sequence"], described[0]["attributes"]) == (3, "0x10")


def test_an_older_producer_keeps_its_epoch_and_its_sequences() -> None:
    s = Answering(prepared=[OK])
    p = TransactionalProducer(s, id=7, epoch=4, sequences={("t", 0): 3})
    p.end()
    assert (p.id, p.epoch, p.sequences) == (7, 4, {("t", 0): 3})
    assert s.asked[0][1] == OLDER["end_txn"]


def test_the_version_of_the_script_goes_before_that_of_the_client() -> None:
    s = Answering(api="end_txn", version=1, prepared=[OK])
    TransactionalProducer(s, is_newer=True, id=7, epoch=0).end()
    assert s.asked[0][1] == 1


@pytest.mark.parametrize("act", [lambda p: p.init(), lambda p: p.end()])
def test_unexpected_refusal_stops_the_script(act: Callable[[Any], Any]) -> None:
    s = Answering(prepared=[{"error_code": "PRODUCER_FENCED(90)"}])
    with pytest.raises(SetupError, match="PRODUCER_FENCED"):
        act(TransactionalProducer(s, id=7, epoch=0))


def test_partitions_are_added_in_the_form_of_the_version() -> None:
    single = adding_request(3, "tx", 7, 1, [("t", [0, 1])])
    batched = adding_request(4, "tx", 7, 1, [("t", [0, 1])], verify_only=True)
    assert single["v3_and_below_topics"] == batched["transactions"][0]["topics"]
    assert batched["transactions"][0]["verify_only"] is True


def test_a_marker_is_shown_without_its_time() -> None:
    def marker(timestamp_ms: int) -> bytes:
        record = Record(struct.pack(">hi", 0, 3), struct.pack(">hh", 0, 1), timestamp_ms=timestamp_ms)
        return batch([record], flags=TRANSACTIONAL | CONTROL)

    first, second = describe(marker(5)), describe(marker(9))
    assert first[0]["records"] == second[0]["records"] == ["control 00000001=000000000003"]


def test_a_transaction_that_never_began_can_be_read() -> None:
    state = b"\0\0" + b"\x03tx" + b"\x06Empty" + struct.pack(">iqqh", 60_000, -1, 7, 2) + b"\x01" + b"\0"
    tree = decode("describe_transactions", 0, struct.pack(">i", 1) + b"\0" + b"\0\0\0\0\x02" + state + b"\0")
    assert tree["transaction_states"] == [
        {
            "error_code": "NONE(0)",
            "transactional_id": "tx",
            "transaction_state": "Empty",
            "transaction_timeout": 60_000,
            "transaction_start_time": -1,
            "producer_id": 7,
            "producer_epoch": 2,
            "topics": [],
        }
    ]


def test_producer_ids_have_the_same_names_in_requests_and_answers() -> None:
    facts = Facts(producer_ids={7: "<producer 1>"})
    assert shorten({"v3_and_below_producer_id": 7, "transactions": [{"producer_id": 8}]}, facts) == {
        "v3_and_below_producer_id": "<producer 1>",
        "transactions": [{"producer_id": 8}],
    }
    assert normalise({"ongoing_txn_producer_id": 7, "producer_epoch": 7}, facts) == {
        "ongoing_txn_producer_id": "<producer 1>",
        "producer_epoch": 7,
    }


def test_every_script_has_a_name_of_its_own() -> None:
    names = Counter((item.api, item.name) for item in bench.diff.script.CASES)
    assert [name for name, count in names.items() if count > 1] == []
