"""A follower's fetch, served by the leader. Its offset shows how much the follower has.

A follower's session knows which of its partitions may have something new, so a fetch costs what changed and not what is
followed. For each such partition the leader compares the leader epoch, then the end of the follower's last epoch. Only a
follower whose log matches counts for the high watermark (failure 2). It is sent everything up to the log's end, or the
point where the two logs diverge.

A fetch that finds nothing waits for appends. A move of the high watermark alone completes it only when followers serve
consumers; otherwise the next response carries it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from tidemill.broker.partitions.delayed_operations import Grew, WireKey
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.fetch_sessions import CachedPartition, ReplicaSession, replica_of
from tidemill.broker.requests.fetching.delayed_fetch import Answer, RecordsT
from tidemill.errors import ErrorCode, StorageError
from tidemill.log.files import FileSlice
from tidemill.log.log import OffsetOutOfRange
from tidemill.protocol.api.data import FetchPartition, FetchRequest, NodeEndpoint
from tidemill.protocol.fetch import Fetched, pack_fetched
from tidemill.protocol.records import InvalidBatch, split_batches
from tidemill.types import BrokerId


class ReplicaFetch:
    __slots__ = ("_broker", "_broker_epoch", "_call", "_replica_id", "_request", "_session")

    def __init__(self, broker: Broker, call: Call, request: FetchRequest, session: ReplicaSession) -> None:
        self._broker = broker
        self._call = call
        self._request = request
        self._session = session
        self._replica_id, self._broker_epoch = replica_of(request)

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self) -> tuple[list[Answer[FileSlice]], int, bool]:
        """Reads the partitions that changed. Returns the answers, their bytes of records, and whether it cannot wait."""
        session = self._session
        left = self._request.max_bytes
        found_bytes = 0
        is_urgent = False
        answers: list[Answer[FileSlice]] = []
        for key in list(session.dirty):
            cached = session.partitions.get(key)
            if cached is None:
                del session.dirty[key]
                continue
            fetched, records, has_more = self._read_one(key, cached, left, at_least_one=found_bytes == 0)
            if records is not None:
                found_bytes += records.length
                left = max(0, left - records.length)
            if cached.must_include(fetched, records):
                answers.append((key, fetched, records))
                is_urgent = is_urgent or fetched.error_code != 0 or fetched.diverging is not None
            elif not has_more:
                del session.dirty[key]
        if answers and self._broker.replicas.followers_serve_consumers:
            is_urgent = True
        return answers, found_bytes, is_urgent

    def _read_one(
        self, key: WireKey, cached: CachedPartition, left: int, *, at_least_one: bool
    ) -> tuple[Fetched, FileSlice | None, bool]:
        """The answer, the records, and whether there is more than the follower has."""
        partition, error = self._broker.replicas.find(key)
        if partition is None:
            return Fetched(key[1], error), None, True
        if cached.attached is not partition.delayed:
            partition.delayed.attach(self._session, key)
            cached.attached = partition.delayed
        wanted = cached.wanted
        fetched = self._checked(partition, wanted)
        log = partition.log
        if fetched.error_code or fetched.diverging is not None or log is None:
            return fetched, None, True
        if wanted.fetch_offset >= log.log_end_offset:
            return fetched, None, False
        throttle = self._broker.replicas.throttles.leader
        is_throttled = throttle.applies_to(partition, self._replica_id)
        steady_ms = self._broker.replicas.steady_ms() if is_throttled else 0
        if is_throttled and throttle.wait_ms(steady_ms):
            return fetched, None, True
        max_bytes = min(wanted.partition_max_bytes, left)
        try:
            records = log.read(wanted.fetch_offset, max_bytes, log.log_end_offset, at_least_one=at_least_one)
        except StorageError as failure:
            self._broker.replicas.report_damage(partition, str(failure))
            return Fetched(wanted.partition, ErrorCode.KAFKA_STORAGE_ERROR), None, True
        except OffsetOutOfRange:
            return Fetched(wanted.partition, ErrorCode.OFFSET_OUT_OF_RANGE), None, True
        if records is not None and not self._is_sound(partition, wanted.fetch_offset, records):
            return Fetched(wanted.partition, ErrorCode.KAFKA_STORAGE_ERROR), None, True
        if is_throttled and records is not None:
            throttle.charge(records.length, steady_ms)
        return fetched, records, True

    def _is_sound(self, partition: Partition, offset: int, records: FileSlice) -> bool:
        """Check the records for a follower that fetches the same offset again: it could not use what it was sent."""
        if not partition.leadership.was_sent(self._replica_id, offset):
            return True
        try:
            split_batches(memoryview(records.read()))
        except InvalidBatch as damage:
            self._broker.replicas.report_damage(partition, f"at offset {offset}: {damage.reason}")
            return False
        return True

    def _checked(self, partition: Partition, wanted: FetchPartition) -> Fetched:
        """The answer without records. A follower whose log matches is reported to the leadership."""
        index, log, leader = wanted.partition, partition.log, partition.leader
        if log is None:
            return Fetched(index, ErrorCode.KAFKA_STORAGE_ERROR)
        error = partition.check_leader_epoch(wanted.current_leader_epoch)
        if not error and leader is None:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not error and leader is not None and self._replica_id not in leader.followers:
            # The follower or this leader does not know of a reassignment yet.
            knows_epoch = wanted.current_leader_epoch >= 0
            error = ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if error:
            return Fetched(index, error, current_leader=(partition.leader_id, partition.leader_epoch))
        diverging = None
        if wanted.last_fetched_epoch >= 0:
            epoch, end_offset = log.end_offset_of(wanted.last_fetched_epoch)
            if epoch < 0:
                return Fetched(index, ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
                diverging = (epoch, end_offset)
        if diverging is None and wanted.fetch_offset > log.log_end_offset:
            diverging = (log.latest_epoch, log.log_end_offset)
        if diverging is None and wanted.fetch_offset < log.log_start_offset:
            return Fetched(index, ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=log.log_start_offset)
        if diverging is None and not partition.leadership.follower_fetched(
            self._replica_id, self._broker_epoch, wanted.fetch_offset, wanted.log_start_offset
        ):
            return Fetched(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return Fetched(
            index,
            0,
            partition.high_watermark,
            partition.last_stable_offset,
            log.log_start_offset,
            diverging=diverging,
        )

    # -- waiting ---------------------------------------------------------------------------------------------

    def listen(self, grew: Grew) -> None:
        self._session.on_grown = grew

    def stop_listening(self, grew: Grew) -> None:
        if self._session.on_grown == grew:
            self._session.on_grown = None

    def abandon(self) -> None:
        if not self._session.id:
            self._session.close()

    # -- responding ------------------------------------------------------------------------------------------

    def respond(self, answers: list[Answer[FileSlice]]) -> None:
        session = self._session
        for key, fetched, records in answers:
            cached = session.partitions.get(key)
            if cached is not None:
                cached.remember_sent(fetched)
            if records is not None:
                self._remember_sent(key, cached, records.length)
                # The next fetch shows whether the follower took it. Until then it stays due, behind the others.
                session.dirty.pop(key, None)
                session.dirty[key] = None
        # Topics stand together in the response.
        answers.sort(key=lambda answer: answer[0])
        self._call.respond(pack_fetched(by_topic(answers), self._call.version, session_id=session.id))
        if not session.id:
            session.close()

    def _remember_sent(self, key: WireKey, cached: CachedPartition | None, size: int) -> None:
        partition, _ = self._broker.replicas.find(key)
        if partition is None:
            return
        partition.counts.replication_bytes_out += size
        if cached is not None:
            partition.leadership.remember_sent(self._replica_id, cached.wanted.fetch_offset)


def by_topic(
    answers: list[Answer[RecordsT]],
) -> Iterable[tuple[str | bytes, list[tuple[Fetched, RecordsT | None]]]]:
    for name, group in groupby(answers, key=lambda answer: answer[0][0]):
        yield name, [(fetched, records) for _, fetched, records in group]


def leader_endpoints(broker: Broker, call: Call, answers: Sequence[Answer[Any]]) -> list[NodeEndpoint]:
    """The endpoints of the leaders that the answers name (KIP-951)."""
    leaders = {
        fetched.current_leader[0]: None
        for _, fetched, _ in answers
        if fetched.error_code and fetched.current_leader is not None
    }
    return node_endpoints(broker, call, leaders) if leaders else []


def node_endpoints(broker: Broker, call: Call, broker_ids: Iterable[int]) -> list[NodeEndpoint]:
    endpoints = []
    for broker_id in broker_ids:
        known = broker.image.brokers.get(BrokerId(broker_id))
        if known is not None:
            host, port = broker.address_of(known, call.connection)
            endpoints.append(NodeEndpoint(node_id=broker_id, host=host, port=port, rack=known.rack))
    return endpoints
