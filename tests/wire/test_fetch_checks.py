"""What stock clients check of Fetch: whole batches, limits, sessions, epochs, topic ids, waiting."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import pytest

from tests.brokers import RunningBroker, eventually
from tests.wire.batches import encode, parse_fetched
from tests.wire.connection import Connection, fetch_fields

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
SESSION_ID_NOT_FOUND = 70
INVALID_SESSION_EPOCH = 71
UNKNOWN_LEADER_EPOCH = 75
UNKNOWN_TOPIC_ID = 100
INCONSISTENT_TOPIC_ID = 103
LONG_WAIT_MS = 30_000


@pytest.fixture
def filled(connection: Connection, topic: str) -> str:
    """Three batches of ten records, offsets 0 to 29."""
    connection.create_topic(topic)
    for first in (0, 10, 20):
        assert (
            connection.produce(topic, encode([b"%d" % n for n in range(first, first + 10)])).error_code == 0
        )
    return topic


@pytest.mark.parametrize("offset", range(0, 30, 3))
def test_failure_20_fetch_inside_a_batch_returns_the_batch(
    connection: Connection, filled: str, offset: int
) -> None:
    first = connection.read(filled, offset)[0]
    assert first.base_offset == offset // 10 * 10
    assert b"%d" % offset in first.values()


def test_a_fetch_at_the_end_is_empty_and_beyond_it_out_of_range(connection: Connection, filled: str) -> None:
    at_end = connection.fetch(filled, 30)
    assert (at_end.error_code, at_end.records or b"", at_end.high_watermark) == (0, b"", 30)
    for offset in (31, 1_000_000, 2**63 - 1, -1, -5):
        beyond = connection.fetch(filled, offset)
        assert (beyond.error_code, beyond.records or b"") == (OFFSET_OUT_OF_RANGE, b""), offset


@pytest.mark.parametrize(
    ("max_bytes", "partition_max_bytes"), [(1, 1), (1, 1_000_000), (1_000_000, 1), (0, 0)]
)
def test_one_batch_larger_than_every_limit_is_still_returned(
    connection: Connection, filled: str, max_bytes: int, partition_max_bytes: int
) -> None:
    fetched = connection.fetch(filled, 10, max_bytes=max_bytes, partition_max_bytes=partition_max_bytes)
    assert [batch.base_offset for batch in parse_fetched(bytes(fetched.records))] == [10]


def test_the_limit_of_a_partition_holds_after_the_first_batch(connection: Connection, filled: str) -> None:
    whole = connection.read(filled, 0)
    assert len(whole) == 3
    fetched = connection.fetch(filled, 0, partition_max_bytes=whole[0].size + whole[1].size)
    assert [batch.base_offset for batch in parse_fetched(bytes(fetched.records))] == [0, 10]


def test_a_partition_that_is_named_often_is_answered_once_as_named_last(
    connection: Connection, filled: str
) -> None:
    fields = fetch_fields(filled, 0)
    (topic,) = fields["topics"]
    (named,) = topic["partitions"]
    topic["partitions"] = [{**named, "fetch_offset": offset} for offset in [0] * 1_000 + [20]]
    (answer,) = connection.request("fetch", 11, **fields).responses
    (data,) = answer.partitions
    assert [batch.base_offset for batch in parse_fetched(data.records)] == [20]


def test_an_unknown_topic_and_partition(connection: Connection, filled: str) -> None:
    assert connection.fetch("no-such-topic", 0).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert connection.fetch(filled, 0, partition=9).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert connection.fetch(filled, 0, partition=-1).error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_a_newer_leader_epoch_than_ours(connection: Connection, filled: str) -> None:
    assert connection.fetch(filled, 0, leader_epoch=0).error_code == 0
    assert connection.fetch(filled, 0, leader_epoch=99).error_code == UNKNOWN_LEADER_EPOCH


def _by_id(topic_id: uuid.UUID, offset: int = 0, **options: Any) -> dict[str, Any]:
    wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1_000_000}
    fields = {
        "min_bytes": 1,
        "max_bytes": 1_000_000,
        "topics": [{"topic_id": topic_id, "partitions": [wanted]}],
    }
    return fields | options


def test_by_topic_id(connection: Connection, topic: str) -> None:
    topic_id = connection.create_topic(topic)
    connection.produce(topic, encode([b"v"]))
    body = connection.request("fetch", 16, **_by_id(topic_id))
    assert parse_fetched(bytes(body.responses[0].partitions[0].records))[0].values() == [b"v"]


def test_an_unknown_topic_id(connection: Connection) -> None:
    body = connection.request("fetch", 16, **_by_id(uuid.uuid4()))
    assert body.responses[0].partitions[0].error_code == UNKNOWN_TOPIC_ID


def test_failure_21_the_id_of_a_deleted_topic_is_unknown_to_its_successor(
    connection: Connection, topic: str
) -> None:
    old = connection.create_topic(topic)
    connection.produce(topic, encode([b"old"]))
    session = connection.request("fetch", 16, **_by_id(old, session_epoch=0)).session_id
    asked = [{"name": topic, "topic_id": None}]
    connection.request("delete_topics", 6, topics=asked, timeout=20_000)
    eventually(lambda: connection.metadata(topic).error_code == UNKNOWN_TOPIC_OR_PARTITION, "deleted")
    new = connection.create_topic(topic)
    assert new != old
    assert connection.end_offset(topic) == 0
    connection.produce(topic, encode([b"new"]))
    body = connection.request("fetch", 16, **_by_id(old))
    assert body.responses[0].partitions[0].error_code == UNKNOWN_TOPIC_ID
    in_session = connection.request("fetch", 16, **_by_id(old, session_id=session, session_epoch=1))
    errors = {part.error_code for one in in_session.responses for part in one.partitions}
    assert in_session.error_code or errors <= {UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID}
    fresh = connection.request("fetch", 16, **_by_id(new))
    assert parse_fetched(bytes(fresh.responses[0].partitions[0].records))[0].values() == [b"new"]


class TestSessions:
    def _fetch(self, connection: Connection, topic: str, session_id: int, epoch: int, offset: int = 0) -> Any:
        return connection.request(
            "fetch", 12, **fetch_fields(topic, offset, session_id=session_id, session_epoch=epoch)
        )

    def _again(self, connection: Connection, session_id: int, epoch: int) -> Any:
        fields = fetch_fields("", 0, session_id=session_id, session_epoch=epoch) | {"topics": []}
        return connection.request("fetch", 12, **fields)

    def test_only_what_changed_is_sent(self, connection: Connection, filled: str) -> None:
        first = self._fetch(connection, filled, 0, 0, offset=30)
        assert first.error_code == 0
        assert first.session_id != 0
        assert self._again(connection, first.session_id, 1).responses == ()
        connection.produce(filled, encode([b"30"]))
        second = self._again(connection, first.session_id, 2)
        records = bytes(second.responses[0].partitions[0].records)
        assert parse_fetched(records)[0].values() == [b"30"]

    def test_an_unknown_session(self, connection: Connection, filled: str) -> None:
        assert self._fetch(connection, filled, 123_456_789, 1).error_code == SESSION_ID_NOT_FOUND

    def test_a_wrong_epoch(self, connection: Connection, filled: str) -> None:
        session_id = self._fetch(connection, filled, 0, 0).session_id
        assert self._fetch(connection, filled, session_id, 5).error_code == INVALID_SESSION_EPOCH
        assert self._again(connection, session_id, 1).error_code == 0

    def test_a_session_ends(self, connection: Connection, filled: str) -> None:
        session_id = self._fetch(connection, filled, 0, 0).session_id
        final = self._fetch(connection, filled, session_id, -1)
        assert (final.error_code, final.session_id) == (0, 0)
        assert self._again(connection, session_id, 1).error_code == SESSION_ID_NOT_FOUND

    def test_sessions_are_bounded(self, connection: Connection, filled: str) -> None:
        """More than the cache holds: later fetches work, with or without a session."""
        opened = []
        for _ in range(1500):
            body = self._fetch(connection, filled, 0, 0)
            assert body.error_code == 0
            assert len(parse_fetched(bytes(body.responses[0].partitions[0].records))) == 3
            opened.append(body.session_id)
        assert 0 in opened
        for session_id in filter(None, opened):
            self._again(connection, session_id, -1)

    def test_all_partitions_make_progress_under_small_limits(
        self, connection: Connection, topic: str
    ) -> None:
        """Each answer has room for one partition; in turn, all of them get it."""
        connection.create_topic(topic, partitions=3)
        for partition in range(3):
            connection.produce(topic, encode([b"x" * 1000]), partition=partition)
        wanted = [{"partition": n, "fetch_offset": 0, "partition_max_bytes": 1500} for n in range(3)]
        fields = fetch_fields(topic, 0, max_bytes=1, session_epoch=0)
        body = connection.request(
            "fetch", 12, **fields | {"topics": [{"topic": topic, "partitions": wanted}]}
        )
        seen = set()
        for epoch in range(1, 8):
            seen |= {
                part.partition_index for one in body.responses for part in one.partitions if part.records
            }
            again = fetch_fields(topic, 0, max_bytes=1, session_id=body.session_id, session_epoch=epoch)
            body = connection.request("fetch", 12, **again | {"topics": []})
            assert body.error_code == 0
        assert seen == {0, 1, 2}


class TestWaiting:
    def test_a_waiting_fetch_is_answered_when_a_record_comes(
        self, target: RunningBroker, connection: Connection, topic: str
    ) -> None:
        connection.create_topic(topic)
        with Connection(target) as waiting:
            number = waiting.start("fetch", 12, **fetch_fields(topic, 0, max_wait=LONG_WAIT_MS))
            connection.produce(topic, encode([b"v"]))
            waiting.socket.settimeout(LONG_WAIT_MS / 2000)
            body = waiting.finish("fetch", 12, number)
        assert parse_fetched(bytes(body.responses[0].partitions[0].records))[0].values() == [b"v"]

    def test_it_waits_for_enough_bytes(
        self, target: RunningBroker, connection: Connection, topic: str
    ) -> None:
        connection.create_topic(topic)
        with Connection(target) as waiting:
            fields = fetch_fields(topic, 0, max_wait=LONG_WAIT_MS, min_bytes=3000)
            number = waiting.start("fetch", 12, **fields)
            for _ in range(4):
                connection.produce(topic, encode([b"x" * 1000]))
            body = waiting.finish("fetch", 12, number)
        assert len(bytes(body.responses[0].partitions[0].records)) >= 3000

    def test_it_returns_empty_when_nothing_comes(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        fetched = connection.fetch(topic, 0, max_wait=50)
        assert (fetched.error_code, fetched.records or b"") == (0, b"")

    def test_an_offset_out_of_range_in_one_partition_ends_the_wait(
        self, connection: Connection, topic: str
    ) -> None:
        connection.create_topic(topic, partitions=2)
        wanted = [{"partition": n, "fetch_offset": 7 * n, "partition_max_bytes": 1000} for n in range(2)]
        fields = fetch_fields(topic, 0, max_wait=LONG_WAIT_MS) | {
            "topics": [{"topic": topic, "partitions": wanted}]
        }
        connection.socket.settimeout(LONG_WAIT_MS / 2000)
        body = connection.request("fetch", 12, **fields)
        codes = {part.partition_index: part.error_code for part in body.responses[0].partitions}
        assert codes == {0: 0, 1: OFFSET_OUT_OF_RANGE}

    def test_deleting_the_topic_ends_the_wait(
        self, target: RunningBroker, connection: Connection, topic: str
    ) -> None:
        connection.create_topic(topic)
        with Connection(target) as waiting:
            number = waiting.start("fetch", 12, **fetch_fields(topic, 0, max_wait=3000))
            asked = [{"name": topic, "topic_id": None}]
            connection.request("delete_topics", 6, topics=asked, timeout=20_000)
            body = waiting.finish("fetch", 12, number)
        assert all(not part.records for one in body.responses for part in one.partitions)

    def test_many_waiting_fetches_are_all_answered(
        self, target: RunningBroker, connection: Connection, topic: str
    ) -> None:
        connection.create_topic(topic)
        waiting = [Connection(target) for _ in range(100)]
        try:
            fields = fetch_fields(topic, 0, max_wait=LONG_WAIT_MS)
            numbers = [one.start("fetch", 12, **fields) for one in waiting]
            connection.produce(topic, encode([b"v"]))
            for one, number in zip(waiting, numbers, strict=True):
                assert one.finish("fetch", 12, number).responses[0].partitions[0].records
        finally:
            for one in waiting:
                one.close()

    def test_failure_25_delayed_fetch_of_closed_connection_is_dropped(
        self, target: RunningBroker, connection: Connection, topic: str
    ) -> None:
        """The next connection most likely gets the same descriptor: it must get only its own answers."""
        connection.create_topic(topic)
        for offset in range(30):
            with Connection(target) as gone:
                gone.start("fetch", 12, **fetch_fields(topic, offset, max_wait=LONG_WAIT_MS))
                if offset % 2:
                    gone.reset()
            with Connection(target) as next_one:
                if offset % 3 == 0:
                    assert next_one.request("api_versions", 0).error_code == 0
                assert connection.produce(topic, encode([b"%d" % offset])).base_offset == offset
                number = next_one.start("metadata", 12, topics=[{"name": topic}])
                assert next_one.finish("metadata", 12, number).topics[0].error_code == 0
                next_one.socket.setblocking(False)
                with pytest.raises(BlockingIOError):
                    next_one.socket.recv(1)

    def test_failure_25_a_closed_waiter_does_not_take_the_answer_of_another(
        self, target: RunningBroker, connection: Connection, topic: str
    ) -> None:
        connection.create_topic(topic)
        for offset in range(20):
            with Connection(target) as gone:
                gone.start("fetch", 12, **fetch_fields(topic, offset, max_wait=LONG_WAIT_MS))
            with Connection(target) as waiting:
                number = waiting.start("fetch", 12, **fetch_fields(topic, offset, max_wait=LONG_WAIT_MS))
                connection.produce(topic, encode([b"%d" % offset]))
                body = waiting.finish("fetch", 12, number)
                records = bytes(body.responses[0].partitions[0].records)
                assert parse_fetched(records)[0].base_offset == offset


def test_reading_while_the_topic_is_deleted(
    target: RunningBroker, connection: Connection, topic: str
) -> None:
    """Large answers are on their way when the files go: each is whole, or the topic is unknown."""
    connection.create_topic(topic, configs={"max.message.bytes": "4000000"})
    for _ in range(5):
        connection.produce(topic, encode([b"x" * 3_000_000]))
    outcomes: list[int] = []
    started = threading.Barrier(5)

    def read() -> None:
        with Connection(target) as reader:
            started.wait()
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                fetched = reader.fetch(topic, 0)
                outcomes.append(int(fetched.error_code))
                if fetched.error_code:
                    return
                assert parse_fetched(bytes(fetched.records))[0].base_offset == 0

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    started.wait()
    asked = [{"name": topic, "topic_id": None}]
    assert connection.request("delete_topics", 6, topics=asked, timeout=20_000).responses[0].error_code == 0
    for reader in readers:
        reader.join()
    assert {code for code in outcomes if code} <= {UNKNOWN_TOPIC_OR_PARTITION, 6}
    assert sum(1 for code in outcomes if code) == 4


@pytest.mark.parametrize("replica_id", [0, 1, 101])
def test_replica_fetch_of_unreplicated_partition_is_rejected(
    connection: Connection, filled: str, replica_id: int
) -> None:
    fields = fetch_fields(filled, 0) | {"replica_id": replica_id}
    (topic,) = connection.request("fetch", 12, **fields).responses
    assert topic.partitions[0].error_code == NOT_LEADER_OR_FOLLOWER
    assert not topic.partitions[0].records


def test_a_leader_epoch_below_minus_one_is_none(connection: Connection, filled: str) -> None:
    assert connection.fetch(filled, 0, leader_epoch=-2).error_code == 0


def test_a_last_fetched_epoch_that_never_was(connection: Connection, filled: str) -> None:
    fields = fetch_fields(filled, 0)
    fields["topics"][0]["partitions"][0]["last_fetched_epoch"] = 9
    (topic,) = connection.request("fetch", 12, **fields).responses
    assert topic.partitions[0].error_code == OFFSET_OUT_OF_RANGE


def test_a_full_fetch_of_nothing_opens_a_session(connection: Connection, filled: str) -> None:
    fields = fetch_fields(filled, 0, session_epoch=0)
    opened = connection.request("fetch", 12, **(fields | {"topics": []}))
    assert (opened.error_code, opened.responses) == (0, ())
    fields |= {"session_id": opened.session_id, "session_epoch": 1}
    (topic,) = connection.request("fetch", 12, **fields).responses
    assert topic.partitions[0].high_watermark == 30
