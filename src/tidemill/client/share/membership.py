"""Membership in a share group: the content of heartbeats, and the assignment in their answers. No I/O.

A member chooses its id itself and joins with epoch 0; -1 leaves. The coordinator sends an assignment only when it has
changed. A member that the coordinator no longer knows, or has fenced, joins again under the same id: what it held was
released.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from tidemill.errors import ErrorCode
from tidemill.protocol.api.share import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

_JOIN, _LEAVE = 0, -1
_UNKNOWN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class SharePlace(NamedTuple):
    """A partition as the share APIs name it."""

    topic_id: bytes
    partition: int


class Next(Enum):
    """The step that follows an answer."""

    WAIT = auto()
    # The coordinator is somewhere else.
    FIND_COORDINATOR = auto()
    # Everything that was held is lost: join anew.
    JOIN = auto()
    # The same heartbeat again, after a moment.
    RETRY = auto()
    # This member cannot go on.
    STOP = auto()


class ShareMembership:
    def __init__(self, group: str, member_id: str, topics: Sequence[str], rack: str | None = None) -> None:
        self.group = group
        self.member_id = member_id
        self.heartbeat_interval_ms = 0
        # None until the first one came.
        self.assignment: frozenset[SharePlace] | None = None
        self._topics = list(topics)
        self._rack = rack
        self._epoch = _JOIN
        self._is_told = False

    @property
    def is_joined(self) -> bool:
        return self._epoch > 0

    def heartbeat(self) -> ShareGroupHeartbeatRequest:
        # Subscriptions go with the first heartbeat, and again with the first after a failure.
        is_full = self._epoch == _JOIN or not self._is_told
        return ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self._epoch,
            rack_id=self._rack if is_full else None,
            subscribed_topic_names=self._topics if is_full else None,
        )

    def leave(self) -> ShareGroupHeartbeatRequest:
        return ShareGroupHeartbeatRequest(group_id=self.group, member_id=self.member_id, member_epoch=_LEAVE)

    def unanswered(self) -> None:
        """The connection broke: the coordinator may have missed the last heartbeat."""
        self._is_told = False

    def answered(self, response: ShareGroupHeartbeatResponse) -> Next:
        code = response.error_code
        if code in _UNKNOWN:
            self._epoch, self._is_told, self.assignment = _JOIN, False, frozenset()
            return Next.JOIN
        if code in _MOVED:
            self._is_told = False
            return Next.FIND_COORDINATOR
        if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return Next.RETRY
        if code:
            return Next.STOP
        self._is_told = True
        self._epoch = response.member_epoch
        self.heartbeat_interval_ms = response.heartbeat_interval_ms
        if response.assignment is not None:
            self.assignment = frozenset(
                SharePlace(each.topic_id, partition)
                for each in response.assignment.topic_partitions
                for partition in each.partitions
            )
        return Next.WAIT
