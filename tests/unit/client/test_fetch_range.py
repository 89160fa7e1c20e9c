"""A range of offsets, as a scripted leader gives it and as a real broker does."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from tests.unit.client.scripted import Answer, ScriptedConnection, ScriptedNetwork
from tidemill.client.connections.connection import BrokerUnreachable, ConnectionLost
from tidemill.client.consumer import Consumer
from tidemill.client.fetch import (
    FETCH_BYTES,
    LogTruncated,
    OffsetsLost,
    OffsetsNotReached,
    RangeAnswer,
    TopicReplaced,
    fetch_range,
)
from tidemill.client.retry import UnknownTopic
from tidemill.errors import ErrorCode, ProtocolError
from tidemill.protocol.api.data import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    PartitionData,
)
from tidemill.protocol.isolation import READ_COMMITTED
from tidemill.protocol.records import CONTROL, TRANSACTIONAL, Record, build_batch, iterate_records
from tidemill.protocol.schema import Request
from tidemill.types import TopicPartition

P0 = TopicPartition("orders", 0)
ID, OTHER_ID = bytes(15) + b"\1", bytes(15) + b"\2"
ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


def batch(first: int, count: int = 10, *, epoch: int = 0, size: int = 1, last: int | None = None) -> bytes:
    records = [Record(first + each, 5, None, b"v" * size) for each in range(count)]
    delta = None if last is None else last - first
    return bytes(build_batch(records, base_offset=first, leader_epoch=epoch, last_offset_delta=delta))


def transactional(first: int, producer_id: int, count: int = 10) -> bytes:
    records = [Record(first + each, 5, None, b"v") for each in range(count)]
    built = build_batch(
        records, base_offset=first, attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0
    )
    return bytes(built)


def marker(offset: int, producer_id: int, key: bytes) -> bytes:
    built = build_batch(
        [Record(offset, 5, key, b"\0" * 6)],
        base_offset=offset,
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer_id,
        producer_epoch=0,
    )
    return bytes(built)


def fetched(
    *batches: bytes,
    code: int = 0,
    high_watermark: int = 1000,
    last_stable_offset: int = 1000,
    aborted: Sequence[tuple[int, int]] = (),
    diverging: tuple[int, int] = (-1, -1),
) -> FetchResponse:
    data = PartitionData(
        partition_index=0,
        error_code=code,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=0,
        aborted_transactions=[AbortedTransaction(producer_id=p, first_offset=first) for p, first in aborted],
        diverging_epoch=FetchEpochEndOffset(epoch=diverging[0], end_offset=diverging[1]),
        records=b"".join(batches),
    )
    return FetchResponse(responses=[FetchableTopicResponse(topic_id=ID, partitions=[data])])


def offset_of_log(offset: int) -> ListOffsetsResponse:
    found = ListOffsetsPartitionResponse(partition_index=0, offset=offset)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=[found])])


def script(*answers: Answer, leaders: Sequence[int] = (1,)) -> ScriptedNetwork:
    network = ScriptedNetwork({"orders": list(leaders)})
    network.topic_ids["orders"] = ID
    network.answers[FetchRequest] = list(answers)
    return network


def drain(network: ScriptedNetwork, start: int, end: int, isolation_level: int = 0) -> list[RangeAnswer]:
    answers = []
    for answer in fetch_range(network.cluster(), P0, start, end, isolation_level=isolation_level):
        # As a caller that decodes them at once: the views are gone when the next answer is asked for.
        answers.append(answer._replace(batches=[(h, memoryview(bytes(view))) for h, view in answer.batches]))
    assert all(connection.is_closed for connection in fetching(network))
    return answers


def fetching(network: ScriptedNetwork) -> list[ScriptedConnection]:
    """The connections that ranges opened for themselves."""
    return [each for each in network.connections if each.fetches]


def asked(network: ScriptedNetwork) -> list[FetchPartition]:
    return [r.topics[0].partitions[0] for _, r in network.asked if isinstance(r, FetchRequest)]


def firsts(answers: Sequence[RangeAnswer]) -> list[list[int]]:
    return [[header.base_offset for header, _ in answer.batches] for answer in answers]


def offsets(answers: Sequence[RangeAnswer]) -> list[int]:
    return [
        record.offset
        for answer in answers
        for header, view in answer.batches
        for record in iterate_records(view, header)
    ]


def test_a_range_ends_with_the_batch_that_holds_its_last_offset() -> None:
    network = script(fetched(batch(0), batch(10)), fetched(batch(20), batch(30), batch(40)))
    answers = drain(network, 5, 35)
    assert firsts(answers) == [[0, 10], [20, 30]]
    assert [answer.next_offset for answer in answers] == [20, 35]
    assert [each.fetch_offset for each in asked(network)] == [5, 20]


def test_the_request_is_large_and_names_the_topic_by_id() -> None:
    network = script(fetched(batch(0)))
    drain(network, 0, 10)
    (request,) = [r for _, r in network.asked if isinstance(r, FetchRequest)]
    assert request.topics[0].topic_id == ID
    assert request.max_bytes == request.topics[0].partitions[0].partition_max_bytes == FETCH_BYTES


def test_the_next_request_is_under_way_while_the_caller_decodes() -> None:
    network = script(fetched(batch(0)), fetched(batch(10)), fetched(batch(20)))
    under_way = []
    for answer in fetch_range(network.cluster(), P0, 0, 30):
        (connection,) = fetching(network)
        under_way.append((answer.next_offset, len(connection.fetches)))
    # One more than was answered, but none beyond the end.
    assert under_way == [(10, 2), (20, 3), (30, 3)]


def test_empty_range_sends_no_request() -> None:
    network = script()
    assert drain(network, 7, 7) == []
    assert network.asked == []


def test_batch_that_is_cut_off_is_fetched_again() -> None:
    network = script(fetched(batch(0), batch(10)[:-1]), fetched(batch(10)))
    assert offsets(drain(network, 0, 20)) == list(range(20))
    assert [each.fetch_offset for each in asked(network)] == [0, 10]


def test_a_batch_without_its_end_alone_is_an_error() -> None:
    with pytest.raises(ProtocolError, match=r"orders-0: an answer of .* has no whole batch"):
        drain(script(fetched(batch(0)[:-1])), 0, 10)


def test_a_batch_that_is_larger_than_the_buffers() -> None:
    network = script(fetched(batch(0, 1, size=300_000)), fetched(batch(1, 1, size=10)))
    answers = list(fetch_range(network.cluster(), P0, 0, 2, fetch_bytes=1000))
    assert offsets(answers) == [0, 1]


def test_views_stay_as_they_are_while_they_are_held() -> None:
    network = script(*(fetched(batch(10 * each)) for each in range(8)))
    answers = list(fetch_range(network.cluster(), P0, 0, 80))
    assert offsets(answers) == list(range(80))


def test_buffers_are_used_again_when_they_are_not_held() -> None:
    network = script(*(fetched(batch(10 * each)) for each in range(8)))
    buffers = set()
    for answer in fetch_range(network.cluster(), P0, 0, 80):
        buffers.add(id(answer.batches[0][1].obj))
    assert len(buffers) <= 3


def test_gaps_that_compaction_left_are_passed_over() -> None:
    network = script(fetched(batch(3, 2, last=9)), fetched(batch(50)))
    answers = drain(network, 0, 30)
    assert offsets(answers) == [3, 4]
    assert [answer.next_offset for answer in answers] == [10, 30]


def test_a_damaged_batch() -> None:
    damaged = bytearray(batch(10))
    damaged[-1] ^= 1
    with pytest.raises(ProtocolError, match="offset 10 is damaged"):
        drain(script(fetched(batch(0), bytes(damaged))), 0, 30)


def test_bytes_that_are_no_batch() -> None:
    with pytest.raises(ProtocolError, match="not a record batch"):
        drain(script(fetched(batch(0), b"\1" * 100)), 0, 30)


def test_answer_about_another_partition() -> None:
    with pytest.raises(ProtocolError, match="orders-0: an answer about 0 partitions"):
        drain(script(FetchResponse()), 0, 30)


# --- transactions ---


def test_markers_are_left_out_and_passed_over() -> None:
    network = script(
        fetched(batch(0), marker(10, 7, COMMIT)), fetched(marker(11, 7, ABORT)), fetched(batch(12))
    )
    answers = drain(network, 0, 22)
    assert firsts(answers) == [[0], [], [12]]
    assert [answer.next_offset for answer in answers] == [11, 12, 22]


def test_aborted_transactions_are_left_out_of_committed_reads() -> None:
    content = [
        transactional(0, 7),
        transactional(10, 8),
        marker(20, 7, ABORT),
        transactional(21, 7),
        marker(31, 8, COMMIT),
        marker(32, 7, COMMIT),
    ]
    committed = drain(script(fetched(*content, aborted=[(7, 0)])), 0, 33, READ_COMMITTED)
    assert firsts(committed) == [[10, 21]]
    assert committed[0].next_offset == 33
    assert firsts(drain(script(fetched(*content)), 0, 33)) == [[0, 10, 21]]


def test_the_consumer_shares_these_rules() -> None:
    network = script(fetched(transactional(0, 7), marker(10, 7, ABORT), batch(11, 2), aborted=[(7, 0)]))
    consumer = Consumer(network.cluster(), {P0: 0}, isolation_level=READ_COMMITTED)
    assert [each.record.offset for each in consumer.poll()] == [11, 12]
    assert consumer.positions == {P0: 13}


# --- leaders that change ---


@pytest.mark.parametrize(
    "failure",
    [
        fetched(code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        fetched(code=ErrorCode.FENCED_LEADER_EPOCH),
        fetched(code=ErrorCode.UNKNOWN_LEADER_EPOCH),
        fetched(code=ErrorCode.UNKNOWN_TOPIC_ID),
        FetchResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR),
        ConnectionLost("b:1 closed the connection"),
    ],
)
def test_a_range_goes_on_at_the_new_leader(failure: FetchResponse | ConnectionLost) -> None:
    network = script(fetched(batch(0, epoch=3)))

    def fail(_: Request) -> FetchResponse:
        network.leaders["orders"] = [2]
        network.refused.add(1)
        if isinstance(failure, ConnectionLost):
            raise failure
        return failure

    network.answers[FetchRequest] += [fail, fetched(batch(10, epoch=3)), fetched(batch(20, epoch=4))]
    assert offsets(drain(network, 0, 30)) == list(range(30))
    assert network.asked_of(FetchRequest) == [1, 1, 2, 2]
    assert [each.fetch_offset for each in asked(network)] == [0, 10, 10, 20]
    # So that the new leader can tell whether its log continues what was read.
    assert [each.last_fetched_epoch for each in asked(network)] == [-1, 3, 3, 3]


def test_a_leader_that_stays_away_ends_the_range() -> None:
    network = script()

    def fail(_: Request) -> FetchResponse:
        network.refused.add(1)
        raise ConnectionLost("b:1 closed the connection")

    network.answers[FetchRequest] = [fetched(batch(0)), fail]
    with pytest.raises(BrokerUnreachable, match="refused"):
        drain(network, 0, 30)
    assert network.now_s > 5


def test_fetch_request_has_the_epoch_that_was_read() -> None:
    network = script(fetched(batch(0, epoch=3)), fetched(batch(10, epoch=4)), fetched(batch(20, epoch=4)))
    drain(network, 0, 30)
    assert [each.last_fetched_epoch for each in asked(network)] == [-1, 3, 4]


def test_a_log_with_another_history_is_not_read_on() -> None:
    network = script(fetched(batch(0, epoch=3)), fetched(diverging=(2, 6)))
    with pytest.raises(LogTruncated, match=r"orders-0: .* below offset 10 .* epoch 2 end at offset 6"):
        drain(network, 0, 30)


def test_a_topic_of_the_same_name() -> None:
    network = script(fetched(batch(0)))

    def recreate(_: Request) -> FetchResponse:
        network.topic_ids["orders"] = OTHER_ID
        return fetched(code=ErrorCode.UNKNOWN_TOPIC_ID)

    network.answers[FetchRequest].append(recreate)
    with pytest.raises(TopicReplaced, match="topic orders was deleted and created again"):
        drain(network, 0, 30)


def test_a_topic_that_is_gone() -> None:
    network = script(fetched(batch(0)))

    def delete(_: Request) -> FetchResponse:
        del network.leaders["orders"]
        return fetched(code=ErrorCode.UNKNOWN_TOPIC_ID)

    network.answers[FetchRequest].append(delete)
    with pytest.raises(UnknownTopic, match="there is no topic orders"):
        drain(network, 0, 30)


# --- offsets that are not there ---


def out_of_range(*log_offsets: int) -> ScriptedNetwork:
    network = script(fetched(batch(0)), fetched(code=ErrorCode.OFFSET_OUT_OF_RANGE))
    network.answers[ListOffsetsRequest] = [offset_of_log(each) for each in log_offsets]
    return network


@pytest.mark.parametrize(("log_start_offset", "lost_end"), [(15, 15), (700, 30)])
def test_offsets_removed_by_retention_are_named(log_start_offset: int, lost_end: int) -> None:
    with pytest.raises(OffsetsLost, match=f"orders-0: offsets 10 to {lost_end - 1} were deleted") as caught:
        drain(out_of_range(log_start_offset), 0, 30)
    error = caught.value
    assert (error.partition, error.first_offset, error.end_offset) == (P0, 10, lost_end)


def test_a_position_above_the_log_is_an_error_at_once() -> None:
    network = out_of_range(0, 8)
    with pytest.raises(LogTruncated, match="orders-0: offset 10 is above the end of the log, 8"):
        drain(network, 0, 30)
    assert network.now_s == 0


def test_an_epoch_that_the_leader_forgot_is_not_sent_again() -> None:
    network = out_of_range(0, 900)
    network.answers[FetchRequest].append(fetched(batch(10, 20)))
    assert offsets(drain(network, 0, 30)) == list(range(30))
    assert [each.last_fetched_epoch for each in asked(network)] == [-1, 0, -1]


@pytest.mark.parametrize(
    ("isolation_level", "expected"),
    [(0, "up to offset 12, records"), (READ_COMMITTED, "up to offset 10, a transaction is still open")],
)
def test_an_end_that_does_not_come(isolation_level: int, expected: str) -> None:
    network = script(fetched(batch(0)))

    def nothing(_: Request) -> FetchResponse:
        network.now_s += 0.5
        return fetched(high_watermark=12, last_stable_offset=10)

    network.answers[FetchRequest] += [nothing] * 30
    with pytest.raises(
        OffsetsNotReached, match=f"orders-0: offset 30 was not reached within 10 s: .*{expected}"
    ):
        drain(network, 0, 30, isolation_level)
    assert 10 <= network.now_s < 11


def test_an_end_that_comes_late() -> None:
    network = script(fetched(), fetched(), fetched(batch(0)))
    assert offsets(drain(network, 0, 10)) == list(range(10))


# --- a caller that stops ---


def test_stopped_range_closes_its_connection() -> None:
    network = script(fetched(batch(0)), fetched(batch(10)))
    before = threading.active_count()
    answers = fetch_range(network.cluster(), P0, 0, 30)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert [each.is_closed for each in fetching(network)] == [True]
    assert threading.active_count() == before
