"""The thread of a share consumer that speaks with one broker: fetches, acknowledgements and renewals, one at a time.

It changes the machines of its consumer under the consumer's lock, and makes requests without it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from tidemill.client.cluster import known_code
from tidemill.client.connections.connection import Address, Connection
from tidemill.client.retry import may_retry
from tidemill.client.share.membership import SharePlace
from tidemill.client.share.session import FetchTurns, Outcome, ShareSession
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.protocol.api.share import ShareAcknowledgeResponse, ShareFetchPartitionData, ShareFetchResponse

LOGGER = logging.getLogger("tidemill.client")

PAUSE_S = 0.1
TICK_S = 0.5
_YIELD_S = 0.01
STALE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
FORBIDDEN = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED)


class NodeThreadHost(Protocol):
    """The part of the consumer that a broker's thread uses. All but `open`, `ready` and `stop` need the lock."""

    group: str
    member_id: str

    @property
    def lock(self) -> threading.Condition: ...
    @property
    def is_closing(self) -> bool: ...
    def open(self, address: Address) -> Connection: ...
    def has_room(self) -> bool: ...
    def reserve(self) -> tuple[int, int]:
        """Reserves room for a fetch. Returns how many records it may bring, and its wait in milliseconds."""

    def give_back(self, count: int) -> None:
        """The fetch that this room was kept for is over."""

    def arrived(
        self,
        node: NodeThread,
        answers: Sequence[tuple[SharePlace, ShareFetchPartitionData]],
        lock_timeout_ms: int,
    ) -> None: ...
    def settle(self, outcomes: Sequence[Outcome], lock_timeout_ms: int) -> list[Callable[[], None]]:
        """Settles the outcomes. Returns calls to make without the lock."""

    def renew_locks(self, node: NodeThread) -> None:
        """Renewals of what ends soon go with the node's next request."""

    def forget_session(self, node_id: int, session: int) -> None: ...
    def refresh(self) -> None:
        """Leaders may have moved."""

    def ready(self) -> None: ...
    def stop(self, failure: TidemillError) -> None: ...


class NodeThread:
    """The thread that speaks with one broker."""

    def __init__(self, consumer: NodeThreadHost, node_id: int) -> None:
        self.node_id = node_id
        self.address: Address | None = None
        self.session = ShareSession(consumer.group, consumer.member_id)
        self.lock_duration_s = 0.0
        self._turns = FetchTurns()
        self._consumer = consumer
        self._connection: Connection | None = None
        self._pause_s = 0.0
        self._thread: threading.Thread | None = None

    def assign(self, ranks: Sequence[frozenset[SharePlace]]) -> None:
        """With the lock: the partitions that this broker leads, the best topics first."""
        self._turns.assign(ranks)
        self.session.wanted = self._turns.wanted

    def start(self) -> None:
        if self._thread is None:
            name = f"tidemill-share-{self._consumer.group}-{self.node_id}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._step():
                pass
            self._finish()
        except Exception as failure:
            LOGGER.exception("share session with broker %d", self.node_id)
            self._lose(ErrorCode.UNKNOWN_SERVER_ERROR)
            self._consumer.stop(TidemillError(f"share session with broker {self.node_id}: {failure}"))
        finally:
            if self._connection is not None:
                self._connection.close()

    def _step(self) -> bool:
        """One request, when there is something to say. False when the consumer closes."""
        consumer = self._consumer
        with consumer.lock:
            if consumer.is_closing:
                return False
            consumer.renew_locks(self)
            can_fetch = bool(self.session.wanted) and consumer.has_room()
            # Nothing can be acknowledged in a session that is not there.
            can_acknowledge = self.session.is_open and self.session.has_acknowledgements
            is_idle = bool(self._pause_s) or not (can_fetch or can_acknowledge)
            if is_idle:
                consumer.lock.wait(self._pause_s or TICK_S)
                self._pause_s = 0.0
            is_fetch = not is_idle and can_fetch and (not can_acknowledge or self.session.can_ride)
            count, wait_ms = consumer.reserve() if is_fetch else (0, 0)
            if can_acknowledge or not self._turns.may_wait:
                wait_ms = 0
        if is_idle:
            self._check_link()
            return True
        try:
            if is_fetch:
                self._fetch(count, wait_ms)
            else:
                self._acknowledge()
        except TidemillError as failure:
            self._failed(failure)
        finally:
            with consumer.lock:
                consumer.give_back(count)
        return True

    def _check_link(self) -> None:
        """Give up the session when its connection is closed: another leader may hand out what waits here."""
        if self.session.is_open and self._connection is not None and not self._connection.is_usable():
            self._lose(ErrorCode.NETWORK_EXCEPTION)
            with self._consumer.lock:
                self._consumer.refresh()

    def _connected(self) -> Connection:
        if self._connection is None or not self._connection.is_usable():
            assert self.address is not None
            if self.session.is_open:
                # The broker ends the session with the connection that it belongs to.
                self._lose(ErrorCode.SHARE_SESSION_NOT_FOUND)
            elif self._connection is not None:
                self._connection.close()
            self._connection = self._consumer.open(self.address)
        return self._connection

    def _fetch(self, count: int, wait_ms: int) -> None:
        connection = self._connected()
        with self._consumer.lock:
            message = self.session.fetch_request(count, wait_ms)
            number = self.session.number
        response = connection.request(message, ShareFetchResponse, wait_s=wait_ms / 1000)
        with self._consumer.lock:
            outcomes, answers = self.session.fetched(response)
            has_records = any(data.acquired_records for _, data in answers)
            self._turns.fetched(has_records=has_records)
            self.session.wanted = self._turns.wanted
            self.lock_duration_s = response.acquisition_lock_timeout_ms / 1000 or self.lock_duration_s
            self._consumer.arrived(self, answers, response.acquisition_lock_timeout_ms)
            calls = self._concluded(outcomes, number, response.acquisition_lock_timeout_ms)
            if not has_records and not self._consumer.has_room():
                # Other brokers wait for the room that this one has in vain.
                self._pause_s = _YIELD_S
            self._consumer.lock.notify_all()
        for call in calls:
            call()
        self._check(response.error_code, response.error_message)
        self._consumer.ready()

    def _acknowledge(self, *, is_final: bool = False) -> None:
        connection = self._connected()
        with self._consumer.lock:
            message = self.session.acknowledge_request(is_final=is_final)
            number = self.session.number
        response = connection.request(message, ShareAcknowledgeResponse)
        with self._consumer.lock:
            outcomes = self.session.acknowledged(response)
            calls = self._concluded(outcomes, number, response.acquisition_lock_timeout_ms)
            if any(code in STALE for _, code in outcomes):
                self._consumer.refresh()
            self._consumer.lock.notify_all()
        for call in calls:
            call()
        self._check(response.error_code, response.error_message)

    def _concluded(
        self, outcomes: Sequence[Outcome], number: int, lock_timeout_ms: int
    ) -> list[Callable[[], None]]:
        if self.session.number != number:
            self._consumer.forget_session(self.node_id, number)
        if self.session.has_acknowledgements and not outcomes:
            # All of them come again: the broker needs a moment.
            self._pause_s = PAUSE_S
        return self._consumer.settle(outcomes, lock_timeout_ms)

    def _check(self, error_code: int, message: str | None) -> None:
        if not error_code:
            return
        code = known_code(error_code)
        if code in FORBIDDEN or code in (ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION):
            self._consumer.stop(ApiError(code, message))
        LOGGER.info("share session with broker %d: %s", self.node_id, message or code.message)
        self._pause_s = PAUSE_S

    def _failed(self, failure: TidemillError) -> None:
        if not may_retry(failure, is_repeatable=True):
            self._consumer.stop(failure)
        LOGGER.info("share session with broker %d: %s", self.node_id, failure)
        self._lose(ErrorCode.NETWORK_EXCEPTION)
        with self._consumer.lock:
            self._consumer.refresh()
        self._pause_s = PAUSE_S

    def _lose(self, code: ErrorCode) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        with self._consumer.lock:
            number = self.session.number
            outcomes = self.session.lost(code)
            self._consumer.forget_session(self.node_id, number)
            calls = self._consumer.settle(outcomes, 0)
        for call in calls:
            call()

    def _finish(self) -> None:
        """Sends what is left, and ends the session."""
        try:
            while self.session.is_open and self.session.has_callers:
                self._acknowledge()
            if self.session.is_open:
                # Ends the session, so that what is in hand is released with what was not started.
                self._acknowledge(is_final=True)
        except TidemillError as failure:
            LOGGER.info("share session with broker %d: %s", self.node_id, failure)
        self._lose(ErrorCode.SHARE_SESSION_NOT_FOUND)
