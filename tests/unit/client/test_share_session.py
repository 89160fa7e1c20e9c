"""The share session with one broker: epochs, what a request names, and what becomes of acknowledgements."""

from __future__ import annotations

import pytest

from tidemill.client.share.membership import Next, ShareMembership, SharePlace
from tidemill.client.share.session import Acknowledge, Acknowledgement, FetchTurns, ShareSession
from tidemill.errors import ErrorCode
from tidemill.protocol.api.share import (
    ShareAcknowledgePartitionData,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchPartitionData,
    ShareFetchResponse,
    ShareGroupHeartbeatAssignment,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatTopicPartitions,
)

TOPIC = b"t" * 16
FIRST, SECOND = SharePlace(TOPIC, 0), SharePlace(TOPIC, 1)


def opened(*places: SharePlace) -> ShareSession:
    session = ShareSession("workers", "me")
    session.wanted = frozenset(places)
    session.fetch_request(10, 0)
    session.fetched(ShareFetchResponse())
    return session


def take(session: ShareSession, *offsets: int, kind: Acknowledge = Acknowledge.ACCEPT) -> None:
    for offset in offsets:
        session.acknowledge(Acknowledgement(FIRST, offset, kind, token=offset))


def answered(code: int = 0) -> ShareAcknowledgeResponse:
    data = ShareAcknowledgePartitionData(partition_index=0, error_code=code)
    return ShareAcknowledgeResponse(
        responses=[ShareAcknowledgeTopicResponse(topic_id=TOPIC, partitions=[data])]
    )


def sent(session: ShareSession) -> list[tuple[int, int, list[int]]]:
    """The batches of the next ShareAcknowledge."""
    message = session.acknowledge_request()
    return [
        (batch.first_offset, batch.last_offset, [int(kind) for kind in batch.acknowledge_types])
        for topic in message.topics
        for partition in topic.partitions
        for batch in partition.acknowledgement_batches
    ]


def test_first_fetch_names_all_partitions_and_later_ones_what_changed() -> None:
    session = ShareSession("workers", "me")
    session.wanted = frozenset({FIRST, SECOND})
    first = session.fetch_request(10, 500)
    assert first.share_session_epoch == 0
    assert [each.partition_index for each in first.topics[0].partitions] == [0, 1]
    session.fetched(ShareFetchResponse())
    session.wanted = frozenset({SECOND})
    second = session.fetch_request(10, 500)
    assert (second.share_session_epoch, second.topics) == (1, [])
    assert second.forgotten_topics_data[0].partitions == [0]


def test_no_more_records_are_requested_than_there_is_room_for() -> None:
    message = opened(FIRST).fetch_request(7, 0)
    assert (message.max_records, message.share_acquire_mode) == (7, 1)


def test_acknowledgements_ride_on_a_fetch() -> None:
    session = opened(FIRST)
    take(session, 4, 5)
    message = session.fetch_request(10, 0)
    (batch,) = message.topics[0].partitions[0].acknowledgement_batches
    assert (batch.first_offset, batch.last_offset, batch.acknowledge_types) == (4, 5, [1])
    data = ShareFetchPartitionData(partition_index=0)
    outcomes, _ = session.fetched(
        ShareFetchResponse(responses=[ShareFetchableTopicResponse(topic_id=TOPIC, partitions=[data])])
    )
    assert [(each.acknowledgement.token, each.error_code) for each in outcomes] == [(4, 0), (5, 0)]


def test_runs_of_offsets_are_one_batch() -> None:
    session = opened(FIRST)
    take(session, 9, 1, 2)
    take(session, 3, kind=Acknowledge.REJECT)
    assert sent(session) == [(1, 3, [1, 1, 3]), (9, 9, [1])]


@pytest.mark.parametrize("kind", [Acknowledge.ACCEPT, Acknowledge.RENEW])
def test_only_a_request_that_renews_says_so(kind: Acknowledge) -> None:
    session = opened(FIRST)
    take(session, 1, kind=kind)
    assert session.can_ride is (kind is Acknowledge.ACCEPT)
    assert session.acknowledge_request().is_renew_ack is (kind is Acknowledge.RENEW)


def test_a_renewal_does_not_ride_on_a_fetch() -> None:
    session = opened(FIRST)
    take(session, 1, kind=Acknowledge.RENEW)
    assert session.fetch_request(10, 0).topics == []
    session.fetched(ShareFetchResponse())
    assert sent(session) == [(1, 1, [4])]


def test_second_acknowledgement_of_an_offset_waits_for_the_first() -> None:
    session = opened(FIRST)
    take(session, 1, kind=Acknowledge.RENEW)
    take(session, 1)
    assert sent(session) == [(1, 1, [4])]
    session.acknowledged(answered())
    assert sent(session) == [(1, 1, [1])]


def test_one_lost_lock_does_not_cost_others_theirs() -> None:
    session = opened(FIRST)
    take(session, 1, 2)
    assert sent(session) == [(1, 2, [1])]
    assert session.acknowledged(answered(ErrorCode.INVALID_RECORD_STATE)) == []
    assert sent(session) == [(1, 1, [1])]
    (lost,) = session.acknowledged(answered(ErrorCode.INVALID_RECORD_STATE))
    assert (lost.acknowledgement.token, lost.error_code) == (1, ErrorCode.INVALID_RECORD_STATE)
    assert sent(session) == [(2, 2, [1])]
    (taken,) = session.acknowledged(answered())
    assert (taken.acknowledgement.token, taken.error_code) == (2, 0)


def test_a_coordinator_that_is_away_is_tried_again_and_not_for_ever() -> None:
    session = opened(FIRST)
    take(session, 1)
    for _ in range(4):
        assert sent(session) == [(1, 1, [1])]
        assert session.acknowledged(answered(ErrorCode.COORDINATOR_NOT_AVAILABLE)) == []
    assert sent(session) == [(1, 1, [1])]
    (lost,) = session.acknowledged(answered(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert lost.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_session_that_the_broker_does_not_know_begins_anew_and_its_locks_are_lost() -> None:
    session = opened(FIRST)
    take(session, 1)
    session.acknowledge_request()
    take(session, 2)
    number = session.number
    lost = session.acknowledged(ShareAcknowledgeResponse(error_code=ErrorCode.SHARE_SESSION_NOT_FOUND))
    assert [each.acknowledgement.token for each in lost] == [1, 2]
    assert session.number == number + 1
    again = session.fetch_request(10, 0)
    assert again.share_session_epoch == 0
    assert [each.partition_index for each in again.topics[0].partitions] == [0]


def test_acknowledgements_missing_in_the_response_are_lost() -> None:
    session = opened(FIRST)
    take(session, 1)
    session.acknowledge_request()
    (lost,) = session.acknowledged(ShareAcknowledgeResponse())
    assert lost.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_last_request_ends_the_session() -> None:
    session = opened(FIRST)
    take(session, 1, kind=Acknowledge.RELEASE)
    assert session.acknowledge_request(is_final=True).share_session_epoch == -1


def test_epochs_begin_again_with_one() -> None:
    session = opened(FIRST)
    session._epoch = 0x7FFFFFFF
    session.fetched(ShareFetchResponse())
    assert session.fetch_request(1, 0).share_session_epoch == 1


# -- membership ------------------------------------------------------------------------------------------------


def heartbeat(epoch: int, *partitions: int) -> ShareGroupHeartbeatResponse:
    topics = [ShareGroupHeartbeatTopicPartitions(topic_id=TOPIC, partitions=list(partitions))]
    return ShareGroupHeartbeatResponse(
        member_epoch=epoch,
        heartbeat_interval_ms=5_000,
        assignment=ShareGroupHeartbeatAssignment(topic_partitions=topics) if partitions else None,
    )


def test_a_member_joins_stays_and_leaves() -> None:
    member = ShareMembership("workers", "me", ["orders"])
    joining = member.heartbeat()
    assert (joining.member_id, joining.member_epoch) == ("me", 0)
    assert joining.subscribed_topic_names == ["orders"]
    assert member.answered(heartbeat(3, 0, 1)) is Next.WAIT
    assert member.assignment == frozenset({FIRST, SECOND})
    staying = member.heartbeat()
    assert (staying.member_epoch, staying.subscribed_topic_names) == (3, None)
    assert member.answered(heartbeat(3)) is Next.WAIT
    assert member.assignment == frozenset({FIRST, SECOND})
    assert member.leave().member_epoch == -1


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH])
def test_a_fenced_member_joins_again_without_an_assignment(code: ErrorCode) -> None:
    member = ShareMembership("workers", "me", ["orders"])
    member.answered(heartbeat(3, 0))
    assert member.answered(ShareGroupHeartbeatResponse(error_code=code)) is Next.JOIN
    assert member.assignment == frozenset()
    again = member.heartbeat()
    assert (again.member_epoch, again.subscribed_topic_names) == (0, ["orders"])


@pytest.mark.parametrize(
    ("code", "following"),
    [
        (ErrorCode.NOT_COORDINATOR, Next.FIND_COORDINATOR),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, Next.FIND_COORDINATOR),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Next.RETRY),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, Next.STOP),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, Next.STOP),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, Next.STOP),
        (ErrorCode.INVALID_REQUEST, Next.STOP),
        (ErrorCode.UNSUPPORTED_VERSION, Next.STOP),
    ],
)
def test_each_error_of_a_heartbeat_has_its_answer(code: ErrorCode, following: Next) -> None:
    member = ShareMembership("workers", "me", ["orders"])
    assert member.answered(ShareGroupHeartbeatResponse(error_code=code)) is following


def test_subscriptions_are_sent_again_after_a_broken_connection() -> None:
    member = ShareMembership("workers", "me", ["orders"])
    member.answered(heartbeat(3, 0))
    member.unanswered()
    assert member.heartbeat().subscribed_topic_names == ["orders"]


def test_turns_begin_with_the_best_rank_and_an_empty_answer_adds_the_next() -> None:
    turns = FetchTurns()
    turns.assign([frozenset({FIRST}), frozenset(), frozenset({SECOND})])
    assert (set(turns.wanted), turns.may_wait) == ({FIRST}, False)
    turns.fetched(has_records=False)
    assert (set(turns.wanted), turns.may_wait) == ({FIRST, SECOND}, True)
    turns.fetched(has_records=False)
    assert turns.may_wait
    turns.fetched(has_records=True)
    assert (set(turns.wanted), turns.may_wait) == ({FIRST}, False)


def test_turns_of_one_rank_always_wait_for_everything() -> None:
    turns = FetchTurns()
    assert (set(turns.wanted), turns.may_wait) == (set(), True)
    turns.assign([frozenset({FIRST, SECOND})])
    for has_records in (True, False, True):
        turns.fetched(has_records=has_records)
        assert (set(turns.wanted), turns.may_wait) == ({FIRST, SECOND}, True)
