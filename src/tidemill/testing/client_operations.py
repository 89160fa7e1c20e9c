"""The test's own operations on a broker or cluster: topics, records and offsets, through `tidemill.client`.

`InProcessBroker` and `InProcessCluster` inherit them. Connections are kept between calls and renewed after a stop.
Faults do not strike them.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import zip_longest
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from tidemill.broker.node import Node
from tidemill.client.admin.dead_letters import DeadLetterAdmin
from tidemill.client.admin.delays import DelayAdmin, PendingMessage
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.security import SecurityAdmin
from tidemill.client.admin.share_groups import ShareGroupAdmin
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.admin.views import ViewAdmin
from tidemill.client.cluster import Cluster
from tidemill.client.connections.security import SecurityOptions
from tidemill.client.consumer import Consumer
from tidemill.client.producing.producer import Producer
from tidemill.client.retry import UnknownTopic
from tidemill.dead_letters import DeadLetter
from tidemill.errors import ApiError, ConfigError, ErrorCode
from tidemill.protocol.isolation import READ_COMMITTED, READ_UNCOMMITTED
from tidemill.protocol.records import Header
from tidemill.testing.clock import TravelClock
from tidemill.testing.faults import Faults
from tidemill.testing.network import HELPER_CLIENT_ID
from tidemill.testing.node_thread import NodeThread
from tidemill.testing.records import (
    Headers,
    JobCounts,
    StoredRecord,
    Text,
    encoded,
    encoded_headers,
    properties_text,
)
from tidemill.testing.security import ADMIN, ClientOptions, SecuredListeners, Security, binding
from tidemill.types import TopicPartition

T = TypeVar("T")
Isolation = Literal["read_committed", "read_uncommitted"]

_ISOLATION_LEVELS = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
_POLL_S = 0.01
_TIMEOUT_S = 30.0


class ClientOperations(ABC):
    """The operations that brokers and clusters share."""

    def __init__(self, security: Security | str | None, hosts: list[str]) -> None:
        """`hosts` are the names that certificates have."""
        wanted = Security.of(security)
        self._secured = None if wanted is None else SecuredListeners(wanted, hosts)
        # The broker's clock, which the test moves.
        self.clock = TravelClock()
        # The faults that the test arms.
        self.faults = Faults()
        self._lock = threading.RLock()
        self._client: Cluster | None = None
        self._producer: Producer | None = None

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """The value for a client's `bootstrap.servers`."""

    @property
    def _cluster(self) -> Cluster:
        if self._client is None:
            self._client = Cluster(
                self.bootstrap,
                client_id=HELPER_CLIENT_ID,
                timeout_s=_TIMEOUT_S,
                security=SecurityOptions() if self._secured is None else self.client_options().security,
            )
        return self._client

    def _drop_connections(self) -> None:
        """Drop the connections, which the brokers close; the next call makes new ones."""
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = self._producer = None

    # -- users and their rights ------------------------------------------------------------------------------

    def client_options(self, user: str = ADMIN, mechanism: str | None = None) -> ClientOptions:
        """Returns the settings with which a client logs in as this user, for each client library."""
        return self._listeners_with_security().client_options(self.bootstrap, user, mechanism)

    def set_password(self, user: str, password: str) -> None:
        """Add a SCRAM user, or change its password. Connections that are open stay."""
        secured = self._listeners_with_security()
        if not secured.scram_mechanisms:
            raise ConfigError("passwords of PLAIN are settings; name the users in Security(users=...)")
        with self._lock:
            SecurityAdmin(self._cluster).set_password(user, password, secured.scram_mechanisms)
        secured.passwords[user] = password
        self._await_metadata()

    def allow(self, user: str, *rules: str) -> None:
        """Add ACLs such as `write topic:orders`. Returns when every broker goes by them."""
        self._listeners_with_security()
        with self._lock:
            SecurityAdmin(self._cluster).create_acls(binding(user, rule) for rule in rules)
        self._await_metadata()

    def revoke(self, user: str, *rules: str) -> None:
        """Remove ACLs. Returns when every broker goes by that."""
        self._listeners_with_security()
        with self._lock:
            SecurityAdmin(self._cluster).delete_acls(binding(user, rule) for rule in rules)
        self._await_metadata()

    def _listeners_with_security(self) -> SecuredListeners:
        if self._secured is None:
            raise ConfigError("the broker is not secured; give it security=Security(...)")
        return self._secured

    def _add_users(self) -> None:
        """Write the users and ACLs of the test to the metadata, once it is there."""
        secured = self._secured
        if secured is None:
            return
        if secured.security.protocol != "SSL" and secured.scram_mechanisms:
            for user, password in list(secured.passwords.items()):
                if user != ADMIN:
                    self.set_password(user, password)
        if secured.security.acls is not None:
            with self._lock:
                SecurityAdmin(self._cluster).create_acls(secured.acl_bindings())
            self._await_metadata()

    def _await_metadata(self) -> None:
        """Return when every running broker has the metadata that any of them has."""
        threads = self._running_threads()
        end = max(thread.call(_metadata_end) for thread in threads)
        self.wait_until(
            lambda: all(thread.call(_metadata_end) >= end for thread in threads),
            "every broker has the newest metadata",
        )

    @abstractmethod
    def _running_threads(self) -> list[NodeThread]: ...

    # -- topics ----------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int = -1,
        configs: Any = None,
        **more_configs: object,
    ) -> str:
        """Create a topic. Returns its name once its partitions have leaders.

        Configurations are a mapping, `configs={"retention.ms": 1000}`, or `**{"retention.ms": 1000}`.
        """
        given = {**(configs or {}), **more_configs}
        with self._lock:
            Admin(self._cluster).create_topic(
                name,
                partition_count=partitions,
                replication_factor=replication_factor,
                configs=properties_text(given),
            )
        return name

    def create_view(self, name: str, source: str, where: str) -> str:
        """Create a view: a topic that shows the records of another that match a filter. Returns its name."""
        with self._lock:
            ViewAdmin(Admin(self._cluster)).create(name, source, where)
        return name

    def delete_topic(self, name: str) -> None:
        with self._lock:
            Admin(self._cluster).delete_topic(name)

    def topics(self) -> list[str]:
        """The names of all topics except internal ones."""
        with self._lock:
            found = Admin(self._cluster).topics()
        return [topic.name for topic in found if topic.name and not topic.is_internal]

    # -- records ---------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: Text | None,
        key: Text | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> StoredRecord:
        """Write one record, acknowledged by all in-sync replicas. Returns it as it is stored.

        Text is encoded as UTF-8. A missing topic is created. The default timestamp is the broker's time.
        """
        stamp = self.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        pairs = encoded_headers(headers)
        with self._lock:
            self._ensure(topic)
            if self._producer is None:
                self._producer = Producer(self._cluster)
            producer = self._producer
            producer.appended.clear()
            producer.add(
                topic,
                encoded(value),
                key=encoded(key),
                headers=[Header(name, content) for name, content in pairs],
                partition=partition,
                timestamp_ms=stamp,
            )
            producer.flush()
            (appended,) = producer.appended
        index = appended.partition.partition
        return StoredRecord(topic, index, appended.base_offset, stamp, encoded(key), encoded(value), pairs)

    def records(
        self,
        topic: str,
        *,
        partition: int | None = None,
        isolation: Isolation = "read_committed",
        count: int | None = None,
        timeout_s: float = 10.0,
    ) -> list[StoredRecord]:
        """The records of the topic, by partition and offset.

        With `count`, waits until it holds at least so many; `AssertionError` shows what was there at the timeout.
        """
        if isolation not in _ISOLATION_LEVELS:
            raise ValueError(f"isolation is read_committed or read_uncommitted, not {isolation!r}")
        if count is None:
            return self._read(topic, partition, _ISOLATION_LEVELS[isolation])
        found: list[StoredRecord] = []
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                found = self._read(topic, partition, _ISOLATION_LEVELS[isolation])
            except UnknownTopic:
                found = []
            if len(found) >= count:
                return found
            if time.monotonic() >= deadline_s:
                raise AssertionError(
                    f"{topic} holds {len(found)} records after {timeout_s:g} s, not {count}: {found}"
                )
            time.sleep(_POLL_S)

    def waiting(self, topic: str) -> list[PendingMessage]:
        """The delayed records of the topic that wait for their time, the next one first."""
        with self._lock:
            return DelayAdmin(self._cluster).pending(topic).messages

    def _read(self, topic: str, partition: int | None, isolation_level: int) -> list[StoredRecord]:
        with self._lock:
            cluster = self._cluster
            cluster.forget()
            partitions = [
                each for each in cluster.partitions_of(topic) if partition in (None, each.partition)
            ]
            admin = Admin(cluster)
            ends = admin.end_offsets(partitions, isolation_level)
            starts = admin.start_offsets(partitions)
            consumer = Consumer(
                cluster,
                {each: starts[each] for each in partitions if starts[each] < ends[each]},
                isolation_level=isolation_level,
            )
            found: list[StoredRecord] = []
            while consumer.positions:
                for place, record in consumer.poll(max_wait_ms=0):
                    if record.offset < ends[place]:
                        headers = tuple((name, content) for name, content in record.headers)
                        found.append(
                            StoredRecord(
                                *place, record.offset, record.timestamp, record.key, record.value, headers
                            )
                        )
                for place, position in list(consumer.positions.items()):
                    if position >= ends[place]:
                        del consumer.positions[place]
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def _ensure(self, topic: str) -> None:
        try:
            self._cluster.partitions_of(topic)
        except UnknownTopic:
            self.create_topic(topic, partitions=-1)

    # -- groups ----------------------------------------------------------------------------------------------

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The committed offsets of a group; empty for an unknown group."""
        with self._lock:
            return GroupAdmin(self._cluster).committed(group)

    def members(self, group: str) -> list[str]:
        """The ids of a group's members."""
        with self._lock:
            try:
                return [member.member_id for member in GroupAdmin(self._cluster).describe(group).members]
            except ApiError as error:
                if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                    return []
                raise

    # -- queues ----------------------------------------------------------------------------------------------

    def configure_group(self, group: str, **configs: object) -> None:
        """Set configurations of a group, such as `**{"share.delivery.count.limit": 2}`, also before it exists."""
        with self._lock:
            Admin(self._cluster).alter_configs(ResourceType.GROUP, group, changes=properties_text(configs))

    def jobs(self, group: str) -> JobCounts:
        """Counts the jobs of a share group that are left, and those that were delivered by their state."""
        with self._lock:
            admin = ShareGroupAdmin(self._cluster)
            positions = admin.positions(group)
            in_flight = admin.in_flight(group, [each.partition for each in positions]).values()
        by_deliveries = zip_longest(*(each.by_deliveries for each in in_flight), fillvalue=0)
        return JobCounts(
            sum(each.lag or 0 for each in positions),
            sum(each.acquired for each in in_flight),
            sum(each.waiting or 0 for each in in_flight),
            tuple(sum(counts) for counts in by_deliveries),
        )

    def dead_letters(self, topic: str) -> list[DeadLetter]:
        """The letters of a dead-letter topic, with the reason of each in `failure`."""
        with self._lock:
            return [each.letter for each in DeadLetterAdmin(self._cluster, topic).letters()]

    # -- waiting ---------------------------------------------------------------------------------------------

    def wait_until(self, condition: Callable[[], T], what: str, timeout_s: float = 10.0) -> T:
        """Poll `condition` until it is true and return its value. Raises `AssertionError` with `what` at the
        timeout."""
        deadline_s = time.monotonic() + timeout_s
        while not (value := condition()):
            if time.monotonic() >= deadline_s:
                raise AssertionError(f"not within {timeout_s:g} s: {what}")
            time.sleep(_POLL_S)
        return value


def _metadata_end(node: Node) -> int:
    return node.broker.controller.image.end_offset
