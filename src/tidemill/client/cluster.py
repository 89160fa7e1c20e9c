"""Finds the broker that a request is for, and tries again when that has changed.

A `Cluster` knows where the partitions, groups and the controller live, from Metadata and FindCoordinator. What it
knows is a guess that a broker corrects: after any retriable failure everything is forgotten and asked anew
(`retrying`). Partitions of one request that went well are not asked again (`per_leader`).

A cluster that was never reached is not waited for: if no bootstrap address answers, the first call fails.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from tidemill.client.connections.connection import Address, BrokerUnreachable, Connection
from tidemill.client.connections.security import SecurityOptions
from tidemill.client.retry import Retries, UnknownTopic, may_retry
from tidemill.errors import ApiError, ConfigError, ErrorCode, TidemillError
from tidemill.internal_topics import CLIENT_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tidemill.protocol.api.cluster import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tidemill.types import TopicPartition

T = TypeVar("T")

DEFAULT_PORT = 9092
# Whose coordinator FindCoordinator is asked for.
_GROUP, _TRANSACTION = 0, 1
# The first version that finds many.
_FIND_MANY_VERSION = 4
# Where coordinators keep what they know.
_TOPICS = {_GROUP: OFFSETS_TOPIC, _TRANSACTION: TRANSACTIONS_TOPIC}
Connect = Callable[[Address], Connection]


class PartitionAnswer(NamedTuple, Generic[T]):
    """The leader's answer about one of the requested partitions."""

    partition: TopicPartition
    error_code: int
    result: T
    error_message: str | None = None


def parse_bootstrap(text: str) -> list[Address]:
    """`host:port,host:port`; the port is 9092 when left out, IPv6 addresses stand in brackets."""
    addresses = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(DEFAULT_PORT)
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(f"{part!r} is not an address: it should be HOST:PORT, such as 127.0.0.1:9092")
        addresses.append(Address(host.strip("[]"), int(port)))
    if not addresses:
        raise ConfigError("no bootstrap address is given; it should be HOST:PORT, such as 127.0.0.1:9092")
    return addresses


def known_code(error_code: int) -> ErrorCode:
    """A broker may be newer than this table."""
    try:
        return ErrorCode(error_code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def check(error_code: int, message: str | None = None) -> None:
    """Raises what the code says, `message` being the broker's or the caller's words for it."""
    if not error_code:
        return
    code = known_code(error_code)
    if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
        raise UnknownTopic(message or code.message)
    raise ApiError(code, message)


class Cluster:
    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "tidemill",
        timeout_s: float = 30.0,
        security: SecurityOptions | None = None,
        connect: Connect | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.timeout_s = timeout_s
        self._seeds = parse_bootstrap(bootstrap)
        self._client_id = client_id
        self._security = security
        self._connect = connect or (lambda address: self.open(address, timeout_s))
        self.clock = clock
        self._sleep = sleep
        self._connections: dict[Address, Connection] = {}
        self._brokers: dict[int, Address] = {}
        self._topics: dict[str, MetadataResponseTopic] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._controller_id = -1

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def twin(self) -> Cluster:
        """Another with connections of its own, for another thread, which closes it."""
        other = copy.copy(self)
        other._connections, other._brokers, other._topics = {}, dict(self._brokers), dict(self._topics)
        other._leaders, other._coordinators = dict(self._leaders), dict(self._coordinators)
        return other

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def forget(self) -> None:
        """Drops what may be outdated. Brokers' addresses stay: they are how the rest is found again."""
        self._topics.clear()
        self._leaders.clear()
        self._coordinators.clear()
        self._controller_id = -1

    def retrying(self, attempt: Callable[[], T], *, is_repeatable: bool = True) -> T:
        """The first result of `attempt`, whose failures are judged by the rules of `retry`."""
        retries = Retries(self.timeout_s, self.clock, self._sleep)
        while True:
            try:
                return attempt()
            except TidemillError as failure:
                is_known = bool(self._brokers or self._connections)
                was_never_reached = isinstance(failure, BrokerUnreachable) and not is_known
                if was_never_reached or not may_retry(failure, is_repeatable=is_repeatable):
                    raise
                self.forget()
                if not retries.wait():
                    raise

    def retries(self, limit_s: float) -> Retries:
        """The waits of an operation that judges its failures itself."""
        return Retries(limit_s, self.clock, self._sleep)

    # --- which connection ---

    def connection(self, address: Address) -> Connection:
        known = self._connections.get(address)
        if known is None or not known.is_usable():
            if known is not None:
                known.close()
            known = self._connections[address] = self._connect(address)
        return known

    def any_broker(self) -> Connection:
        for connection in self._connections.values():
            if connection.is_usable():
                return connection
        failures = []
        for address in dict.fromkeys([*self._brokers.values(), *self._seeds]):
            try:
                return self.connection(address)
            except BrokerUnreachable as failure:
                failures.append(str(failure))
        raise BrokerUnreachable("no broker can be reached (" + "; ".join(failures) + ")")

    def broker(self, broker_id: int) -> Connection:
        if broker_id not in self._brokers:
            self.load_metadata([])
        address = self._brokers.get(broker_id)
        if address is None:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no broker {broker_id}")
        return self.connection(address)

    def open(self, address: Address, timeout_s: float) -> Connection:
        """A new connection with a limit of its own for every wait, which the caller owns and closes."""
        return Connection(address, client_id=self._client_id, timeout_s=timeout_s, security=self._security)

    def open_leader(self, partition: TopicPartition) -> Connection:
        """A new connection to the leader, which the caller owns and closes: for callers with requests under way."""
        (leader_id,) = self.leaders([partition])
        return self._connect(self._brokers[leader_id])

    def broker_ids(self) -> list[int]:
        return sorted(broker.node_id for broker in self.load_metadata([]).brokers)

    def controller(self) -> Connection:
        if self._controller_id < 0:
            self.load_metadata([])
        return self.any_broker() if self._controller_id < 0 else self.broker(self._controller_id)

    def coordinator(self, group_id: str) -> Connection:
        return self._coordinator(_GROUP, group_id)

    def transaction_coordinator(self, transactional_id: str) -> Connection:
        return self._coordinator(_TRANSACTION, transactional_id)

    def by_transaction_coordinator(
        self, transactional_ids: Sequence[str]
    ) -> list[tuple[Connection, list[str]]]:
        """The ids by their coordinators, which one request finds."""
        self._find_transaction_coordinators(transactional_ids)
        led: dict[Address, list[str]] = {}
        for each in transactional_ids:
            self._coordinator(_TRANSACTION, each)
            led.setdefault(self._coordinators[_TRANSACTION, each], []).append(each)
        return [(self.connection(address), each) for address, each in led.items()]

    def _find_transaction_coordinators(self, transactional_ids: Sequence[str]) -> None:
        connection = self.any_broker()
        unknown = [each for each in transactional_ids if (_TRANSACTION, each) not in self._coordinators]
        if not unknown or connection.version_of(FindCoordinatorRequest) < _FIND_MANY_VERSION:
            return
        message = FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=unknown)
        for found in connection.request(message, FindCoordinatorResponse).coordinators:
            check(found.error_code, found.error_message)
            self._coordinators[_TRANSACTION, found.key] = Address(found.host, found.port)

    def has_groups(self) -> bool:
        """Whether there can be groups. Asking for a coordinator creates its topic, which only a look should not do."""
        return self._has_topic(_TOPICS[_GROUP])

    def has_transactions(self) -> bool:
        """Whether there can be transactional ids, as `has_groups` says it of groups."""
        return self._has_topic(_TOPICS[_TRANSACTION])

    def _has_topic(self, name: str) -> bool:
        if name in self._topics:
            return True
        (topic,) = self.load_metadata([name]).topics
        return known_code(topic.error_code) is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _coordinator(self, key_type: int, key: str) -> Connection:
        address = self._coordinators.get((key_type, key))
        if address is None:
            message = FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])
            response = self.any_broker().request(message, FindCoordinatorResponse)
            # Up to version 3 the answer has the fields of the one coordinator itself.
            found = response.coordinators[0] if response.coordinators else response
            check(found.error_code, found.error_message)
            address = self._coordinators[key_type, key] = Address(found.host, found.port)
        return self.connection(address)

    # --- topics ---

    def load_metadata(self, topics: Sequence[str] | None) -> MetadataResponse:
        """One Metadata request, which creates no topic; None means all. Errors of topics are left in the answer.

        Topics that our clients keep for themselves are marked as internal, like those of the brokers.
        """
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        message = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        response = self.any_broker().request(message, MetadataResponse)
        check(response.error_code)
        self._brokers = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
        self._controller_id = response.controller_id
        for topic in response.topics:
            topic.is_internal = topic.is_internal or topic.name in CLIENT_TOPICS
            if topic.name and not topic.error_code:
                self._topics[topic.name] = topic
                for known in topic.partitions:
                    self._leaders[TopicPartition(topic.name, known.partition_index)] = known.leader_id
        return response

    def topic(self, name: str) -> MetadataResponseTopic:
        known = self._topics.get(name)
        if known is None:
            (known,) = self.load_metadata([name]).topics
            if known.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopic(f"there is no topic {name}")
            check(known.error_code, f"topic {name}: {known_code(known.error_code).message}")
        return known

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        known = self.retrying(lambda: self.topic(topic))
        return [TopicPartition(topic, index) for index in sorted(p.partition_index for p in known.partitions)]

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """The partitions by the broker that leads them."""
        led: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            leader_id = self._leader_id(partition)
            if leader_id < 0:
                raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader at the moment")
            led.setdefault(leader_id, []).append(partition)
        return led

    def _leader_id(self, partition: TopicPartition) -> int:
        topic = self.topic(partition.topic)
        leader_id = self._leaders.get(partition)
        if leader_id is None:
            last = len(topic.partitions) - 1
            raise UnknownTopic(
                f"topic {partition.topic} has no partition {partition.partition}, only 0 to {last}"
            )
        return leader_id

    def per_leader(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[Connection, list[TopicPartition]], Iterable[PartitionAnswer[T]]],
        *,
        is_repeatable: bool = True,
    ) -> dict[TopicPartition, T]:
        """Sends a request to every leader about its partitions, and again about those that failed."""
        results: dict[TopicPartition, T] = {}
        pending = dict.fromkeys(partitions)

        def attempt() -> None:
            failed: PartitionAnswer[T] | None = None
            for leader_id, led in self.leaders(pending).items():
                for answer in ask(self.broker(leader_id), led):
                    if answer.error_code:
                        failed = failed or answer
                    else:
                        results[answer.partition] = answer.result
                        del pending[answer.partition]
            if failed is not None:
                code = known_code(failed.error_code)
                raise ApiError(code, f"{failed.partition}: {failed.error_message or code.message}")

        self.retrying(attempt, is_repeatable=is_repeatable)
        return results
