"""The partitions that this broker hosts, kept in step with the metadata image.

Opens logs at start, makes and removes them as topics come and go, and runs the work that no request asks for: retention,
timed flushes, checkpoints. A partition whose log cannot be opened is offline: it answers KAFKA_STORAGE_ERROR and is
reported once, while the others serve.

Handlers look partitions up by what stands on the wire, in three dictionaries over the same values.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial

from tidemill.broker.clock import Clock
from tidemill.broker.partition import Partition
from tidemill.broker.syncer import RunBlocking, Syncer
from tidemill.config import BrokerConfig, TopicConfig, resolve_topic_config
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage, PartitionImage, ResourceType, TopicImage
from tidemill.errors import ErrorCode, StorageError
from tidemill.log.datadir import DataDir
from tidemill.log.files import Files
from tidemill.log.log import Log
from tidemill.types import TopicPartition, uuid_text

logger = logging.getLogger(__name__)

_PRODUCER_EXPIRY_CHECK_S = 600.0


class Replicas:
    def __init__(
        self,
        config: BrokerConfig,
        files: Files,
        data_dir: DataDir,
        clock: Clock,
        syncer: Syncer,
        run_blocking: RunBlocking,
    ) -> None:
        self._config = config
        self._files = files
        self._data_dir = data_dir
        self._clock = clock
        self._syncer = syncer
        self._run_blocking = run_blocking
        self._damaged: set[TopicPartition] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._configs: dict[tuple[tuple[str, str], ...], TopicConfig] = {}
        self.image: MetadataImage | None = None
        self.by_name: dict[str, dict[int, Partition]] = {}
        self.by_wire_name: dict[bytes, dict[int, Partition]] = {}
        self.by_wire_id: dict[bytes, dict[int, Partition]] = {}

    # -- finding ---------------------------------------------------------------------------------------------

    def find(self, key: tuple[str | bytes, int]) -> tuple[Partition | None, ErrorCode]:
        """A partition by (topic name or topic id, index), or the error that tells why not."""
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
            return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return partition, ErrorCode.NONE

    def partitions(self) -> Iterator[Partition]:
        for hosted in self.by_name.values():
            yield from hosted.values()

    def _hosts(self, partition: PartitionImage) -> bool:
        return self._config.node_id in partition.replicas

    # -- following the metadata ------------------------------------------------------------------------------

    def load(self, image: MetadataImage) -> None:
        """Open every partition of the image: at start, before anything listens."""
        self.image = image
        for topic in image.topics_by_name.values():
            self._host(topic, range(len(topic.partitions)))
        self._remove_later(self._data_dir.deleted_folders())

    def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Follow one committed change."""
        self.image = image
        for topic in delta.deleted_topics.values():
            self._drop(topic)
        for topic_id, change in delta.changed_topics.items():
            self._host(image.topics_by_id[topic_id], change.changed)
        if any(resource.type == ResourceType.BROKER for resource in delta.changed_configs):
            self._configs.clear()
            self._reconfigure(image.topics_by_name.values().__iter__())
            return
        names = [r.name for r in delta.changed_configs if r.type == ResourceType.TOPIC]
        self._reconfigure(image.topics_by_name[name] for name in names if name in image.topics_by_name)

    def _reconfigure(self, topics: Iterator[TopicImage]) -> None:
        for topic in topics:
            config = self.topic_config(topic.name)
            for partition in self.by_name.get(topic.name, {}).values():
                partition.configure(config)

    def topic_config(self, name: str) -> TopicConfig:
        """The configuration in force for a topic; equal overrides share one object."""
        assert self.image is not None
        overrides: Mapping[str, str] = self.image.topic_config(name)
        key = tuple(sorted(overrides.items()))
        config = self._configs.get(key)
        if config is None:
            layers = self.image.broker_layers(self._config.node_id, self._config.properties)
            config = self._configs[key] = resolve_topic_config(overrides, layers)
        return config

    def _host(self, topic: TopicImage, indexes: range | dict[int, PartitionImage]) -> None:
        config = self.topic_config(topic.name)
        hosted = self.by_name.setdefault(topic.name, {})
        self.by_wire_name[topic.name.encode()] = hosted
        self.by_wire_id[bytes(topic.id)] = hosted
        for index in indexes:
            image = topic.partitions[index]
            partition = hosted.get(index)
            if partition is not None:
                partition.leader_epoch = image.leader_epoch
                partition.replicas, partition.in_sync_replicas = len(image.replicas), len(image.isr)
                partition.wake_waiters()
            elif self._hosts(image):
                hosted[index] = self._open(TopicPartition(topic.name, index), topic.id, image, config)

    def _open(
        self, tp: TopicPartition, topic_id: bytes, image: PartitionImage, config: TopicConfig
    ) -> Partition:
        log: Log | None = None
        try:
            log = self._open_log(tp, topic_id, config)
        except (StorageError, OSError) as error:
            self._report_offline(tp, str(error))
        return Partition(
            tp,
            topic_id,
            log,
            config,
            image.leader_epoch,
            len(image.replicas),
            len(image.isr),
            lambda p, why: self._report_offline(p.name, why),
        )

    def _open_log(self, tp: TopicPartition, topic_id: bytes, config: TopicConfig) -> Log:
        data_dir = self._data_dir
        found_id = data_dir.topic_id_of(tp)
        if found_id is not None and found_id != topic_id:
            raise StorageError(
                f"{data_dir.folder_of(tp)} belongs to topic id {uuid_text(found_id)}, "
                f"the metadata says {uuid_text(topic_id)}; move the folder away"
            )
        if found_id is None:
            data_dir.create_folder(tp, topic_id)
        log = Log(
            self._files,
            data_dir.folder_of(tp),
            config,
            now_ms=self._clock.now_ms(),
            is_clean=data_dir.was_clean,
            recovery_point=data_dir.recovery_points.get(tp, 0),
            log_start_offset=data_dir.log_starts.get(tp, 0),
        )
        if log.recovered_bytes_cut:
            logger.warning(
                "%s: cut %d bytes of a torn write, the log now ends at offset %d",
                tp,
                log.recovered_bytes_cut,
                log.log_end_offset,
            )
        return log

    def _drop(self, topic: TopicImage) -> None:
        hosted = self.by_name.pop(topic.name, {})
        self.by_wire_name.pop(topic.name.encode(), None)
        self.by_wire_id.pop(bytes(topic.id), None)
        doomed = []
        for partition in hosted.values():
            log, partition.log = partition.log, None
            partition.wake_waiters()
            if log is None:
                # Offline: its data may be all that is left of something. Only its owner may remove it.
                logger.warning("%s was deleted while offline; its folder stays where it is", partition.name)
                continue
            log.release()
            self._data_dir.recovery_points.pop(partition.name, None)
            self._data_dir.log_starts.pop(partition.name, None)
            doomed.append(self._data_dir.mark_folder_deleted(partition.name, topic.id))
        self._remove_later(doomed)

    # -- trouble ---------------------------------------------------------------------------------------------

    def _report_offline(self, tp: TopicPartition, reason: str) -> None:
        logger.error("partition %s is offline: %s", tp, reason)

    def report_damage(self, partition: Partition, reason: str) -> None:
        """A read met bytes that are no batch. Logged once for each partition; the rest of it still serves."""
        if partition.name not in self._damaged:
            self._damaged.add(partition.name)
            logger.error("partition %s is damaged: %s", partition.name, reason)

    # -- background work -------------------------------------------------------------------------------------

    def start(self) -> None:
        storage = self._config.storage
        flush_s = min(1.0, storage.log_flush_scheduler_interval_ms / 1000)
        for interval_s, work in (
            (storage.log_retention_check_interval_ms / 1000, self.apply_retention),
            (storage.log_flush_offset_checkpoint_interval_ms / 1000, self.checkpoint),
            (flush_s, self.flush_overdue),
            (_PRODUCER_EXPIRY_CHECK_S, self.expire_producers),
        ):
            self._spawn(self._every(interval_s, work))

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _every(self, interval_s: float, work: Callable[[], object]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                result = work()
                if asyncio.iscoroutine(result):
                    await result
            except Exception:
                # A background task that dies unseen is failure 26: it is logged and tried again.
                logger.exception("%s failed; trying again in %.0f s", work.__name__, interval_s)

    def apply_retention(self) -> None:
        now_ms = self._clock.now_ms()
        for partition in list(self.partitions()):
            log = partition.log
            if log is None:
                continue
            try:
                removed = log.apply_retention(now_ms, partition.high_watermark)
            except OSError as error:
                partition.fence(f"retention failed: {error.strerror or error}")
                continue
            if removed:
                logger.info(
                    "%s: retention removed segments, the log starts at %d",
                    partition.name,
                    log.log_start_offset,
                )
                self._remove_later(removed)

    def move_start(self, partition: Partition, offset: int) -> None:
        """DeleteRecords."""
        assert partition.log is not None
        self._remove_later(partition.log.move_start(offset))
        partition.wake_waiters()

    def _remove_later(self, paths: list[str]) -> None:
        if not paths:
            return

        async def remove() -> None:
            for path in paths:
                try:
                    await self._run_blocking(partial(self._files.remove, path))
                except OSError as error:
                    logger.warning("cannot remove %s: %s", path, error)

        self._spawn(remove())

    def flush_overdue(self) -> None:
        """Sync what has waited for `flush.ms`, and every sealed segment: recovery then reads the active one only."""
        now_ms = self._clock.now_ms()
        for partition in self.partitions():
            log = partition.log
            if log is None or log.recovery_point >= log.log_end_offset:
                continue
            is_sealed = log.recovery_point < log.active.base_offset
            if is_sealed or now_ms - log.last_flush_ms >= partition.config.flush_ms:
                self._syncer.sync(log, partial(self._flushed, partition))

    def _flushed(self, partition: Partition, error: OSError | None) -> None:
        if error is not None:
            # The kernel may have dropped what it could not write: a second sync would "succeed" without it.
            partition.fence(f"cannot sync: {error.strerror or error}")

    def expire_producers(self) -> None:
        oldest = self._clock.now_ms() - self._config.storage.producer_id_expiration_ms
        for partition in self.partitions():
            if partition.log is not None:
                partition.log.producers.expire(oldest)

    async def checkpoint(self) -> None:
        recovery_points, log_starts = self._offsets()
        await self._run_blocking(lambda: self._data_dir.write_checkpoints(recovery_points, log_starts))

    def _offsets(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        recovery_points = dict(self._data_dir.recovery_points)
        log_starts = dict(self._data_dir.log_starts)
        for partition in self.partitions():
            if partition.log is not None:
                recovery_points[partition.name] = partition.log.recovery_point
                log_starts[partition.name] = partition.log.log_start_offset
        return recovery_points, log_starts

    async def close(self) -> bool:
        """A clean shutdown; whether every log was closed as it should be."""
        for task in self._tasks:
            task.cancel()
        # Many syncs at once: the disk's journal takes them together, one after the other would take seconds.
        logs = [partition.log for partition in self.partitions() if partition.log is not None]
        unsynced = (self._syncer.sync_now(log) for log in logs if log.is_unsynced)
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
        self._data_dir.write_checkpoints(*self._offsets())
        return is_clean
