"""Topics that get fewer partitions: begins that, and tells how far it is (decision 18).

To the protocol a shrink is a setting of the topic. Removing the setting takes it back.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.retry import UnknownTopic
from tidemill.config import PARTITIONS_ACTIVE, PARTITIONS_UNKEYED
from tidemill.errors import ApiError, ErrorCode
from tidemill.types import TopicPartition

_FOR_EVER = "-1"
_ATTEMPTS_MAX = 3


class Decommissioned(NamedTuple):
    """A partition that takes no new records, and is removed when it has none left."""

    partition: int
    records_left: int
    # On its leader; None where that is not known.
    size_bytes: int | None


class Shrink(NamedTuple):
    """The progress of a topic towards fewer partitions."""

    topic: str
    partition_count: int
    # How many partitions take new records.
    active: int
    # Whether retention never removes records, so that partitions stay until their records are deleted.
    keeps_records_for_ever: bool
    decommissioned: list[Decommissioned]


class ShrinkAdmin:
    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def begin(self, topic: str, partitions: int, *, is_unkeyed: bool = False) -> None:
        """`ApiError` with a sentence when the topic cannot get so few partitions."""
        changes: dict[str, str | None] = {PARTITIONS_ACTIVE: str(partitions)}
        if is_unkeyed:
            changes[PARTITIONS_UNKEYED] = "true"
        self._admin.alter_configs(ResourceType.TOPIC, topic, changes=changes)

    def cancel(self, topic: str) -> bool:
        """Let the partitions that are left take new records again. Returns False when the topic is not getting fewer."""
        configs = self._admin.describe_configs(ResourceType.TOPIC, topic)
        values = {each.name: each.value for each in configs}
        if not int(values.get(PARTITIONS_ACTIVE) or 0):
            return False
        changes: dict[str, str | None] = {PARTITIONS_ACTIVE: None}
        if values.get(PARTITIONS_UNKEYED) == "true":
            changes[PARTITIONS_UNKEYED] = None
        self._admin.alter_configs(ResourceType.TOPIC, topic, changes=changes)
        return True

    def progress(self, topic: str) -> Shrink:
        """`UnknownTopic` when there is no such topic."""
        for _ in range(_ATTEMPTS_MAX - 1):
            # A partition may go while its offsets are asked for.
            with suppress(UnknownTopic):
                return self._progress(topic)
        return self._progress(topic)

    def _progress(self, topic: str) -> Shrink:
        leaders = {each.partition_index: each.leader_id for each in self._admin.topic(topic).partitions}
        configs = self._admin.describe_configs(ResourceType.TOPIC, topic)
        values = {each.name: each.value for each in configs}
        count = len(leaders)
        active = int(values.get(PARTITIONS_ACTIVE) or 0) or count
        going = [TopicPartition(topic, index) for index in range(active, count)]
        left: list[Decommissioned] = []
        if going:
            starts, ends = self._admin.start_offsets(going), self._admin.end_offsets(going)
            left = [
                Decommissioned(each.partition, ends[each] - starts[each], self._size(each, leaders))
                for each in going
            ]
        return Shrink(topic, count, active, values.get("retention.ms") == _FOR_EVER, left)

    def _size(self, partition: TopicPartition, leaders: dict[int, int]) -> int | None:
        try:
            found = self._admin.log_dirs_now(leaders[partition.partition], [partition])
        except (ApiError, OSError):
            # Not allowed to see it, or the leader is on its way to another broker.
            return None
        sizes = [
            each.partition_size
            for directory in found
            if directory.error_code == ErrorCode.NONE
            for topic in directory.topics
            for each in topic.partitions
            if not each.is_future_key
        ]
        return sizes[0] if sizes else None
