"""Fetch sessions (KIP-227): a client names its partitions once and afterwards only what changed.

A session remembers, for each partition, what to fetch and what the client was told last; a response then carries only
partitions with news. The cache is bounded: a full one gives a new session the place of one that nobody has used for two
minutes, or none at all (session id 0), and the client goes on with full fetches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import FetchPartition, FetchRequest

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EVICTABLE_AFTER_MS = 120_000
_LARGEST_EPOCH = 0x7FFFFFFF

# A partition as a request names it: topic name or id, and index.
WireKey = tuple[str | bytes, int]


@dataclass(slots=True)
class CachedPartition:
    wanted: FetchPartition
    # What the client heard last; None when it has heard nothing yet or an error.
    high_watermark: int | None = None
    log_start_offset: int | None = None


@dataclass(slots=True)
class FetchSession:
    id: int
    uses_ids: bool
    epoch: int = 1
    used_ms: int = 0
    partitions: OrderedDict[WireKey, CachedPartition] = field(default_factory=OrderedDict)

    def update(self, request: FetchRequest) -> None:
        """Add, change and forget partitions as an incremental request says."""
        for topic in request.topics:
            name: str | bytes = topic.topic_id if self.uses_ids else topic.topic
            for wanted in topic.partitions:
                key = (name, wanted.partition)
                cached = self.partitions.get(key)
                if cached is None:
                    self.partitions[key] = CachedPartition(wanted)
                else:
                    cached.wanted = wanted
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic_id if self.uses_ids else forgotten.topic
            for index in forgotten.partitions:
                self.partitions.pop((name, index), None)

    def rotate(self, served: list[WireKey]) -> None:
        """Partitions that returned data go to the end of the line, so that none starves behind them."""
        for key in served:
            if key in self.partitions:
                self.partitions.move_to_end(key)


class FetchSessions:
    def __init__(self, slots: int, new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchRequest, version: int, now_ms: int) -> FetchSession | ErrorCode | None:
        """The session of a request, None for a fetch without one, or the error that the client gets."""
        if request.session_epoch == FINAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            return None
        if request.session_epoch == INITIAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            return self._create(request, version, now_ms)
        return self._continue(request, version, now_ms)

    def _continue(self, request: FetchRequest, version: int, now_ms: int) -> FetchSession | ErrorCode:
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_ids != (version >= 13):
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.epoch = 1 if session.epoch == _LARGEST_EPOCH else session.epoch + 1
        session.used_ms = now_ms
        self._sessions.move_to_end(session.id)
        session.update(request)
        return session

    def _create(self, request: FetchRequest, version: int, now_ms: int) -> FetchSession | None:
        if not self._make_room(now_ms):
            return None
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        session = FetchSession(session_id, uses_ids=version >= 13, used_ms=now_ms)
        session.update(request)
        self._sessions[session_id] = session
        return session

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        oldest_id, oldest = next(iter(self._sessions.items()))
        if now_ms - oldest.used_ms < _EVICTABLE_AFTER_MS:
            return False
        del self._sessions[oldest_id]
        return True
