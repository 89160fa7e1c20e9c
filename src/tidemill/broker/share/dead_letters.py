"""Writes dead letters: records that a share group gives up, copied to its dead-letter topic (KIP-1191).

A letter has the record's key, value, headers and timestamp, and the reason in headers. It is written when the share
coordinator has the record as ARCHIVING, and the record is ARCHIVED when the letter is committed. Whatever fails in
between, the letter is sent again, by this leader or the next one. It is in the topic once. Its batch has a producer id
that is computed from the record's place. So the leader of the dead-letter partition recognises a repetition, as for any
idempotent producer. It does so for `producer.id.expiration.ms`.

Some letters can never be written: there is no such topic, the topic does not allow it or is the source itself, the
letter is too large, or the record cannot be decoded. That is logged once, and the record is archived without a letter.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from tidemill.broker.disk.long_work import LongWork
from tidemill.broker.net.channel import Channels, PeerUnavailable
from tidemill.broker.net.network import Address
from tidemill.broker.partitions.partition import Partition
from tidemill.config import TopicConfig
from tidemill.controller.image import MetadataImage, TopicImage
from tidemill.dead_letters import failure_headers, letter_headers
from tidemill.errors import ApiError, ErrorCode, ProtocolError
from tidemill.log.log import Log
from tidemill.protocol.api.data import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.protocol.records import Header, Record, build_batch, iterate_records
from tidemill.protocol.share_state import NO_CREATION_OFFSET, SharePartitionKey
from tidemill.protocol.steps import Steps
from tidemill.replication.share_messages import Dead

logger = logging.getLogger(__name__)

_TIMEOUT_MS = 10_000
_RECORDS_A_STEP = 64
# Beyond all producer ids that controllers hand out.
_PRODUCER_ID_BASE = 1 << 62
# Another attempt would end the same way.
_FINAL = {
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.CORRUPT_MESSAGE,
}


class LetterHost(Protocol):
    """The part of the broker that dead letters use; `Replicas` implements it."""

    @property
    def long_work(self) -> LongWork: ...
    def topic_config(self, name: str) -> TopicConfig: ...
    def address_of(self, broker_id: int) -> Address | None: ...
    def report_undecodable(self, partition: Partition, reason: str) -> None: ...


class Unwritable(Exception):
    """A letter that can never be written, and why. Those of one kind are reported once."""

    def __init__(self, why: str, kind: str = "") -> None:
        super().__init__(why)
        self.kind = kind or why


class DeadLetters:
    def __init__(self, host: LetterHost, channels: Channels, image: Callable[[], MetadataImage]) -> None:
        self._host = host
        self._channels = channels
        self._image = image
        # (group, topic, kind of error) that were reported.
        self._reported: set[tuple[str, str, str]] = set()

    async def write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        creation_offset: int,
        partition: Partition,
        topic: str,
        dead: Dead,
    ) -> int:
        """Returns how many letters are committed; others were reported as unwritable. `ApiError`: try again later."""
        log = partition.log
        if log is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        try:
            target = self._target(partition, topic)
        except Unwritable as error:
            self._report(key.group_id, topic, error)
            return 0
        written = 0
        on_undecodable = partial(self._host.report_undecodable, partition)
        for record in await self._host.long_work.run(partial(_records_between, log, dead, on_undecodable)):
            letter = _letter(record, partition, key.group_id, dead)
            producer_id = producer_id_of(key, state_epoch, creation_offset, record.offset)
            try:
                await self._send(target, partition.index, letter, producer_id)
                written += 1
            except Unwritable as error:
                self._report(key.group_id, topic, error)
        return written

    def _target(self, partition: Partition, topic: str) -> TopicImage:
        target = self._image().topics_by_name.get(topic)
        if topic == partition.name.topic:
            raise Unwritable("it is the topic of the records itself")
        if target is None or not target.partitions:
            raise Unwritable("there is no such topic")
        if not self._host.topic_config(topic).errors_deadletterqueue_group_enable:
            raise Unwritable("errors.deadletterqueue.group.enable is not true for it")
        return target

    async def _send(self, topic: TopicImage, source_index: int, letter: Record, producer_id: int) -> None:
        index = source_index % len(topic.partitions)
        batch = build_batch([letter], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        entry = TopicProduceData(
            name=topic.name,
            topic_id=topic.id,
            partition_data=[PartitionProduceData(index=index, records=bytes(batch))],
        )
        address = self._host.address_of(topic.partitions[index].leader)
        if address is None:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE)
        try:
            response = await self._channels.to(address, "dead letters").request(
                ProduceRequest(acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=[entry]),
                ProduceResponse,
                timeout_s=_TIMEOUT_MS / 1000,
            )
        except PeerUnavailable as error:
            raise ApiError(ErrorCode.NETWORK_EXCEPTION, str(error)) from error
        result = response.responses[0].partition_responses[0]
        code = ErrorCode(result.error_code)
        if code in _FINAL:
            raise Unwritable(result.error_message or code.message, code.name)
        # A batch that the partition has already is answered as the first time.
        if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            raise ApiError(code, result.error_message)

    def _report(self, group_id: str, topic: str, error: Unwritable) -> None:
        reported = (group_id, topic, error.kind)
        if reported not in self._reported and len(self._reported) < 1000:
            self._reported.add(reported)
            logger.error(
                "records of share group %s are archived without a dead letter in %s: %s",
                group_id,
                topic,
                error,
            )


def _letter(record: Record, partition: Partition, group_id: str, dead: Dead) -> Record:
    message = "A member rejected the record." if dead.is_rejected else "The delivery limit was reached."
    failure = failure_headers(
        partition.name.topic, partition.index, record.offset, group_id, dead.delivery_count, message
    )
    headers = tuple(Header(*each) for each in letter_headers(record.headers, failure))
    return record._replace(offset=0, headers=headers)


def producer_id_of(key: SharePartitionKey, state_epoch: int, creation_offset: int, offset: int) -> int:
    """The producer id of a letter: the same for the same record, until the group's offsets are altered or deleted."""
    place = f"{key}:{state_epoch}:{offset}"
    if creation_offset != NO_CREATION_OFFSET:
        # A state of an earlier version has letters under the shorter name.
        place += f":{creation_offset}"
    digest = int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest(), "big")
    return _PRODUCER_ID_BASE | digest >> 2


def _records_between(log: Log, dead: Dead, on_undecodable: Callable[[str], None]) -> Steps[Sequence[Record]]:
    """The records at some offsets, as far as the log still has them and they can be decoded."""
    found: list[Record] = []
    number = bisect_right(log.segments, dead.first_offset, key=lambda each: each.base_offset) - 1
    for segment in log.segments[max(0, number) :]:
        if segment.base_offset >= dead.end_offset:
            break
        for _, header, batch in segment.batches(segment.locate(dead.first_offset)):
            if header.base_offset >= dead.end_offset:
                break
            if header.is_control:
                continue
            try:
                for count, record in enumerate(iterate_records(batch, header), 1):
                    if dead.first_offset <= record.offset < dead.end_offset:
                        found.append(record)
                    if count % _RECORDS_A_STEP == 0:
                        yield None
            except ProtocolError as error:
                on_undecodable(f"the batch at offset {header.base_offset} cannot be decoded: {error}")
        yield None
    return found
