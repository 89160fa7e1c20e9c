"""A simulated member of a share group.

One task sends heartbeats. Another fetches from the leaders of the assigned partitions in turn, with a share session at
each. It works for a while and acknowledges: mostly it accepts, sometimes it releases, rejects, renews, or sends
nothing. A session is tied to its link and to its epoch. When a response is missing, the member forgets what it holds
there and opens a new session. A member that leaves ends its sessions first, and then leaves the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidemill.broker.net.network import Address
from tidemill.errors import ErrorCode
from tidemill.protocol.api.share import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tidemill.protocol.records import iterate_records, split_batches
from tidemill.sim.checks.shares import (
    Acknowledge,
    Acknowledged,
    AcknowledgeSent,
    AcquiredRecord,
    FetchAnswered,
    FetchSent,
    ShareEvent,
)
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.fetching import message_of
from tidemill.types import TopicPartition, uuid_text

_HEARTBEAT_S = 2.0
_WAIT_MS = 1_000
_FETCH_BYTES_MAX = 64 * 1024
_WORK_S_MAX = 0.5
_FINAL_EPOCH = -1
_LEAVE_ATTEMPTS = 3
_FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)


@dataclass(slots=True)
class _Session:
    """The share session at one broker."""

    epoch: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)
    # Acknowledgements that go along with the next fetch.
    pending: list[AcknowledgeSent] = field(default_factory=list)

    def advance(self) -> None:
        self.epoch = self.epoch % 0x7FFFFFFF + 1


class ShareMember:
    """One member process."""

    def __init__(self, client: Client, group: str, topic: str, events: list[ShareEvent]) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._events = events
        self._member_id = uuid_text(client.rng.randbytes(16))
        self._member_epoch = 0
        # As stock clients: after a lost response it names its topics, so that the next one has the assignment.
        self._names_topics = True
        self._assigned: set[TopicPartition] = set()
        self._sessions: dict[int, _Session] = {}
        self._fetches = 0
        self.is_stopping = False
        self._is_leaving = False
        self.is_done = False

    def leave(self) -> None:
        """Finish what is in hand, and leave the group."""
        self.is_stopping = self._is_leaving = True

    # -- membership ------------------------------------------------------------------------------------------

    async def beat(self) -> None:
        client = self._client
        await client.find_topics([self._topic])
        while not self.is_stopping:
            await self._heartbeat()
            await asyncio.sleep(_HEARTBEAT_S * (0.5 + client.rng.random() / 2))

    async def _heartbeat(self) -> None:
        client = self._client
        request = ShareGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self._member_id,
            member_epoch=self._member_epoch,
            subscribed_topic_names=[self._topic] if self._names_topics else None,
        )
        address = await client.coordinator_of(self._group)
        answer = await client.ask(
            address, request, ShareGroupHeartbeatResponse, purpose="heartbeat", timeout_s=4.0
        )
        self._names_topics = answer is None or bool(answer.error_code)
        if answer is None:
            client.forget_coordinator(self._group)
            return
        code = ErrorCode(answer.error_code)
        if code in _FENCED:
            self._member_epoch = 0
            self._assigned = set()
        elif code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            client.forget_coordinator(self._group)
        if code:
            return
        self._member_epoch = answer.member_epoch
        if answer.assignment is not None:
            names = {topic_id: name for name, topic_id in client.topic_ids.items()}
            self._assigned = {
                TopicPartition(names[bytes(each.topic_id)], index)
                for each in answer.assignment.topic_partitions
                if bytes(each.topic_id) in names
                for index in each.partitions
            }

    # -- working ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        client = self._client
        await client.find_topics([self._topic])
        while not self.is_stopping:
            by_leader: dict[int, set[TopicPartition]] = {}
            for tp in sorted(self._assigned):
                _, leader = await client.find_leader(tp)
                by_leader.setdefault(leader.id, set()).add(tp)
            for broker_id in list(self._sessions):
                if broker_id not in by_leader:
                    del self._sessions[broker_id]
            if not by_leader:
                await asyncio.sleep(0.5)
                continue
            for broker_id, tps in by_leader.items():
                address = client.brokers.get(broker_id)
                if address is None or not await self._poll(broker_id, address, tps):
                    self._sessions.pop(broker_id, None)
                    await client.back_off()
                    await client.refresh([self._topic])
        if self._is_leaving:
            await self._leave()
        self.is_done = True

    async def _leave(self) -> None:
        """The sessions end first: what they hold is released before the group knows that the member is gone."""
        client = self._client
        for broker_id, session in self._sessions.items():
            address = client.brokers.get(broker_id)
            if address is not None and session.epoch:
                pending = [self._resent(each) for each in session.pending]
                await self._acknowledge(session, address, pending, is_final=True)
        request = ShareGroupHeartbeatRequest(
            group_id=self._group, member_id=self._member_id, member_epoch=_FINAL_EPOCH
        )
        for _ in range(_LEAVE_ATTEMPTS):
            address = await client.coordinator_of(self._group)
            answer = await client.ask(
                address, request, ShareGroupHeartbeatResponse, purpose="heartbeat", timeout_s=4.0
            )
            if answer is not None and answer.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID):
                break
            client.forget_coordinator(self._group)
            await client.back_off()

    async def _poll(self, broker_id: int, address: Address, tps: set[TopicPartition]) -> bool:
        """Fetches once and works on what it got. Returns whether the session goes on."""
        session = self._sessions.setdefault(broker_id, _Session())
        acquired = await self._fetch(session, address, tps)
        if acquired is None:
            return False
        if not acquired:
            return True
        rng = self._client.rng
        work_s = _WORK_S_MAX if self._client.record.is_ending or rng.random() < 0.9 else 15.0
        await asyncio.sleep(rng.random() * work_s)
        renewed = [record for record in acquired if self._decides(0.05)]
        if renewed and not await self._acknowledge(
            session, address, [self._sent(record, Acknowledge.RENEW) for record in renewed]
        ):
            return False
        acknowledged = [self._sent(record, kind) for record in acquired if (kind := self._verdict())]
        if not acknowledged:
            return True
        if self._decides(0.3):
            session.pending = acknowledged
            return True
        return await self._acknowledge(session, address, acknowledged)

    def _decides(self, chance: float) -> bool:
        return not self._client.record.is_ending and self._client.rng.random() < chance

    def _verdict(self) -> Acknowledge | None:
        """None: the member says nothing, and the lock ends by itself."""
        if self._client.record.is_ending:
            return Acknowledge.ACCEPT
        chance = self._client.rng.random()
        if chance < 0.72:
            return Acknowledge.ACCEPT
        if chance < 0.9:
            return Acknowledge.RELEASE
        return Acknowledge.REJECT if chance < 0.94 else None

    def _sent(self, record: AcquiredRecord, kind: Acknowledge) -> AcknowledgeSent:
        now_s = self._client.record.now_s()
        return AcknowledgeSent(
            now_s, record.member, record.partition, record.offset, kind, record.delivery_count, record.at_s
        )

    # -- requests --------------------------------------------------------------------------------------------

    async def _fetch(
        self, session: _Session, address: Address, tps: set[TopicPartition]
    ) -> list[AcquiredRecord] | None:
        client, record = self._client, self._client.record
        pending, session.pending = session.pending, []
        pending = [self._resent(each) for each in pending if each.partition in session.partitions & tps]
        added = tps - session.partitions if session.epoch else tps
        forgotten = session.partitions - tps
        request = ShareFetchRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=session.epoch,
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=_FETCH_BYTES_MAX,
            max_records=client.rng.randint(1, 6),
            batch_size=client.rng.randint(1, 6),
            share_acquire_mode=client.rng.randint(0, 1),
            topics=self._fetch_topics(added, pending),
            forgotten_topics_data=[
                ForgottenTopic(
                    topic_id=client.topic_ids[self._topic],
                    partitions=sorted(tp.partition for tp in forgotten),
                )
            ]
            if forgotten
            else [],
        )
        self._fetches += 1
        asked_s, fetch_id = record.now_s(), f"{client.name}/{self._fetches}"
        self._events += pending
        self._events.append(FetchSent(asked_s, fetch_id, client.name, tuple(sorted(tps))))
        leaderships = {tp: record.leadership(address.host, tp) for tp in tps}
        answer = await client.ask(address, request, ShareFetchResponse, purpose="share", timeout_s=6.0)
        if answer is None:
            return None
        self._events.append(FetchAnswered(record.now_s(), fetch_id))
        if answer.error_code:
            return None
        session.advance()
        session.partitions = set(tps)
        # A leadership that is the same before and after has served the fetch.
        led = {tp: each for tp, each in leaderships.items() if each == record.leadership(address.host, tp)}
        return self._took(answer, pending, asked_s, led)

    def _resent(self, pending: AcknowledgeSent) -> AcknowledgeSent:
        """The acknowledgement as it is sent now."""
        return AcknowledgeSent(
            self._client.record.now_s(),
            pending.member,
            pending.partition,
            pending.offset,
            pending.kind,
            pending.delivery_count,
            pending.acquired_s,
        )

    def _fetch_topics(self, added: set[TopicPartition], pending: list[AcknowledgeSent]) -> list[FetchTopic]:
        batches = _batches(pending)
        partitions = [
            FetchPartition(partition_index=tp.partition, acknowledgement_batches=batches.get(tp, []))
            for tp in sorted(added | batches.keys())
        ]
        if not partitions:
            return []
        return [FetchTopic(topic_id=self._client.topic_ids[self._topic], partitions=partitions)]

    def _took(
        self,
        answer: ShareFetchResponse,
        pending: list[AcknowledgeSent],
        asked_s: float,
        leaderships: dict[TopicPartition, str],
    ) -> list[AcquiredRecord] | None:
        acquired: list[AcquiredRecord] = []
        confirmed: dict[TopicPartition, bool] = {}
        is_led = True
        for topic in answer.responses:
            for data in topic.partitions:
                tp = TopicPartition(self._topic, data.partition_index)
                confirmed[tp] = not data.acknowledge_error_code
                if data.error_code:
                    is_led = False
                    continue
                acquired += self._records(tp, data, asked_s, leaderships.get(tp, ""))
        # A partition with acknowledgements is in the response, as one with records.
        self._confirm([each for each in pending if confirmed.get(each.partition)])
        self._events += acquired
        return acquired if is_led or acquired else None

    def _records(
        self, tp: TopicPartition, data: ShareFetchPartitionData, asked_s: float, leadership: str
    ) -> Iterator[AcquiredRecord]:
        record, name = self._client.record, self._client.name
        counts = {
            offset: each.delivery_count
            for each in data.acquired_records
            for offset in range(each.first_offset, each.last_offset + 1)
        }
        view = memoryview(bytes(data.records or b""))
        position = 0
        for header in split_batches(view):
            batch = view[position : position + header.size]
            position += header.size
            if header.is_control:
                continue
            for found in iterate_records(batch, header):
                count = counts.pop(found.offset, None)
                if count is not None:
                    message = message_of(found.value or b"")
                    yield AcquiredRecord(
                        record.now_s(), asked_s, name, tp, found.offset, message, count, leadership
                    )
        if counts:
            record.accuse(f"{name} acquired offsets {sorted(counts)} of {tp} without their records")

    async def _acknowledge(
        self,
        session: _Session,
        address: Address,
        acknowledged: list[AcknowledgeSent],
        *,
        is_final: bool = False,
    ) -> bool:
        client = self._client
        self._events += acknowledged
        partitions = [
            AcknowledgePartition(partition_index=tp.partition, acknowledgement_batches=batches)
            for tp, batches in _batches(acknowledged).items()
        ]
        request = ShareAcknowledgeRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=_FINAL_EPOCH if is_final else session.epoch,
            is_renew_ack=any(each.kind is Acknowledge.RENEW for each in acknowledged),
            topics=[AcknowledgeTopic(topic_id=client.topic_ids[self._topic], partitions=partitions)]
            if partitions
            else [],
        )
        answer = await client.ask(address, request, ShareAcknowledgeResponse, purpose="share", timeout_s=20.0)
        if answer is None or answer.error_code:
            return False
        session.advance()
        codes = {
            TopicPartition(self._topic, data.partition_index): data.error_code
            for topic in answer.responses
            for data in topic.partitions
        }
        self._confirm([each for each in acknowledged if codes.get(each.partition) == ErrorCode.NONE])
        return all(code == ErrorCode.NONE for code in codes.values())

    def _confirm(self, acknowledged: list[AcknowledgeSent]) -> None:
        now_s = self._client.record.now_s()
        self._events += [
            Acknowledged(now_s, each) for each in acknowledged if each.kind is not Acknowledge.RENEW
        ]


def _batches(acknowledged: list[AcknowledgeSent]) -> dict[TopicPartition, list[AcknowledgementBatch]]:
    found: dict[TopicPartition, list[AcknowledgementBatch]] = {}
    for each in sorted(acknowledged, key=lambda each: (each.partition, each.offset)):
        batches = found.setdefault(each.partition, [])
        if batches and batches[-1].last_offset + 1 == each.offset:
            batches[-1].last_offset = each.offset
            batches[-1].acknowledge_types.append(each.kind)
        else:
            batches.append(
                AcknowledgementBatch(
                    first_offset=each.offset, last_offset=each.offset, acknowledge_types=[each.kind]
                )
            )
    return found
