"""A topic as a table: archive, segments and live tail in one read, against the list of what was written.

Tasks are run here, without a session, except in the last test: what Spark adds is tested with the source.
"""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import Broker, eventually
from tests.cluster import clusters
from tests.spark.topics import QUICK_CHECKPOINTS, SMALL_SEGMENTS, FilledTopic, Row
from tidemill.client.admin.topics import Admin
from tidemill.client.admin.views import ViewAdmin
from tidemill.client.cluster import Cluster
from tidemill.client.producing.producer import Producer
from tidemill.errors import StorageError
from tidemill.log.datadir import parse_checkpoint
from tidemill.protocol.records import Header
from tidemill.spark.pipelines.archive import write_share
from tidemill.spark.source.archive import Archive, ArchiveWork
from tidemill.spark.source.options import COLUMNS, Query, SourceOptions
from tidemill.spark.source.readers import BatchReader, StreamReader
from tidemill.spark.source.segments import SegmentWork
from tidemill.spark.source.work import BrokerWork, DataLost, Work
from tidemill.spark.versions import ReadAllAvailable
from tidemill.types import TopicPartition, uuid_text


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks end between two Arrow batches."""
    monkeypatch.setattr("tidemill.spark.source.work.ARROW_BYTES", 1000)


@pytest.fixture
def quick(start: Callable[..., Broker]) -> Broker:
    return start(QUICK_CHECKPOINTS)


@pytest.fixture
def cluster(quick: Broker) -> Iterator[Cluster]:
    with Cluster(quick.bootstrap) as cluster:
        yield cluster


def planned(topic: FilledTopic, **options: str) -> list[Work]:
    reader = BatchReader(SourceOptions.parse(options_of(topic, **options), Query.BATCH))
    works = list(reader.partitions())
    assert all(isinstance(each, Work) for each in works)
    return works  # type: ignore[return-value]


def options_of(topic: FilledTopic, **options: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": topic.bootstrap,
        "subscribe": topic.name,
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        **options,
    }


def rows_of(works: Iterable[Work]) -> list[Row]:
    found = []
    for work in works:
        last = work.start_offset - 1
        for batch in work.read(COLUMNS):
            for row in batch.to_pylist():
                assert last < row["offset"] < work.end_offset
                last = row["offset"]
                found.append(row_of(row))
    return sorted(found)


def row_of(row: dict[str, Any]) -> Row:
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    timestamp_ms = round(row["timestamp"].timestamp() * 1000)
    return Row(row["partition"], row["offset"], row["key"], row["value"], timestamp_ms, headers)


def archive_up_to_now(
    topic: FilledTopic, root: Path, cluster: Cluster, *, chunk_bytes: int = 3000
) -> Archive:
    """Archives as a round of the pipeline does, without Spark."""
    archive = Archive(str(root))
    topic_id = uuid_text(cluster.topic(topic.name).topic_id)
    works = planned(topic, **({"archive": str(root)} if archive.topics() else {}))
    for work in works:
        if isinstance(work, ArchiveWork):
            continue
        manifest = archive.claim(work.partition, topic_id, "test")
        archive.commit(manifest, list(write_share(archive, [work], chunk_bytes, 1 << 40)))
    return archive


def delete_before(cluster: Cluster, archive: Archive, topic: FilledTopic) -> None:
    manifests = [archive.manifest(each) for each in archive.partitions(topic.name)]
    Admin(cluster).delete_records({m.partition: m.end_offset for m in manifests if m is not None})


def await_sealed_synced(data_dir: Path, topic: FilledTopic) -> None:
    """Waits until the broker's checkpoint covers all its sealed segments."""

    def is_synced() -> bool:
        path = data_dir / "recovery-point-offset-checkpoint"
        points = parse_checkpoint(str(path), path.read_bytes()) if path.exists() else {}
        for index in range(topic.partition_count):
            partition = TopicPartition(topic.name, index)
            bases = sorted(int(each.stem) for each in (data_dir / str(partition)).glob("*.log"))
            if points.get(partition, -1) < bases[-1]:
                return False
        return True

    eventually(is_synced, "sealed segments are synced")


def assert_no_gap(works: Iterable[Work]) -> None:
    ends: dict[TopicPartition, int] = {}
    for work in works:
        assert work.start_offset == ends.get(work.partition, work.start_offset)
        ends[work.partition] = work.end_offset


def test_archive_then_segments_then_the_live_tail(
    quick: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Records are deleted from the log as soon as they are archived; transactions end either way in each of the three."""
    filled = FilledTopic(quick.bootstrap, topic, configs=SMALL_SEGMENTS)
    root = tmp_path / "archive"

    def fill() -> None:
        filled.write(120)
        filled.write_transaction(30, is_commit=False)
        filled.write_transaction(30, is_commit=True)
        filled.write(60, settings={"compression.type": "lz4"})

    fill()
    archive = archive_up_to_now(filled, root, cluster)
    delete_before(cluster, archive, filled)
    fill()
    archive = archive_up_to_now(filled, root, cluster)
    fill()
    await_sealed_synced(quick.data_dir, filled)
    options = {"archive": str(root), "scan": "segments", "segmentsPath": str(quick.data_dir)}
    works = planned(filled, **options)
    assert {type(each) for each in works} == {ArchiveWork, SegmentWork, BrokerWork}
    assert_no_gap(works)
    assert rows_of(works) == filled.rows()
    # Where the brokers say that their files are is here.
    del options["segmentsPath"]
    assert rows_of(planned(filled, **options)) == filled.rows()
    archived_ends = {tp: archive.manifest(tp).end_offset for tp in archive.partitions(topic)}  # type: ignore[union-attr]
    some = {topic: {"0": 33, "1": archived_ends[TopicPartition(topic, 1)] - 1}}
    last = {
        topic: {
            "0": archived_ends[TopicPartition(topic, 0)] + 50,
            "1": archived_ends[TopicPartition(topic, 1)],
        }
    }
    ranged = planned(
        filled,
        **options,
        startingOffsets=str(some).replace("'", '"'),
        endingOffsets=str(last).replace("'", '"'),
    )
    assert rows_of(ranged) == [
        row for row in filled.rows()
        if some[topic][str(row.partition)] <= row.offset < last[topic][str(row.partition)]
    ]  # fmt: skip


def test_a_gap_between_archive_and_log_is_named(
    quick: Broker, cluster: Cluster, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled = FilledTopic(quick.bootstrap, topic, partition_count=1)
    filled.write(50)
    archive_up_to_now(filled, tmp_path, cluster)
    filled.write(50)
    Admin(cluster).delete_records({TopicPartition(topic, 0): 70})
    with pytest.raises(DataLost, match=rf"{topic}-0: offsets 50 to 69 are neither in the archive"):
        planned(filled, archive=str(tmp_path))
    found = rows_of(planned(filled, archive=str(tmp_path), failOnDataLoss="false"))
    assert [row.offset for row in found] == [*range(50), *range(70, 100)]
    assert "offsets 50 to 69" in caplog.text


def test_timestamps_are_looked_for_in_the_archive_first(
    quick: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Timestamps cross midnight back and forth: some chunks have files of two dates."""
    filled = FilledTopic(quick.bootstrap, topic, partition_count=1)
    midnight = 1_700_006_400_000
    rng = random.Random(3)
    times = [midnight + step * 1000 + rng.randrange(-40_000, 40_000) for step in range(-100, 100)]
    filled.write(100, timestamps_ms=times[:100])
    archive = archive_up_to_now(filled, tmp_path, cluster)
    delete_before(cluster, archive, filled)
    filled.write(100, timestamps_ms=times[100:])
    manifest = archive.manifest(TopicPartition(topic, 0))
    assert manifest is not None
    assert {len(chunk.files) for chunk in manifest.chunks} == {1, 2}
    assert rows_of(planned(filled, archive=str(tmp_path))) == filled.rows()
    for first, last in ((40, 150), (10, 60), (120, 160)):
        found = rows_of(
            planned(filled, archive=str(tmp_path), startingTimestamp=str(times[first]), endingTimestamp=str(times[last]))
        )  # fmt: skip
        start = next(n for n, time in enumerate(times) if time >= times[first])
        end = next(n for n, time in enumerate(times) if time >= times[last])
        assert [row.offset for row in found] == list(range(start, end))


def test_a_compacted_topic_is_read_while_it_is_cleaned(
    start: Callable[..., Broker], topic: str, tmp_path: Path
) -> None:
    quick = start({**QUICK_CHECKPOINTS, "log.cleaner.backoff.ms": "50"})
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", **SMALL_SEGMENTS}
    filled = FilledTopic(quick.bootstrap, topic, partition_count=1, configs=compacted)
    with Cluster(quick.bootstrap) as cluster:
        for _ in range(6):
            filled.write(150)
            await_sealed_synced(quick.data_dir, filled)
            works = planned(filled, scan="segments", segmentsPath=str(quick.data_dir))
            assert any(isinstance(each, SegmentWork) for each in works)
            found = rows_of(works)
            # Any of the records, in order, but the last of every key among them.
            assert set(found) <= set(filled.rows())
            latest = {row.key: row for row in filled.rows()}
            assert {row for row in latest.values() if row.value is not None} <= set(found)
        eventually(lambda: len(rows_of(planned(filled))) < 500, "the topic is cleaned")
        archive = archive_up_to_now(filled, tmp_path, cluster)
        manifest = archive.manifest(TopicPartition(topic, 0))
        assert manifest is not None
        assert (manifest.first_offset, manifest.end_offset) == (0, 900)
        found = rows_of(planned(filled, archive=str(tmp_path)))
        assert set(found) <= set(filled.rows())
        assert {row for row in latest.values() if row.value is not None} <= set(found)


def test_segments_that_vanish_after_planning_come_from_the_broker(
    quick: Broker, cluster: Cluster, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled = FilledTopic(quick.bootstrap, topic, configs=SMALL_SEGMENTS)
    filled.write(300)
    await_sealed_synced(quick.data_dir, filled)
    copy = tmp_path / "copy"
    shutil.copytree(quick.data_dir, copy, ignore=shutil.ignore_patterns("*.tmp", ".lock"))
    works = planned(filled, scan="segments", segmentsPath=str(copy))
    logs = sorted((copy / f"{topic}-0").glob("*.log"))
    logs[1].unlink()
    logs[2].write_bytes(logs[2].read_bytes()[:-5])
    assert rows_of(works) == filled.rows()
    assert "the broker is asked from offset" in caplog.text
    for work in works:
        if isinstance(work, SegmentWork):
            work.fallback = None
    with pytest.raises(StorageError, match=rf"{topic}-0: .*there is no broker to ask"):
        rows_of(works)


def test_without_a_broker_sealed_segments_and_the_archive_are_read(
    quick: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    filled = FilledTopic(quick.bootstrap, topic, partition_count=1, configs=SMALL_SEGMENTS)
    filled.write(100)
    archive = archive_up_to_now(filled, tmp_path / "archive", cluster)
    delete_before(cluster, archive, filled)
    filled.write(150)
    filled.write_transaction(10, is_commit=False)
    filled.write(150)
    await_sealed_synced(quick.data_dir, filled)
    quick.kill()
    active = max(int(each.stem) for each in (quick.data_dir / f"{topic}-0").glob("*.log"))
    offline = {"scan": "segments", "segmentsPath": str(quick.data_dir), "archive": str(tmp_path / "archive")}
    options = {key: value for key, value in options_of(filled, **offline).items() if "bootstrap" not in key}
    reader = BatchReader(SourceOptions.parse(options, Query.BATCH))
    found = rows_of(each for each in reader.partitions() if isinstance(each, Work))
    assert found == [row for row in filled.rows() if row.offset < active]
    assert len(found) > 200


def test_what_an_old_leader_wrote_alone_is_not_read(topic: str, tmp_path: Path) -> None:
    """Its disk holds sealed segments of records that no other replica has, below the offsets that are committed by now."""
    with clusters.Cluster(3, tmp_path, settings=QUICK_CHECKPOINTS | clusters.QUICK_FENCING) as nodes:
        filled = FilledTopic(nodes.bootstrap, topic, partition_count=1, configs=SMALL_SEGMENTS)
        nodes.await_in_sync(topic, 1)
        filled.write(200)
        old = nodes.nodes[nodes.leader_of(topic)]
        others = nodes.others(old.id)
        for each in others:
            nodes.pause(each.id)
        lonely = copy.copy(filled)
        lonely.bootstrap, lonely.committed = old.bootstrap, []
        lonely.write(150, settings={"acks": "1"})
        await_sealed_synced(old.data_dir, lonely)
        nodes.kill(old.id)
        for each in others:
            nodes.resume(each.id)
        nodes.await_other_leader(topic, 0, old.id)
        filled.bootstrap = ",".join(each.bootstrap for each in others)
        known = len(filled.committed)
        filled.write(400)
        # A paused follower may have had an answer in its socket: what was in that, the new leader has.
        parted_at = min(row.offset for row in filled.committed[known:])
        assert parted_at < 350
        filled.committed += [row for row in lonely.committed if row.offset < parted_at]
        works = planned(filled, scan="segments", segmentsPath=str(old.data_dir))
        assert max(each.end_offset for each in works if isinstance(each, SegmentWork)) == parted_at
        assert rows_of(works) == filled.rows()
        for each in others:
            await_sealed_synced(each.data_dir, filled)
        everywhere = ",".join(str(each.data_dir) for each in nodes.brokers)
        works = planned(filled, scan="segments", segmentsPath=everywhere)
        assert max(each.end_offset for each in works if isinstance(each, SegmentWork)) > 400
        assert rows_of(works) == filled.rows()


def streamed(topic: FilledTopic) -> list[Row]:
    """Returns the rows that a stream from the beginning reads up to now."""
    told = {**options_of(topic), "startingOffsets": "earliest"}
    reader = StreamReader(SourceOptions.parse(told, Query.STREAM))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    works = [each for each in reader.partitions(start, end) if isinstance(each, Work)]
    reader.stop()
    return rows_of(works)


def check_every_way_reads(
    topic: FilledTopic, expected: list[Row], data_dir: Path, root: Path, cluster: Cluster
) -> None:
    segments = {"scan": "segments", "segmentsPath": str(data_dir)}
    works = planned(topic, **segments)
    assert works
    assert all(isinstance(each, BrokerWork) for each in works), "files hold what readers are not shown"
    assert rows_of(works) == expected
    assert rows_of(planned(topic)) == expected
    assert streamed(topic) == expected
    archive_up_to_now(topic, root, cluster)
    works = planned(topic, archive=str(root), **segments)
    assert any(isinstance(each, ArchiveWork) for each in works)
    assert rows_of(works) == expected


def test_delayed_records_that_wait_are_read_by_no_way(
    quick: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    configs = {"tidemill.delays.enable": "true", **SMALL_SEGMENTS}
    filled = FilledTopic(quick.bootstrap, topic, partition_count=1, configs=configs)
    producer = Producer(cluster)
    for _ in range(3):
        filled.write(100)
        for _ in range(50):
            producer.add(topic, b"waits", partition=0, headers=[Header("tidemill-delay", b"1d")])
        producer.flush()
    filled.write(100)
    await_sealed_synced(quick.data_dir, filled)
    check_every_way_reads(filled, filled.rows(), quick.data_dir, tmp_path, cluster)


def test_a_view_is_read_like_a_topic(quick: Broker, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    filled = FilledTopic(quick.bootstrap, topic, partition_count=1, configs=SMALL_SEGMENTS)
    filled.write(300)
    await_sealed_synced(quick.data_dir, filled)
    key = next(row.key for row in filled.rows() if row.key is not None).decode()
    view = copy.copy(filled)
    view.name = f"{topic}-view"
    ViewAdmin(Admin(cluster)).create(view.name, topic, f"key = '{key}'")
    expected = [row for row in filled.rows() if row.key == key.encode()]
    assert 0 < len(expected) < 300
    check_every_way_reads(view, expected, quick.data_dir, tmp_path, cluster)
