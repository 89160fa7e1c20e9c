"""Share sessions: which partitions each member of a share group fetches from here (KIP-932).

Epoch 0 opens a session, each request then carries the next epoch, and -1 closes it. A session ends with the connection
that opened it. How many there are is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tidemill.broker.net.network import Peer
from tidemill.errors import ApiError, ErrorCode
from tidemill.types import TopicId

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_LARGEST_EPOCH = 0x7FFFFFFF

TopicIdPartition = tuple[TopicId, int]


class SessionKey(NamedTuple):
    group_id: str
    member_id: str


class ShareSession:
    __slots__ = ("connection", "epoch", "key", "on_closed", "partitions")

    def __init__(self, key: SessionKey, connection: Peer) -> None:
        self.key = key
        # The epoch of the next request.
        self.epoch = 1
        self.connection = connection
        self.on_closed: Callable[[], None] = lambda: None
        self.partitions: dict[TopicIdPartition, None] = {}

    def rotated(self) -> list[TopicIdPartition]:
        """Its partitions, beginning with another one in each epoch: all of them get their turn."""
        partitions = list(self.partitions)
        if not partitions:
            return partitions
        first = (self.epoch - 1) % len(partitions)
        return partitions[first:] + partitions[:first]


class ShareSessions:
    def __init__(self, sessions_max: int, on_ended: Callable[[SessionKey, bool], None]) -> None:
        """`on_ended` gets the key of a session that ended, and whether it was the last one of its group."""
        self._sessions_max = sessions_max
        self._on_ended = on_ended
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Returns the number of partitions in all sessions together."""
        return sum(len(each.partitions) for each in self._sessions.values())

    def has_group(self, group_id: str) -> bool:
        return group_id in self._counts

    def open(self, key: SessionKey, connection: Peer, partitions: Iterable[TopicIdPartition]) -> ShareSession:
        """Begin a session, in place of one that the member may have. Locks stay: it is the same member."""
        before = self._sessions.get(key)
        if before is not None:
            self._forget(before)
        elif len(self._sessions) >= self._sessions_max:
            raise ApiError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = self._sessions[key] = ShareSession(key, connection)
        self._counts[key.group_id] = self._counts.get(key.group_id, 0) + 1
        session.partitions.update(dict.fromkeys(partitions))
        session.on_closed = lambda: self._connection_closed(session)
        connection.close_callbacks.append(session.on_closed)
        return session

    def get(self, key: SessionKey) -> ShareSession:
        session = self._sessions.get(key)
        if session is None:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def go_on(self, key: SessionKey, epoch: int) -> ShareSession:
        """The session of the next request."""
        session = self.get(key)
        if session.epoch != epoch:
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = 1 if epoch == _LARGEST_EPOCH else epoch + 1
        return session

    def end(self, key: SessionKey) -> None:
        """End a member's session, if it has one."""
        session = self._sessions.get(key)
        if session is not None:
            self._forget(session)
            self._on_ended(key, not self.has_group(key.group_id))

    def _connection_closed(self, session: ShareSession) -> None:
        if self._sessions.get(session.key) is session:
            self.end(session.key)

    def _forget(self, session: ShareSession) -> None:
        del self._sessions[session.key]
        # A connection that is being closed goes through its callbacks at this moment.
        if not session.connection.is_closed:
            session.connection.close_callbacks.remove(session.on_closed)
        group_id = session.key.group_id
        self._counts[group_id] -= 1
        if not self._counts[group_id]:
            del self._counts[group_id]
