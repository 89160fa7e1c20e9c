"""The threads of a share consumer: one speaks with the group's coordinator, one with each broker that leads partitions
of it.

A slow program holds up neither heartbeats nor acknowledgements. The machines (`membership`, `session`) and the table of
what is held change under one lock; requests are made without it. There is one request at a time for each broker, because
the epochs of a session count up. Acknowledgements ride on the next ShareFetch when there is room for more records, and
then it does not wait for any. While records are in hand a fetch waits shorter, so that an acknowledgement does not stand
behind it for long.

Topics can have an order: then those of a better rank are fetched and taken first, on each broker. Several consumers can
share one `Capacity`. Locks can be renewed here until their records are acknowledged.

`close` releases what was not started at once: the last request to each broker ends its session.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from tidemill.client.cluster import Cluster, check, known_code
from tidemill.client.connections.connection import Address, Connection
from tidemill.client.retry import may_retry
from tidemill.client.share.deliveries import (
    AlreadySettled,
    Capacity,
    Held,
    LockLost,
    ShareDelivery,
    parse_acquired,
)
from tidemill.client.share.membership import Next, ShareMembership, SharePlace
from tidemill.client.share.node_thread import FORBIDDEN, PAUSE_S, STALE, TICK_S, NodeThread
from tidemill.client.share.session import Acknowledge, Acknowledgement, Outcome
from tidemill.errors import ApiError, TidemillError
from tidemill.protocol.api.share import ShareFetchPartitionData, ShareGroupHeartbeatResponse
from tidemill.types import TopicPartition

LOGGER = logging.getLogger("tidemill.client")
# What an acknowledgement carries along: whose it is, and the future that its caller waits for.
Settling = tuple[ShareDelivery, Future[None]]

# How long a fetch waits for the first record when nothing is in hand, and otherwise.
_WAIT_MS = 500
_WAIT_IN_HAND_MS = 100
_PAUSE_MAX_S = 1.0
_EARLY_BEAT_S = 0.2
_EARLY_BEATS_MAX = 20
# The part of a lock's time that is left when it is renewed.
_RENEW_SHARE = 0.6


class ShareConsumer:
    """A member of a share group. `take` and `acknowledge` may be called from any thread."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Sequence[str],
        *,
        capacity: int | Capacity,
        ready_max: int | None = None,
        has_ranks: bool = False,
        renews_locks: bool = False,
        on_ready: Callable[[], None] = lambda: None,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Holds at most `capacity` records, of which `ready_max` wait to be taken (`want` changes it).

        `on_ready` is called, in any thread, when `take` may have something new.

        With `has_ranks` the topics are in order, the best first. With `renews_locks` whatever is held stays locked until
        it is acknowledged. The cluster belongs to the consumer from now on, and is closed with it.
        """
        self.group = group
        self._cluster = cluster
        self._topics = list(topics)
        self._on_ready = on_ready
        self._steady_s = steady_s
        self._ranks = {topic: rank if has_ranks else 0 for rank, topic in enumerate(topics)}
        self._renews_locks = renews_locks
        self._capacity = capacity if isinstance(capacity, Capacity) else Capacity(capacity)
        self._changed = self._capacity.changed
        self._held = Held(self._capacity)
        self._held.ready_max = ready_max
        # How many of its sessions fetch.
        self._fetching = 0
        self.member_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._membership = ShareMembership(group, self.member_id, topics)
        self._nodes: dict[int, NodeThread] = {}
        # By topic id.
        self._names: dict[bytes, str] = {}
        self._must_refresh = False
        self._failure: TidemillError | None = None
        self._early_beats = 0
        # Nothing more is fetched.
        self._is_draining = False
        self._is_closing = False
        self._member = threading.Thread(target=self._run, name=f"tidemill-share-{group}", daemon=True)
        self._member.start()

    # -- what users call -------------------------------------------------------------------------------------

    def take(self, timeout_s: float = 0.0) -> ShareDelivery | None:
        """The next record, or None when none came in time. Raises what keeps this member from going on."""
        deadline_s = self._steady_s() + timeout_s
        with self._changed:
            while True:
                delivery = self._held.take(self._steady_s())
                if delivery is not None:
                    return delivery
                if self._failure is not None:
                    raise self._failure
                left_s = deadline_s - self._steady_s()
                if left_s <= 0 or self._is_closing:
                    return None
                self._changed.wait(min(left_s, TICK_S))

    def acknowledge(self, delivery: ShareDelivery, kind: Acknowledge) -> Future[None]:
        """A future that ends when the broker has taken it, or with `LockLost`. `AlreadySettled` is raised at once."""
        future: Future[None] = Future()
        # It cannot be cancelled: what is sent is sent.
        future.set_running_or_notify_cancel()
        with self._changed:
            if delivery.is_settled:
                raise AlreadySettled(f"{_where(delivery)} was acknowledged before")
            node = self._nodes.get(delivery.node_id)
            if node is None or not self._held.is_current(delivery) or node.session.number != delivery.session:
                self._held.drop(delivery)
                future.set_exception(_lost(delivery, None))
                return future
            delivery.is_settled = kind is not Acknowledge.RENEW
            token: Settling = (delivery, future)
            node.session.acknowledge(Acknowledgement(delivery.place, delivery.record.offset, kind, token))
            self._changed.notify_all()
        return future

    def want(self, ready_max: int) -> None:
        """Changes how many records may wait here to be taken. With 0 nothing more is fetched."""
        with self._changed:
            self._held.ready_max = ready_max
            self._changed.notify_all()

    @property
    def is_fetching(self) -> bool:
        """Whether a fetch is under way that may bring records."""
        with self._changed:
            return self._held.is_fetching

    def holds(self, delivery: ShareDelivery) -> bool:
        """Whether the record is still locked for this delivery, as far as is known here."""
        with self._changed:
            return self._held.is_current(delivery) and self._steady_s() < delivery.locked_until_s

    def release_not_started(self) -> None:
        """Releases what was not taken, at once, and takes no more. What is in hand stays locked."""
        with self._changed:
            self._is_draining = True
            self._release_ready()
            self._changed.notify_all()

    def _release_ready(self) -> None:
        """With the lock."""
        for each in self._held.not_started():
            node = self._nodes[each.node_id]
            if node.session.number == each.session:
                each.is_settled = True
                self._held.drop(each)
                node.session.acknowledge(Acknowledgement(each.place, each.record.offset, Acknowledge.RELEASE))

    def close(self) -> None:
        """Releases everything that is held, at once, and leaves the group. Waits for acknowledgements under way."""
        with self._changed:
            self._is_closing = self._is_draining = True
            self._release_ready()
            self._changed.notify_all()
        if threading.current_thread() is not self._member:
            self._member.join()

    # -- the group -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._be_member()
        except TidemillError as failure:
            self._fail(failure)
        except Exception as failure:
            LOGGER.exception("share consumer of %s", self.group)
            self._fail(TidemillError(f"share consumer of {self.group}: {failure}"))
        finally:
            self._end()

    def _be_member(self) -> None:
        pause_s = PAUSE_S
        while not self._is_closing:
            try:
                wait_s = self._beat()
                pause_s = PAUSE_S
            except TidemillError as failure:
                if not may_retry(failure, is_repeatable=True):
                    raise
                LOGGER.info("share group %s: %s", self.group, failure)
                self._cluster.forget()
                self._membership.unanswered()
                wait_s, pause_s = pause_s, min(2 * pause_s, _PAUSE_MAX_S)
            self._wait_for_refresh(wait_s)

    def _beat(self) -> float:
        """One heartbeat; how long to wait for the next."""
        before = self._membership.assignment
        connection = self._cluster.coordinator(self.group)
        response = connection.request(self._membership.heartbeat(), ShareGroupHeartbeatResponse)
        with self._changed:
            following = self._membership.answered(response)
        match following:
            case Next.STOP | Next.RETRY:
                check(response.error_code, response.error_message)
            case Next.FIND_COORDINATOR:
                self._cluster.forget()
                return PAUSE_S
            case Next.JOIN:
                LOGGER.info("share group %s: joins again: %s", self.group, response.error_message)
        if self._membership.assignment != before or self._must_refresh:
            self._assign()
        if following is Next.JOIN:
            return 0.0
        interval_s = max(PAUSE_S, self._membership.heartbeat_interval_ms / 1000)
        if not self._membership.assignment and self._early_beats < _EARLY_BEATS_MAX:
            # A new group has its partitions a moment after its first member came; a member without work looks sooner.
            self._early_beats += 1
            return min(interval_s, _EARLY_BEAT_S)
        return interval_s

    def _wait_for_refresh(self, wait_s: float) -> None:
        deadline_s = self._steady_s() + wait_s
        with self._changed:
            while not self._is_closing and (left_s := deadline_s - self._steady_s()) > 0:
                if self._must_refresh:
                    # Not a heartbeat for each of many errors in a row.
                    self._changed.wait(min(left_s, PAUSE_S))
                    return
                self._changed.wait(left_s)

    def _assign(self) -> None:
        """Finds the leaders of the assigned partitions, and gives each broker's thread its own."""
        with self._changed:
            self._must_refresh = False
        self._cluster.forget()
        metadata = self._cluster.load_metadata(self._topics)
        addresses = {each.node_id: Address(each.host, each.port) for each in metadata.brokers}
        leaders: dict[SharePlace, int] = {}
        for topic in metadata.topics:
            for each in topic.partitions:
                leaders[SharePlace(topic.topic_id, each.partition_index)] = each.leader_id
        assigned = self._membership.assignment or frozenset()
        with self._changed:
            self._names.update({topic.topic_id: topic.name or "" for topic in metadata.topics})
            self._must_refresh = any(leaders.get(place, -1) not in addresses for place in assigned)
            by_node: dict[int, set[SharePlace]] = {}
            for place in assigned:
                if (leader_id := leaders.get(place, -1)) in addresses:
                    by_node.setdefault(leader_id, set()).add(place)
            for node_id in by_node.keys() - self._nodes.keys():
                self._nodes[node_id] = NodeThread(self, node_id)
            for node_id, node in self._nodes.items():
                node.address = addresses.get(node_id, node.address)
                node.assign(self._ranked(by_node.get(node_id, ())))
                node.start()
            self._note_fetching()
            self._changed.notify_all()

    def _ranked(self, places: Iterable[SharePlace]) -> list[frozenset[SharePlace]]:
        ranks: dict[int, set[SharePlace]] = {}
        for place in places:
            ranks.setdefault(self._rank_of(place), set()).add(place)
        return [frozenset(ranks[rank]) for rank in sorted(ranks)]

    def _rank_of(self, place: SharePlace) -> int:
        return self._ranks.get(self._names.get(place.topic_id, ""), 0)

    def _note_fetching(self) -> None:
        """With the lock."""
        before = self._fetching
        self._fetching = sum(
            1 for each in self._nodes.values() if each.session.wanted and not self._is_closing
        )
        self._capacity.fetching += self._fetching - before

    def _fail(self, failure: TidemillError) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()
        self._on_ready()

    def _end(self) -> None:
        """Sessions end first: their locks are released before the group knows that this member is gone."""
        with self._changed:
            self._is_closing = True
            self._note_fetching()
            self._changed.notify_all()
            nodes = list(self._nodes.values())
        for node in nodes:
            node.join()
        try:
            if self._membership.is_joined:
                self._cluster.coordinator(self.group).request(
                    self._membership.leave(), ShareGroupHeartbeatResponse
                )
        except TidemillError as failure:
            LOGGER.info("share group %s: it is left when the session ends: %s", self.group, failure)
        finally:
            self._cluster.close()

    # -- what the threads of brokers share -------------------------------------------------------------------

    @property
    def lock(self) -> threading.Condition:
        return self._changed

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    def open(self, address: Address) -> Connection:
        return self._cluster.open(address, self._cluster.timeout_s)

    def reserve(self) -> tuple[int, int]:
        """Reserves room for a fetch. Returns how many records it may bring and its wait in milliseconds. Needs the lock."""
        room, fetching = self._held.room, self._capacity.fetching
        count = min(room, max(1, room // max(1, fetching)))
        is_busy = room < fetching or self._held.count > 0
        self._held.reserve(count)
        return count, _WAIT_IN_HAND_MS if is_busy else _WAIT_MS

    def has_room(self) -> bool:
        if self._is_draining:
            return False
        self._held.drop_expired(self._steady_s())
        return self._held.room > 0

    def give_back(self, count: int) -> None:
        """With the lock: the fetch that this room was kept for is over."""
        self._held.give_back(count)
        self._changed.notify_all()

    def settle(self, outcomes: Sequence[Outcome], lock_timeout_ms: int) -> list[Callable[[], None]]:
        """With the lock; what is returned is called without it."""
        calls: list[Callable[[], None]] = []
        for acknowledgement, code in outcomes:
            if acknowledgement.token is None:
                continue
            settling: Settling = acknowledgement.token  # type: ignore[assignment]
            delivery, future = settling
            delivery.is_being_renewed &= acknowledgement.kind is not Acknowledge.RENEW
            is_renewed = acknowledgement.kind is Acknowledge.RENEW and not code
            if is_renewed:
                if lock_timeout_ms:
                    delivery.locked_until_s = self._steady_s() + lock_timeout_ms / 1000
            else:
                self._held.drop(delivery)
            if code:
                error = _lost(delivery, code)
                calls.append(lambda future=future, error=error: future.set_exception(error))  # type: ignore[misc]
            else:
                calls.append(lambda future=future: future.set_result(None))  # type: ignore[misc]
        return calls

    def renew_locks(self, node: NodeThread) -> None:
        """With the lock: renewals of what ends soon go with the node's next request."""
        if not self._renews_locks:
            return
        until_s = self._steady_s() + _RENEW_SHARE * node.lock_duration_s
        for each in self._held.to_renew(node.node_id, node.session.number, until_s):
            each.is_being_renewed = True
            settling: Settling = (each, Future())
            node.session.acknowledge(
                Acknowledgement(each.place, each.record.offset, Acknowledge.RENEW, settling)
            )

    def forget_session(self, node_id: int, session: int) -> None:
        self._held.drop_session(node_id, session)

    def arrived(
        self,
        node: NodeThread,
        answers: Sequence[tuple[SharePlace, ShareFetchPartitionData]],
        lock_timeout_ms: int,
    ) -> None:
        """With the lock."""
        locked_until_s = self._steady_s() + lock_timeout_ms / 1000
        for place, data in answers:
            partition = TopicPartition(self._names.get(place.topic_id, ""), place.partition)
            if data.error_code in STALE:
                self._must_refresh = True
                continue
            if data.error_code in FORBIDDEN:
                self._failure = self._failure or ApiError(
                    known_code(data.error_code), f"{partition}: {data.error_message or 'not authorized'}"
                )
                continue
            if data.error_code:
                LOGGER.info("%s: %s", partition, known_code(data.error_code).name)
            parsed = parse_acquired(partition, data)
            if parsed.damaged:
                LOGGER.error("%s; the records are rejected", parsed.damage)
            for kind, offsets in ((Acknowledge.GAP, parsed.gaps), (Acknowledge.REJECT, parsed.damaged)):
                for offset in offsets:
                    node.session.acknowledge(Acknowledgement(place, offset, kind))
            for record, count in parsed.acquired:
                self._held.add(
                    ShareDelivery(
                        partition,
                        record,
                        count,
                        place,
                        node.node_id,
                        node.session.number,
                        locked_until_s,
                        self._rank_of(place),
                    )
                )
        if self._is_draining:
            self._release_ready()

    def refresh(self) -> None:
        """With the lock: leaders may have moved."""
        self._must_refresh = True
        self._changed.notify_all()

    def ready(self) -> None:
        self._on_ready()

    def stop(self, failure: TidemillError) -> None:
        self._fail(failure)


def _where(delivery: ShareDelivery) -> str:
    return f"{delivery.partition} at offset {delivery.record.offset}"


def _lost(delivery: ShareDelivery, code: int | None) -> LockLost:
    why = "" if code is None else f" ({known_code(code).name})"
    return LockLost(
        f"{_where(delivery)} is no longer locked for this member{why}: it took longer than the lock lasts, or the "
        "partition has moved; the record is delivered again"
    )
