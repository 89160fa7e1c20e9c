"""Fetch sessions (KIP-227): a client names its partitions once and afterwards only what changed.

A session remembers, for each partition, what to fetch and what was sent last; a response then includes only partitions
that changed. The cache is bounded. When it is full, a new session replaces one that was unused for two minutes, or is not
created (session id 0), and the client goes on with full fetches.

A follower's session may hold thousands of partitions, of which few change between two fetches. Its partitions notify it
of every append and change, and a fetch reads only those and the ones that the request names. Followers always get a session.
One that was unused for two minutes is closed when the next begins. When there are more than a cluster has brokers, the
least recently used one is closed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.broker.partitions.delayed_operations import DelayedOperations, WireKey
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import FetchPartition, FetchRequest
from tidemill.protocol.fetch import Fetched, Payload

TOPIC_IDS_SINCE = 13
NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EVICTABLE_AFTER_MS = 120_000
_LARGEST_EPOCH = 0x7FFFFFFF
_REPLICA_SESSIONS_MAX = 1_000


@dataclass(slots=True)
class CachedPartition:
    wanted: FetchPartition
    # What the last response carried; None when there was none yet or it was an error.
    high_watermark: int | None = None
    log_start_offset: int | None = None
    # Where a follower's session is notified of the partition's changes.
    attached: DelayedOperations | None = None

    def must_include(self, fetched: Fetched, records: Payload | None) -> bool:
        """Whether an incremental response must include the partition: it differs from what was sent last."""
        return (
            fetched.error_code != 0
            or fetched.diverging is not None
            or (records is not None and records.length > 0)
            or self.high_watermark != fetched.high_watermark
            or self.log_start_offset != fetched.log_start_offset
        )

    def remember_sent(self, fetched: Fetched) -> None:
        if fetched.error_code:
            self.high_watermark = self.log_start_offset = None
        else:
            self.high_watermark, self.log_start_offset = fetched.high_watermark, fetched.log_start_offset


@dataclass(slots=True, eq=False)
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
                self._want((name, wanted.partition), wanted)
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic_id if self.uses_ids else forgotten.topic
            for index in forgotten.partitions:
                self._forget((name, index))

    def _want(self, key: WireKey, wanted: FetchPartition) -> None:
        cached = self.partitions.get(key)
        if cached is None:
            self.partitions[key] = CachedPartition(wanted)
        else:
            cached.wanted = wanted

    def _forget(self, key: WireKey) -> None:
        self.partitions.pop(key, None)

    def rotate(self, served: list[WireKey]) -> None:
        """Move partitions that returned data to the end, so that no other starves behind them."""
        for key in served:
            if key in self.partitions:
                self.partitions.move_to_end(key)

    def close(self) -> None:
        self.partitions.clear()


@dataclass(slots=True, eq=False)
class ReplicaSession(FetchSession):
    replica_id: int = -1
    # When the previous fetch arrived. The follower sent its latest one after the answer to that, so it followed the
    # session's partitions at that time or later. The arrival of the latest proves nothing: it may be long under way.
    confirmed_ms: int = -1
    # Partitions that may have something new for the follower, the longest waiting first.
    dirty: dict[WireKey, None] = field(default_factory=dict)
    # The delayed fetch that waits on this session, called with the bytes that came.
    on_grown: Callable[[int], None] | None = None

    def grew(self, key: WireKey, added_bytes: int) -> None:
        self.dirty[key] = None
        if self.on_grown is not None:
            self.on_grown(added_bytes)

    def changed(self, key: WireKey) -> None:
        self.dirty[key] = None

    def _want(self, key: WireKey, wanted: FetchPartition) -> None:
        # Not super(): a dataclass with slots is a second class, and `super()` would refer to the first.
        FetchSession._want(self, key, wanted)
        self.dirty[key] = None

    def _forget(self, key: WireKey) -> None:
        cached = self.partitions.pop(key, None)
        if cached is not None and cached.attached is not None:
            cached.attached.detach(self)
        self.dirty.pop(key, None)

    def close(self) -> None:
        for key in list(self.partitions):
            self._forget(key)


class FetchSessions:
    def __init__(self, slots: int, new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._replica_sessions: OrderedDict[int, ReplicaSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions) + len(self._replica_sessions)

    def resolve(self, request: FetchRequest, version: int, steady_ms: int) -> FetchSession | ErrorCode | None:
        """The session of a request, None for a fetch without one, or the error that the client gets."""
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self.close(request.session_id)
            if request.session_epoch == FINAL_EPOCH:
                return None
            return self._create(request, version, steady_ms)
        return self._continue(request, version, steady_ms)

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None) or self._replica_sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _continue(self, request: FetchRequest, version: int, steady_ms: int) -> FetchSession | ErrorCode:
        # Consumers and followers cannot use each other's sessions, which remember different things.
        sessions: OrderedDict[int, ReplicaSession] | OrderedDict[int, FetchSession]
        sessions = self._replica_sessions if is_replica(request) else self._sessions
        session = sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_ids != (version >= TOPIC_IDS_SINCE):
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.epoch = 1 if session.epoch == _LARGEST_EPOCH else session.epoch + 1
        if isinstance(session, ReplicaSession):
            session.confirmed_ms = session.used_ms
        session.used_ms = steady_ms
        sessions.move_to_end(session.id)
        session.update(request)
        return session

    def _create(self, request: FetchRequest, version: int, steady_ms: int) -> FetchSession | None:
        if is_replica(request):
            return self._create_for_replica(request, version, steady_ms)
        if not self._make_room(steady_ms):
            return None
        session = FetchSession(self._free_id(), uses_ids=version >= TOPIC_IDS_SINCE, used_ms=steady_ms)
        session.update(request)
        self._sessions[session.id] = session
        return session

    def _create_for_replica(self, request: FetchRequest, version: int, steady_ms: int) -> ReplicaSession:
        unused = [
            session.id
            for session in self._replica_sessions.values()
            if steady_ms - session.used_ms >= _EVICTABLE_AFTER_MS
        ]
        for session_id in unused:
            self.close(session_id)
        # More than there can be followers, because any client may claim to be one. A real one uses its session all the time.
        while len(self._replica_sessions) >= _REPLICA_SESSIONS_MAX:
            self.close(next(iter(self._replica_sessions)))
        session = ReplicaSession(
            self._free_id(),
            uses_ids=version >= TOPIC_IDS_SINCE,
            used_ms=steady_ms,
            replica_id=replica_of(request)[0],
        )
        session.update(request)
        self._replica_sessions[session.id] = session
        return session

    def _free_id(self) -> int:
        session_id = self._new_id()
        while (
            session_id in self._sessions or session_id in self._replica_sessions or session_id == NO_SESSION
        ):
            session_id = self._new_id()
        return session_id

    def _make_room(self, steady_ms: int) -> bool:
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        oldest_id, oldest = next(iter(self._sessions.items()))
        if steady_ms - oldest.used_ms < _EVICTABLE_AFTER_MS:
            return False
        del self._sessions[oldest_id]
        return True


def is_replica(request: FetchRequest) -> bool:
    return request.replica_id >= 0 or request.replica_state.replica_id >= 0


def replica_of(request: FetchRequest) -> tuple[int, int]:
    """The id and the epoch of the broker that fetches; -1 where the version has no epoch."""
    state = request.replica_state
    if state.replica_id >= 0:
        return state.replica_id, state.replica_epoch
    return request.replica_id, -1
