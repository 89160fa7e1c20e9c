"""The base of the simulated clients: finds brokers and leaders, and retries.

A client is a process with its own event loop and host. Its requests go through `broker/net/channel.py` over the
simulated network. It knows the cluster only from Metadata and FindCoordinator, and refreshes them after every error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from tidemill.broker.net.channel import Channel, Channels, PeerUnavailable
from tidemill.broker.net.link_security import LinkSecurity
from tidemill.broker.net.network import Address
from tidemill.errors import ErrorCode
from tidemill.protocol.api.cluster import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidemill.protocol.api.transactions import InitProducerIdRequest, InitProducerIdResponse
from tidemill.protocol.schema import Request, Response
from tidemill.sim.checks.checker import Event
from tidemill.sim.checks.transactions import TransactionEvent, TransactionName
from tidemill.sim.platform.loops import SimulatedLoop
from tidemill.sim.platform.network import ProcessNetwork
from tidemill.sim.platform.platform import EPOCH_MS
from tidemill.types import TopicPartition

REQUEST_TIMEOUT_S = 12.0
_FRAME_BYTES_MAX = 16 << 20
_BACKOFF_S = 0.1
# The key types of FindCoordinator.
GROUP = 0
TRANSACTION = 1

ResponseT = TypeVar("ResponseT", bound=Response)


@dataclass(slots=True)
class Record:
    """The shared record of the clients of one world: their histories, and whether they should finish."""

    now_s: Callable[[], float]
    # Reports an observation that a correct cluster never causes.
    accuse: Callable[[str], None]
    history: list[Event] = field(default_factory=list)
    # Set when the faults are over: producers stop creating messages.
    is_ending: bool = False
    transactions: list[TransactionEvent] = field(default_factory=list)
    # The coordinator of a group in the newest metadata of any node; None when there is none.
    coordinator_host: Callable[[str], str | None] = lambda _: None
    # The leadership of a partition at a host: process and leader epoch; empty when the host does not lead it.
    leadership: Callable[[str, TopicPartition], str] = lambda *_: ""
    # The newest process of a transactional id; older ones are zombies, whether they know it or not.
    incarnations: dict[str, int] = field(default_factory=dict)
    # The last transaction that each producer id and epoch began.
    writers: dict[tuple[int, int], TransactionName] = field(default_factory=dict)

    def wall_ms(self) -> int:
        """The wall time of clients, whose clocks are right."""
        return EPOCH_MS + int(self.now_s() * 1000)


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition."""

    id: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Client:
    """One client process."""

    def __init__(
        self,
        name: str,
        loop: SimulatedLoop,
        network: ProcessNetwork,
        rng: Random,
        bootstrap: Sequence[Address],
        record: Record,
        login: LinkSecurity | None = None,
    ) -> None:
        self.name = name
        self.loop = loop
        self.rng = rng
        self.record = record
        self._bootstrap = list(bootstrap)
        self._channels = Channels(
            network, loop, client_id=name, frame_bytes_max=_FRAME_BYTES_MAX, security=login
        )
        self.brokers: dict[int, Address] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.leaders: dict[TopicPartition, Leader] = {}
        # The number of partitions that each topic had in the last response.
        self.partition_counts: dict[str, int] = {}
        self._coordinators: dict[tuple[str, int], Address] = {}

    # -- asking ----------------------------------------------------------------------------------------------

    async def ask(
        self,
        address: Address,
        message: Request,
        response_type: type[ResponseT],
        *,
        purpose: str = "",
        timeout_s: float = REQUEST_TIMEOUT_S,
        version_max: int | None = None,
    ) -> ResponseT | None:
        """Send a request. Returns the response; None on any failure."""
        try:
            return await self._channels.to(address, purpose).request(
                message, response_type, timeout_s=timeout_s, version_max=version_max
            )
        except PeerUnavailable:
            return None

    async def ask_any(self, message: Request, response_type: type[ResponseT]) -> ResponseT:
        """Send a request to any broker until one responds."""
        while True:
            known = list(self.brokers.values()) or self._bootstrap
            # Sometimes the bootstrap addresses: all known brokers may be gone.
            choices = known if self.rng.random() < 0.8 else self._bootstrap
            answer = await self.ask(self.rng.choice(choices), message, response_type, timeout_s=5.0)
            if answer is not None:
                return answer
            await self.back_off()

    async def init_producer_id(self) -> tuple[int, int]:
        """Returns the id and the epoch of a new idempotent producer."""
        while True:
            answer = await self.ask_any(InitProducerIdRequest(), InitProducerIdResponse)
            if answer.error_code == ErrorCode.NONE:
                return answer.producer_id, answer.producer_epoch
            await self.back_off()

    async def back_off(self) -> None:
        await asyncio.sleep(_BACKOFF_S * (1 + self.rng.random()))

    # -- knowing the cluster ---------------------------------------------------------------------------------

    async def refresh(self, topics: Sequence[str]) -> None:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic) for topic in topics], allow_auto_topic_creation=False
        )
        answer = await self.ask_any(request, MetadataResponse)
        if answer.brokers:
            self.brokers = {b.node_id: Address(b.host, b.port) for b in answer.brokers}
        for topic in answer.topics:
            if topic.error_code or topic.name is None:
                continue
            self.topic_ids[topic.name] = bytes(topic.topic_id)
            self.partition_counts[topic.name] = len(topic.partitions)
            for partition in topic.partitions:
                self._learn(TopicPartition(topic.name, partition.partition_index), partition)

    async def find_topics(self, topics: Sequence[str]) -> None:
        """Return when all topics are known: a new topic is not known everywhere at once."""
        await self.refresh(topics)
        while any(topic not in self.topic_ids for topic in topics):
            await self.back_off()
            await self.refresh(topics)

    def _learn(self, tp: TopicPartition, partition: object) -> None:
        leader = Leader(
            partition.leader_id,  # type: ignore[attr-defined]
            partition.leader_epoch,  # type: ignore[attr-defined]
            tuple(partition.replica_nodes),  # type: ignore[attr-defined]
            tuple(partition.isr_nodes),  # type: ignore[attr-defined]
        )
        known = self.leaders.get(tp)
        # KIP-320: metadata from a lagging broker does not replace newer metadata.
        if known is None or leader.epoch >= known.epoch:
            self.leaders[tp] = leader

    def leader_of(self, tp: TopicPartition) -> tuple[Address, Leader] | None:
        leader = self.leaders.get(tp)
        if leader is None or leader.id not in self.brokers:
            return None
        return self.brokers[leader.id], leader

    async def find_leader(self, tp: TopicPartition) -> tuple[Address, Leader]:
        while (found := self.leader_of(tp)) is None:
            await self.refresh([tp.topic])
            if self.leader_of(tp) is None:
                await self.back_off()
        return found

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return sorted(tp for tp in self.leaders if tp.topic == topic)

    # -- the coordinator -------------------------------------------------------------------------------------

    async def coordinator_of(self, key: str, key_type: int = GROUP) -> Address:
        while (key, key_type) not in self._coordinators:
            request = FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])
            answer = await self.ask_any(request, FindCoordinatorResponse)
            found = answer.coordinators[0] if answer.coordinators else None
            if found is not None and found.error_code == ErrorCode.NONE:
                self._coordinators[key, key_type] = Address(found.host, found.port)
            else:
                await self.back_off()
        return self._coordinators[key, key_type]

    def knows_coordinator(self, group: str) -> bool:
        """Whether the assumed coordinator is the real one. A real client cannot know this; the simulation looks it
        up."""
        known = self._coordinators.get((group, GROUP))
        return known is not None and known.host == self.record.coordinator_host(group)

    def forget_coordinator(self, key: str, key_type: int = GROUP) -> None:
        self._coordinators.pop((key, key_type), None)

    def channel(self, address: Address, purpose: str) -> Channel:
        return self._channels.to(address, purpose)

    def close(self) -> None:
        self._channels.close()
