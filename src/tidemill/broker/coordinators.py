"""The shell around the group coordinator: one shard for each partition of `__consumer_offsets` that this broker leads.

It finds a group's shard, loads shards from their partitions, tells them what is committed and what time it is, and
carries answers back to the requests that wait. The deciding is all in `coordinator/`. The time of the shards is steady:
they keep sessions as points in time, which must not all end when somebody sets the clock.

The topic is made when the first client looks for a coordinator. A shard loads in pieces beside the serving of requests;
until it is done its groups answer COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from tidemill.broker.clock import Clock, SteadyClock
from tidemill.broker.driver import ControllerDriver
from tidemill.broker.partition import Partition
from tidemill.broker.replicas import Replicas
from tidemill.config import BrokerConfig
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import ConfigResource, MetadataImage, ResourceType
from tidemill.coordinator.consumer_protocol import ConsumerGroupProtocol
from tidemill.coordinator.group import Caller, Environment, GroupCall, RebalanceEvent, TopicsChanged
from tidemill.coordinator.groups import Groups
from tidemill.coordinator.partitions import partition_for_group
from tidemill.coordinator.records import Record as GroupRecord
from tidemill.coordinator.shard import RawRecord, Shard
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.admin import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidemill.protocol.records import iterate_records
from tidemill.protocol.schema import Request, Response
from tidemill.types import TopicId

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"
_LOAD_BATCHES_AT_ONCE = 64
_NO_TOKEN = 0
_DESERTED_RECHECK_MS = 1_000


class GroupCoordinators:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        replicas: Replicas,
        controller: ControllerDriver,
        new_uuid: Callable[[], bytes],
        uuid_text: Callable[[bytes], str],
    ) -> None:
        self._config = config
        self._clock = SteadyClock(clock, asyncio.get_running_loop().time)
        self._replicas = replicas
        self._controller = controller
        self._new_uuid = new_uuid
        self._uuid_text = uuid_text
        self._shards: dict[int, _HostedShard] = {}
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._last_token = _NO_TOKEN
        # The request that a shard is handling, and its answer if that came before `handle` returned.
        self._asking = _NO_TOKEN
        self._answered_now: Response | ApiError | None = None
        self._creation: asyncio.Task[None] | None = None
        self._loads: set[asyncio.Task[None]] = set()

    # -- where a group is ------------------------------------------------------------------------------------

    @property
    def partition_count(self) -> int:
        topic = self._controller.image.topics_by_name.get(OFFSETS_TOPIC)
        return len(topic.partitions) if topic else self._config.offsets_topic.num_partitions

    async def leader_of(self, group_id: str) -> int:
        """The broker that coordinates a group; creates the topic if it is not there."""
        await self.ensure_topic()
        partition = self._controller.image.partition(
            OFFSETS_TOPIC, partition_for_group(group_id, self.partition_count)
        )
        if partition is None or not partition.has_leader:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return partition.leader

    async def ensure_topic(self) -> None:
        if OFFSETS_TOPIC in self._controller.image.topics_by_name:
            return
        if self._creation is None or self._creation.done():
            self._creation = asyncio.get_running_loop().create_task(self._create_topic())
        await self._creation

    async def _create_topic(self) -> None:
        settings = self._config.offsets_topic
        brokers = sum(1 for broker in self._controller.image.brokers.values() if not broker.is_fenced)
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(settings.segment_bytes),
        }
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=OFFSETS_TOPIC,
                    num_partitions=settings.num_partitions,
                    # A single node serves groups too; the topic gets more replicas when there are more brokers.
                    replication_factor=min(settings.replication_factor, max(1, brokers)),
                    configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
                )
            ]
        )
        await self._controller.ask(request)

    # -- requests --------------------------------------------------------------------------------------------

    def ask(self, group_id: str, request: Request, caller: Caller) -> Response | Awaitable[Response]:
        """The coordinator's response, at once where nothing has to be waited for, as for nearly every heartbeat.

        `ApiError`, now or awaited, when this broker cannot give one.
        """
        shard = self._shards.get(partition_for_group(group_id, self.partition_count))
        if shard is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        return self._ask(shard, request, caller)

    async def ask_all(self, request: Request, caller: Caller) -> list[Response]:
        """The same request to every shard of this broker."""
        answers = [self._ask(shard, request, caller) for shard in list(self._shards.values())]
        return [answer if isinstance(answer, Response) else await answer for answer in answers]

    def _ask(self, shard: _HostedShard, request: Request, caller: Caller) -> Response | Awaitable[Response]:
        if shard.is_deserted:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._last_token = token = self._last_token + 1
        self._asking = token
        shard.handle(GroupCall(request, caller), token)
        response, self._answered_now = self._answered_now, None
        self._asking = _NO_TOKEN
        if response is None:
            later = self._waiting[token] = asyncio.get_running_loop().create_future()
            return later
        if isinstance(response, ApiError):
            raise response
        return response

    def _respond(self, token: int, response: Response | ApiError) -> None:
        if token == _NO_TOKEN:
            return  # the answer to a change of the metadata, which nobody waits for
        if token == self._asking:
            self._answered_now = response
            return
        answer = self._waiting.pop(token, None)
        if answer is None or answer.done():
            return
        if isinstance(response, ApiError):
            answer.set_exception(response)
        else:
            answer.set_result(response)

    def machines(self) -> Iterator[Groups]:
        """The machines of the shards that are loaded, for the broker's own questions (lag, rebalance events)."""
        for shard in self._shards.values():
            if shard.is_active:
                yield shard.machine

    def events_of(self, group_id: str) -> Sequence[RebalanceEvent]:
        """Why a group rebalanced, the last times it did."""
        hosted = self._shards.get(partition_for_group(group_id, self.partition_count))
        return () if hosted is None else hosted.machine.environment.events_of(group_id)

    # -- following the metadata ------------------------------------------------------------------------------

    def load(self, image: MetadataImage) -> None:
        self._host(image)

    def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._host(image)
        names = frozenset(topic.name for topic in delta.changed_topics.values())
        deleted = {topic.name: topic.id for topic in delta.deleted_topics.values()}
        if names or deleted:
            change = TopicsChanged(names, deleted)
            for shard in list(self._shards.values()):
                shard.handle(change, _NO_TOKEN)

    def _host(self, image: MetadataImage) -> None:
        """A shard for every partition that this broker leads, in the epoch in which it leads it."""
        topic = image.topics_by_name.get(OFFSETS_TOPIC)
        led = {
            index: partition
            for index, partition in enumerate(topic.partitions if topic else ())
            if partition.leader == self._config.node_id
        }
        for index in list(self._shards):
            if index not in led or led[index].leader_epoch != self._shards[index].leader_epoch:
                self._shards.pop(index).close()
        for index, image_of_partition in led.items():
            if index in self._shards:
                continue
            partition, _ = self._replicas.find((OFFSETS_TOPIC, index))
            if partition is None or partition.log is None:
                continue
            shard = _HostedShard(
                partition,
                image_of_partition.leader_epoch,
                self._machine(),
                self._clock,
                self._respond,
                partial(self._replicas.is_deserted, partition, self._replicas.steady_ms()),
            )
            self._shards[index] = shard
            task = asyncio.get_running_loop().create_task(shard.load())
            self._loads.add(task)
            task.add_done_callback(self._loads.discard)

    def _machine(self) -> Groups:
        environment = Environment(self._config.groups, _ImageTopics(self._controller), self._new_member_id)
        environment.group_configs = self._group_configs
        return Groups(environment, ConsumerGroupProtocol)

    def _group_configs(self, group_id: str) -> Mapping[str, str]:
        return self._controller.image.config(ConfigResource(ResourceType.GROUP, group_id))

    def _new_member_id(self, prefix: str | None) -> str:
        """As Kafka writes them: a dashed uuid after a prefix, a short one where the id is nothing else."""
        unique = self._new_uuid()
        return self._uuid_text(unique) if prefix is None else f"{prefix}-{uuid.UUID(bytes=unique)}"

    def close(self) -> None:
        for task in self._loads:
            task.cancel()
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()


class _ImageTopics:
    """The cluster's topics as groups see them."""

    def __init__(self, controller: ControllerDriver) -> None:
        self._controller = controller

    def partitions_of(self, name: str) -> int | None:
        topic = self._controller.image.topics_by_name.get(name)
        return len(topic.partitions) if topic else None

    def id_of(self, name: str) -> TopicId | None:
        topic = self._controller.image.topics_by_name.get(name)
        return topic.id if topic else None

    def name_of(self, topic_id: TopicId) -> str | None:
        topic = self._controller.image.topics_by_id.get(topic_id)
        return topic.name if topic else None

    def names(self) -> Iterable[str]:
        return self._controller.image.topics_by_name


class _HostedShard:
    """A shard, its partition and its one timer."""

    def __init__(
        self,
        partition: Partition,
        leader_epoch: int,
        machine: Groups,
        clock: Clock,
        respond: Callable[[int, Response | ApiError], None],
        is_deserted: Callable[[], bool],
    ) -> None:
        self._partition = partition
        self.leader_epoch = leader_epoch
        self.machine = machine
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._shard: Shard[GroupRecord] = Shard(machine, self, respond, _report)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_deserted = is_deserted
        self._was_deserted = False
        partition.wait(self._grew)

    @property
    def is_active(self) -> bool:
        return self._shard.is_active

    def append(self, records: Sequence[RawRecord], now_ms: int) -> int:
        return self._partition.append_internal(records, now_ms)

    @property
    def is_deserted(self) -> bool:
        """Whether another broker may coordinate these groups by now, without this one having heard of it.

        Such a coordinator decides nothing and confirms nothing: its members have their sessions elsewhere (failure 11).
        When it turns out that it was only alone for a while, its members get new sessions.
        """
        is_deserted = self._is_deserted()
        if self._was_deserted and not is_deserted and self._shard.is_active:
            self.machine.on_loaded(self._clock.now_ms())
        self._was_deserted = is_deserted
        return is_deserted

    def handle(self, request: GroupCall | TopicsChanged, token: int) -> None:
        self._shard.handle(request, token, self._clock.now_ms())
        self._schedule()

    def _grew(self, _added_bytes: int) -> None:
        if self._partition.log is None:
            self._shard.fail(ErrorCode.NOT_COORDINATOR)
        else:
            self._shard.committed(self._partition.high_watermark)

    def _schedule(self) -> None:
        """One timer for the earliest deadline. A deadline that moved back is found out when the timer fires."""
        deadline_ms = self._shard.deadline_ms
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, deadline_ms - self._clock.now_ms()) / 1000
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.is_deserted:
            self._timer_ms = self._clock.now_ms() + _DESERTED_RECHECK_MS
            self._timer = self._loop.call_later(_DESERTED_RECHECK_MS / 1000, self._tick)
            return
        self._shard.tick(self._clock.now_ms())
        self._schedule()

    async def load(self) -> None:
        """Replay the partition, a few batches at a time."""
        log = self._partition.log
        assert log is not None
        end_offset = log.log_end_offset
        try:
            count = 0
            for segment in list(log.segments):
                for _, header, batch in segment.batches():
                    if header.base_offset >= end_offset or header.is_control:
                        continue
                    for record in iterate_records(batch, header):
                        if record.key is not None:
                            self._shard.replay_raw(record.key, record.value)
                    count += 1
                    if count % _LOAD_BATCHES_AT_ONCE == 0:
                        await asyncio.sleep(0)
            self._shard.loaded(end_offset, self._partition.high_watermark, self._clock.now_ms())
        except Exception:
            logger.exception("cannot load the groups of %s", self._partition.name)
            self._shard.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._schedule()

    def close(self) -> None:
        self._partition.stop_waiting(self._grew)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._shard.fail(ErrorCode.NOT_COORDINATOR)


def _report(effect: object) -> None:
    if isinstance(effect, RebalanceEvent):
        logger.info("%s", effect)
