"""Fetches from leaders (Kafka: ReplicaFetcherManager), with `num.replica.fetchers` loops for each leader.

A loop has one request in flight at a time, in a fetch session, so that a request names only partitions whose position
changed. The response is used in place: each partition's batches are checked and written with one write, and the next
request goes out. A partition that cannot be fetched now (its log is being cut, an error, another leader epoch) leaves
the session until it can; the others go on.

Where acks wait for the disk (`flush.messages=1`), a follower sends the next fetch only after it has synced what it got,
because that fetch vouches for it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol
from zlib import crc32

from tidemill.broker.disk.syncer import Syncer
from tidemill.broker.net.channel import Channel, Channels
from tidemill.broker.net.network import Address
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.partitions.throttles import Throttles
from tidemill.config import BrokerConfig, ReplicationConfig
from tidemill.errors import ErrorCode
from tidemill.log.log import Log
from tidemill.log.sync import DiskFull
from tidemill.protocol.api.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from tidemill.protocol.fetch import FetchedRecords, walk_fetched
from tidemill.protocol.records import BatchHeader, InvalidBatch, split_batches
from tidemill.replication.follower import (
    FetchPosition,
    FetchState,
    FollowHighWatermark,
    PartitionFollower,
    RestartAt,
    TruncateTo,
)

logger = logging.getLogger(__name__)

_Key = tuple[bytes, int]
_DISK_FULL_PAUSE_S = 1.0
_LARGEST_SESSION_EPOCH = 0x7FFFFFFF
_SESSION_LOST = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
# While the metadata changes: the leader or this follower does not know of it yet.
_PASSING = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


class Storage(Protocol):
    """The part of the broker that a fetch loop uses."""

    @property
    def broker_id(self) -> int: ...
    @property
    def syncer(self) -> Syncer: ...
    @property
    def throttles(self) -> Throttles: ...
    def steady_ms(self) -> int: ...
    def wall_ms(self) -> int: ...
    def address_of(self, broker_id: int) -> Address | None:
        """The address of another broker; None while it is not known."""

    def broker_epoch(self) -> int: ...
    def incarnation_of(self, broker_id: int) -> bytes | None:
        """Differs after each start of a broker; None for one that is not registered."""

    def truncate(self, partition: Partition, cut: TruncateTo | RestartAt, done: Callable[[], None]) -> None:
        """Cut a log, after the checkpoints that a crash must find are on disk."""

    def restart_within_batch(self, partition: Partition, offset: int) -> None:
        """Let an empty log begin at the first offset of a batch, below the leader's start."""

    def follow_log_start(self, partition: Partition, offset: int) -> None: ...


class Fetchers:
    """All fetch loops of this broker."""

    def __init__(self, config: ReplicationConfig, channels: Channels, storage: Storage) -> None:
        self._config = config
        self._channels = channels
        self._storage = storage
        self._loops: dict[tuple[int, int], _FetchLoop] = {}
        self._loop_of: dict[Partition, _FetchLoop] = {}
        self._is_started = False

    def start(self) -> None:
        self._is_started = True
        for loop in self._loops.values():
            loop.go_on()

    def reconfigure(self, broker: BrokerConfig) -> None:
        """Spreads the partitions over another number of loops, each when its loop is at rest."""
        is_same = broker.replication.fetchers == self._config.fetchers
        self._config = broker.replication
        if not is_same:
            for loop in list(self._loops.values()):
                loop.must_hand_over = True
                loop.go_on()

    def _hand_over(self, loop: _FetchLoop) -> None:
        """Moves what belongs to other loops. A log that is being cut stays until that is done."""
        for followed in loop.movable():
            partition, machine = followed.partition, followed.machine
            if self._slot_of(partition, machine.leader_id) != loop.slot:
                self.follow(partition, machine.leader_id, machine.leader_epoch)
        loop.must_hand_over = loop.is_cutting
        if loop.is_empty and loop.slot[1] >= self._config.fetchers:
            loop.close()
            del self._loops[loop.slot]

    def _slot_of(self, partition: Partition, leader_id: int) -> tuple[int, int]:
        name = partition.name
        return leader_id, (crc32(name.topic.encode()) + name.partition) % self._config.fetchers

    def follow(self, partition: Partition, leader_id: int, leader_epoch: int) -> None:
        """Copy the partition from this leader from now on; responses to earlier fetches are void."""
        slot = self._slot_of(partition, leader_id)
        loop = self._loops.get(slot)
        if loop is None:
            loop = self._loops[slot] = _FetchLoop(
                self._config, self._channels, self._storage, slot, self._hand_over
            )
        before = self._loop_of.get(partition)
        if before is not None and before is not loop:
            before.drop(partition)
        self._loop_of[partition] = loop
        loop.add(partition, leader_epoch)
        if self._is_started:
            loop.go_on()

    def unfollow(self, partition: Partition) -> None:
        loop = self._loop_of.pop(partition, None)
        if loop is not None:
            loop.drop(partition)

    def state_of(self, partition: Partition) -> FetchState | None:
        loop = self._loop_of.get(partition)
        return None if loop is None else loop.state_of(partition)

    def brokers_changed(self) -> None:
        """A leader may have a new address, or have been started again."""
        if self._is_started:
            for loop in self._loops.values():
                loop.leader_changed()

    def close(self) -> None:
        for loop in self._loops.values():
            loop.close()


class _Followed:
    __slots__ = ("key", "machine", "partition")

    def __init__(self, partition: Partition, machine: PartitionFollower) -> None:
        self.partition = partition
        self.machine = machine
        self.key: _Key = (partition.topic_id, partition.index)


class _FetchLoop:
    def __init__(
        self,
        config: ReplicationConfig,
        channels: Channels,
        storage: Storage,
        slot: tuple[int, int],
        hand_over: Callable[[_FetchLoop], None],
    ) -> None:
        """`slot` is the leader and the number of the loop. `hand_over` moves its partitions to other loops."""
        self._config = config
        self._channels = channels
        self._storage = storage
        self.slot = slot
        self._leader_id, self._number = slot
        self._hand_over = hand_over
        # Whether the number of loops has changed since it last sent.
        self.must_hand_over = False
        self._loop = asyncio.get_running_loop()
        self._followed: dict[_Key, _Followed] = {}
        # What the leader's session holds, and what has to be reconsidered before the next request.
        self._in_session: dict[_Key, FetchPosition] = {}
        self._due: dict[_Key, None] = {}
        self._session_id = 0
        self._session_epoch = 0
        self._is_asking = False
        # The channel of the request in flight, and the incarnation of the leader that it went to.
        self._asked: tuple[Channel, bytes | None] | None = None
        # Logged once, until the leader answers again.
        self._is_failing = False
        # Partitions that were added, whose logs are synced before the next fetch vouches for them.
        self._to_sync: list[Partition] = []
        self._syncs = 0
        self._not_before_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    # -- partitions that are followed ------------------------------------------------------------------------

    def add(self, partition: Partition, leader_epoch: int) -> None:
        assert partition.log is not None
        machine = PartitionFollower(
            partition.log, self._leader_id, leader_epoch, self._config.fetch_backoff_ms
        )
        followed = _Followed(partition, machine)
        self._followed[followed.key] = followed
        self._due[followed.key] = None
        if partition.config.flush_messages == 1:
            self._to_sync.append(partition)

    def drop(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.index)
        if self._followed.pop(key, None) is not None:
            self._due[key] = None

    def state_of(self, partition: Partition) -> FetchState | None:
        followed = self._followed.get((partition.topic_id, partition.index))
        return None if followed is None else followed.machine.state

    def movable(self) -> list[_Followed]:
        return [each for each in self._followed.values() if each.machine.state is not FetchState.TRUNCATING]

    @property
    def is_cutting(self) -> bool:
        return any(each.machine.state is FetchState.TRUNCATING for each in self._followed.values())

    @property
    def is_empty(self) -> bool:
        return not self._followed

    def close(self) -> None:
        self._is_closed = True
        self._followed.clear()
        if self._timer is not None:
            self._timer.cancel()

    # -- sending ---------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Send the next fetch, unless the loop waits for a response, a sync or a retry."""
        if self._is_asking or self._syncs or self._is_closed:
            return
        if self._to_sync:
            self._sync_added()
            return
        if self.must_hand_over:
            # Nothing is in flight, and all that was appended is synced: the next fetch of another loop vouches for it.
            self._hand_over(self)
            if self._is_closed:
                return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        steady_ms = self._storage.steady_ms()
        if steady_ms < self._not_before_ms:
            self._wake_at(self._not_before_ms, steady_ms)
            return
        wanted, forgotten = self._take_changes(steady_ms)
        address = self._storage.address_of(self._leader_id)
        if not self._in_session or address is None:
            self._wait_for_retry(steady_ms, is_unreachable=address is None)
            return
        config = self._config
        request = FetchRequest(
            replica_state=ReplicaState(
                replica_id=self._storage.broker_id, replica_epoch=self._storage.broker_epoch()
            ),
            max_wait_ms=self._wait_ms(steady_ms),
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=wanted,
            forgotten_topics_data=forgotten,
        )
        self._is_asking = True
        channel = self._channels.to(address, f"fetch-{self._number}")
        self._asked = (channel, self._storage.incarnation_of(self._leader_id))
        channel.call(
            request,
            self._on_body,
            self._on_failed,
            timeout_s=(config.socket_timeout_ms + config.fetch_wait_max_ms) / 1000,
        )

    def leader_changed(self) -> None:
        """Fetch again when the leader was restarted.

        A leader that lost power closed no connection. Its next incarnation does not know the request in flight, which
        would hold up every partition of this loop until its timeout.
        """
        if self._is_asking and self._asked is not None:
            channel, incarnation = self._asked
            if self._storage.incarnation_of(self._leader_id) != incarnation:
                self._asked = None
                channel.reconnect(f"broker {self._leader_id} was started again")
        self.go_on()

    def _take_changes(self, steady_ms: int) -> tuple[list[FetchTopic], list[ForgottenTopic]]:
        """Take what the leader's session does not know yet; the next request carries it."""
        wanted: dict[bytes, FetchTopic] = {}
        forgotten: dict[bytes, ForgottenTopic] = {}
        waiting: dict[_Key, None] = {}
        for key in self._due:
            topic_id, index = key
            followed = self._followed.get(key)
            if followed is not None:
                self._throttle(followed, steady_ms)
                followed.machine.tick(steady_ms)
            if followed is not None and followed.machine.state is FetchState.FETCHING:
                position = followed.machine.position()
                if self._in_session.get(key) != position:
                    self._in_session[key] = position
                    topic = wanted.setdefault(topic_id, FetchTopic(topic_id=topic_id))
                    topic.partitions.append(self._wanted(index, position))
                continue
            if self._in_session.pop(key, None) is not None and self._session_epoch:
                gone = forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id))
                gone.partitions.append(index)
            if followed is not None and followed.machine.state is FetchState.BACKING_OFF:
                waiting[key] = None
        self._due = waiting
        return list(wanted.values()), list(forgotten.values())

    def _throttle(self, followed: _Followed, steady_ms: int) -> None:
        throttle = self._storage.throttles.follower
        if throttle.applies_to(followed.partition, self._storage.broker_id):
            wait_ms = throttle.wait_ms(steady_ms)
            if wait_ms:
                followed.machine.held_back(steady_ms + wait_ms)

    def _wanted(self, index: int, position: FetchPosition) -> FetchPartition:
        return FetchPartition(
            partition=index,
            current_leader_epoch=position.leader_epoch,
            fetch_offset=position.fetch_offset,
            last_fetched_epoch=position.last_fetched_epoch,
            log_start_offset=position.log_start_offset,
            partition_max_bytes=self._config.fetch_max_bytes,
        )

    def _retries_ms(self) -> list[int]:
        return [
            deadline_ms
            for key in self._due
            if (followed := self._followed.get(key)) is not None
            and (deadline_ms := followed.machine.deadline_ms) is not None
        ]

    def _wait_ms(self, steady_ms: int) -> int:
        """Returns how long the leader may wait for data: not beyond the next retry of another partition."""
        limit_ms = self._config.fetch_wait_max_ms
        return min([limit_ms, *(max(1, retry_ms - steady_ms) for retry_ms in self._retries_ms())])

    def _wait_for_retry(self, steady_ms: int, *, is_unreachable: bool) -> None:
        """There is no leader to fetch from, or no partition that may be fetched."""
        retries_ms = self._retries_ms()
        self._forget_session()
        if is_unreachable and self._followed:
            retries_ms.append(steady_ms + self._config.fetch_backoff_ms)
        if retries_ms:
            self._wake_at(min(retries_ms), steady_ms)

    def _wake_at(self, at_ms: int, steady_ms: int) -> None:
        self._timer = self._loop.call_later(max(1, at_ms - steady_ms) / 1000, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self.go_on()

    def _forget_session(self) -> None:
        """The next request begins a new session, and names the old one so that the leader drops it."""
        self._session_epoch = 0
        self._in_session.clear()
        self._due = dict.fromkeys(self._followed)

    # -- receiving -------------------------------------------------------------------------------------------

    def _on_failed(self, reason: str) -> None:
        self._is_asking = False
        if self._is_closed:
            return
        if not self._is_failing:
            self._is_failing = True
            logger.info("cannot fetch from broker %d: %s", self._leader_id, reason)
        self._forget_session()
        self._not_before_ms = self._storage.steady_ms() + self._config.fetch_backoff_ms
        self.go_on()

    def _on_body(self, version: int, body: memoryview) -> None:
        if self._is_closed:
            return
        try:
            self._handle_response(version, body)
            self._is_asking = False
            self.go_on()
        except Exception as error:
            # The channel reports it; this loop must not end with it (failure 26).
            self._on_failed(repr(error))
            raise

    def _handle_response(self, version: int, body: memoryview) -> None:
        walk = walk_fetched(body, version)
        self._is_failing = False
        if walk.error_code:
            self._refused(ErrorCode(walk.error_code))
            return
        for fetched in walk.partitions:
            key = (fetched.topic_id, fetched.partition)
            followed = self._followed.get(key)
            position = self._in_session.get(key)
            if followed is None or position is None:
                continue
            if position.leader_epoch != followed.machine.leader_epoch or followed.partition.log is None:
                continue  # the fetch was of a leader epoch that is over
            self._due[key] = None
            self._take(followed, position, fetched)
        if walk.session_id:
            self._session_id = walk.session_id
            is_last = self._session_epoch == _LARGEST_SESSION_EPOCH
            self._session_epoch = 1 if is_last else self._session_epoch + 1
        else:
            self._forget_session()

    def _refused(self, code: ErrorCode) -> None:
        self._forget_session()
        if code not in _SESSION_LOST:
            logger.warning("broker %d refuses fetches: %s", self._leader_id, code.name)
            self._not_before_ms = self._storage.steady_ms() + self._config.fetch_backoff_ms

    def _take(self, followed: _Followed, position: FetchPosition, fetched: FetchedRecords) -> None:
        machine = followed.machine
        steady_ms = self._storage.steady_ms()
        if fetched.error_code:
            code = ErrorCode(fetched.error_code)
            effects = machine.refused(code, position.fetch_offset, fetched.log_start_offset, steady_ms)
            level = logging.DEBUG if code in _PASSING else logging.WARNING
            logger.log(level, "%s: broker %d answers %s", followed.partition.name, self._leader_id, code.name)
        elif fetched.diverging is not None:
            effects = machine.diverged(
                position.fetch_offset,
                *fetched.diverging,
                fetched.log_start_offset,
                followed.partition.high_watermark,
            )
        elif machine.expects(position.fetch_offset):
            if len(fetched.records) and not self._append(followed, position, fetched.records, steady_ms):
                return
            effects = machine.appended(fetched.high_watermark, fetched.log_start_offset)
        else:
            return
        for effect in effects:
            if isinstance(effect, TruncateTo | RestartAt):
                self._truncate(followed, effect)
            elif isinstance(effect, FollowHighWatermark):
                followed.partition.follow_high_watermark(effect.offset)
            else:
                self._storage.follow_log_start(followed.partition, effect.offset)

    def _append(self, followed: _Followed, position: FetchPosition, data: memoryview, steady_ms: int) -> bool:
        """Append records; returns whether they are in the log. If not, they are fetched again."""
        partition, machine = followed.partition, followed.machine
        try:
            headers = _of_epochs_up_to(position.leader_epoch, split_batches(data))
            if not headers:
                raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "no whole batch was sent")
            log = partition.log
            assert log is not None
            if headers[0].base_offset < log.log_end_offset == log.log_start_offset <= headers[0].last_offset:
                self._storage.restart_within_batch(partition, headers[0].base_offset)
            size = sum(header.size for header in headers)
            partition.append_fetched(data[:size], headers, self._storage.wall_ms())
        except InvalidBatch as error:
            logger.warning(
                "%s: what broker %d sent at offset %d is not used: %s",
                partition.name,
                self._leader_id,
                position.fetch_offset,
                error.reason,
            )
            machine.failed(steady_ms)
            return False
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                logger.error("%s: the disk is full; free some space, copying goes on then", partition.name)
                machine.failed(steady_ms)
            else:
                partition.fence(f"cannot write: {error.strerror or error}")
            return False
        if self._storage.throttles.follower.applies_to(partition, self._storage.broker_id):
            self._storage.throttles.follower.charge(size, steady_ms)
        if partition.config.flush_messages == 1:
            self._syncs += 1
            self._sync(partition, log)
        return True

    def _sync_added(self) -> None:
        """Sync what this replica had before: as the leader, from another leader, or before it was killed."""
        added, self._to_sync = self._to_sync, []
        self._syncs += len(added) + 1
        for partition in added:
            if partition.log is not None:
                self._sync(partition, partition.log)
            else:
                self._syncs -= 1
        self._syncs -= 1
        self.go_on()

    def _sync(self, partition: Partition, log: Log) -> None:
        if partition.log is log and not self._is_closed:
            self._storage.syncer.sync(log, partial(self._synced, partition, log))
        else:
            self._synced(partition, log, None)

    def _synced(self, partition: Partition, log: Log, error: OSError | None) -> None:
        if isinstance(error, DiskFull):
            # The next fetch would vouch that this is on disk.
            self._loop.call_later(_DISK_FULL_PAUSE_S, self._sync, partition, log)
            return
        self._syncs -= 1
        if error is not None:
            partition.fence(f"cannot sync: {error.strerror or error}")
        self.go_on()

    def _truncate(self, followed: _Followed, cut: TruncateTo | RestartAt) -> None:
        partition = followed.partition
        log = partition.log
        assert log is not None
        logger.info(
            "%s: the log of broker %d is another one; this one ends at %d in epoch %d: %s",
            partition.name,
            self._leader_id,
            log.log_end_offset,
            log.latest_epoch,
            cut,
        )

        def done() -> None:
            if self._followed.get(followed.key) is followed:
                followed.machine.truncated()
                self._due[followed.key] = None
                self.go_on()

        self._storage.truncate(partition, cut, done)


def _of_epochs_up_to(epoch: int, headers: Sequence[BatchHeader]) -> list[BatchHeader]:
    """Drop batches of later epochs: the leader of an epoch has none, so they belong to another response."""
    for number, header in enumerate(headers):
        if header.leader_epoch > epoch:
            return list(headers[:number])
    return list(headers)
