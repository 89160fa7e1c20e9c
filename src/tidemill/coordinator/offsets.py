"""Committed offsets: who may commit, what is kept, when it goes.

An offset belongs to a group, a topic and a partition, and remembers the id that the topic had. A topic that was
deleted and created again under its name has another id, so an offset of the old one is never served for the new one,
even if its tombstone is still to be written.

Retention: the offsets of a group with members stay, except those of topics that no member consumes; the offsets of an
empty group go `offsets.retention.minutes` after it became empty, those of a simple consumer after the commit. A
group that is empty and has no offsets left goes with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemill.coordinator.group import Answer, Caller, Committer, Decision, Environment, Group, reply
from tidemill.coordinator.records import Record, offset_commit_tombstone
from tidemill.coordinator.responses import error_response, fetch_group_error
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.coordinator_records import OffsetCommitKey, OffsetCommitValue
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tidemill.types import NO_TOPIC_ID, TopicId

_TOPIC_IDS_SINCE = 10
_FETCH_BATCH_SINCE = 8
_MEMBER_EPOCHS_SINCE = 9
_NO_RETENTION_TIME = -1


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    # Only for commits before version 5 that asked for it, otherwise -1.
    expire_timestamp_ms: int
    topic_id: TopicId


class Offsets:
    """The offsets of all groups of a shard. It looks groups up but never changes them."""

    def __init__(self, environment: Environment, groups: dict[str, Group]) -> None:
        self._environment = environment
        self._topics = environment.topics
        self._groups = groups
        self._by_group: dict[str, dict[str, dict[int, CommittedOffset]]] = {}

    def of_group(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        """By topic and partition; what lag is computed from. Not to be changed."""
        return self._by_group.get(group_id, {})

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        if value is None:
            self._forget(key.group, key.topic, key.partition)
            return
        topics = self._by_group.setdefault(key.group, {})
        topics.setdefault(key.topic, {})[key.partition] = CommittedOffset(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            TopicId(value.topic_id),
        )

    def _forget(self, group_id: str, topic: str, partition: int) -> None:
        topics = self._by_group.get(group_id, {})
        partitions = topics.get(topic, {})
        if partitions.pop(partition, None) is None:
            return
        if not partitions:
            del topics[topic]
        if not topics:
            del self._by_group[group_id]

    # OffsetCommit

    def check_commit(self, request: OffsetCommitRequest, caller: Caller) -> Group | None:
        """The group that takes the commit, None for a simple consumer's first; raises ApiError."""
        committer = Committer(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation_or_epoch=request.generation_id_or_member_epoch,
            is_transactional=False,
            api_version=caller.api_version,
        )
        knows_epochs = caller.api_version >= _MEMBER_EPOCHS_SINCE
        group = self._groups.get(request.group_id)
        if group is None:
            if committer.is_simple:
                return None
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND if knows_epochs else ErrorCode.ILLEGAL_GENERATION)
        try:
            group.check_offset_commit(committer)
        except ApiError as error:
            if error.code is ErrorCode.STALE_MEMBER_EPOCH and not knows_epochs:
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION) from None
            raise
        return group

    def commit(
        self, request: OffsetCommitRequest, caller: Caller, token: int, now_ms: int, error: ErrorCode
    ) -> Decision:
        """`error` is the outcome of `check_commit`; partitions that do not exist are refused either way."""
        group = self._groups.get(request.group_id)
        records: list[Record] = []
        response = OffsetCommitResponse()
        expire_ms = (
            -1 if request.retention_time_ms == _NO_RETENTION_TIME else now_ms + request.retention_time_ms
        )
        for topic in request.topics:
            name: str | None = topic.name
            if caller.api_version >= _TOPIC_IDS_SINCE:
                name = self._topics.name_of(TopicId(topic.topic_id))
            count = None if name is None else self._topics.partitions_of(name)
            topic_id = self._topics.id_of(name) if name is not None else None
            answer = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
            for each in topic.partitions:
                code = self._check_partition(each, count, caller.api_version) or error
                if not code and group is not None:
                    code = group.check_offset_commit_partition(
                        request.member_id,
                        request.generation_id_or_member_epoch,
                        topic_id,
                        each.partition_index,
                    )
                answer.partitions.append(
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                )
                if not code and name is not None:
                    value = _to_value(each, topic_id or NO_TOPIC_ID, now_ms, expire_ms)
                    key = OffsetCommitKey(group=request.group_id, topic=name, partition=each.partition_index)
                    records.append(Record(key, value))
            if topic.partitions or count is None:
                # Kafka answers nothing about a topic for which nothing was asked, unless it is unknown.
                response.topics.append(answer)
        return Decision(records, [Answer(token, response)])

    def _check_partition(
        self, partition: OffsetCommitRequestPartition, count: int | None, api_version: int
    ) -> ErrorCode:
        if count is None:
            by_id = api_version >= _TOPIC_IDS_SINCE
            return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not 0 <= partition.partition_index < count:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        metadata = partition.committed_metadata
        if metadata is not None and len(metadata) > self._environment.config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    # OffsetFetch

    def fetch(self, request: OffsetFetchRequest, caller: Caller, token: int) -> Decision:
        version = caller.api_version
        if version >= _FETCH_BATCH_SINCE:
            groups = [self._fetch_group(group, version) for group in request.groups]
            return reply(token, OffsetFetchResponse(groups=groups))
        wanted = OffsetFetchRequestGroup(group_id=request.group_id, topics=None)
        if request.topics is not None:
            wanted.topics = [
                OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in request.topics
            ]
        fetched = self._fetch_group(wanted, version)
        if fetched.error_code:
            return reply(token, error_response(request, version, ErrorCode(fetched.error_code)))
        return reply(token, OffsetFetchResponse(topics=[_old_topic(topic) for topic in fetched.topics]))

    def _fetch_group(self, wanted: OffsetFetchRequestGroup, version: int) -> OffsetFetchResponseGroup:
        """A group that does not exist has committed nothing, which is no error."""
        group = self._groups.get(wanted.group_id)
        if group is not None:
            try:
                group.check_offset_fetch(wanted.member_id, wanted.member_epoch)
            except ApiError as error:
                return fetch_group_error(wanted, error.code)
        response = OffsetFetchResponseGroup(group_id=wanted.group_id)
        if wanted.topics is None:
            response.topics = self._fetch_all(wanted.group_id, version)
            return response
        for topic in wanted.topics:
            name: str | None = topic.name
            if version >= _TOPIC_IDS_SINCE:
                name = self._topics.name_of(TopicId(topic.topic_id))
            answer = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
            for index in topic.partition_indexes:
                committed = None if name is None else self._current(wanted.group_id, name, index)
                partition = _fetched(index, committed)
                if name is None:
                    partition.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                answer.partitions.append(partition)
            response.topics.append(answer)
        return response

    def _fetch_all(self, group_id: str, version: int) -> list[OffsetFetchResponseTopics]:
        topics = []
        for name, partitions in self.of_group(group_id).items():
            topic_id = self._topics.id_of(name) or NO_TOPIC_ID
            if version >= _TOPIC_IDS_SINCE and topic_id == NO_TOPIC_ID:
                continue
            current = ((index, self._current(group_id, name, index)) for index in partitions)
            answers = [_fetched(index, committed) for index, committed in current if committed is not None]
            if answers:
                topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=answers))
        return topics

    def _current(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        committed = self.of_group(group_id).get(topic, {}).get(partition)
        return None if committed is None or self._is_of_old_topic(topic, committed) else committed

    def _is_of_old_topic(self, topic: str, committed: CommittedOffset) -> bool:
        topic_id = self._topics.id_of(topic)
        return topic_id is not None and committed.topic_id not in (NO_TOPIC_ID, topic_id)

    # OffsetDelete and what removes offsets otherwise

    def delete(self, request: OffsetDeleteRequest, token: int) -> Decision:
        group = self._group_to_delete_from(request.group_id)
        response = OffsetDeleteResponse()
        records: list[Record] = []
        for topic in request.topics:
            answer = OffsetDeleteResponseTopic(name=topic.name)
            count = self._topics.partitions_of(topic.name) or 0
            committed = self.of_group(request.group_id).get(topic.name, {})
            for each in topic.partitions:
                index, error = each.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if 0 <= index < count:
                    is_used = group.subscribes_to(topic.name)
                    error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_used else ErrorCode.NONE
                if not error and index in committed:
                    records.append(offset_commit_tombstone(request.group_id, topic.name, index))
                answer.partitions.append(
                    OffsetDeleteResponsePartition(partition_index=index, error_code=error)
                )
            if topic.partitions:
                response.topics.append(answer)
        return Decision(records, [Answer(token, response)])

    def _group_to_delete_from(self, group_id: str) -> Group:
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_offset_delete()
        return group

    def all_tombstones(self, group_id: str) -> list[Record]:
        return [
            offset_commit_tombstone(group_id, topic, partition)
            for topic, partitions in self.of_group(group_id).items()
            for partition in partitions
        ]

    def topics_deleted(self, deleted: Iterable[tuple[str, TopicId]]) -> list[Record]:
        """Tombstones for every offset of the topics with these ids."""
        records = []
        for topic, topic_id in deleted:
            for group_id, topics in self._by_group.items():
                for partition, committed in topics.get(topic, {}).items():
                    # Without an id the offset is older than ids, and older than any new topic of the name.
                    if committed.topic_id in (topic_id, NO_TOPIC_ID):
                        records.append(offset_commit_tombstone(group_id, topic, partition))
        return records

    def expired(self, group: Group, now_ms: int) -> tuple[list[Record], bool]:
        """Tombstones for what is past its retention, and whether the group then has no offset left."""
        records = []
        remaining = False
        for topic, partitions in self.of_group(group.group_id).items():
            is_subscribed = group.subscribes_to(topic)
            for partition, committed in partitions.items():
                is_orphan = self._is_of_old_topic(topic, committed)
                if is_orphan or (not is_subscribed and self._is_expired(group, committed, now_ms)):
                    records.append(offset_commit_tombstone(group.group_id, topic, partition))
                else:
                    remaining = True
        return records, not remaining

    def _is_expired(self, group: Group, committed: CommittedOffset, now_ms: int) -> bool:
        from_ms = group.offset_expires_from_ms(committed.commit_timestamp_ms)
        if from_ms is None:
            return False
        if committed.expire_timestamp_ms != -1:
            return now_ms >= committed.expire_timestamp_ms
        return now_ms - from_ms >= self._environment.config.offsets_retention_ms

    def replicated_state(self) -> object:
        return self._by_group


def _to_value(
    partition: OffsetCommitRequestPartition, topic_id: TopicId, now_ms: int, expire_timestamp_ms: int
) -> OffsetCommitValue:
    value = OffsetCommitValue(
        offset=partition.committed_offset,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms,
        expire_timestamp=expire_timestamp_ms,
    )
    if expire_timestamp_ms == -1:
        # The format with an expiry of its own has neither; what is replayed must be what is stored.
        value.leader_epoch = partition.committed_leader_epoch
        value.topic_id = topic_id
    return value


def _fetched(index: int, committed: CommittedOffset | None) -> OffsetFetchResponsePartitions:
    if committed is None:
        return OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, metadata="")
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def _old_topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=each.partition_index,
                committed_offset=each.committed_offset,
                committed_leader_epoch=each.committed_leader_epoch,
                metadata=each.metadata,
                error_code=each.error_code,
            )
            for each in topic.partitions
        ],
    )
