"""Transactional producers that send exactly the given requests, valid or not."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.diff.batches import TRANSACTIONAL, batch, records
from bench.diff.messages import Tree
from bench.diff.script import REPLY_SECONDS, Script, SetupError, Topic

OK = "NONE(0)"
# Errors that mean "try again".
UNSETTLED = {
    "COORDINATOR_LOAD_IN_PROGRESS(14)",
    "COORDINATOR_NOT_AVAILABLE(15)",
    "NOT_COORDINATOR(16)",
    "CONCURRENT_TRANSACTIONS(51)",
}
PAUSE_SECONDS = 0.01
# Records are older than any marker, however fast the machine.
AGE_MS = 600_000
TIMEOUT_MS = 60_000
# The last version of each API that an older client used, and the first of a newer one.
OLDER = {"add_partitions_to_txn": 3, "txn_offset_commit": 4, "end_txn": 4, "produce": 11}
NEWER = {"add_partitions_to_txn": 3, "txn_offset_commit": 5, "end_txn": 5, "produce": 12}
BOTH = {"init_producer_id": 5, "add_offsets_to_txn": 4, "fetch": 12}
BATCHED_ADDING_SINCE = 4
READ_COMMITTED = 1


def settled(s: Script, request: dict[str, Any], label: str | None = None, **options: Any) -> Tree:
    """Repeat a request until the response is final; record that response if it has a label."""
    deadline = time.monotonic() + REPLY_SECONDS
    keep = options.pop("keep", None)
    while True:
        tree = s.tell(request, **options)
        if not _is_unsettled(tree) or time.monotonic() > deadline:
            break
        time.sleep(PAUSE_SECONDS)
    if label is not None:
        name_producers(s, tree)
        s.note(label, keep(tree) if keep and isinstance(tree, dict) else tree, request)
    return tree


def _is_unsettled(tree: Tree) -> bool:
    if isinstance(tree, dict):
        return any(_is_unsettled(value) for value in tree.values())
    if isinstance(tree, list):
        return any(_is_unsettled(item) for item in tree)
    return tree in UNSETTLED


def name_producers(s: Script, tree: Tree) -> None:
    """Ids in the order in which InitProducerId and EndTxn gave them out are the same on every broker."""
    given = tree.get("producer_id", -1) if isinstance(tree, dict) else -1
    if given >= 0:
        s.facts.producer_ids.setdefault(given, f"<producer {len(s.facts.producer_ids) + 1}>")


def init_request(transactional_id: str | None, **more: Any) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "transaction_timeout": TIMEOUT_MS,
        "producer_id": -1,
        "producer_epoch": -1,
        **more,
    }


def adding_request(
    version: int,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    partitions: Sequence[tuple[str, list[int]]],
    *,
    verify_only: bool = False,
) -> dict[str, Any]:
    """AddPartitionsToTxn: one transaction in its own fields, from version 4 on a list of transactions."""
    topics = [{"name": name, "partitions": indexes} for name, indexes in partitions]
    if version < BATCHED_ADDING_SINCE:
        return {
            "v3_and_below_transactional_id": transactional_id,
            "v3_and_below_producer_id": producer_id,
            "v3_and_below_producer_epoch": epoch,
            "v3_and_below_topics": topics,
        }
    only = {
        "transactional_id": transactional_id,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "verify_only": verify_only,
        "topics": topics,
    }
    return {"transactions": [only]}


@dataclass
class TransactionalProducer:
    script: Script
    name: str = "tx"
    is_newer: bool = False
    timeout_ms: int = TIMEOUT_MS
    id: int = -1
    epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def transactional_id(self) -> str:
        return self.script.name(self.name)

    def version(self, api: str) -> int:
        if api == self.script.api:
            return self.script.version
        return (BOTH | (NEWER if self.is_newer else OLDER))[api]

    def identity(self, **more: Any) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            **more,
        }

    def init(self, label: str | None = None, **more: Any) -> Tree:
        """A new epoch, or what was answered instead."""
        request = init_request(self.transactional_id, transaction_timeout=self.timeout_ms, **more)
        tree = self._settled("init_producer_id", request, label)
        if tree["error_code"] == OK:
            self.id, self.epoch = tree["producer_id"], tree["producer_epoch"]
            self.sequences.clear()
        elif label is None:
            raise SetupError(f"no producer id for {self.name}: {tree}")
        return tree

    def add(self, topic: Topic, *partitions: int, label: str | None = None, **more: Any) -> Tree:
        who = self.identity(**more)
        request = adding_request(
            self.version("add_partitions_to_txn"),
            who["transactional_id"],
            who["producer_id"],
            who["producer_epoch"],
            [(topic.name, list(partitions) or [0])],
        )
        return self._settled("add_partitions_to_txn", request, label)

    def add_offsets(self, group: str, label: str | None = None, **more: Any) -> Tree:
        return self._settled("add_offsets_to_txn", self.identity(group_id=group, **more), label)

    def commit_offsets(
        self, group: str, topic: Topic, offset: int, label: str | None = None, **more: Any
    ) -> Tree:
        request = {**offsets_request(group, topic, offset), **self.identity(), **more}
        return self._settled("txn_offset_commit", request, label)

    def batch(self, sequence: int, count: int = 1, **header: Any) -> bytes:
        header = {"producer_id": self.id, "producer_epoch": self.epoch, "flags": TRANSACTIONAL, **header}
        # Markers have the broker's time: records of another week would be in another segment.
        items = records(count, timestamp_ms=first_ms(self.script))
        return batch(items, base_sequence=sequence, **header)

    def write_request(self, topic: Topic, partition: int, data: bytes, **more: Any) -> dict[str, Any]:
        part = {"index": partition, "records": data}
        return {
            "transactional_id": self.transactional_id,
            "acks": -1,
            "timeout": 10000,
            "topic_data": [{"name": topic.name, "topic_id": topic.id, "partition_data": [part]}],
            **more,
        }

    def write(
        self,
        topic: Topic,
        partition: int = 0,
        *,
        label: str | None = None,
        count: int = 1,
        sequence: int | None = None,
        header: dict[str, Any] | None = None,
        **more: Any,
    ) -> Tree:
        """A batch with the next sequence unless told otherwise; the sequence moves on when it was taken."""
        where = (topic.name, partition)
        first = self.sequences.get(where, 0) if sequence is None else sequence
        request = self.write_request(topic, partition, self.batch(first, count, **(header or {})), **more)
        tree = self._settled("produce", request, label)
        error = tree["responses"][0]["partition_responses"][0]["error_code"]
        if error == OK and sequence is None:
            self.sequences[where] = first + count
        if error != OK and label is None:
            raise SetupError(f"{self.name} could not write: {tree}")
        return tree

    def begin(self, topic: Topic, partition: int = 0) -> None:
        """A transaction with one record in it, in the way of this kind of client."""
        if not self.is_newer:
            self.add(topic, partition)
        self.write(topic, partition)

    def end(self, is_commit: bool = True, label: str | None = None, **more: Any) -> Tree:
        tree = self._settled("end_txn", self.identity(committed=is_commit, **more), label)
        if tree["error_code"] == OK and tree.get("producer_id", -1) >= 0:
            if (tree["producer_id"], tree["producer_epoch"]) != (self.id, self.epoch):
                self.sequences.clear()
            self.id, self.epoch = tree["producer_id"], tree["producer_epoch"]
            name_producers(self.script, tree)
        if label is None and tree["error_code"] != OK:
            raise SetupError(f"{self.name} could not end: {tree}")
        return tree

    def describe(self, label: str | None = None) -> Tree:
        """Its state, once it is one that lasts."""
        request = {"transactional_ids": [self.transactional_id]}
        tree = self.script.await_answer(
            lambda: self.script.tell(request, api="describe_transactions", version=0),
            lambda tree: "Prepare" not in tree["transaction_states"][0]["transaction_state"],
        )
        if label is not None:
            self.script.note(label, sorted_topics(tree), request)
        return tree

    def await_state(self, state: str) -> None:
        self.script.await_answer(
            lambda: self.script.tell(
                {"transactional_ids": [self.transactional_id]}, api="describe_transactions", version=0
            ),
            lambda tree: bool(tree["transaction_states"][0]["transaction_state"] == state),
        )

    def await_end(self, is_commit: bool = True) -> None:
        self.await_state("CompleteCommit" if is_commit else "CompleteAbort")

    def _settled(self, api: str, request: dict[str, Any], label: str | None) -> Tree:
        tree = settled(self.script, request, label, api=api, version=self.version(api))
        name_producers(self.script, tree)
        return tree


def offsets_request(group: str, topic: Topic, offset: int, partition: int = 0) -> dict[str, Any]:
    """TxnOffsetCommit without a producer or a member."""
    which = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    return {
        "group_id": group,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic.name, "partitions": [which]}],
    }


def new_producer(s: Script, name: str = "tx", **settings: Any) -> TransactionalProducer:
    """A transactional id that has its first epoch."""
    producer = TransactionalProducer(s, name, **settings)
    await_coordinator(s, producer.transactional_id)
    producer.init()
    return producer


def await_coordinator(s: Script, transactional_id: str) -> None:
    """Kafka makes the topic of the transactions on first use."""
    look = {"key": transactional_id, "key_type": 1}
    s.await_answer(
        lambda: s.tell(look, api="find_coordinator", version=1), lambda tree: bool(tree["error_code"] == OK)
    )


def first_ms(s: Script) -> int:
    """The time of every first record."""
    return s.wall_ms - AGE_MS


def read(s: Script, label: str, topic: Topic, offset: int = 0, partition: int = 0) -> None:
    """The records that consumers of both isolation levels get, whatever the script's version."""
    for name, level in (("read uncommitted", 0), ("read committed", READ_COMMITTED)):
        s.ask(
            f"{label}, {name}",
            fetch_request(topic, offset, partition, level),
            api="fetch",
            version=BOTH["fetch"],
        )


def fetch_request(
    topic: Topic, offset: int = 0, partition: int = 0, isolation_level: int = READ_COMMITTED
) -> dict[str, Any]:
    part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 10_000_000}
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 10_000_000,
        "isolation_level": isolation_level,
        "topics": [{"topic": topic.name, "topic_id": topic.id, "partitions": [part]}],
    }


def sorted_topics(tree: dict[str, Any]) -> dict[str, Any]:
    """DescribeTransactions: Kafka keeps the partitions of a transaction in a hash map."""
    states = []
    for state in sorted(tree["transaction_states"], key=lambda one: str(one["transactional_id"])):
        topics = [{**one, "partitions": sorted(one["partitions"])} for one in state["topics"]]
        states.append({**state, "topics": sorted(topics, key=lambda one: str(one["topic"]))})
    return {**tree, "transaction_states": states}


def in_every_state(
    s: Script, topic: Topic, prefix: str = "", **settings: Any
) -> Iterator[tuple[str, TransactionalProducer]]:
    """A transactional id for each state that lasts, named by it."""
    for state in ("empty", "ongoing", "committed", "aborted"):
        label = f"{prefix}{state}"
        producer = new_producer(s, label.replace(" ", "-"), **settings)
        if state != "empty":
            producer.begin(topic)
        if state in ("committed", "aborted"):
            producer.end(state == "committed")
            producer.await_end(state == "committed")
        yield label, producer
