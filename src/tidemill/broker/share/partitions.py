"""The share partitions of this broker (Kafka: SharePartitionManager): one for each group and partition that is fetched here.

A share partition begins with the first fetch. It ends with the leadership, with the topic, or with the last session of
its group on this broker, so sessions bound their number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from tidemill.broker.clock import Clock
from tidemill.broker.net.channel import Channels
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.partitions.replicas import Replicas
from tidemill.broker.partitions.views import View
from tidemill.broker.share.dead_letters import DeadLetters
from tidemill.broker.share.led_partition import LedSharePartition, ShareStates, ShownRecords
from tidemill.broker.share.sessions import SessionKey, ShareSessions
from tidemill.broker.share.settings import ShareSettings, share_settings
from tidemill.config import BrokerConfig, share_group_config
from tidemill.controller.image import ConfigResource, MetadataImage, ResourceType
from tidemill.errors import ApiError, ErrorCode
from tidemill.log.filtered_read import FilteredRead, Select, Skipping, both
from tidemill.log.hidden_records import select_shown
from tidemill.log.log import Log
from tidemill.protocol.share_state import SharePartitionKey
from tidemill.replication.share_counts import ShareCounts
from tidemill.types import TopicId

# Counts of share partitions that are no longer led here are kept, so that rates over them stay right: so many at most.
_COUNTS_MAX = 10_000


class SharePartitions:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        replicas: Replicas,
        image: Callable[[], MetadataImage],
        states: ShareStates,
        channels: Channels,
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._image = image
        self._states = states
        self._letters = DeadLetters(replicas, channels, image)
        self._clock = clock
        self._led: dict[SharePartitionKey, LedSharePartition] = {}
        self._counts: dict[SharePartitionKey, ShareCounts] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.sessions = ShareSessions(config.share_groups.max_share_sessions, self._session_ended)

    # -- finding ---------------------------------------------------------------------------------------------

    def settings_of(self, group_id: str) -> ShareSettings:
        overrides = self._image().config(ConfigResource(ResourceType.GROUP, group_id))
        return share_settings(share_group_config(overrides, self._config.share_groups))

    def find(self, group_id: str, topic_id: bytes, index: int) -> LedSharePartition | None:
        """The share partition, if it serves."""
        led = self._led.get(SharePartitionKey(group_id, TopicId(topic_id), index))
        return None if led is None or led.is_over else led

    def get(self, group_id: str, topic_id: bytes, index: int, settings: ShareSettings) -> LedSharePartition:
        """The share partition, which may begin now. `ApiError` when this broker does not lead the partition."""
        led = self.find(group_id, topic_id, index)
        partition, view, error = self._replicas.find_readable((topic_id, index))
        if led is not None:
            led.configure(settings)
            led.filter = self._filter_of(led.partition, view)
            return led
        if partition is None:
            raise ApiError(error)
        if partition.log is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        if not partition.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        key = SharePartitionKey(group_id, TopicId(topic_id), index)
        led = self._led[key] = LedSharePartition(
            key,
            partition,
            settings,
            self._states,
            self._clock,
            self._replicas,
            self._letters,
            self._counts_of(key),
            self._ended,
        )
        led.filter = self._filter_of(partition, view)
        return led

    def led(self) -> list[LedSharePartition]:
        """Those that serve."""
        return [each for each in list(self._led.values()) if each.machine is not None and not each.is_over]

    def counted(self) -> list[tuple[SharePartitionKey, ShareCounts]]:
        return list(self._counts.items())

    def _counts_of(self, key: SharePartitionKey) -> ShareCounts:
        if key not in self._counts and len(self._counts) >= _COUNTS_MAX:
            unused = next((each for each in self._counts if each not in self._led), None)
            if unused is not None:
                del self._counts[unused]
        return self._counts.setdefault(key, ShareCounts())

    def _filter_of(self, partition: Partition, view: View | None) -> ShownRecords | None:
        """What is shown of the partition; None when that is everything."""
        if view is None and not partition.config.tidemill_delays_enable:
            return None
        return partial(_shown, self._replicas, partition, view)

    def _of_group(self, group_id: str) -> Iterator[LedSharePartition]:
        return (led for key, led in list(self._led.items()) if key.group_id == group_id)

    # -- ending ----------------------------------------------------------------------------------------------

    def _ended(self, led: LedSharePartition) -> None:
        if self._led.get(led.key) is led:
            del self._led[led.key]

    def _session_ended(self, key: SessionKey, is_last: bool) -> None:
        for led in self._of_group(key.group_id):
            led.release_member(key.member_id)
            if is_last:
                self.spawn(self._end_unused(led))

    async def _end_unused(self, led: LedSharePartition) -> None:
        """What the last session gave back is durable first."""
        await led.drain()
        if not self.sessions.has_group(led.key.group_id):
            led.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what waits for share partitions, until it is done or the broker stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for led in list(self._led.values()):
            led.close()
            led.cancel()


def _shown(
    replicas: Replicas, partition: Partition, view: View | None, log: Log, offset: int, max_bytes: int
) -> FilteredRead:
    select: Select = select_shown
    if view is not None:
        hides = partition.config.tidemill_delays_enable
        select = both(select_shown, view.select) if hides else view.select
    return FilteredRead(
        log,
        offset,
        select,
        max_bytes,
        partial(replicas.report_undecodable, partition),
        None if view is None else Skipping(view.probe, replicas.tag_indexes, select is view.select),
        partial(partition.delivery.known_run, log) if view is None else None,
    )
