"""The gateway's access to the cluster: a producer, and a small pool of clients for requests.

**Producing.** `produce` returns when the cluster has acknowledged the record, or raises `Problem`; `submit` does not wait.
`deliveries.py` owns the producer. The topic must exist; its number of partitions is cached for `_KNOWN_S`.

**Requests.** `ask(call)` runs `call(Admins)` in a thread with a `Cluster` of its own, at most `asks_max` at a time. A client
that was idle is probed before it is used, and one that failed is closed. So the gateway finds a restarted cluster by
itself, and reports an unreachable one at once instead of after all retries.

**An unreachable cluster.** librdkafka reports that all brokers are down. From then on a produce first probes the cluster,
and is refused at once if no broker answers. Otherwise every caller would wait for the whole timeout.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

from tidemill.client.admin.cluster import ClusterAdmin
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import BrokerUnreachable, Connection, ConnectionLost
from tidemill.client.connections.sasl import AuthenticationFailed, CredentialsRefused
from tidemill.config import DELAYS_ENABLE
from tidemill.errors import TidemillError
from tidemill.gateway.cluster import inquiries
from tidemill.gateway.cluster.deliveries import CLIENT_ID, Deliveries, Delivery, Headers
from tidemill.gateway.cluster.payloads import Payloads
from tidemill.gateway.problems import Problem, problem_of
from tidemill.gateway.settings import Settings
from tidemill.protocol.api.cluster import MetadataResponse
from tidemill.types import TopicPartition

T = TypeVar("T")

# Clients that lay idle for longer are tried before they are used.
_IDLE_S = 1.0
_KNOWN_S = 5.0
# A quorum without a leader answers late.
_CONTROLLER_WAIT_S = 2.0
_CONTROLLER_KNOWN_S = 1.0
_TOPICS_KNOWN_MAX = 10_000

__all__ = [
    "CLIENT_ID",
    "Admins",
    "Backend",
    "Delivery",
    "Headers",
    "credentials_refused",
    "unknown_partition",
    "unknown_topic",
]


class Admins(NamedTuple):
    """The clients of one call of `ask`, valid during that call and in its thread only."""

    admin: Admin
    cluster_admin: ClusterAdmin
    group_admin: GroupAdmin

    @property
    def cluster(self) -> Cluster:
        return self.admin.cluster

    def metadata(self, topics: Sequence[str] | None = ()) -> MetadataResponse:
        """Metadata of these topics, or of all for None. Retried when a connection turns out to be dead."""
        return self.cluster.retrying(lambda: self.cluster.load_metadata(topics))


class _Client(NamedTuple):
    cluster: Cluster
    idle_since_s: float


class ClusterUnreachable(TidemillError):
    """No broker can be reached. Not retried, so that the caller gets the error at once."""


class _ImpatientCluster(Cluster):
    """Retries for a leader or for one broker, but not when every broker is unreachable."""

    def any_broker(self) -> Connection:
        try:
            return super().any_broker()
        except BrokerUnreachable as error:
            raise ClusterUnreachable(str(error)) from None


class Backend:
    def __init__(self, settings: Settings, on_refused: Callable[[], None] = lambda: None) -> None:
        """`on_refused` is called when the cluster no longer accepts the caller's own credentials."""
        self.settings = settings
        self._on_refused = on_refused
        self._limits = settings.limits
        self._partitions: _Known[int] = _Known()
        self._delaying: _Known[bool] = _Known()
        self._deliveries = Deliveries(settings)
        self.payloads = Payloads(settings.large_payloads)
        self._deliveries.on_unknown_topic = self._partitions.clear
        self._cluster_id: tuple[str, float] | None = None
        self._probe: asyncio.Task[None] | None = None
        self._controller_id: tuple[int | None, float] | None = None
        self._controller_probe: asyncio.Task[int | None] | None = None
        self._asking = 0
        self._is_closed = False
        self._pool = ThreadPoolExecutor(self._limits.asks_max, "gateway-ask")
        self._idle: deque[_Client] = deque()

    async def open(self) -> None:
        """Does not wait for the cluster: a gateway may start before it."""
        # A user who only reads needs no producer.
        self._deliveries.open(is_eager=self.settings.user is None)

    async def close(self) -> None:
        """Waits for the acknowledgements of what was handed over, as long as the drain may take."""
        self._is_closed = True
        await self._deliveries.close()
        await asyncio.to_thread(self._pool.shutdown)
        await asyncio.to_thread(self.payloads.close)
        while self._idle:
            self._idle.pop().cluster.close()

    # --- producing ---

    async def produce(
        self,
        topic: str,
        partition: int | None = None,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Returns when all replicas in sync have the record. Without a partition the key decides, as in Java."""
        return await (await self.submit(topic, partition, key, value, headers, timestamp_ms))

    async def submit(
        self,
        topic: str,
        partition: int | None = None,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[Delivery]:
        """Hands the record over; the future gets its outcome. Calls in a row keep their order within a partition."""
        count = self._partitions.get(topic)
        if count is None:
            count = await self.partition_count(topic)
        if partition is not None and not 0 <= partition < count:
            count = await self.partition_count(topic, is_known_enough=False)
            if not 0 <= partition < count:
                raise Problem(
                    404, 40402, f"topic {topic} has no partition {partition}, only 0 to {count - 1}"
                )
        if self._deliveries.is_cluster_gone:
            await self._await_cluster()
        if value is not None and self.payloads.is_large(value):
            value, headers = await self.payloads.store(topic, value, headers)
        return self._deliveries.hand_over(topic, partition, key, value, headers, timestamp_ms)

    # --- the cluster and its topics ---

    async def cluster_id(self) -> str:
        """The cluster id, cached for `_KNOWN_S`: every path of v3 has it."""
        found = self._cluster_id
        if found is None or time.monotonic() >= found[1]:
            metadata = await self.ask(lambda admins: admins.metadata())
            found = self._cluster_id = (metadata.cluster_id or "", time.monotonic() + _KNOWN_S)
        return found[0]

    async def controller_id(self) -> int | None:
        """The leader of the quorum; None while it has none or does not answer soon. Metadata names any broker."""
        found = self._controller_id
        if found is None or time.monotonic() >= found[1]:
            if self._controller_probe is None or self._controller_probe.done():
                self._controller_probe = asyncio.create_task(self._ask_controller())
            done, _ = await asyncio.wait((self._controller_probe,), timeout=_CONTROLLER_WAIT_S)
            leader_id = self._controller_probe.result() if done else None
            found = self._controller_id = (leader_id, time.monotonic() + _CONTROLLER_KNOWN_S)
        return found[0]

    async def _ask_controller(self) -> int | None:
        try:
            found = await self.ask(lambda admins: inquiries.controller_id(admins.cluster))
        except Problem:
            return None
        return found if found >= 0 else None

    async def partition_count(self, topic: str, *, is_known_enough: bool = True) -> int:
        """The topic's number of partitions; `Problem` (404) when it does not exist."""
        known = self._partitions.get(topic) if is_known_enough else None
        if known is None:
            found = await self.ask(lambda admins: admins.admin.existing_topics([topic]))
            if topic not in found:
                raise unknown_topic(topic)
            known = len(found[topic].partitions)
            self._partitions.put(topic, known)
        return known

    async def check_delays(self, topic: str) -> None:
        """`Problem` (400) unless the topic takes delayed records: any other would show them at once.

        A caller that may not see the topic's configuration is not told; the record is written as it is.
        """
        takes_delays = self._delaying.get(topic)
        if takes_delays is None:
            takes_delays = await self._ask_delays(topic)
            self._delaying.put(topic, takes_delays)
        if not takes_delays:
            raise Problem(400, 40002, f"topic {topic} takes no delayed records: {DELAYS_ENABLE} is not true")

    async def _ask_delays(self, topic: str) -> bool:
        try:
            configs = await self.ask(lambda admins: admins.admin.describe_configs(ResourceType.TOPIC, topic))
        except Problem as problem:
            if problem.status != 403:
                raise
            return True
        return any(each.name == DELAYS_ENABLE and each.value == "true" for each in configs)

    def forget_topic(self, topic: str) -> None:
        self._partitions.forget(topic)
        self._delaying.forget(topic)

    # --- whether the cluster is there ---

    async def _await_cluster(self) -> None:
        """Waits for one probe of the cluster, shared by all callers; raises `Problem` while it is unreachable."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._ask_cluster())
        await asyncio.shield(self._probe)

    async def _ask_cluster(self) -> None:
        await self.ask(lambda admins: admins.metadata())
        self._deliveries.is_cluster_gone = False

    # --- asking ---

    async def ask(self, call: Callable[[Admins], T]) -> T:
        """Returns the result of the call. Errors of the cluster become `Problem`; so does a full queue (503)."""
        if self._is_closed:
            raise Problem(503, 50301, "the connections to the cluster are closed; try again")
        if self._asking >= self._limits.asks_max + self._limits.asks_waiting_max:
            raise Problem(503, 50301, "too many requests wait for an answer of the cluster; try again later")
        self._asking += 1
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, self._ask, call)
        except ClusterUnreachable as error:
            raise Problem(503, 50301, f"the cluster cannot be reached: {error}") from None
        except CredentialsRefused as error:
            if self.settings.user is None:
                raise problem_of(error) from None
            self._on_refused()
            raise credentials_refused() from None
        except TidemillError as error:
            raise problem_of(error) from None
        finally:
            self._asking -= 1

    def _ask(self, call: Callable[[Admins], T]) -> T:
        cluster = self._take_client()
        is_usable = True
        try:
            return call(Admins(Admin(cluster), ClusterAdmin(cluster), GroupAdmin(cluster)))
        except (AuthenticationFailed, BrokerUnreachable, ClusterUnreachable, ConnectionLost):
            is_usable = False
            raise
        finally:
            if is_usable:
                cluster.forget()
                self._idle.append(_Client(cluster, time.monotonic()))
            else:
                cluster.close()

    def _take_client(self) -> Cluster:
        while True:
            try:
                client = self._idle.pop()
            except IndexError:
                break
            if time.monotonic() - client.idle_since_s < _IDLE_S:
                return client.cluster
            try:
                client.cluster.load_metadata([])
            except TidemillError:
                client.cluster.close()
            else:
                return client.cluster
        return _ImpatientCluster(
            self.settings.bootstrap,
            client_id=CLIENT_ID,
            timeout_s=self.settings.timeout_s,
            security=self.settings.security,
        )


class _Known(Generic[T]):
    """Caches a fact about topics for `_KNOWN_S`. Bounded, because callers choose the names."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[T, float]] = {}

    def get(self, topic: str) -> T | None:
        found = self._known.get(topic)
        if found is None:
            return None
        fact, until_s = found
        return fact if time.monotonic() < until_s else None

    def put(self, topic: str, fact: T) -> None:
        if len(self._known) >= _TOPICS_KNOWN_MAX:
            self._known.clear()
        self._known[topic] = fact, time.monotonic() + _KNOWN_S

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)

    def clear(self) -> None:
        self._known.clear()


def credentials_refused() -> Problem:
    """Returns the problem of a failed log-in. An unknown user and a wrong password get the same one."""
    return Problem(401, 40101, "the cluster does not know this user with this password")


def unknown_topic(topic: str) -> Problem:
    return Problem(404, 40403, f"there is no topic {topic}")


def unknown_partition(partition: TopicPartition, count: int) -> Problem:
    return Problem(
        404, 40402, f"topic {partition.topic} has no partition {partition.partition}, only 0 to {count - 1}"
    )
