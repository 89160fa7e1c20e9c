"""The share partitions of this broker (Kafka: SharePartitionManager): one for each group and partition that is fetched here.

A share partition begins with the first fetch. It ends with the leadership, with the topic, or after the last session of
its group on this broker. What that session gave back is durable first, and dead letters that are owed are written.

Dead letters may be owed where the group has no session: the leader before this one died. The share coordinator, which
knows of them, then sends a reminder to the leader (`remind`), and the share partition begins for their sake.

Sessions bound the number of share partitions, and `_ENDING_MAX` those that have none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from tidemill.broker.clock import Clock
from tidemill.broker.net.channel import Channels, PeerUnavailable
from tidemill.broker.net.network import Address
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
from tidemill.protocol.api.share import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
)
from tidemill.protocol.share_state import SharePartitionKey
from tidemill.replication.share_counts import ShareCounts
from tidemill.types import TopicId

# Counts of share partitions that are no longer led here are kept, so that rates over them stay right: so many at most.
_COUNTS_MAX = 10_000
# Share partitions without a session that may be kept until they are at rest. What they owe is durable.
_ENDING_MAX = 1_000
_REMINDER_TIMEOUT_S = 10.0


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
        self._channels = channels
        self._letters = DeadLetters(replicas, channels, image)
        self._clock = clock
        self._led: dict[SharePartitionKey, LedSharePartition] = {}
        self._counts: dict[SharePartitionKey, ShareCounts] = {}
        # Without a session, until they are at rest.
        self._ending: set[LedSharePartition] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.sessions = ShareSessions(config.share_groups.max_share_sessions, self._session_ended)

    # -- finding ---------------------------------------------------------------------------------------------

    def settings_of(self, group_id: str) -> ShareSettings:
        overrides = self._image().config(ConfigResource(ResourceType.GROUP, group_id))
        return share_settings(share_group_config(overrides, self._config.share_groups))

    def find(self, group_id: str, topic_id: bytes, index: int) -> LedSharePartition | None:
        """The share partition, if it serves."""
        led = self._led.get(SharePartitionKey(group_id, TopicId(topic_id), index))
        return None if led is None or led.end_if_replaced() else led

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
        """Returns the share partitions that serve."""
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
        """Returns the filter of the partition; None when all records are visible."""
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
                self._end_soon(led)

    def _end_soon(self, led: LedSharePartition) -> None:
        if led not in self._ending:
            self._ending.add(led)
            self.spawn(self._end_unused(led))

    async def _end_unused(self, led: LedSharePartition) -> None:
        """End it when it is at rest, unless members are back before."""
        group_id = led.key.group_id
        while not (led.is_at_rest or self.sessions.has_group(group_id)):
            await led.go_on()
            if len(self._ending) > _ENDING_MAX:
                break
        self._ending.discard(led)
        if not self.sessions.has_group(group_id):
            led.close()

    # -- dead letters without members ------------------------------------------------------------------------

    def remind(self, key: SharePartitionKey) -> None:
        """The share coordinator, here, knows of dead letters that are owed: let the partition's leader write them."""
        image = self._image()
        topic = image.topics_by_id.get(key.topic_id)
        if topic is None or key.partition >= len(partitions := image.partitions_of(topic)):
            return
        leader = partitions[key.partition].leader
        if leader == self._config.node_id:
            self.write_letters(key)
        elif (address := self._replicas.address_of(leader)) is not None:
            self.spawn(self._send_reminder(address, key.group_id, topic.name, key.partition))

    def write_letters(self, key: SharePartitionKey) -> None:
        """Write the dead letters that are owed in a partition that this broker leads, whether it has members or not."""
        try:
            led = self.get(*key, self.settings_of(key.group_id))
        except ApiError:
            # Another broker leads it by now, or will: the next reminder goes there.
            return
        if not self.sessions.has_group(key.group_id):
            self._end_soon(led)

    async def _send_reminder(self, address: Address, group_id: str, topic: str, index: int) -> None:
        wanted = DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[index])
        group = DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=[wanted])
        request = DescribeShareGroupOffsetsRequest(groups=[group], owes_letters=True)
        # Another one follows, as long as letters are owed.
        with contextlib.suppress(PeerUnavailable):
            await self._channels.to(address, "dead letters").request(
                request, DescribeShareGroupOffsetsResponse, timeout_s=_REMINDER_TIMEOUT_S
            )

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
