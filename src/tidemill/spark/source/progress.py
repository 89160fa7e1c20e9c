"""The state of a stream that outlives a call: the offsets at which it began, and the group that shows how far it is.

**The initial offsets.** Spark requests them when it plans the first batch and when it runs that batch. It does so
again, in another process, when it repeats that batch after a crash. "Latest" is another offset each time, so what was
written between two answers would be lost. Spark's own Kafka source keeps the first answer in the checkpoint. But a
Python source learns neither the checkpoint's place nor the query's id. In PySpark 4.3 its options are those of
`readStream`, and no local property or environment variable has them. What a Python source can write is its end offsets,
which Spark puts into the checkpoint's offset log *before* it runs a batch. Hence:

- A partition that starts at the latest offset ends the first batch where it starts. The first batch is empty there, and
  the offset log has the initial offsets for good. Spark runs a first batch even when it is empty (seen in 4.3: the first
  `latestOffset` is always taken for news), so this happens within moments of the start.
- From then on the initial offsets are never needed for these partitions: the second batch starts at the end of the first.
  When the first batch is run, or repeated, its start may be told as a later offset; start after end is an empty range
  there, not a loss.
- Offsets that were given by number are the same each time. The earliest one moves only by losing records to retention.

Within a process (one for each run of a query, whose calls come one after the other) the first answer is kept.

The offset log has the form of Spark's Kafka source, `{"topic":{"0":12}}`. Each of the two sources can continue a
checkpoint of the other as soon as its first batch is committed (tried both ways on PySpark 4.3.0 with the connector of
4.2.0).

**The group.** With `groupId` the end of each finished batch is committed to that consumer group, so that its lag can be
seen and alerted on as any consumer's. Spark calls `commit` only when it has planned another batch, and never for the
last. But a request for the latest offsets after `start` means that everything before `start` is done. So that is
committed too. Nothing is ever read from the group. A commit that fails is logged, once for each reason, and the next
one tries again: the query does not depend on it. A coordinator refuses commits from outside while the group has
members.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.cluster import Cluster
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.spark.access import BrokerAccess
from tidemill.spark.source.offsets import Offsets, Place
from tidemill.types import TopicPartition

logger = logging.getLogger("tidemill.spark")

# A query waits this long, at most, for what only people look at.
_COMMIT_TIMEOUT_S = 5.0
_HAS_MEMBERS = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.REBALANCE_IN_PROGRESS,
}


class InitialOffsets:
    """The offsets at which this run of a query began, if it has been asked for them."""

    def __init__(self) -> None:
        self._told: Offsets | None = None
        self._latest: frozenset[TopicPartition] = frozenset()
        self._is_first_batch = False

    @property
    def told(self) -> Offsets | None:
        return self._told

    def tell(self, places: Mapping[TopicPartition, Place]) -> None:
        self._told = {partition: place.offset for partition, place in places.items()}
        self._latest = frozenset(partition for partition, place in places.items() if place.is_latest)
        self._is_first_batch = True

    def is_start(self, start: Offsets) -> bool:
        return start == self._told

    def hold(self, start: Offsets, ends: Offsets) -> Offsets:
        """The ends of a batch; those of the first one, where partitions that start at the latest offset also end there."""
        if not self._is_first_batch or not self.is_start(start):
            return ends
        self._is_first_batch = False
        return {each: start[each] if each in self._latest else end for each, end in ends.items()}

    def release(self) -> None:
        """A batch is planned, so the offset log has its end: a batch that comes now is not the first."""
        self._is_first_batch = False


class GroupProgress:
    def __init__(self, group_id: str, access: BrokerAccess) -> None:
        self._group_id = group_id
        self._access = replace(access, timeout_s=min(access.timeout_s, _COMMIT_TIMEOUT_S))
        self._cluster: Cluster | None = None
        self._committed: Offsets = {}
        self._last_failure = ""

    def show(self, offsets: Offsets) -> None:
        """Commits the offsets, if they are not committed already."""
        if not offsets or offsets == self._committed:
            return
        try:
            if self._cluster is None:
                self._cluster = self._access.cluster()
            GroupAdmin(self._cluster).commit(self._group_id, offsets)
        except TidemillError as failure:
            self._log(failure)
        else:
            self._committed = dict(offsets)
            self._last_failure = ""

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _log(self, failure: TidemillError) -> None:
        reason = str(failure)
        if isinstance(failure, ApiError) and failure.code in _HAS_MEMBERS:
            reason = "it has members; give groupId a name that no consumer uses"
        if reason != self._last_failure:
            logger.warning("group %s does not show this query's progress: %s", self._group_id, reason)
        self._last_failure = reason
