"""Views on the wire: what is shown, what waits, what is refused."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from tests.brokers import Broker, RunningBroker, eventually
from tests.poisoned import POISONED, T0
from tests.wire.batches import Batch, Header, Record, encode, encode_records, parse_fetched
from tests.wire.connection import Connection, fetch_fields
from tidemill.protocol.compression import CompressionType, compress, decompress

INVALID_TOPIC_EXCEPTION = 17
LONG_WAIT_MS = 30_000
FILTER = "key starts with 'y'"


@pytest.fixture
def view(connection: Connection, topic: str) -> str:
    """A view of `topic` that shows the keys that begin with y."""
    connection.create_topic(topic)
    name = f"{topic}-view"
    connection.create_topic(name, configs={"tidemill.view.source": topic, "tidemill.view.filter": FILTER})
    return name


def batch(*keys: bytes, codec: int = 0, padding: bytes = b"") -> bytes:
    records = [Record(b"value of " + key + padding, key) for key in keys]
    if not codec:
        return encode(records)
    return encode(records, Header(attributes=codec), payload=compress(codec, encode_records(records)))


def shown(batches: list[Batch]) -> list[tuple[int, bytes | None]]:
    found = []
    for each in batches:
        if each.codec:
            each = replace(each, attributes=0, body=decompress(each.codec, each.body, 1_000_000))
        found += [(record.offset, record.key) for record in each.records()]
    return found


@pytest.mark.parametrize("codec", list(CompressionType), ids=lambda codec: codec.name.lower())
def test_a_batch_loses_what_the_filter_leaves_out(
    connection: Connection, topic: str, view: str, codec: CompressionType
) -> None:
    connection.produce(topic, batch(b"n0", b"y1", b"n2", b"y3", b"n4", codec=codec, padding=b"." * 1000))
    (only,) = connection.read(view, 0)
    assert shown([only]) == [(1, b"y1"), (3, b"y3")]
    assert (only.base_offset, only.last_offset) == (0, 4)
    assert only.codec == codec


def test_what_is_left_of_a_batch_is_not_compressed_where_that_saves_nothing(
    connection: Connection, topic: str, view: str
) -> None:
    connection.produce(topic, batch(b"n0", b"y1", b"n2", codec=CompressionType.GZIP))
    (only,) = connection.read(view, 0)
    assert shown([only]) == [(1, b"y1")]
    assert only.codec == CompressionType.NONE


def test_a_run_of_nothing_moves_the_reader_in_one_response(
    connection: Connection, topic: str, view: str
) -> None:
    for _ in range(50):
        connection.produce(topic, batch(*[b"n"] * 20))
    (empty,) = connection.read(view, 0)
    assert (empty.base_offset, empty.last_offset, empty.count) == (0, 999, 0)
    connection.produce(topic, batch(b"y"))
    (found,) = connection.read(view, 0)
    assert shown([found]) == [(1000, b"y")], "what is skipped before a shown record needs no batch"


def test_a_fetch_waits_until_a_record_is_shown(target: RunningBroker, topic: str, view: str) -> None:
    with Connection(target) as reading, Connection(target) as writing:
        fields = fetch_fields(view, 0, max_wait=LONG_WAIT_MS)
        correlation_id = reading.start("fetch", 12, **fields)
        for _ in range(20):
            assert writing.produce(topic, batch(b"n")).error_code == 0
        writing.produce(topic, batch(b"y"))
        response = reading.finish("fetch", 12, correlation_id)
        found = parse_fetched(bytes(response.responses[0].partitions[0].records))
        assert shown(found) == [(20, b"y")]


def test_a_fetch_that_finds_nothing_moves_on_when_its_time_is_over(
    connection: Connection, topic: str, view: str
) -> None:
    connection.produce(topic, batch(b"n", b"n"))
    fetched = connection.fetch(view, 0, max_wait=50)
    (empty,) = parse_fetched(bytes(fetched.records))
    assert empty.last_offset == 1
    at_end = connection.fetch(view, 2, max_wait=50)
    assert (at_end.error_code, bytes(at_end.records or b"")) == (0, b"")


def test_a_closed_connection_leaves_nothing_behind(
    target: RunningBroker, connection: Connection, topic: str, view: str
) -> None:
    with Connection(target) as reading:
        reading.start("fetch", 12, **fetch_fields(view, 0, max_wait=LONG_WAIT_MS))
    connection.produce(topic, batch(b"y"))
    assert shown(connection.read(view, 0)) == [(0, b"y")]


def test_views_and_topics_share_a_fetch(connection: Connection, topic: str, view: str) -> None:
    connection.produce(topic, batch(b"n0", b"y1"))
    fields = fetch_fields(view, 0)
    fields["topics"] = [
        {"topic": name, "partitions": fields["topics"][0]["partitions"]} for name in (topic, view)
    ]
    response = connection.request("fetch", 12, **fields)
    found = {
        each.topic: shown(parse_fetched(bytes(each.partitions[0].records))) for each in response.responses
    }
    assert found == {topic: [(0, b"n0"), (1, b"y1")], view: [(1, b"y1")]}


def test_a_session_keeps_a_view(connection: Connection, topic: str, view: str) -> None:
    connection.produce(topic, batch(b"y0", b"n1"))
    opened = connection.request("fetch", 12, **fetch_fields(view, 0, session_epoch=0))
    assert opened.session_id
    fields = fetch_fields(view, 2, session_id=opened.session_id, session_epoch=1)
    assert connection.request("fetch", 12, **fields).responses == ()
    connection.produce(topic, batch(b"n2", b"y3"))
    fields = {**fields, "session_epoch": 2, "topics": []}
    (answer,) = connection.request("fetch", 12, **fields).responses
    assert shown(parse_fetched(bytes(answer.partitions[0].records))) == [(3, b"y3")]


def test_offsets_and_times_are_the_sources(connection: Connection, topic: str, view: str) -> None:
    connection.produce(topic, encode([Record(b"v", b"n"), Record(b"v", b"y")], Header(base_timestamp_ms=T0)))
    connection.produce(topic, encode([Record(b"v", b"n")], Header(base_timestamp_ms=T0 + 1000)))
    for timestamp in (-1, -2, T0, T0 + 1000):
        source, seen = (connection.list_offset(name, timestamp) for name in (topic, view))
        assert (seen.error_code, seen.offset) == (0, source.offset)
    out = connection.fetch(view, 4)
    assert out.error_code == 1


def test_produce_to_a_view_is_refused_with_a_sentence(connection: Connection, topic: str, view: str) -> None:
    refused = connection.produce(view, batch(b"y"))
    assert refused.error_code == INVALID_TOPIC_EXCEPTION
    assert f"produce to '{topic}'" in refused.error_message
    assert connection.end_offset(topic) == 0


def test_delete_records_of_a_view_is_refused(connection: Connection, topic: str, view: str) -> None:
    connection.produce(topic, batch(b"y"))
    wanted = [{"name": view, "partitions": [{"partition_index": 0, "offset": 1}]}]
    response = connection.request("delete_records", 2, topics=wanted, timeout=5000)
    assert response.topics[0].partitions[0].error_code == INVALID_TOPIC_EXCEPTION
    assert connection.list_offset(topic, -2).offset == 0


def test_a_view_follows_the_growth_of_its_source(connection: Connection, topic: str, view: str) -> None:
    grown = [{"name": topic, "count": 3, "assignments": None}]
    response = connection.request("create_partitions", 3, topics=grown, timeout=5000)
    assert response.results[0].error_code == 0
    eventually(lambda: len(connection.metadata(view).partitions) == 3, "three partitions")
    eventually(lambda: connection.list_offset(topic, -1, 2).error_code == 0, "a leader")
    connection.produce(topic, batch(b"n", b"y"), partition=2)
    assert shown(connection.read(view, 0, partition=2)) == [(1, b"y")]


def test_a_new_filter_holds_from_then_on(connection: Connection, topic: str, view: str) -> None:
    connection.produce(topic, batch(b"y0", b"n1"))
    assert shown(connection.read(view, 0)) == [(0, b"y0")]
    change = {"name": "tidemill.view.filter", "config_operation": 0, "value": "key = 'n1'"}
    resources = [{"resource_type": 2, "resource_name": view, "configs": [change]}]
    response = connection.request("incremental_alter_configs", 1, resources=resources)
    assert response.responses[0].error_code == 0
    eventually(lambda: shown(connection.read(view, 0)) == [(1, b"n1")], "the new filter")


def test_a_deleted_view_is_unknown_and_its_source_stays(
    connection: Connection, topic: str, view: str
) -> None:
    connection.produce(topic, batch(b"y"))
    response = connection.request("delete_topics", 6, topics=[{"name": view}], timeout=5000)
    assert response.responses[0].error_code == 0
    eventually(lambda: connection.fetch(view, 0).error_code == 3, "the view is gone")
    assert shown(connection.read(topic, 0)) == [(0, b"y")]


def test_poisoned_batches_are_not_shown_and_harm_nothing(
    connection: Connection, topic: str, view: str
) -> None:
    connection.produce(topic, batch(b"y"))
    for poison in POISONED.values():
        assert connection.produce(topic, poison).error_code == 0
    connection.produce(topic, batch(b"y"))
    found = shown(connection.read(view, 0))
    assert [key for _, key in found if key == b"y"] == [b"y", b"y"]
    assert connection.produce(topic, batch(b"n")).error_code == 0


def test_failure_34_a_view_at_rest_is_fetched_once_for_each_wait(
    target: RunningBroker, topic: str, view: str
) -> None:
    """A selective view of a busy source: its consumer gets an answer when something is shown, or when its time is over."""
    is_over = threading.Event()

    def write() -> None:
        with Connection(target) as writing:
            while not is_over.is_set():
                writing.produce(topic, batch(b"n", b"n"))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with Connection(target) as reading:
            offset = responses = 0
            end_s = time.monotonic() + 2
            while time.monotonic() < end_s:
                fetched = reading.fetch(view, offset, max_wait=500)
                responses += 1
                for each in parse_fetched(bytes(fetched.records or b"")):
                    offset = each.last_offset + 1
            assert offset > 0
            # The last one may begin just before the end.
            assert responses <= 5
    finally:
        is_over.set()
        writer.join()


def test_a_selective_view_over_indexed_segments_shows_exactly_what_matches(
    broker: Broker, connection: Connection, topic: str
) -> None:
    connection.create_topic(topic, configs={"segment.bytes": str(1 << 20)})
    view = f"{topic}-view"
    where = {"tidemill.view.source": topic, "tidemill.view.filter": "key = 'y'"}
    connection.create_topic(view, configs=where)
    value = bytes(32 * 1024)
    expected = []
    for number in range(140):
        key = b"y" if number in (40, 41, 75, 130) else b"n"
        offset = connection.produce(topic, encode([Record(value, key), Record(value, b"n")])).base_offset
        expected += [(offset, key)] if key == b"y" else []
    folder = broker.data_dir / f"{topic}-0"

    def is_indexed() -> bool:
        sealed = sorted(folder.glob("*.log"))[:-1]
        return len(sealed) > 3 and all(path.with_suffix(".tagindex").exists() for path in sealed)

    eventually(is_indexed, "an index for each sealed segment")
    found, offset = [], 0
    while offset < connection.end_offset(topic):
        batches = connection.read(view, offset)
        found += shown(batches)
        offset = batches[-1].last_offset + 1
    assert found == expected
    assert not list(folder.glob("*.tmp"))
