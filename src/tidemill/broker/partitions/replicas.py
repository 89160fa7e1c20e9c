"""The partitions that this broker hosts (Kafka: ReplicaManager), kept in step with the metadata image.

Opens logs at start, creates and removes them as topics and replicas come and go, and lets each partition lead or follow as
the image says. A partition whose log cannot be opened is offline: it answers KAFKA_STORAGE_ERROR and is reported once,
while the others serve. Folders that the image does not know are never removed, only those of partitions that the image
takes away while this broker runs (failure 16).

When the disk fails under a partition that has other replicas, the broker stops: they take over, and the controller elects
them only when this broker is gone (failure 5). Damage, bytes that are no batch, is repaired from a replica. The broker notes
that the log must be checked whole and stops without a clean mark. On its return it is in no ISR, cuts the log at the damage
(the rest is set aside) and copies the rest from the leader. A sole replica, or the last one in sync, is never cut: it
stays as it is and is reported.

Handlers find partitions by the names on the wire, in three dictionaries over the same values.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from tidemill.broker.disk.long_work import LongWork
from tidemill.broker.disk.syncer import Syncer
from tidemill.broker.metrics.registry import Metrics
from tidemill.broker.net.channel import Channels
from tidemill.broker.net.network import Address
from tidemill.broker.partitions.appending.former_partition import FormerPartition
from tidemill.broker.partitions.fetchers import Fetchers
from tidemill.broker.partitions.hosted_topic import HostedTopic
from tidemill.broker.partitions.isr_changes import Ask, IsrChanges, retirements
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.partitions.refusals import EarlyRefusals, Refusals
from tidemill.broker.partitions.shrinking.batch_transfers import BatchTransfers
from tidemill.broker.partitions.shrinking.places import storing_partition
from tidemill.broker.partitions.shrinking.stored_elsewhere import Stored, end_of, stored_for
from tidemill.broker.partitions.succession import Succession
from tidemill.broker.partitions.throttles import Throttles
from tidemill.broker.partitions.upkeep.log_manager import LogManager
from tidemill.broker.partitions.upkeep.opening import open_log
from tidemill.broker.partitions.upkeep.strays import set_strays_aside
from tidemill.broker.partitions.views import View
from tidemill.broker.platform import Platform
from tidemill.config import BrokerConfig, TopicConfig, ineffective_topic_values, resolve_topic_config
from tidemill.controller.delta import MetadataDelta, TopicDelta
from tidemill.controller.image import MetadataImage, PartitionImage, ResourceType, TopicImage
from tidemill.controller.topics.fewer_partitions import removed_ends, removed_epochs
from tidemill.errors import ErrorCode, StorageError
from tidemill.filters.language import FilterError
from tidemill.log.datadir import DataDir
from tidemill.log.log import Log
from tidemill.log.segments.tag_index_files import TagIndexes
from tidemill.replication.follower import RestartAt, TruncateTo
from tidemill.replication.leader import ProposeIsr
from tidemill.types import NO_BROKER, NO_LEADER_EPOCH, BrokerId, TopicPartition

logger = logging.getLogger(__name__)

# Looking up a member of an enumeration calls a Python function: every fetched partition would pay for it.
_NONE = ErrorCode.NONE
_RECONSIDER_S = 0.5
# How long a stop waits for snapshots of delayed records. Without one the next start replays more of the log.
_SNAPSHOTS_S_MAX = 20.0
# How often the leaders of decommissioned partitions look whether these are empty.
_RETIRE_S = 2.0


class Replicas:
    def __init__(
        self,
        config: BrokerConfig,
        platform: Platform,
        data_dir: DataDir,
        syncer: Syncer,
        ask: Ask,
        channels: Channels,
        broker_epoch: Callable[[], int],
        metadata_known_ms: Callable[[], int],
        on_fatal: Callable[[str], None],
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_loss` is called for every replica of which the disk may hold less than was written.

        `metadata_known_ms` is the last time up to which every committed change of the metadata is known here.
        """
        self._config = config
        self._platform = platform
        self._data_dir = data_dir
        self.syncer = syncer
        self.broker_epoch = broker_epoch
        self._on_fatal = on_fatal
        self._on_loss = on_loss
        self._loop = asyncio.get_running_loop()
        self.steady_ms = platform.clock.steady_ms
        self.wall_ms = platform.clock.wall_ms
        self.broker_id: int = config.node_id
        succession = Succession(self.broker_id, self.steady_ms, metadata_known_ms)
        self.is_deserted = succession.is_deserted
        self.is_succession_over = succession.is_over
        self.lag_time_max_ms = config.replication.lag_time_max_ms
        self.followers_serve_consumers = config.replication.selector_class is not None
        self.long_work = LongWork(platform.run_blocking)
        self._damaged: set[TopicPartition] = set()
        self.early_refusals = EarlyRefusals()
        self.metrics = Metrics()
        self._configs: dict[tuple[tuple[str, str], ...], TopicConfig] = {}
        self.throttles = Throttles(config)
        self._log_manager = LogManager(config, platform, data_dir, syncer, self.partitions)
        self._fetchers = Fetchers(config.replication, channels, self)
        self.reconfigurables = (self._log_manager.reconfigure, self._fetchers.reconfigure)
        self._isr_changes = IsrChanges(config.node_id, broker_epoch, ask)
        transfers = BatchTransfers(channels, self, self._loop.call_soon)
        self.pass_on = transfers.pass_on
        self.ask_stored = transfers.ask_stored
        self._is_closing = False
        self.image: MetadataImage | None = None
        self.by_name: dict[str, HostedTopic] = {}
        self.by_wire_name: dict[bytes, HostedTopic] = {}
        self.by_wire_id: dict[bytes, HostedTopic] = {}
        # By name and by id.
        self.views: dict[str | bytes, View] = {}
        # Topics with delayed records, by name and by id.
        self.delaying: set[str | bytes] = set()
        self.filtered_work = LongWork(platform.run_blocking)
        self.tag_indexes = TagIndexes(platform.files)
        self.delivery_work = LongWork(platform.run_blocking)
        self.snapshot_work = LongWork(platform.run_blocking)

    # -- finding ---------------------------------------------------------------------------------------------

    def find(self, key: tuple[str | bytes, int]) -> tuple[Partition | None, ErrorCode]:
        """Find a partition by (topic name or topic id, index), or the error for the client."""
        name, index = key
        if isinstance(name, bytes):
            hosted = self.by_wire_id.get(name)
            if hosted is None:
                return None, ErrorCode.UNKNOWN_TOPIC_ID
        else:
            hosted = self.by_name.get(name)
            if hosted is None:
                return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = hosted.get(index)
        if partition is None:
            if name in self.views:
                return None, ErrorCode.INVALID_TOPIC_EXCEPTION
            if self._image_of(key) is not None:
                return None, ErrorCode.NOT_LEADER_OR_FOLLOWER
            return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return partition, _NONE

    def find_readable(self, key: tuple[str | bytes, int]) -> tuple[Partition | None, View | None, ErrorCode]:
        """As `find`, for reading. The partition of a view is its source's, and the view comes with it."""
        view = self.views.get(key[0]) if self.views else None
        partition, error = self.find(key if view is None else (view.source, key[1]))
        return partition, view, error

    def _image_of(self, key: tuple[str | bytes, int]) -> PartitionImage | None:
        image, (name, index) = self.image, key
        if image is None:
            return None
        topics: Mapping[object, TopicImage] = (
            image.topics_by_id if isinstance(name, bytes) else image.topics_by_name  # type: ignore[assignment]
        )
        topic = topics.get(name)
        partitions = () if topic is None else image.partitions_of(topic)
        return partitions[index] if 0 <= index < len(partitions) else None

    def leader_of(self, key: tuple[str | bytes, int]) -> tuple[int, int]:
        """The leader of a partition, hosted here or not, and its epoch."""
        image = self._image_of(key)
        return (NO_BROKER, NO_LEADER_EPOCH) if image is None else (image.leader, image.leader_epoch)

    def partitions(self) -> Iterator[Partition]:
        for hosted in self.by_name.values():
            yield from hosted.values()

    def sources_of_views(self) -> Iterator[Partition]:
        for name in sorted({view.source for view in self.views.values()}):
            yield from self.by_name.get(name, {}).values()

    # -- what partitions and fetch loops need of the broker --------------------------------------------------

    def note_lateness(self, late_ms: int) -> None:
        # Observations take memory until the status listener sorts them.
        if self.metrics.is_watched:
            self.metrics.delay_lateness.observe(max(0, late_ms) / 1000)

    def eligible_epoch(self, broker_id: int) -> int | None:
        broker = self.image.brokers.get(BrokerId(broker_id)) if self.image is not None else None
        return broker.epoch if broker is not None and broker.is_active else None

    def incarnation_of(self, broker_id: int) -> bytes | None:
        broker = self.image.brokers.get(BrokerId(broker_id)) if self.image is not None else None
        return None if broker is None else broker.incarnation_id

    def address_of(self, broker_id: int) -> Address | None:
        broker = self.image.brokers.get(BrokerId(broker_id)) if self.image is not None else None
        if broker is None or not broker.endpoints:
            return None
        name = self._config.network.inter_broker_listener_name
        endpoint = broker.endpoints.get(name) if name is not None else None
        if endpoint is None:
            endpoint = next(iter(broker.endpoints.values()))
        return Address(endpoint.host, endpoint.port)

    def propose(self, partition: Partition, proposal: ProposeIsr) -> None:
        self._isr_changes.propose(partition, proposal)

    def reconsider_later(self, partition: Partition) -> None:
        if not self._is_closing:
            self._loop.call_later(_RECONSIDER_S, partition.leadership.reconsider)

    def truncate(self, partition: Partition, cut: TruncateTo | RestartAt, done: Callable[[], None]) -> None:
        self._log_manager.truncate(partition, cut, done)

    def restart_within_batch(self, partition: Partition, offset: int) -> None:
        self._log_manager.restart_within_batch(partition, offset)

    def follow_log_start(self, partition: Partition, offset: int) -> None:
        self._log_manager.move_start(partition, offset)

    # -- following the metadata ------------------------------------------------------------------------------

    def load(self, image: MetadataImage) -> None:
        for _ in self.load_in_steps(image):
            pass

    def load_in_steps(self, image: MetadataImage) -> Iterator[None]:
        """Open every partition of the image, one a step: at start, before anything listens."""
        self.image = image
        self.throttles.configure(image, image.configs)
        for topic in image.topics_by_name.values():
            yield from self._host(topic, range(len(topic.partitions)))
        set_strays_aside(self._data_dir, lambda tp: tp.partition in self.by_name.get(tp.topic, {}))
        self._log_manager.remove_folders_later(self._data_dir.deleted_folders())

    def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for _ in self.apply_in_steps(delta, image):
            pass

    def apply_in_steps(self, delta: MetadataDelta, image: MetadataImage) -> Iterator[None]:
        """Follow one committed change; a step is a partition that had to be opened or removed."""
        self.image = image
        if delta.changed_configs:
            self.throttles.configure(image, delta.changed_configs)
        for topic in delta.deleted_topics.values():
            yield from self._drop(topic)
        for topic_id, change in delta.changed_topics.items():
            topic = image.topics_by_id[topic_id]
            self._remove_decommissioned(topic, change)
            yield from self._host(topic, sorted(change.changed))
        if any(resource.type == ResourceType.BROKER for resource in delta.changed_configs):
            self._configs.clear()
            self._reconfigure(image.topics_by_name.values())
        else:
            names = [r.name for r in delta.changed_configs if r.type == ResourceType.TOPIC]
            self._reconfigure(image.topics_by_name[name] for name in names if name in image.topics_by_name)
        if delta.changed_brokers:
            # A broker that came back or was unfenced may join ISRs although its partitions are at rest.
            self.reconsider_isrs()
            self._fetchers.brokers_changed()

    def _reconfigure(self, topics: Iterable[TopicImage]) -> None:
        for topic in topics:
            if self._shows(topic):
                continue
            config = self.topic_config(topic.name)
            self._note_delays(topic, config)
            hosted = self.by_name.get(topic.name)
            if hosted is None:
                continue
            for partition in hosted.values():
                partition.configure(config)
            hosted.configure_former(len(topic.partitions), config, self.image)

    def topic_config(self, name: str) -> TopicConfig:
        """The configuration in force for a topic; equal overrides share one object."""
        assert self.image is not None
        overrides: Mapping[str, str] = self.image.topic_config(name)
        key = tuple(sorted(overrides.items()))
        config = self._configs.get(key)
        if config is None:
            layers = self.image.broker_layers(self._config.node_id, self._config.properties)
            config = self._configs[key] = resolve_topic_config(overrides, layers)
            for problem in ineffective_topic_values(overrides):
                logger.warning("A setting of topic %s has no effect: %s", name, problem)
        return config

    def _note_delays(self, topic: TopicImage, config: TopicConfig) -> None:
        if config.tidemill_delays_enable:
            self.delaying |= {topic.name, bytes(topic.id)}

    @property
    def leaves_out_records(self) -> bool:
        """Whether there are views or topics with delayed records here."""
        return bool(self.views or self.delaying)

    def _shows(self, topic: TopicImage) -> bool:
        """Whether it is a view. Shows its source by the filter that it has now."""
        assert self.image is not None
        if topic.partitions or self.image.source_of(topic.name) is None:
            return False
        try:
            view = View.configured(topic, self.image.topic_config(topic.name), self.metrics.topic(topic.name))
        except FilterError as error:
            logger.warning("View %s shows no records: its filter cannot be parsed: %s", topic.name, error)
            return False
        self.views[view.name] = self.views[bytes(view.topic_id)] = view
        return True

    def _host(self, topic: TopicImage, indexes: Iterable[int]) -> Iterator[None]:
        self._shows(topic)
        config = self.topic_config(topic.name)
        self._note_delays(topic, config)
        hosted = self.by_name.get(topic.name)
        if hosted is None:
            hosted = self.by_name[topic.name] = HostedTopic(topic.name, self.metrics.topic(topic.name))
        self.by_wire_name[topic.name.encode()] = hosted
        self.by_wire_id[bytes(topic.id)] = hosted
        hosted.note_storing(len(topic.partitions), config, self.image)
        for index in indexes:
            image = topic.partitions[index]
            partition = hosted.get(index)
            if self._config.node_id not in image.replicas:
                if partition is not None:
                    self._log_manager.remove_folders_later(self._remove(hosted.pop(index)))
                continue
            if partition is None:
                name = TopicPartition(topic.name, index)
                partition = hosted[index] = self._open(name, topic.id, image, config)
                self._apply(partition, image)
                yield
            else:
                if partition.config is not config:
                    # Before the partition leads in a new epoch: what it may do there depends on it.
                    partition.configure(config)
                self._apply(partition, image)

    def _apply(self, partition: Partition, image: PartitionImage) -> None:
        """Lead, follow, or wait for a leader."""
        if partition.log is None:
            self._repair(partition, image)
        before = (partition.leader_id, partition.leader_epoch)
        if partition.is_leader and partition.image is not None:
            self.metrics.isr_shrinks += len(image.isr) < len(partition.image.isr)
            self.metrics.isr_expands += len(image.isr) > len(partition.image.isr)
        was_following = self._fetchers.state_of(partition) is not None
        partition.apply(image)
        if partition.log is None or image.leader in (NO_BROKER, self._config.node_id):
            self._fetchers.unfollow(partition)
        elif not was_following or before != (image.leader, image.leader_epoch):
            self._fetchers.follow(partition, image.leader, image.leader_epoch)

    # -- opening and removing --------------------------------------------------------------------------------

    def _open(
        self, tp: TopicPartition, topic_id: bytes, image: PartitionImage, config: TopicConfig
    ) -> Partition:
        log: Log | None = None
        try:
            log = self._open_log(tp, topic_id, config)
        except StorageError as error:
            self._damaged.add(tp)
            self._report_offline(tp, str(error))
            if self._config.node_id in (*image.isr, *image.elr):
                # The registration promised records that this log lacks. After an unclean stop it promises none.
                self._stop_if_others_can(tp, image, str(error))
        except OSError as error:
            self._report_offline(tp, str(error))
            self._stop_if_others_can(tp, image, str(error))
        return Partition(
            tp,
            topic_id,
            log,
            config,
            self,
            self._data_dir.high_watermarks.get(tp, 0),
            self.metrics.topic(tp.topic),
            self._refusals_of(tp, topic_id),
        )

    def _refusals_of(self, tp: TopicPartition, topic_id: bytes) -> Refusals | None:
        """Returns the refusals from before the partition was opened: for want of it, or under its former number."""
        early = self.early_refusals.take((tp.topic, tp.partition), (topic_id, tp.partition))
        hosted = self.by_name.get(tp.topic)
        former = None if hosted is None else hosted.replace_former(tp.partition)
        if early is None or former is None:
            return former if early is None else early
        former.join(early)
        return former

    def _open_log(
        self, tp: TopicPartition, topic_id: bytes, config: TopicConfig, *, is_whole_checked: bool = False
    ) -> Log:
        assert self.image is not None
        configs = self.image.topic_config(tp.topic)
        return open_log(
            self._platform,
            self._data_dir,
            tp,
            topic_id,
            config,
            removed_epochs(configs).get(tp.partition, NO_LEADER_EPOCH),
            removed_ends(configs).get(tp.partition, 0),
            is_whole_checked=is_whole_checked,
        )

    def _repair(self, partition: Partition, image: PartitionImage) -> None:
        """Open a damaged log up to the damage, when another replica leads and this one is not in the ISR."""
        tp = partition.name
        has_other_leader = image.leader not in (NO_BROKER, self._config.node_id)
        if tp not in self._damaged or not has_other_leader or self._config.node_id in image.isr:
            return
        try:
            log = self._open_log(tp, partition.topic_id, partition.config, is_whole_checked=True)
        except (StorageError, OSError) as error:
            self._report_offline(tp, str(error))
            return
        self._damaged.discard(tp)
        partition.open(log)
        logger.warning(
            "%s: cut at offset %d, where it was damaged; broker %d has the rest",
            tp,
            log.log_end_offset,
            image.leader,
        )

    def _drop(self, topic: TopicImage) -> Iterator[None]:
        hosted: Mapping[int, Partition] = self.by_name.pop(topic.name, {})
        self.by_wire_name.pop(topic.name.encode(), None)
        self.by_wire_id.pop(bytes(topic.id), None)
        self.views.pop(topic.name, None)
        self.views.pop(bytes(topic.id), None)
        self.delaying -= {topic.name, bytes(topic.id)}
        folders: list[str] = []
        for partition in hosted.values():
            folders += self._remove(partition)
            yield
        self._log_manager.remove_folders_later(folders)

    def _remove_decommissioned(self, topic: TopicImage, change: TopicDelta) -> None:
        hosted = self.by_name.get(change.name)
        if hosted is None:
            return
        for index in change.removed:
            partition = hosted.retire(index, len(topic.partitions), self.topic_config(topic.name), self)
            if partition is not None:
                self._log_manager.remove_folders_later(self._remove(partition))

    def _remove(self, partition: Partition) -> list[str]:
        """Remove a partition that was deleted or moved to other brokers. Returns the folder that is to be removed."""
        self._fetchers.unfollow(partition)
        # Damage of a later partition with this name is reported again.
        self._damaged.discard(partition.name)
        if partition.log is None:
            partition.delayed.wake_fetches()
            # Offline: its files may be the only copy. Only an operator may remove them.
            logger.warning("%s was taken away while offline; its folder stays where it is", partition.name)
            return []
        partition.release().release()
        for offsets in (
            self._data_dir.recovery_points,
            self._data_dir.log_starts,
            self._data_dir.high_watermarks,
        ):
            offsets.pop(partition.name, None)
        return [self._data_dir.mark_folder_deleted(partition.name, partition.topic_id)]

    # -- failures --------------------------------------------------------------------------------------------

    def _report_offline(self, tp: TopicPartition, reason: str) -> None:
        logger.error("partition %s is offline: %s", tp, reason)
        self._on_loss()

    def went_offline(self, partition: Partition, reason: str) -> None:
        """The disk failed under a partition that was served."""
        self._fetchers.unfollow(partition)
        self._report_offline(partition.name, reason)
        if partition.image is not None:
            self._stop_if_others_can(partition.name, partition.image, reason)

    def _stop_if_others_can(self, tp: TopicPartition, image: PartitionImage, reason: str) -> None:
        """Stop when there are replicas that can take over."""
        if any(broker_id != self._config.node_id for broker_id in (*image.isr, *image.elr)):
            self._on_fatal(f"{tp} cannot be served, and it has other replicas: {reason}")

    def report_damage(self, partition: Partition, reason: str) -> None:
        """A read met bytes that are no batch. Logged once for each partition; the rest of it still serves."""
        tp, image = partition.name, partition.image
        if tp in self._damaged:
            return
        self._damaged.add(tp)
        logger.error("partition %s is damaged: %s", tp, reason)
        self._on_loss()
        if image is None or all(broker_id == self._config.node_id for broker_id in image.isr):
            return
        try:
            self._log_manager.check_whole_at_next_start(tp)
        except OSError as error:
            logger.error("cannot note that %s is damaged: %s", tp, error)
        self._on_fatal(f"{tp} is damaged, and other replicas have it: {reason}")

    def report_undecodable(self, partition: Partition, reason: str) -> None:
        """A client wrote a batch whose records do not decode. Logged once for each partition."""
        if not partition.has_undecodable:
            partition.has_undecodable = True
            logger.warning("%s holds records that a client encoded wrongly: %s", partition.name, reason)

    # -- background work -------------------------------------------------------------------------------------

    def start(self) -> None:
        self._log_manager.start()
        self._log_manager.spawn(self._log_manager.every(self.lag_time_max_ms / 2000, self.reconsider_isrs))
        self._log_manager.spawn(self._log_manager.every(_RETIRE_S, self.retire_empty))
        self._fetchers.start()

    def reconsider_isrs(self) -> None:
        for partition in list(self.partitions()):
            if partition.is_leader and partition.is_replicated:
                partition.leadership.reconsider()

    def retire_empty(self) -> None:
        if self.image is not None:
            for partition, proposal in retirements(self.partitions(), self.image):
                self._isr_changes.propose(partition, proposal)

    def former_partition(self, wire_name: bytes, index: int, *, is_id: bool) -> FormerPartition | None:
        """A partition that the topic has had: producers that know the old number still send to it."""
        hosted = (self.by_wire_id if is_id else self.by_wire_name).get(wire_name)
        topic = None if hosted is None or self.image is None else self.image.topics_by_name.get(hosted.name)
        if hosted is None or topic is None:
            return None
        return hosted.former_partition(index, len(topic.partitions), self.topic_config(topic.name), self)

    def storing(self, topic: str, index: int) -> tuple[int, int]:
        """The partition that stores what producers send to a partition, by the newest metadata, and since when."""
        assert self.image is not None
        count = len(self.image.topics_by_name[topic].partitions)
        target = storing_partition(index, count, self.topic_config(topic))
        return target, self.by_name[topic].storing_since(index)

    def stored_finally(self, partition: Partition, named: int, metadata_end: int) -> list[Stored] | None:
        """Returns what a partition stores for the partition `named`, by metadata that is not older than `metadata_end`.

        None unless this broker leads it, all of that is committed, and the metadata says that no more is stored for it.
        """
        log = partition.leadership.writable_log
        if log is None or self.image is None or self.image.end_offset < metadata_end:
            return None
        if self.storing(partition.name.topic, named)[0] == partition.index:
            return None
        stored = stored_for(log.producers, named)
        return stored if end_of(stored) <= partition.high_watermark else None

    def move_start(self, partition: Partition, offset: int) -> None:
        """Delete the records before an offset (DeleteRecords)."""
        self._log_manager.move_start(partition, offset)

    async def checkpoint(self) -> None:
        await self._log_manager.checkpoint()

    async def _leave_delays(self) -> None:
        """Let the delivery of delayed records end, and its last snapshots be written."""
        for partition in self.partitions():
            partition.delivery.stop()
        for work in (self.delivery_work, self.snapshot_work):
            await work.drain(_SNAPSHOTS_S_MAX)

    async def close(self) -> bool:
        """Shut down; returns whether every log was closed cleanly."""
        self._is_closing = True
        self._fetchers.close()
        self._isr_changes.close()
        self.long_work.close()
        self.filtered_work.close()
        if self.delaying:
            await self._leave_delays()
        self.delivery_work.close()
        self.snapshot_work.close()
        await self._log_manager.stop()
        # Many syncs at once: the disk's journal takes them together, one after the other would take seconds.
        logs = [partition.log for partition in self.partitions() if partition.log is not None]
        unsynced = (self.syncer.sync_now(log) for log in logs if log.is_unsynced)
        await asyncio.gather(*unsynced, return_exceptions=True)
        is_clean = True
        for partition in self.partitions():
            if partition.log is None:
                is_clean = False
                continue
            try:
                partition.log.close()
            except OSError as error:
                is_clean = False
                logger.error("%s was not closed cleanly: %s", partition.name, error)
        try:
            self._log_manager.write_all()
        except OSError as error:
            is_clean = False
            logger.error("cannot write the checkpoints of %s: %s", self._data_dir.path, error)
        return is_clean
