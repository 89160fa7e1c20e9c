"""The coordinator runtime: one shard for each partition of an internal topic that this broker leads.

It creates the topic on the first FindCoordinator, finds the shard of a key, and loads shards from their partitions. It
passes them the high watermark and the time, and their answers to the requests that wait. The machines in `coordinator/`
decide. Their owners (`groups.py`, `transactions.py`, `share_state.py`) make them and carry out their effects. The clock
of the shards is steady: their deadlines are points in time, which a change of the wall clock must not move.

A shard loads in slices between requests; until it is done it answers COORDINATOR_LOAD_IN_PROGRESS. It replays everything
up to the log's end, committed or not: the log is the leader's, so none of it is truncated while this broker leads. A shard
belongs to one leader epoch: in the next one there is a new shard.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from tidemill.broker.clock import Clock
from tidemill.broker.machine_host import DeadlineTimer, Requests
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.partitions.replicas import Replicas
from tidemill.broker.quorum.driver import ControllerDriver
from tidemill.config import BrokerConfig
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage
from tidemill.coordinator.partitions import partition_for_group
from tidemill.coordinator.shard import CoordinatorMachine, RawRecord, Shard, Writer
from tidemill.errors import ApiError, ErrorCode, ProtocolError
from tidemill.log.log import Log
from tidemill.log.transactions import TransactionEnd, marker_of
from tidemill.protocol.api.admin import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidemill.protocol.records import BatchHeader, iterate_records
from tidemill.runtime import NO_TOKEN

logger = logging.getLogger(__name__)

_LOAD_BATCHES_AT_ONCE = 64
_LOAD_RECORDS_AT_ONCE = 500
_DESERTED_RECHECK_MS = 1_000

MachineT = TypeVar("MachineT", bound=CoordinatorMachine[Any])


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """As it is created on first use."""

    name: str
    num_partitions: int
    replication_factor: int
    configs: Mapping[str, str]


class MachineOwner(Protocol[MachineT]):
    """Makes the machines of a runtime and carries out their effects."""

    def make_machine(self, partition_index: int, leader_epoch: int) -> MachineT:
        """Returns an empty machine for one partition in one epoch."""

    def carry_out(self, partition_index: int, leader_epoch: int, effect: Any) -> None:
        """Carries out an effect of a machine."""

    def returned(self, machine: MachineT, steady_ms: int) -> None:
        """The broker is known to lead again, after a time in which another one might have, and none has."""

    def shard_closed(self, partition_index: int, leader_epoch: int) -> None:
        """This broker no longer leads the partition in that epoch."""

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """The shards follow a new image."""


class CoordinatorRuntime(Generic[MachineT]):
    """The shards of one internal topic."""

    def __init__(
        self,
        topic: InternalTopic,
        config: BrokerConfig,
        clock: Clock,
        replicas: Replicas,
        controller: ControllerDriver,
        owner: MachineOwner[MachineT],
    ) -> None:
        self.topic = topic
        self._config = config
        self._clock = clock
        self._replicas = replicas
        self._controller = controller
        self._owner = owner
        self._shards: dict[int, HostedShard[MachineT]] = {}
        self._requests = Requests()
        self._creation: asyncio.Task[None] | None = None
        self._loads: set[asyncio.Task[None]] = set()

    # -- where a key is --------------------------------------------------------------------------------------

    @property
    def partition_count(self) -> int:
        topic = self._controller.image.topics_by_name.get(self.topic.name)
        return len(topic.partitions) if topic else self.topic.num_partitions

    def partition_of(self, key: str) -> int:
        return partition_for_group(key, self.partition_count)

    async def leader_of(self, key: str) -> int:
        """Returns the broker that coordinates `key`; creates the topic if it does not exist."""
        await self.ensure_topic()
        partition = self._controller.image.partition(self.topic.name, self.partition_of(key))
        if partition is None or not partition.has_leader:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return partition.leader

    async def ensure_topic(self) -> None:
        if self.topic.name in self._controller.image.topics_by_name:
            return
        if self._creation is None or self._creation.done():
            self._creation = asyncio.get_running_loop().create_task(self._create_topic())
        await self._creation

    async def _create_topic(self) -> None:
        topic = self.topic
        brokers = sum(1 for broker in self._controller.image.brokers.values() if not broker.is_fenced)
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic.name,
                    num_partitions=topic.num_partitions,
                    # A single broker coordinates, too; the controller adds replicas when brokers join.
                    replication_factor=min(topic.replication_factor, max(1, brokers)),
                    configs=[
                        CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
                    ],
                )
            ]
        )
        await self._controller.ask(request)

    # -- requests --------------------------------------------------------------------------------------------

    def shard_of(self, key: str) -> HostedShard[MachineT]:
        return self.shard_at(self.partition_of(key))

    def shard_at(self, partition_index: int) -> HostedShard[MachineT]:
        """`ApiError` when another broker coordinates this partition, or may do so by now."""
        shard = self._shards.get(partition_index)
        if shard is None:
            is_coming = self._will_host(partition_index)
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_coming else ErrorCode.NOT_COORDINATOR
            raise ApiError(code)
        shard.check_leadership()
        if shard.is_deserted:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return shard

    def hosted(self, partition_index: int) -> HostedShard[MachineT] | None:
        """Returns the shard of a partition, whether it may decide or not; None where another broker leads."""
        return self._shards.get(partition_index)

    def _will_host(self, partition_index: int) -> bool:
        """Whether the image, which clients see, is ahead of the partitions that this broker has opened."""
        image = self._controller.image.partition(self.topic.name, partition_index)
        partition, _ = self._replicas.find((self.topic.name, partition_index))
        is_offline = partition is not None and partition.log is None
        return image is not None and image.leader == self._config.node_id and not is_offline

    def ask_shard(self, handle: Callable[[int], None]) -> Any | asyncio.Future[Any]:
        """The answer of a shard to `handle(token)`, or a future of it. `ApiError`, now or awaited."""
        return self._requests.ask(handle)

    async def ask_every_shard(self, request: Any, *, is_large: bool = False) -> list[Any]:
        """Sends the same request to every shard of this broker. After each, the loop has its turn when it is a large one."""
        shards = [self.shard_at(index) for index in list(self._shards)]
        answers = []
        for shard in shards:
            answers.append(self.ask_shard(partial(shard.handle, request)))
            if is_large:
                await asyncio.sleep(0)
        return [await answer if isinstance(answer, Awaitable) else answer for answer in answers]

    def machines(self) -> Iterator[MachineT]:
        """Returns the machines of the loaded shards, for metrics and status."""
        for shard in self._shards.values():
            if shard.is_active:
                yield shard.machine

    def all_machines(self) -> Iterator[MachineT]:
        """Returns the machines of all shards, also of those that still load."""
        return (shard.machine for shard in self._shards.values())

    # -- following the metadata ------------------------------------------------------------------------------

    def load(self, image: MetadataImage) -> None:
        self._host(image)

    def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._host(image)
        self._owner.metadata_changed(delta, image)

    def tell_all(self, request: Any) -> None:
        """Passes a notice to every machine; its reply goes nowhere."""
        for shard in list(self._shards.values()):
            shard.handle(request, NO_TOKEN)

    def _host(self, image: MetadataImage) -> None:
        """Opens a shard for every partition that this broker leads, in its leader epoch; closes the others."""
        topic = image.topics_by_name.get(self.topic.name)
        led = {
            index: partition
            for index, partition in enumerate(topic.partitions if topic else ())
            if partition.leader == self._config.node_id
        }
        for index in list(self._shards):
            if index not in led or led[index].leader_epoch != self._shards[index].leader_epoch:
                self._close_shard(index)
        for index, image_of_partition in led.items():
            if index in self._shards:
                continue
            partition, _ = self._replicas.find((self.topic.name, index))
            if partition is not None and partition.log is not None:
                self._open_shard(index, partition, image_of_partition.leader_epoch)

    def _open_shard(self, index: int, partition: Partition, leader_epoch: int) -> None:
        shard = self._shards[index] = HostedShard(
            partition,
            leader_epoch,
            self._owner.make_machine(index, leader_epoch),
            self._clock,
            respond=self._requests.respond,
            report=partial(self._owner.carry_out, index, leader_epoch),
            may_be_replaced=partial(self._replicas.is_deserted, partition),
            returned=self._owner.returned,
        )
        task = asyncio.get_running_loop().create_task(shard.load())
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    def _close_shard(self, index: int) -> None:
        shard = self._shards.pop(index)
        self._owner.shard_closed(index, shard.leader_epoch)
        shard.close()

    def close(self) -> None:
        for task in self._loads:
            task.cancel()
        for index in list(self._shards):
            self._close_shard(index)


class HostedShard(Generic[MachineT]):
    """A shard, its partition and its one timer (Kafka: CoordinatorContext). It is the shard's `PartitionLog`."""

    def __init__(
        self,
        partition: Partition,
        leader_epoch: int,
        machine: MachineT,
        clock: Clock,
        *,
        respond: Callable[[int, Any], None],
        report: Callable[[Any], None],
        may_be_replaced: Callable[[], bool],
        returned: Callable[[MachineT, int], None],
    ) -> None:
        self._partition = partition
        self.leader_epoch = leader_epoch
        self.machine = machine
        self._clock = clock
        self._shard: Shard[Any] = Shard(machine, self, respond, report)
        self._timer = DeadlineTimer(clock, self._tick)
        self._may_be_replaced = may_be_replaced
        # Whether another broker might coordinate these keys at the last check, without the metadata having reached this
        # one. Such a coordinator decides nothing and confirms nothing: its clients have another one (failure 11).
        self.is_deserted = False
        self._is_closed = False
        self._returned = returned
        partition.reader.wait(self._grew)

    @property
    def is_active(self) -> bool:
        return self._shard.is_active

    # -- the log of the shard --------------------------------------------------------------------------------

    def append(self, records: Sequence[RawRecord], steady_ms: int, writer: Writer | None = None) -> int:
        return self._partition.appender.append_internal(records, steady_ms, writer)

    def has_ended(self, end: TransactionEnd) -> bool:
        log = self._partition.log
        return log is not None and log.producers.has_ended(end)

    def append_marker(self, end: TransactionEnd, steady_ms: int) -> int:
        return self._partition.appender.append_marker(end, steady_ms)

    # -- requests --------------------------------------------------------------------------------------------

    def check_leadership(self) -> None:
        """Updates `is_deserted`. Notifies the machine when this broker is known to lead again."""
        was_deserted, self.is_deserted = self.is_deserted, self._may_be_replaced()
        if was_deserted and not self.is_deserted and self._shard.is_active:
            self._returned(self.machine, self._clock.steady_ms())

    def handle(self, request: Any, token: int) -> None:
        self._shard.handle(request, token, self._clock.steady_ms())
        self._schedule()

    def end_transaction(self, end: TransactionEnd, token: int) -> None:
        self._shard.end_transaction(end, token, self._clock.steady_ms())
        self._schedule()

    def _grew(self, _added_bytes: int) -> None:
        if self._partition.log is None:
            self._shard.fail(ErrorCode.NOT_COORDINATOR)
        else:
            self._shard.committed(self._partition.high_watermark)

    # -- time ------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        self._timer.schedule(self._shard.deadline_ms)

    def _tick(self) -> None:
        self.check_leadership()
        if self.is_deserted:
            self._timer.schedule(self._clock.steady_ms() + _DESERTED_RECHECK_MS)
            return
        self._shard.tick(self._clock.steady_ms())
        self._schedule()

    # -- its life --------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Replays the partition, a few batches or records at a time."""
        log = self._partition.log
        if log is None or self._is_closed:
            # The topic was deleted, or the leadership lost, before the load began.
            self._shard.fail(ErrorCode.NOT_COORDINATOR)
            return
        try:
            if not await self._replay_log(log):
                return
        except ProtocolError as error:
            # As Kafka: the decision in that batch is not known, so nothing is decided on top of it.
            logger.error(
                "%s cannot be loaded; its groups or transactions are not served here: %s",
                self._partition.name,
                error,
            )
            self._shard.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        except Exception:
            logger.exception(
                "%s cannot be loaded; its groups or transactions are not served here", self._partition.name
            )
            self._shard.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._schedule()

    async def _replay_log(self, log: Log) -> bool:
        """Returns whether it reached the end: the shard may be closed, and the log deleted, between two records."""
        batches, records, end_offset = 0, 0, log.log_end_offset
        for segment in list(log.segments):
            for _, header, batch in segment.batches():
                if header.base_offset < end_offset:
                    for _ in self._replayed(header, batch):
                        records += 1
                        if records % _LOAD_RECORDS_AT_ONCE == 0 and not await self._may_go_on(log):
                            return False
                batches += 1
                if batches % _LOAD_BATCHES_AT_ONCE == 0 and not await self._may_go_on(log):
                    return False
        self._shard.loaded(end_offset, self._partition.high_watermark, self._clock.steady_ms())
        return True

    async def _may_go_on(self, log: Log) -> bool:
        """The event loop has its turn. Returns whether the shard is still to be loaded from that log."""
        await asyncio.sleep(0)
        if not self._is_closed and self._partition.log is log:
            return True
        self._shard.fail(ErrorCode.NOT_COORDINATOR)
        return False

    def _replayed(self, header: BatchHeader, batch: memoryview) -> Iterator[None]:
        """Replays a batch, and yields after each record."""
        try:
            yield from self._replay(header, batch)
        except ProtocolError as error:
            raise ProtocolError(f"the batch at offset {header.base_offset}: {error}") from error

    def _replay(self, header: BatchHeader, batch: memoryview) -> Iterator[None]:
        if header.is_control:
            end = marker_of(batch, header)
            if end is not None:
                self._shard.replay_end(end)
            return
        writer = Writer(header.producer_id, header.producer_epoch) if header.is_transactional else None
        for record in iterate_records(batch, header):
            if record.key is not None:
                self._shard.replay_raw(record.key, record.value, writer, record.offset)
            yield

    def close(self) -> None:
        self._is_closed = True
        self._partition.reader.stop_waiting(self._grew)
        self._timer.cancel()
        self._shard.fail(ErrorCode.NOT_COORDINATOR)
