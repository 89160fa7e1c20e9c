"""One broker and what lives in it: topics, groups and transactions of the administrator, and the users' connections."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from bench.diff.acls.brokers import PROBE, Doors
from bench.diff.acls.questions import Question
from bench.diff.acls.requests.dice import (
    CONSUMER_GROUP,
    GROUPS,
    OPEN_TRANSACTION,
    TOPICS,
    TRANSACTIONAL_IDS,
)
from bench.diff.acls.rules import ALL, ALLOW, DENY, LITERAL, TOPIC, Rule
from bench.diff.batches import batch, records
from bench.diff.connection import Connection, Silence
from bench.diff.messages import Tree, decode, encode

HOST = "127.0.0.1"
REPLY_SECONDS = 10.0
READY_SECONDS = 60.0
NONE = "NONE(0)"
CLIENT_ID = "diff-acls"
RESOLVED_SECONDS = 2.0
TOPIC_DENIED = "TOPIC_AUTHORIZATION_FAILED(29)"


class WorldError(RuntimeError):
    """A broker rejected what the administrator needs."""


class World:
    def __init__(self, name: str, doors: Doors) -> None:
        self.name = name
        self._doors = doors
        self._admin: Connection | None = None
        self._users: dict[tuple[str, str], Connection] = {}
        self._correlation_id = 0
        self._applied = 0
        self.topic_ids: dict[str, uuid.UUID] = {}

    def close(self) -> None:
        for connection in [*self._users.values(), *([self._admin] if self._admin else [])]:
            connection.close()

    # -- questions -------------------------------------------------------------------------------------------------

    def ask(self, user: str, host: str, question: Question) -> Tree:
        connection = self._users.get((user, host))
        if connection is None or not connection.is_open:
            connection = self._users[user, host] = self._log_in(user, host)
        request = question.for_broker(self.topic_ids)
        return self._exchange(connection, question.api, question.version, request)

    def admin(self, api: str, version: int, request: dict[str, Any]) -> Tree:
        if self._admin is None or not self._admin.is_open:
            self._admin = Connection(HOST, self._doors.admin, REPLY_SECONDS)
        return self._exchange(self._admin, api, version, request)

    def _log_in(self, user: str, host: str) -> Connection:
        connection = Connection(HOST, self._doors.users, REPLY_SECONDS, from_host=host)
        self._exchange(connection, "sasl_handshake", 1, {"mechanism": "PLAIN"})
        token = f"\0{user}\0{user}".encode()
        answer = self._exchange(connection, "sasl_authenticate", 2, {"auth_bytes": token})
        if not isinstance(answer, dict) or answer["error_code"] != NONE:
            raise WorldError(f"{self.name} does not let {user} in: {answer}")
        return connection

    def _exchange(self, connection: Connection, api: str, version: int, request: dict[str, Any]) -> Tree:
        self._correlation_id += 1
        connection.send(encode(api, version, request, self._correlation_id, CLIENT_ID))
        reply = connection.receive(REPLY_SECONDS)
        if isinstance(reply, Silence):
            connection.close()
            return reply.value
        try:
            return decode(api, version, reply)
        except Exception as error:
            # Whatever kio raises on bytes that are no answer of this version, the finding is the same.
            return f"cannot be decoded ({type(error).__name__}): {reply[:60].hex()}"

    def assigned_by_expression(self, user: str, host: str, group: str, expression: str) -> Tree:
        """The topics that a member of a new group gets for a regular expression, or the error code."""
        request: dict[str, Any] = {
            "group_id": group,
            "member_id": str(uuid.uuid4()),
            "member_epoch": 0,
            "rebalance_timeout": 60_000,
            "subscribed_topic_regex": expression,
            "topic_partitions": [],
        }
        # An expression is resolved after the request that brings it; nothing tells that it matches no topic.
        deadline = time.monotonic() + RESOLVED_SECONDS
        while True:
            answer = self.ask(user, host, Question("consumer_group_heartbeat", 1, request))
            if not isinstance(answer, dict) or answer["error_code"] != NONE:
                return answer if isinstance(answer, str) else answer["error_code"]
            owned = answer["assignment"] and answer["assignment"]["topic_partitions"]
            request = request | {"member_epoch": answer["member_epoch"], "subscribed_topic_regex": None}
            request["topic_partitions"] = request["topic_partitions"] if owned is None else owned
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        self.ask(user, host, Question("consumer_group_heartbeat", 1, request | {"member_epoch": -1}))
        names = {known: name for name, known in self.topic_ids.items()}
        return sorted(names.get(each["topic_id"], "another") for each in request["topic_partitions"])

    # -- ACLs ------------------------------------------------------------------------------------------------------

    def set_rules(self, rules: Sequence[Rule]) -> None:
        """Replace all ACLs, and return when broker and controller decide by the new ones."""
        everything = {
            "resource_type_filter": 1,
            "pattern_type_filter": 1,
            "operation": 1,
            "permission_type": 1,
        }
        self._need(self.admin("delete_acls", 3, {"filters": [everything]}), "filter_results")
        self._applied += 1
        allowing = Rule(TOPIC, f"probe-{self._applied}", LITERAL, f"User:{PROBE}", "*", ALL, ALLOW)
        self._create_rules([allowing])
        self._until(lambda: self._is_probe_allowed(allowing.resource_name) is True, "the old ACLs are gone")
        # Now only what comes next can deny it, and the changes of one request take effect together.
        self._create_rules([*rules, allowing._replace(permission_type=DENY)])
        self._until(lambda: self._is_probe_allowed(allowing.resource_name) is False, "the new ACLs are there")

    def _create_rules(self, rules: Sequence[Rule]) -> None:
        creations = [rule._asdict() for rule in rules]
        self._need(self.admin("create_acls", 3, {"creations": creations}), "results")

    def _is_probe_allowed(self, topic: str) -> bool | None:
        """None while broker and controller, which decide about one of these APIs each, do not agree."""
        new = {"name": topic, "count": 2, "assignments": None}
        by_controller = Question(
            "create_partitions", 3, {"timeout": 1000, "validate_only": True, "topics": [new]}
        )
        by_broker = Question(
            "metadata", 12, {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        )
        codes = [
            self.ask(PROBE, HOST, question)[field][0]["error_code"]
            for question, field in ((by_controller, "results"), (by_broker, "topics"))
        ]
        return codes[0] != TOPIC_DENIED if codes[0] == codes[1] else None

    # -- what there is ---------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self.restore_topics()
        for group in GROUPS:
            self._until(lambda group=group: self._has_committed(group), f"group {group}")  # type: ignore[misc]
        self._until(self._has_member, f"group {CONSUMER_GROUP}")
        for name in (*TRANSACTIONAL_IDS, OPEN_TRANSACTION):
            self._until(lambda name=name: self._init_producer(name) is not None, f"transactional id {name}")  # type: ignore[misc]
        self._open_transaction()

    def restore_topics(self, deleted: Sequence[uuid.UUID] = ()) -> None:
        """Create what users deleted, or what was never there. A broker may know a topic a little longer."""
        self._until(
            lambda: all(each["topic_id"] not in deleted for each in self._describe_topics().values()),
            "deleted topics are gone",
        )
        missing = [name for name in TOPICS if name not in self._describe_topics()]
        if missing:
            configs = [{"name": "retention.ms", "value": "-1"}]
            of_each = {"num_partitions": 1, "replication_factor": 1, "configs": configs}
            topics = [{"name": name, **of_each} for name in missing]
            self._until(
                lambda: all(
                    each["error_code"] in (NONE, "TOPIC_ALREADY_EXISTS(36)")
                    for each in self.admin("create_topics", 7, {"timeout": 5000, "topics": topics})["topics"]
                ),
                "topics are created",
            )
        self._until(lambda: set(self._describe_topics()) >= set(TOPICS), "topics are there")
        self.topic_ids = {name: each["topic_id"] for name, each in self._describe_topics().items()}
        for name in missing:
            self._until(lambda name=name: self._has_produced(name), f"a record in {name}")  # type: ignore[misc]

    def _describe_topics(self) -> dict[str, Any]:
        wanted = [{"name": name} for name in TOPICS]
        answer = self.admin("metadata", 12, {"topics": wanted, "allow_auto_topic_creation": False})
        return {
            each["name"]: each
            for each in answer["topics"]
            if each["error_code"] == NONE and each["partitions"][0]["leader_id"] >= 0
        }

    def _has_produced(self, name: str) -> bool:
        data = [{"index": 0, "records": batch(records(1))}]
        request = {"acks": -1, "timeout": 5000, "topic_data": [{"name": name, "partition_data": data}]}
        answer = self.admin("produce", 9, request)
        return bool(answer["responses"][0]["partition_responses"][0]["error_code"] == NONE)

    def _has_committed(self, group: str) -> bool:
        self.admin("find_coordinator", 3, {"key": group, "key_type": 0})
        which = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
        request = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": name, "partitions": which} for name in TOPICS],
        }
        answer = self.admin("offset_commit", 8, request)
        return all(p["error_code"] == NONE for t in answer["topics"] for p in t["partitions"])

    def _has_member(self) -> bool:
        request = {
            "group_id": CONSUMER_GROUP,
            "member_id": str(uuid.uuid5(uuid.NAMESPACE_DNS, "member")),
            "member_epoch": 0,
            "rebalance_timeout": 60_000,
            "subscribed_topic_names": ["a", "b"],
            "topic_partitions": [],
        }
        answer = self.admin("consumer_group_heartbeat", 1, request)
        return bool(answer["error_code"] == NONE and answer["assignment"] is not None)

    def _init_producer(self, name: str) -> tuple[int, int] | None:
        self.admin("find_coordinator", 3, {"key": name, "key_type": 1})
        request = {
            "transactional_id": name,
            "transaction_timeout": 7_200_000,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = self.admin("init_producer_id", 4, request)
        return (answer["producer_id"], answer["producer_epoch"]) if answer["error_code"] == NONE else None

    def _open_transaction(self) -> None:
        """With a topic of two kinds of names, so that a user may see one of them."""
        producer = self._init_producer(OPEN_TRANSACTION)
        if producer is None:
            raise WorldError(f"{self.name} does not give {OPEN_TRANSACTION} a producer id")
        request = {
            "v3_and_below_transactional_id": OPEN_TRANSACTION,
            "v3_and_below_producer_id": producer[0],
            "v3_and_below_producer_epoch": producer[1],
            "v3_and_below_topics": [{"name": name, "partitions": [0]} for name in ("a", "b")],
        }
        answer = self.admin("add_partitions_to_txn", 3, request)
        if NONE not in str(answer):
            raise WorldError(f"{self.name} opens no transaction: {answer}")

    def _need(self, answer: Tree, field: str) -> None:
        if not isinstance(answer, dict) or any(each["error_code"] != NONE for each in answer[field]):
            raise WorldError(f"{self.name} refuses ACLs: {answer}")

    def _until(self, is_ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not is_ready():
            if time.monotonic() > deadline:
                raise WorldError(f"{self.name}: it did not come to it that {what}")
            time.sleep(0.01)
