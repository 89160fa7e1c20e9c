"""The share session with one broker: which partitions, which acknowledgements, which epoch. No I/O.

A session begins with a ShareFetch of epoch 0, which names all partitions and can carry no acknowledgement. Later
requests name only what changed, and their epochs count up; a request of epoch -1 ends the session and releases what it
held. So there is one request under way at a time. When the broker no longer knows the session, or the connection broke,
every lock of it is lost.

The broker takes or refuses all acknowledgements of a partition in one request together. When it refuses several for
their state, each is sent again alone, so that one lost lock does not cost others theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tidemill.client.share.membership import SharePlace
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
)

_FIRST_EPOCH, _FINAL_EPOCH = 0, -1
_EPOCH_MAX = 0x7FFFFFFF
_FETCH_BYTES = 50 * 1024 * 1024
# The record limit is strict (version 2 of ShareFetch).
_RECORD_LIMIT = 1
_ATTEMPTS_MAX = 5
# The state of the record is as before: the same acknowledgement may succeed.
_AGAIN = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Acknowledge(IntEnum):
    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


@dataclass(slots=True)
class Acknowledgement:
    """One record's acknowledgement on its way. `token` is the caller's."""

    place: SharePlace
    offset: int
    kind: Acknowledge
    token: object = None
    is_alone: bool = False
    attempts: int = 0


PartitionAnswer = tuple[SharePlace, ShareFetchPartitionData]


class Outcome(NamedTuple):
    acknowledgement: Acknowledgement
    # 0 when the broker has taken it.
    error_code: int


class FetchTurns:
    """Chooses the partitions of the next fetch, where topics have an order.

    The best topics come alone and without a wait; each empty answer adds the next ones. A fetch for all of them may
    wait, and goes on until it brings records. Then the best come first again.
    """

    def __init__(self) -> None:
        self._ranks: list[frozenset[SharePlace]] = []
        self._last = 0

    def assign(self, ranks: Sequence[frozenset[SharePlace]]) -> None:
        """The partitions by rank, the best first."""
        self._ranks = [each for each in ranks if each]
        self._last = 0

    @property
    def wanted(self) -> frozenset[SharePlace]:
        return frozenset().union(*self._ranks[: self._last + 1])

    @property
    def may_wait(self) -> bool:
        return self._last + 1 >= len(self._ranks)

    def fetched(self, *, has_records: bool) -> None:
        if has_records:
            self._last = 0
        elif not self.may_wait:
            self._last += 1


class ShareSession:
    def __init__(self, group: str, member_id: str) -> None:
        self._group = group
        self._member_id = member_id
        self.wanted: frozenset[SharePlace] = frozenset()
        # What the broker's session has.
        self._known: set[SharePlace] = set()
        self._epoch = _FIRST_EPOCH
        # Counts sessions: a lock belongs to the one that it came with.
        self.number = 0
        self._pending: list[Acknowledgement] = []
        self._under_way: list[Acknowledgement] = []

    @property
    def is_open(self) -> bool:
        """Whether the broker has a session, as far as is known here."""
        return self._epoch != _FIRST_EPOCH

    @property
    def has_acknowledgements(self) -> bool:
        return bool(self._pending)

    @property
    def has_callers(self) -> bool:
        """Whether a caller waits for the outcome of what is pending."""
        return any(each.token is not None for each in self._pending)

    @property
    def can_ride(self) -> bool:
        """Whether what is pending may go with a ShareFetch, which would add its partitions to the session."""
        return all(
            each.place in self.wanted and each.kind is not Acknowledge.RENEW and not each.is_alone
            for each in self._pending
        )

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        self._pending.append(acknowledgement)

    # -- requests --------------------------------------------------------------------------------------------

    def fetch_request(self, max_records: int, max_wait_ms: int) -> ShareFetchRequest:
        # A renewal may have come since the caller chose a fetch; it waits for the next request.
        batches = self._take_pending() if self.is_open and self.can_ride else {}
        added = self.wanted - self._known
        topics: dict[bytes, list[FetchPartition]] = {}
        for place in sorted(added | batches.keys()):
            topics.setdefault(place.topic_id, []).append(
                FetchPartition(
                    partition_index=place.partition, acknowledgement_batches=batches.get(place, [])
                )
            )
        forgotten: dict[bytes, list[int]] = {}
        for place in sorted(self._known - self.wanted):
            forgotten.setdefault(place.topic_id, []).append(place.partition)
        self._known = set(self.wanted)
        return ShareFetchRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            max_records=max_records,
            batch_size=max_records,
            share_acquire_mode=_RECORD_LIMIT,
            topics=[FetchTopic(topic_id=each, partitions=of) for each, of in topics.items()],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=each, partitions=of) for each, of in forgotten.items()
            ],
        )

    def acknowledge_request(self, *, is_final: bool = False) -> ShareAcknowledgeRequest:
        """`is_final` ends the session: what is held and not acknowledged is released at once."""
        topics: dict[bytes, list[AcknowledgePartition]] = {}
        for place, batches in sorted(self._take_pending().items()):
            topics.setdefault(place.topic_id, []).append(
                AcknowledgePartition(partition_index=place.partition, acknowledgement_batches=batches)
            )
        return ShareAcknowledgeRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=_FINAL_EPOCH if is_final else self._epoch,
            is_renew_ack=any(each.kind is Acknowledge.RENEW for each in self._under_way),
            topics=[AcknowledgeTopic(topic_id=each, partitions=of) for each, of in topics.items()],
        )

    def _take_pending(self) -> dict[SharePlace, list[AcknowledgementBatch]]:
        taken: dict[SharePlace, dict[int, Acknowledgement]] = {}
        left = []
        for each in self._pending:
            others = taken.setdefault(each.place, {})
            # Of two for one offset the second waits; so does one that is to be alone, or meets one that is.
            is_blocked = each.offset in others or (
                bool(others) and (each.is_alone or any(other.is_alone for other in others.values()))
            )
            if is_blocked:
                left.append(each)
            else:
                others[each.offset] = each
        self._pending = left
        self._under_way = [each for others in taken.values() for each in others.values()]
        return {place: _batches(others.values()) for place, others in taken.items()}

    # -- answers ---------------------------------------------------------------------------------------------

    def fetched(self, response: ShareFetchResponse) -> tuple[list[Outcome], list[PartitionAnswer]]:
        """Takes in a ShareFetch response. Returns the outcomes of acknowledgements, and the answer of each partition."""
        if response.error_code:
            return self.lost(response.error_code), []
        self._next_epoch()
        answered = [
            (SharePlace(topic.topic_id, each.partition_index), each)
            for topic in response.responses
            for each in topic.partitions
        ]
        codes = {place: each.acknowledge_error_code for place, each in answered}
        return self._settled(codes), answered

    def acknowledged(self, response: ShareAcknowledgeResponse) -> list[Outcome]:
        if response.error_code:
            return self.lost(response.error_code)
        self._next_epoch()
        return self._settled(
            {
                SharePlace(topic.topic_id, each.partition_index): each.error_code
                for topic in response.responses
                for each in topic.partitions
            }
        )

    def lost(self, error_code: int) -> list[Outcome]:
        """The broker's session is gone, and its locks with it. The next request begins another one."""
        failed = [*self._under_way, *self._pending]
        self._under_way, self._pending = [], []
        self._known = set()
        self._epoch = _FIRST_EPOCH
        self.number += 1
        return [Outcome(each, error_code) for each in failed]

    def _next_epoch(self) -> None:
        self._epoch = self._epoch + 1 if self._epoch < _EPOCH_MAX else 1

    def _settled(self, codes: dict[SharePlace, int]) -> list[Outcome]:
        under_way, self._under_way = self._under_way, []
        counts: dict[SharePlace, int] = {}
        for each in under_way:
            counts[each.place] = counts.get(each.place, 0) + 1
        outcomes = []
        for each in under_way:
            code = codes.get(each.place, ErrorCode.UNKNOWN_SERVER_ERROR)
            is_one_of_several = code == ErrorCode.INVALID_RECORD_STATE and counts[each.place] > 1
            each.attempts += 1
            if is_one_of_several or (code in _AGAIN and each.attempts < _ATTEMPTS_MAX):
                each.is_alone = each.is_alone or is_one_of_several
                self._pending.append(each)
            else:
                outcomes.append(Outcome(each, code))
        return outcomes


def _batches(acknowledgements: Iterable[Acknowledgement]) -> list[AcknowledgementBatch]:
    """Runs of offsets; a run of one kind says it once."""
    batches: list[AcknowledgementBatch] = []
    for each in sorted(acknowledgements, key=lambda each: each.offset):
        if batches and batches[-1].last_offset + 1 == each.offset:
            batches[-1].last_offset = each.offset
            batches[-1].acknowledge_types.append(each.kind)
        else:
            batches.append(
                AcknowledgementBatch(
                    first_offset=each.offset, last_offset=each.offset, acknowledge_types=[each.kind]
                )
            )
    for batch in batches:
        if len(set(batch.acknowledge_types)) == 1:
            batch.acknowledge_types = batch.acknowledge_types[:1]
    return batches
