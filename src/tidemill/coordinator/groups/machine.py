"""The groups machine: all groups of one partition of `__consumer_offsets`, of every kind, with their offsets.

It passes each request to the group that it names, each record to its group or offset, and each due timer to the code
that set it. Classic groups are in classic_protocol.py, consumer groups in `consumer_groups/`, share groups in
`share_groups/`, offsets in offsets.py. A request that names several groups (DescribeGroups, DeleteGroups, OffsetFetch)
must name groups of this partition only; the shell splits requests and merges responses.

A group exists when a record says so. The only exception is a new classic group between the decision that creates it and
the replay of its record, which follows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidemill.config import GroupsConfig, ShareGroupsConfig
from tidemill.coordinator import records
from tidemill.coordinator.groups.classic import ClassicGroup
from tidemill.coordinator.groups.classic_protocol import ClassicProtocol
from tidemill.coordinator.groups.expiry import Expiry
from tidemill.coordinator.groups.group import (
    ConsumerProtocol,
    Decision,
    Environment,
    Group,
    GroupCall,
    GroupType,
    RebalanceEvent,
    ShareProtocol,
    TopicsChanged,
)
from tidemill.coordinator.groups.offsets import Offsets
from tidemill.coordinator.records import Record
from tidemill.coordinator.shard import Caller, RawRecord, Writer
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidemill.protocol.api.groups import (
    ConsumerGroupDescribeDescribedGroup,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsDescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
)
from tidemill.protocol.api.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from tidemill.protocol.api.share import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
)
from tidemill.protocol.api.transactions import TxnOffsetCommitRequest

if TYPE_CHECKING:
    from tidemill.log.transactions import TransactionEnd

_DESCRIBE_NOT_FOUND_SINCE = 6
# Nullable in the schema, but a member of these versions must set them.
_SYNC_PROTOCOL_SINCE = 5
_EXPIRY_KEY = ("expiry",)
_TOMBSTONES_KEY = ("tombstones",)
_TOMBSTONES_AGAIN_MS = 1_000


class Groups:
    def __init__(
        self,
        environment: Environment,
        consumer_protocol: Callable[[Groups], ConsumerProtocol] | None = None,
        share_protocol: Callable[[Groups], ShareProtocol] | None = None,
    ) -> None:
        self.environment = environment
        self.groups: dict[str, Group] = {}
        self.classic = ClassicProtocol(environment, self.groups)
        self.offsets = Offsets(environment, self.groups)
        self.consumer = None if consumer_protocol is None else consumer_protocol(self)
        self.share = None if share_protocol is None else share_protocol(self)
        self._is_loaded = False
        # Groups that a replay created, whose members have no timers yet.
        self._untimed: list[str] = []
        self._expiry = Expiry(self.offsets, self.groups)

    # The interface to the shard.

    @property
    def deadline_ms(self) -> int | None:
        if self._expiry.is_under_way or self._untimed:
            return 0
        return self.environment.timers.deadline_ms

    def encode(self, record: Record) -> RawRecord:
        return records.encode(record)

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        return records.decode(key, value)

    def on_loaded(self, steady_ms: int) -> None:
        self._is_loaded = True
        self._untimed = list(self.groups)
        self._start_timers(steady_ms)
        self._schedule_expiry(steady_ms)
        # Offsets of partitions that disappeared while no coordinator was loaded must go before their numbers come back.
        self._expiry.begin_loaded(self.groups)

    def waiting_tokens(self) -> list[int]:
        return [token for group in self.groups.values() for token in group.waiting_tokens()]

    def reconfigure(self, groups: GroupsConfig, share_groups: ShareGroupsConfig) -> None:
        """Takes over other settings of the broker. They are no state: a shard that still loads may get them, too."""
        self.environment.config = groups
        if self.share is not None:
            self.share.reconfigure(share_groups)

    def decide(self, request: Any, token: int, steady_ms: int) -> Decision:
        """Decides about a `GroupCall`, a `TopicsChanged`, or an event of share groups."""
        self._start_timers(steady_ms)
        if isinstance(request, TopicsChanged):
            return self._topics_changed(request, steady_ms)
        if not isinstance(request, GroupCall):
            return self._share().handle(request)
        return self._HANDLERS[type(request.request)](self, request.request, request.caller, token, steady_ms)

    def expire(self, steady_ms: int) -> Decision | None:
        """Returns the decision of the next due timer or of the next group with expired offsets.

        None when nothing is due, or when the event loop should have its turn: then `deadline_ms` is still due.
        """
        self._start_timers(steady_ms)
        while (run := self.environment.timers.pop_due(steady_ms)) is not None:
            decision = run(steady_ms)
            if decision is not None:
                return decision
        tombstones = self._expiry.next_tombstones(steady_ms)
        return Decision(tombstones) if tombstones else None

    def replay(self, record: Record, writer: Writer | None = None, _offset: int = -1) -> None:
        key, value = record
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            if value is not None and key.group not in self.groups:
                # A simple consumer has offsets but no group record.
                self._create(key.group)
            self.offsets.replay(key, value, writer)
        elif isinstance(key, GroupMetadataKey):
            assert value is None or isinstance(value, GroupMetadataValue)
            self._replay_classic(key.group, value)
        elif self.consumer is not None and type(key) in self.consumer.record_keys:
            self.consumer.replay(record)
        elif self.share is not None and type(key) in self.share.record_keys:
            self.share.replay(record)

    def replay_end(self, end: TransactionEnd) -> None:
        self.offsets.replay_end(end)

    def _replay_classic(self, group_id: str, value: GroupMetadataValue | None) -> None:
        group = self.groups.get(group_id)
        if value is None:
            if isinstance(group, ClassicGroup):
                self.forget(group)
        elif isinstance(group, ClassicGroup) and self._is_loaded:
            group.adopt(value)
        else:
            self._create(group_id).rebuild(value)

    def _create(self, group_id: str) -> ClassicGroup:
        group = ClassicGroup(group_id, self.environment)
        self.add(group)
        return group

    def add(self, group: Group) -> None:
        """A replay created the group. Its timers start before the next decision."""
        self.groups[group.group_id] = group
        self._untimed.append(group.group_id)

    def forget(self, group: Group) -> None:
        """The group's tombstone was replayed."""
        group.cancel_timers()
        del self.groups[group.group_id]
        self.environment.forget_events(group.group_id)

    def _start_timers(self, steady_ms: int) -> None:
        while self._is_loaded and self._untimed:
            group = self.groups.get(self._untimed.pop())
            if isinstance(group, ClassicGroup):
                self.classic.start_sessions(group, steady_ms)
            elif group is not None:
                group.start_timers(steady_ms)

    # Membership.

    def _join(self, request: JoinGroupRequest, caller: Caller, token: int, steady_ms: int) -> Decision:
        _check_group_id(request.group_id)
        group = self.groups.get(request.group_id)
        if group is None or isinstance(group, ClassicGroup):
            return self.classic.join(group, request, caller, token, steady_ms)
        if self.consumer is None or group.type is not GroupType.CONSUMER:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return self.consumer.classic_join(group, request, caller, token, steady_ms)

    def _sync(self, request: SyncGroupRequest, caller: Caller, token: int, steady_ms: int) -> Decision:
        if caller.api_version >= _SYNC_PROTOCOL_SINCE and None in (
            request.protocol_type,
            request.protocol_name,
        ):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        group = self._group_with_members(request.group_id)
        if isinstance(group, ClassicGroup):
            return self.classic.sync(group, request, caller, token, steady_ms)
        return self._consumer_of(group).classic_sync(group, request, steady_ms)

    def _heartbeat(self, request: HeartbeatRequest, _caller: Caller, _token: int, steady_ms: int) -> Decision:
        group = self._group_with_members(request.group_id)
        if isinstance(group, ClassicGroup):
            return self.classic.heartbeat(group, request, steady_ms)
        return self._consumer_of(group).classic_heartbeat(group, request, steady_ms)

    def _leave(self, request: LeaveGroupRequest, caller: Caller, token: int, steady_ms: int) -> Decision:
        group = self._group_with_members(request.group_id)
        if isinstance(group, ClassicGroup):
            return self.classic.leave(group, request, caller, token, steady_ms)
        return self._consumer_of(group).classic_leave(group, request, steady_ms)

    def _group_with_members(self, group_id: str) -> Group:
        _check_group_id(group_id)
        group = self.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def _consumer_of(self, group: Group) -> ConsumerProtocol:
        if self.consumer is None or group.type is not GroupType.CONSUMER:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.consumer

    def _consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, _token: int, steady_ms: int
    ) -> Decision:
        if self.consumer is None:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        return self.consumer.heartbeat(request, caller, steady_ms)

    def _share(self) -> ShareProtocol:
        if self.share is None:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        return self.share

    def _share_heartbeat(
        self, request: ShareGroupHeartbeatRequest, caller: Caller, _token: int, steady_ms: int
    ) -> Decision:
        return self._share().heartbeat(request, caller, steady_ms)

    def _alter_share_offsets(
        self, request: AlterShareGroupOffsetsRequest, _caller: Caller, _token: int, steady_ms: int
    ) -> Decision:
        return self._share().alter_offsets(request, steady_ms)

    def _delete_share_offsets(
        self, request: DeleteShareGroupOffsetsRequest, _caller: Caller, _token: int, _steady_ms: int
    ) -> Decision:
        return self._share().delete_offsets(request)

    # Offsets.

    def _commit(self, request: OffsetCommitRequest, caller: Caller, _token: int, steady_ms: int) -> Decision:
        error = ErrorCode.NONE
        try:
            group = self.offsets.check_commit(request, caller)
        except ApiError as refused:
            error = refused.code
        else:
            if isinstance(group, ClassicGroup):
                self.classic.offset_committed(group, request.member_id, steady_ms)
        return self.offsets.commit(request, caller, steady_ms, error)

    def _commit_in_transaction(
        self, request: TxnOffsetCommitRequest, caller: Caller, _token: int, steady_ms: int
    ) -> Decision:
        return self.offsets.commit_in_transaction(request, caller, steady_ms)

    def _fetch(self, request: OffsetFetchRequest, caller: Caller, _token: int, _steady_ms: int) -> Decision:
        return self.offsets.fetch(request, caller)

    def _delete_offsets(
        self, request: OffsetDeleteRequest, _caller: Caller, _token: int, _steady_ms: int
    ) -> Decision:
        return self.offsets.delete(request)

    def _schedule_expiry(self, steady_ms: int) -> None:
        def begin_round(steady_ms: int) -> None:
            self._expiry.begin(self.groups)
            self._schedule_expiry(steady_ms)

        interval_ms = self.environment.config.offsets_retention_check_interval_ms
        self.environment.timers.set(_EXPIRY_KEY, steady_ms + interval_ms, begin_round)

    def _schedule_tombstones(self, steady_ms: int) -> None:
        """Write the tombstones of removed partitions again, until the log has taken them."""

        def write_again(steady_ms: int) -> Decision | None:
            tombstones = self.offsets.removed_again()
            if self.offsets.awaits_tombstones:
                self._schedule_tombstones(steady_ms)
            return Decision(tombstones) if tombstones else None

        self.environment.timers.set(_TOMBSTONES_KEY, steady_ms + _TOMBSTONES_AGAIN_MS, write_again)

    def _topics_changed(self, change: TopicsChanged, steady_ms: int) -> Decision:
        written = self.offsets.topics_deleted(change.deleted.items())
        written += self.offsets.partitions_removed(change.removed)
        if self.offsets.awaits_tombstones:
            self._schedule_tombstones(steady_ms)
        if self.share is not None:
            written += self.share.topics_changed(change)
        if self.consumer is not None:
            self.consumer.topics_changed(change)
        rebalanced = self.classic.rebalance_readers_of(change.removed, steady_ms)
        return replace(rebalanced, records=[*written, *rebalanced.records], reply=None)

    # Lists and descriptions.

    def _describe(
        self, request: DescribeGroupsRequest, caller: Caller, _token: int, _steady_ms: int
    ) -> Decision:
        described = []
        for group_id in request.groups:
            group = self.groups.get(group_id)
            found = None if group is None else group.describe()
            if found is None:
                found = DescribeGroupsDescribedGroup(group_id=group_id, group_state="Dead")
                if caller.api_version >= _DESCRIBE_NOT_FOUND_SINCE:
                    missing = ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
                    found.error_code, found.error_message = missing.code, missing.message
            described.append(found)
        return Decision(reply=DescribeGroupsResponse(groups=described))

    def _describe_consumer(
        self, request: ConsumerGroupDescribeRequest, _caller: Caller, _token: int, _steady_ms: int
    ) -> Decision:
        described = []
        for group_id in request.group_ids:
            if not group_id:
                described.append(ConsumerGroupDescribeDescribedGroup(error_code=ErrorCode.INVALID_GROUP_ID))
                continue
            try:
                if self.consumer is None:
                    raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
                described.append(self.consumer.describe(group_id))
            except ApiError as error:
                described.append(
                    ConsumerGroupDescribeDescribedGroup(
                        group_id=group_id, error_code=error.code, error_message=error.message
                    )
                )
        return Decision(reply=ConsumerGroupDescribeResponse(groups=described))

    def _describe_share(
        self, request: ShareGroupDescribeRequest, _caller: Caller, _token: int, _steady_ms: int
    ) -> Decision:
        described = []
        for group_id in request.group_ids:
            if not group_id:
                described.append(DescribedGroup(error_code=ErrorCode.INVALID_GROUP_ID))
                continue
            try:
                described.append(self._share().describe(group_id))
            except ApiError as error:
                described.append(
                    DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
                )
        return Decision(reply=ShareGroupDescribeResponse(groups=described))

    def _list(self, request: ListGroupsRequest, _caller: Caller, _token: int, _steady_ms: int) -> Decision:
        states = {state.lower() for state in request.states_filter}
        types = {type_.lower() for type_ in request.types_filter}
        listed = [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.type.value,
            )
            for group in self.groups.values()
            if (not states or group.state.lower() in states) and (not types or group.type.value in types)
        ]
        return Decision(reply=ListGroupsResponse(groups=listed))

    def _delete(
        self, request: DeleteGroupsRequest, _caller: Caller, _token: int, _steady_ms: int
    ) -> Decision:
        tombstones: list[Record] = []
        results: dict[str, DeletableGroupResult] = {}
        for group_id in dict.fromkeys(request.groups_names):
            result = DeletableGroupResult(group_id=group_id)
            try:
                group = self.groups.get(group_id)
                if group is None:
                    raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
                group.check_delete()
                tombstones += self.offsets.all_tombstones(group_id) + group.deletion_records()
            except ApiError as error:
                result.error_code, result.error_message = error.code, error.message
            results[group_id] = result
        return Decision(tombstones, DeleteGroupsResponse(results=list(results.values())))

    def events_of(self, group_id: str) -> Sequence[RebalanceEvent]:
        return self.environment.events_of(group_id)

    # For tests and simulation.

    def replicated_state(self) -> object:
        """Returns the replicated state. It is equal for live and rebuilt machines."""
        groups = {name: (group.type, group.replicated_state()) for name, group in self.groups.items()}
        return groups, self.offsets.replicated_state()

    def check_invariants(self) -> None:
        for group_id, group in self.groups.items():
            assert group.group_id == group_id
            group.check_invariants()
        self.offsets.check_invariants()
        tokens = self.waiting_tokens()
        assert len(tokens) == len(set(tokens)), "a request waits twice"

    _HANDLERS: dict[type, Callable[[Groups, Any, Caller, int, int], Decision]] = {  # noqa: RUF012
        JoinGroupRequest: _join,
        SyncGroupRequest: _sync,
        HeartbeatRequest: _heartbeat,
        LeaveGroupRequest: _leave,
        ConsumerGroupHeartbeatRequest: _consumer_heartbeat,
        ConsumerGroupDescribeRequest: _describe_consumer,
        ShareGroupHeartbeatRequest: _share_heartbeat,
        ShareGroupDescribeRequest: _describe_share,
        AlterShareGroupOffsetsRequest: _alter_share_offsets,
        DeleteShareGroupOffsetsRequest: _delete_share_offsets,
        OffsetCommitRequest: _commit,
        TxnOffsetCommitRequest: _commit_in_transaction,
        OffsetFetchRequest: _fetch,
        OffsetDeleteRequest: _delete_offsets,
        DescribeGroupsRequest: _describe,
        ListGroupsRequest: _list,
        DeleteGroupsRequest: _delete,
    }


def _check_group_id(group_id: str) -> None:
    """Members need a group id that is not empty. Offsets may be stored under the empty id."""
    if not group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID)
