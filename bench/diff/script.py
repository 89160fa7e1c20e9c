"""The operations of a script on a broker, and the register of scripts."""

from __future__ import annotations

import fnmatch
import struct
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.diff import batches
from bench.diff.connection import Connection, Silence
from bench.diff.messages import KEYS, Tree, decode, encode, versions_known
from bench.diff.normalise import Facts, normalise, shorten

REPLY_SECONDS = 10.0
# For questions that Kafka is known to leave unanswered.
SILENT_SECONDS = 2.0
TOPIC_RESOURCE = 2
LOADING = "COORDINATOR_LOAD_IN_PROGRESS(14)"
ABORTED = "cannot go on"
CLIENT_ID = "diff"
USUAL = "usual"
Ranges = dict[str, range]


@dataclass(frozen=True)
class Case:
    api: str
    name: str
    run: Callable[[Script], None]
    since: int
    until: int
    only_ends: bool
    only: tuple[int, ...]
    pair: str

    def versions(self, shared: Ranges) -> list[int]:
        span = [v for v in shared.get(self.api, range(0)) if self.since <= v <= self.until]
        if self.only:
            return [v for v in span if v in self.only]
        return [span[0], span[-1]] if self.only_ends and len(span) > 2 else span


CASES: list[Case] = []


def case(
    api: str,
    *,
    since: int = 0,
    until: int = 999,
    only_ends: bool = False,
    only: tuple[int, ...] = (),
    pair: str = USUAL,
) -> Callable[[Callable[[Script], None]], Callable[[Script], None]]:
    """Register a script for `api`; it runs for every version both brokers and kio have, within the bounds.

    `pair` names the brokers that are asked, by their settings (`brokers.PAIRS`).
    """

    def register(run: Callable[[Script], None]) -> Callable[[Script], None]:
        CASES.append(Case(api, run.__name__.replace("_", " "), run, since, until, only_ends, only, pair))
        return run

    return register


@dataclass(frozen=True)
class Key:
    api: str
    version: int
    case: str


@dataclass(frozen=True)
class Answer:
    request: Any
    tree: Tree


@dataclass(frozen=True)
class Topic:
    name: str
    id: uuid.UUID


@dataclass(frozen=True)
class Pending:
    """A request whose response has not been read yet."""

    api: str
    version: int
    request: dict[str, Any]
    connection: Connection


class SetupError(RuntimeError):
    """A broker rejected a step that a script needs before its actual request."""


@dataclass
class Script:
    """One broker under question."""

    host: str
    port: int
    shared: Ranges
    wall_ms: int
    answers: dict[Key, Answer] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    api: str = ""
    version: int = 0
    case_name: str = ""
    _connection: Connection | None = None
    _named_connections: dict[str, Connection] = field(default_factory=dict)
    _correlation_id: int = 0
    _marker: Topic | None = None
    _changes: int = 0

    def run(self, item: Case, version: int) -> None:
        self.api, self.version, self.case_name = item.api, version, item.name
        self.facts.prefix = self.name("")
        self.facts.producer_ids.clear()
        self.facts.member_ids.clear()
        try:
            item.run(self)
        except (SetupError, LookupError, TypeError) as error:
            # An answer that the script did not foresee is a difference, not a crash.
            self.note(ABORTED, f"{type(error).__name__}: {error}")
        self._close_named()

    def close(self) -> None:
        self._close_named()
        if self._connection is not None:
            self._connection.close()

    def _close_named(self) -> None:
        for connection in self._named_connections.values():
            connection.close()
        self._named_connections.clear()

    def name(self, label: str) -> str:
        """A topic's name, new in each run so that a broker can be used again."""
        script = f"{self.api.replace('_', '-')}-{self.case_name.replace(' ', '-')}"
        return f"{script}-v{self.version}-{self.wall_ms:x}-{label}"

    def note(self, label: str, tree: Tree, request: Any = None) -> None:
        key = Key(self.api, self.version, f"{self.case_name}: {label}" if label else self.case_name)
        if key in self.answers:
            raise ValueError(f"two answers are called {key}")
        self.answers[key] = Answer(shorten(request, self.facts), normalise(tree, self.facts))

    def ask(self, label: str, request: dict[str, Any], **options: Any) -> Tree:
        """Send a request, record the response under `label` and return it; `options` as for `tell`."""
        keep = options.pop("keep", None)
        tree = self.tell(request, **options)
        self.note(label, keep(tree) if keep and isinstance(tree, dict) else tree, request)
        return tree

    def ask_timed(self, label: str, request: dict[str, Any], mark_seconds: float) -> Tree:
        """As `ask`, and record on which side of a mark the response arrived; marks leave room for slow machines."""
        started = time.monotonic()
        tree = self.ask(label, request)
        is_late = time.monotonic() - started >= mark_seconds
        self.note(f"{label}, time", f"{'after' if is_late else 'before'} {mark_seconds} s", request)
        return tree

    def tell(
        self,
        request: dict[str, Any],
        *,
        api: str | None = None,
        version: int | None = None,
        timeout_seconds: float = REPLY_SECONDS,
    ) -> Tree:
        api, version = api or self.api, self.version if version is None else version
        deadline = time.monotonic() + timeout_seconds
        while True:
            payload = encode(api, version, request, self._next_id(), CLIENT_ID)
            tree = self._decoded(api, version, self._exchange(payload, timeout_seconds))
            is_loading = isinstance(tree, dict) and tree.get("error_code") == LOADING
            if not is_loading or time.monotonic() > deadline:
                return tree

    def send(
        self, request: dict[str, Any], *, over: str, api: str | None = None, version: int | None = None
    ) -> Pending:
        """Send over the connection called `over`, opened on first use and closed after the case."""
        api, version = api or self.api, self.version if version is None else version
        connection = self._named_connections.get(over)
        if connection is None or not connection.is_open:
            connection = Connection(self.host, self.port, REPLY_SECONDS)
            self._named_connections[over] = connection
        connection.send(encode(api, version, request, self._next_id(), CLIENT_ID))
        return Pending(api, version, request, connection)

    def receive(
        self, pending: Pending, label: str | None = None, timeout_seconds: float = REPLY_SECONDS
    ) -> Tree:
        """The answer to what was sent, recorded under `label` if there is one. Answers come in the order of sending."""
        reply = pending.connection.receive(timeout_seconds)
        tree = self._decoded(pending.api, pending.version, reply)
        if label is not None:
            self.note(label, tree, pending.request)
        return tree

    def disconnect(self, over: str) -> None:
        """Close the connection of that name, whatever is under way on it."""
        self._named_connections.pop(over).close()

    def ask_raw(self, label: str, key: int, version: int, body: bytes, *, header_version: int = 1) -> None:
        """Send a body as it stands; record whether anything came back."""
        reply = self.tell_raw(key, version, body, header_version=header_version)
        shown = reply.value if isinstance(reply, Silence) else "a reply"
        self.note(label, shown, f"api key {key}, version {version}, {len(body)} bytes: {body[:40].hex()}")

    def tell_raw(self, key: int, version: int, body: bytes, *, header_version: int = 1) -> bytes | Silence:
        payload = struct.pack(">hhih", key, version, self._next_id(), len(CLIENT_ID)) + CLIENT_ID.encode()
        payload += b"\x00" if header_version == 2 else b""
        return self._exchange(payload + body, REPLY_SECONDS)

    def ask_without_reply(self, label: str, request: dict[str, Any]) -> None:
        """For acks=0: record whether the first response is its own, or that of the ApiVersions request sent next."""
        connection = self._connected()
        connection.send(encode(self.api, self.version, request, self._next_id(), CLIENT_ID))
        probe = self._next_id()
        connection.send(encode("api_versions", 0, {}, probe, CLIENT_ID))
        reply = connection.receive(REPLY_SECONDS)
        if isinstance(reply, Silence):
            self.note(label, reply.value, request)
        else:
            first = struct.unpack_from(">i", reply)[0]
            self.note(label, "no reply, connection open" if first == probe else "a reply", request)
        connection.close()

    def topic(self, label: str, partitions: int = 1, **configs: str) -> Topic:
        """A new topic whose records never expire, though their fixed timestamps are long past."""
        name = self.name(label)
        settings = {"retention_ms": "-1", **configs}
        request = {
            "topics": [
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "configs": [{"name": k.replace("_", "."), "value": v} for k, v in settings.items()],
                }
            ],
            "timeout": 10000,
        }
        reply = self.tell(request, api="create_topics", version=min(7, self.shared["create_topics"][-1]))
        if not isinstance(reply, dict) or reply["topics"][0]["error_code"] != "NONE(0)":
            raise SetupError(f"topic {name} was not created: {reply}")
        return self.await_topic(name, partitions)

    def produce(self, topic: Topic, data: bytes, partition: int = 0) -> Tree:
        request = {
            "acks": -1,
            "timeout": 10000,
            "topic_data": [
                {
                    "name": topic.name,
                    "topic_id": topic.id,
                    "partition_data": [{"index": partition, "records": data}],
                }
            ],
        }
        reply = self.tell(request, api="produce", version=9)
        answer = reply["responses"][0]["partition_responses"][0]
        if answer["error_code"] != "NONE(0)":
            raise SetupError(f"records for {topic.name} were refused: {answer}")
        return answer

    def fill(self, topic: Topic, batch_count: int = 3, per_batch: int = 2, partition: int = 0) -> None:
        """`batch_count` batches of `per_batch` records, a second apart from T0."""
        for i in range(batch_count):
            start_ms = batches.T0_MS + i * per_batch * 1000
            self.produce(topic, batches.batch(batches.records(per_batch, timestamp_ms=start_ms)), partition)

    def learn(self) -> None:
        """Record what is specific to this broker: its id and its cluster."""
        reply = self.tell({"topics": []}, api="metadata", version=self.shared["metadata"][-1])
        if not isinstance(reply, dict):
            raise SetupError(f"{self.host}:{self.port} does not answer Metadata: {reply}")
        self.facts.node_id = reply["brokers"][0]["node_id"]

    def await_applied(self) -> None:
        """Wait until every earlier change of metadata shows: changes are ordered, so make one and wait for that.

        Kafka answers once the controller has a change; the broker's own view follows.
        """
        if self._marker is None:
            self._marker = self.topic("marker")
        self._changes += 1
        value, name = str(self._changes), self._marker.name
        change = {"name": "segment.jitter.ms", "config_operation": 0, "value": value}
        target = {"resource_type": TOPIC_RESOURCE, "resource_name": name}
        self.tell(
            {"resources": [{**target, "configs": [change]}]}, api="incremental_alter_configs", version=1
        )
        look = {"resources": [{**target, "configuration_keys": ["segment.jitter.ms"]}]}
        self.await_answer(
            lambda: self.tell(look, api="describe_configs", version=4),
            lambda tree: bool(tree["results"][0]["configs"][0]["value"] == value),
        )

    def await_answer(self, look: Callable[[], Tree], is_ready: Callable[[Tree], bool]) -> Tree:
        """Repeat a request until the response is as expected; Kafka loads some parts after it starts to serve."""
        deadline = time.monotonic() + REPLY_SECONDS
        while True:
            tree = look()
            if isinstance(tree, dict) and is_ready(tree):
                return tree
            if time.monotonic() > deadline:
                raise SetupError(f"it did not come to the expected answer: {tree}")

    def await_topic(self, name: str, partitions: int) -> Topic:
        """Wait for a topic: Kafka responds to CreateTopics before every broker knows the topic."""
        request = {"topics": [{"name": name}], "allow_auto_topic_creation": False}

        def is_ready(tree: Tree) -> bool:
            found = tree["topics"][0]
            leaders = [p["leader_id"] for p in found["partitions"]]
            return found["error_code"] == "NONE(0)" and len(leaders) == partitions and min(leaders) >= 0

        version = self.shared["metadata"][-1]
        tree = self.await_answer(lambda: self.tell(request, api="metadata", version=version), is_ready)
        topic = Topic(name, tree["topics"][0]["topic_id"])
        self.facts.topic_names[topic.id] = name
        self._await_leaders(topic, partitions)
        return topic

    def _await_leaders(self, topic: Topic, partitions: int) -> None:
        """Metadata knows a partition a moment before its leader takes requests."""
        which = [{"partition_index": i, "timestamp": -1} for i in range(partitions)]
        request = {"replica_id": -1, "topics": [{"name": topic.name, "partitions": which}]}

        def is_ready(tree: Tree) -> bool:
            return all(p["error_code"] == "NONE(0)" for p in tree["topics"][0]["partitions"])

        self.await_answer(lambda: self.tell(request, api="list_offsets", version=5), is_ready)

    def _decoded(self, api: str, version: int, reply: bytes | Silence) -> Tree:
        if isinstance(reply, Silence):
            return reply.value
        try:
            return decode(api, version, reply)
        except Exception as error:
            # Whatever kio raises on bytes that are no answer of this version, the finding is the same.
            return f"cannot be decoded ({type(error).__name__}): {reply[:60].hex()}"

    def _exchange(self, payload: bytes, timeout_seconds: float) -> bytes | Silence:
        connection = self._connected()
        connection.send(payload)
        reply = connection.receive(timeout_seconds)
        if isinstance(reply, Silence):
            connection.close()
        return reply

    def _connected(self) -> Connection:
        if self._connection is None or not self._connection.is_open:
            self._connection = Connection(self.host, self.port, REPLY_SECONDS)
        return self._connection

    def _next_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id


def selected(pattern: str | None) -> list[Case]:
    """The scripts of the APIs that match, by Kafka's name or kio's, with wildcards."""
    if pattern is None:
        return list(CASES)
    wanted = pattern.replace("_", "").lower()
    return [item for item in CASES if fnmatch.fnmatch(item.api.replace("_", ""), wanted)]


def shared_ranges(first: dict[int, range], second: dict[int, range]) -> Ranges:
    """The versions that both brokers advertise and kio can encode."""
    shared: Ranges = {}
    for api, key in KEYS.items():
        spans = [versions_known(api), first.get(key, range(0)), second.get(key, range(0))]
        low, high = max(s.start for s in spans), min(s.stop for s in spans)
        if all(spans) and low < high:
            shared[api] = range(low, high)
    return shared


def advertised(host: str, port: int) -> dict[int, range]:
    script = Script(host, port, {}, 0)
    try:
        reply = script.tell({}, api="api_versions", version=0)
    finally:
        script.close()
    if not isinstance(reply, dict):
        raise SetupError(f"{host}:{port} does not answer ApiVersions: {reply}")
    return {e["api_key"]: range(e["min_version"], e["max_version"] + 1) for e in reply["api_keys"]}
