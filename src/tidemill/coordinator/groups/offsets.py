"""Committed offsets: commit, fetch, delete and expire.

An offset belongs to a group, a topic and a partition, and holds the id that the topic had. A topic that was deleted and
created again under its name has another id. So an offset of the old one is never served for the new one, even if its
tombstone is still to be written.

Retention: the offsets of a group with members stay, except those of topics that no member consumes. The offsets of an
empty group expire `offsets.retention.minutes` after it became empty, those of a simple consumer that long after the
commit. An empty group without offsets is removed too.

An offset that is committed in a transaction is pending until the transaction's marker. A commit marker makes it the
committed offset, unless a later record has set another. An abort marker drops it. While an offset is pending, a fetch
with `require_stable` gets UNSTABLE_OFFSET_COMMIT. A pending offset keeps the committed one and the group from expiring.
Before its marker it is removed only together with its offset, group or topic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from tidemill.coordinator.groups.group import Committer, Decision, Environment, Group
from tidemill.coordinator.groups.pending_offsets import CommittedOffset, PendingOffsets, Place
from tidemill.coordinator.records import Record, offset_commit_tombstone
from tidemill.coordinator.shard import Caller, Writer
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
from tidemill.protocol.api.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidemill.protocol.coordinator_responses import error_response, fetch_group_error
from tidemill.types import NO_TOPIC_ID, TopicId

if TYPE_CHECKING:
    from tidemill.log.transactions import TransactionEnd

_TOPIC_IDS_SINCE = 10
_FETCH_BATCH_SINCE = 8
_MEMBER_EPOCHS_SINCE = 9
_NO_RETENTION_TIME = -1
_TIMESTAMP_MAX = (1 << 63) - 1
# A version of OffsetCommit that names topics, as TxnOffsetCommit does in all its versions.
_BY_NAME = 0


class Offsets:
    """The offsets of all groups of a shard. It looks groups up but never changes them."""

    def __init__(self, environment: Environment, groups: dict[str, Group]) -> None:
        self._environment = environment
        self._topics = environment.topics
        self._groups = groups
        self._by_group: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._pending = PendingOffsets()
        self._last_position = 0
        # Offsets of partitions that were removed, by their positions, until their tombstones are in the log.
        self._removed: dict[Place, int] = {}

    def of_group(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        """Returns the offsets by topic and partition, from which lag is computed. Callers must not change them."""
        return self._by_group.get(group_id, {})

    def replay(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, writer: Writer | None = None
    ) -> None:
        place = Place(key.group, key.topic, key.partition)
        if value is None:
            self._forget(*place)
            self._pending.forget(place)
            return
        self._last_position += 1
        committed = CommittedOffset(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            TopicId(value.topic_id),
            self._last_position,
        )
        if writer is None:
            self._put(place, committed)
        else:
            self._pending.put(writer.producer_id, place, committed)

    def replay_end(self, end: TransactionEnd) -> None:
        for place, pending in self._pending.end(end.producer_id).items():
            if not end.is_commit:
                continue
            current = self.of_group(place.group_id).get(place.topic, {}).get(place.partition)
            # The order of the records decides, not that of the markers: compaction keeps the last record.
            if current is None or pending.position > current.position:
                self._put(place, pending)

    def _put(self, place: Place, committed: CommittedOffset) -> None:
        topics = self._by_group.setdefault(place.group_id, {})
        topics.setdefault(place.topic, {})[place.partition] = committed

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
        """Returns the group of the commit; None for the first commit of a simple consumer. Raises ApiError."""
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
        self, request: OffsetCommitRequest, caller: Caller, steady_ms: int, error: ErrorCode
    ) -> Decision:
        """Decide a commit. `error` is the result of `check_commit`. Partitions that do not exist are refused in any case."""
        group = self._groups.get(request.group_id)
        records: list[Record] = []
        response = OffsetCommitResponse()
        expire_ms = (
            -1
            if request.retention_time_ms == _NO_RETENTION_TIME
            else min(steady_ms + request.retention_time_ms, _TIMESTAMP_MAX)
        )
        for topic in request.topics:
            name: str | None = topic.name
            if caller.api_version >= _TOPIC_IDS_SINCE:
                name = self._topics.name_of(TopicId(topic.topic_id))
            count = None if name is None else self._topics.partitions_of(name)
            topic_id = self._topics.id_of(name) if name is not None else None
            answer = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
            for each in topic.partitions:
                code = self._check_partition(each, name, count, caller.api_version) or error
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
                    value = _to_value(each, topic_id or NO_TOPIC_ID, steady_ms, expire_ms)
                    key = OffsetCommitKey(group=request.group_id, topic=name, partition=each.partition_index)
                    records.append(Record(key, value))
            if topic.partitions or count is None:
                # As in Kafka, a topic without partitions in the request has no entry in the response, unless it is unknown.
                response.topics.append(answer)
        return Decision(records, response)

    def _check_partition(
        self,
        partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
        name: str | None,
        count: int | None,
        api_version: int,
    ) -> ErrorCode:
        if name is None or count is None:
            by_id = api_version >= _TOPIC_IDS_SINCE
            return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not 0 <= partition.partition_index < count:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        epoch = partition.committed_leader_epoch
        if 0 <= epoch <= self._topics.former_epoch(name, partition.partition_index):
            # A position in the partition that had this index before. In this one it would skip records (failure 21).
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        metadata = partition.committed_metadata
        if metadata is not None and len(metadata) > self._environment.config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    # TxnOffsetCommit

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, caller: Caller, steady_ms: int
    ) -> Decision:
        """Decide a commit in a transaction. The whole request fails if the member may not commit to a partition."""
        group = self._group_to_commit_to(request, caller)
        records: list[Record] = []
        response = TxnOffsetCommitResponse()
        for topic in request.topics:
            count = self._topics.partitions_of(topic.name)
            topic_id = self._topics.id_of(topic.name)
            answer = TxnOffsetCommitResponseTopic(name=topic.name)
            for each in topic.partitions:
                index = each.partition_index
                code = self._check_partition(each, topic.name, count, _BY_NAME)
                if not code:
                    if group is not None and group.check_offset_commit_partition(
                        request.member_id, request.generation_id_or_member_epoch, topic_id, index
                    ):
                        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
                    key = OffsetCommitKey(group=request.group_id, topic=topic.name, partition=index)
                    records.append(Record(key, _to_value(each, topic_id or NO_TOPIC_ID, steady_ms, -1)))
                answer.partitions.append(
                    TxnOffsetCommitResponsePartition(partition_index=index, error_code=code)
                )
            response.topics.append(answer)
        writer = Writer(request.producer_id, request.producer_epoch)
        return Decision(records, response, writer=writer)

    def _group_to_commit_to(self, request: TxnOffsetCommitRequest, caller: Caller) -> Group | None:
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        committer = Committer(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation_or_epoch=request.generation_id_or_member_epoch,
            is_transactional=True,
            api_version=caller.api_version,
        )
        group = self._groups.get(request.group_id)
        if group is None:
            if committer.is_simple:
                return None
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        try:
            group.check_offset_commit(committer)
        except ApiError as error:
            if error.code is ErrorCode.STALE_MEMBER_EPOCH:
                # The API is older than member epochs.
                raise ApiError(ErrorCode.ILLEGAL_GENERATION) from None
            raise
        return group

    # OffsetFetch

    def fetch(self, request: OffsetFetchRequest, caller: Caller) -> Decision:
        version = caller.api_version
        if version >= _FETCH_BATCH_SINCE:
            groups = [self._fetch_group(group, version, request.require_stable) for group in request.groups]
            return Decision(reply=OffsetFetchResponse(groups=groups))
        wanted = OffsetFetchRequestGroup(group_id=request.group_id, topics=None)
        if request.topics is not None:
            wanted.topics = [
                OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in request.topics
            ]
        fetched = self._fetch_group(wanted, version, request.require_stable)
        if fetched.error_code:
            return Decision(reply=error_response(request, version, ErrorCode(fetched.error_code)))
        return Decision(reply=OffsetFetchResponse(topics=[_old_topic(topic) for topic in fetched.topics]))

    def _fetch_group(
        self, wanted: OffsetFetchRequestGroup, version: int, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """A group that does not exist has no offsets, which is not an error."""
        group = self._groups.get(wanted.group_id)
        if group is not None:
            try:
                group.check_offset_fetch(wanted.member_id, wanted.member_epoch)
            except ApiError as error:
                return fetch_group_error(wanted, error.code)
        response = OffsetFetchResponseGroup(group_id=wanted.group_id)
        if wanted.topics is None:
            response.topics = self._fetch_all(wanted.group_id, version, require_stable)
            return response
        for topic in wanted.topics:
            name: str | None = topic.name
            if version >= _TOPIC_IDS_SINCE:
                name = self._topics.name_of(TopicId(topic.topic_id))
            answer = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
            for index in topic.partition_indexes:
                if name is None:
                    partition = _fetched(index, None)
                    partition.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                else:
                    partition = self._fetch_partition(Place(wanted.group_id, name, index), require_stable)
                answer.partitions.append(partition)
            response.topics.append(answer)
        return response

    def _fetch_partition(self, place: Place, require_stable: bool) -> OffsetFetchResponsePartitions:
        if require_stable and self._pending.has(place):
            unstable = _fetched(place.partition, None)
            unstable.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
            return unstable
        return _fetched(place.partition, self._current(*place))

    def _fetch_all(
        self, group_id: str, version: int, require_stable: bool
    ) -> list[OffsetFetchResponseTopics]:
        """Returns the committed offsets. As in Kafka, a partition with only a pending offset is left out."""
        topics = []
        for name, partitions in self.of_group(group_id).items():
            topic_id = self._topics.id_of(name) or NO_TOPIC_ID
            if version >= _TOPIC_IDS_SINCE and topic_id == NO_TOPIC_ID:
                continue
            places = [Place(group_id, name, index) for index in partitions]
            answers = [
                self._fetch_partition(place, require_stable)
                for place in places
                if self._current(*place) is not None
            ]
            if answers:
                topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=answers))
        return topics

    def _current(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        committed = self.of_group(group_id).get(topic, {}).get(partition)
        return None if committed is None or self._is_gone(Place(group_id, topic, partition)) else committed

    def _is_gone(self, place: Place) -> bool:
        """Whether the topic or the partition of a committed offset is gone. Another one may have its name or index."""
        committed = self._by_group[place.group_id][place.topic][place.partition]
        return (
            self._is_of_old_topic(place.topic, committed)
            or self._is_beyond(place.topic, place.partition)
            or self._removed.get(place) == committed.position
            or 0 <= committed.leader_epoch <= self._topics.former_epoch(place.topic, place.partition)
        )

    def has_gone(self, group_id: str, topic: str) -> bool:
        """Whether a group has offsets of a topic that is gone, or of partitions of it that are."""
        partitions = self.of_group(group_id).get(topic, ())
        return any(self._is_gone(Place(group_id, topic, each)) for each in partitions)

    def _is_of_old_topic(self, topic: str, committed: CommittedOffset) -> bool:
        topic_id = self._topics.id_of(topic)
        return topic_id is not None and committed.topic_id not in (NO_TOPIC_ID, topic_id)

    def _is_beyond(self, topic: str, partition: int) -> bool:
        """Whether the topic has lost the partition. A coordinator that was not loaded then has missed it."""
        count = self._topics.partitions_of(topic)
        return count is not None and partition >= count

    # OffsetDelete and other removals

    def delete(self, request: OffsetDeleteRequest) -> Decision:
        group = self._group_to_delete_from(request.group_id)
        response = OffsetDeleteResponse()
        records: list[Record] = []
        for topic in request.topics:
            answer = OffsetDeleteResponseTopic(name=topic.name)
            count = self._topics.partitions_of(topic.name) or 0
            for each in topic.partitions:
                index, error = each.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if 0 <= index < count:
                    is_used = group.subscribes_to(topic.name)
                    error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_used else ErrorCode.NONE
                if not error and self._has_any(Place(request.group_id, topic.name, index)):
                    records.append(offset_commit_tombstone(request.group_id, topic.name, index))
                answer.partitions.append(
                    OffsetDeleteResponsePartition(partition_index=index, error_code=error)
                )
            if topic.partitions:
                response.topics.append(answer)
        return Decision(records, response)

    def _group_to_delete_from(self, group_id: str) -> Group:
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_offset_delete()
        return group

    def _has_any(self, place: Place) -> bool:
        """Whether an offset is committed or pending."""
        committed = self.of_group(place.group_id).get(place.topic, {})
        return place.partition in committed or self._pending.has(place)

    def all_tombstones(self, group_id: str) -> list[Record]:
        places = {
            Place(group_id, topic, partition): None
            for topic, partitions in self.of_group(group_id).items()
            for partition in partitions
        }
        places.update(dict.fromkeys(self._pending.places_of(group_id)))
        return [offset_commit_tombstone(*place) for place in places]

    def topics_deleted(self, deleted: Iterable[tuple[str, TopicId]]) -> list[Record]:
        """Returns tombstones for every offset of the topics with these ids."""
        records = []
        for topic, topic_id in deleted:
            places = {
                Place(group_id, topic, partition): None
                for group_id, topics in self._by_group.items()
                for partition in topics.get(topic, ())
            }
            places.update({place: None for place in self._pending.places() if place.topic == topic})
            records += [
                offset_commit_tombstone(*place) for place in places if self._goes_with_topic(place, topic_id)
            ]
        return records

    def partitions_removed(self, removed: Mapping[str, Collection[int]]) -> list[Record]:
        """Returns tombstones for every offset of these partitions. One with the same number may be added later."""
        places = {
            Place(group_id, topic, partition): None
            for topic, partitions in removed.items()
            for group_id, topics in self._by_group.items()
            for partition in topics.get(topic, ())
            if partition in partitions
        }
        for place in self._pending.places():
            if place.partition in removed.get(place.topic, ()):
                places[place] = None
        for place in places:
            committed = self.of_group(place.group_id).get(place.topic, {}).get(place.partition)
            if committed is not None:
                self._removed[place] = committed.position
        return [offset_commit_tombstone(*place) for place in places]

    def removed_again(self) -> list[Record]:
        """Returns the tombstones of removed partitions that the log did not take. A later commit is spared."""
        self._removed = {
            place: position
            for place, position in self._removed.items()
            if (found := self.of_group(place.group_id).get(place.topic, {}).get(place.partition)) is not None
            and found.position == position
        }
        return [offset_commit_tombstone(*place) for place in self._removed if not self._pending.has(place)]

    @property
    def awaits_tombstones(self) -> bool:
        return bool(self._removed)

    def _goes_with_topic(self, place: Place, topic_id: TopicId) -> bool:
        # An offset without a topic id is older than topic ids, and so older than any new topic of that name.
        gone = (topic_id, NO_TOPIC_ID)
        pending = self._pending.of(place)
        if pending:
            # A tombstone would remove all of them, also those of a new topic with that name.
            return all(each.topic_id in gone for each in pending)
        return self.of_group(place.group_id)[place.topic][place.partition].topic_id in gone

    def expired(self, group: Group, topic: str, steady_ms: int) -> list[Record]:
        """Returns tombstones for the expired offsets of a topic."""
        records = []
        is_subscribed = group.subscribes_to(topic)
        for partition, committed in self.of_group(group.group_id).get(topic, {}).items():
            place = Place(group.group_id, topic, partition)
            may_go = self._is_gone(place) or (
                not is_subscribed and self._is_expired(group, committed, steady_ms)
            )
            if may_go and not self._pending.has(place):
                records.append(offset_commit_tombstone(*place))
        return records

    def count_of(self, group_id: str) -> int:
        return sum(len(partitions) for partitions in self.of_group(group_id).values())

    def has_more_than(self, group_id: str, count: int) -> bool:
        """Whether a group has more offsets than that, or any that is pending."""
        return self._pending.has_group(group_id) or self.count_of(group_id) > count

    def _is_expired(self, group: Group, committed: CommittedOffset, steady_ms: int) -> bool:
        from_ms = group.offset_expires_from_ms(committed.commit_timestamp_ms)
        if from_ms is None:
            return False
        if committed.expire_timestamp_ms != -1:
            return steady_ms >= committed.expire_timestamp_ms
        return steady_ms - from_ms >= self._environment.config.offsets_retention_ms

    def replicated_state(self) -> object:
        return self._by_group, self._pending.replicated_state()

    def check_invariants(self) -> None:
        self._pending.check_invariants()
        for group_id in [*self._by_group, *(place.group_id for place in self._pending.places())]:
            assert group_id in self._groups, f"offsets of {group_id}, which is no group"


def _to_value(
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    topic_id: TopicId,
    steady_ms: int,
    expire_timestamp_ms: int,
) -> OffsetCommitValue:
    value = OffsetCommitValue(
        offset=partition.committed_offset,
        metadata=partition.committed_metadata or "",
        commit_timestamp=steady_ms,
        expire_timestamp=expire_timestamp_ms,
    )
    if expire_timestamp_ms == -1:
        # The format with its own expiry has neither. The replayed value must be the stored one.
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
