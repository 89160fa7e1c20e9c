"""The pipelines `archive` and `replay`: kill -9 at random points, and once through with a real session."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from tests.brokers import RunningBroker, command, eventually
from tests.spark.archive_process import InProcess, parse
from tests.spark.test_table import options_of, planned, row_of, rows_of
from tests.spark.topics import SMALL_SEGMENTS, FilledTopic, Row
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.spark.pipelines import PipelineError, Progress, Status, Summary, archive, replay
from tidemill.spark.source.archive import Archive, ArchiveTaken, ArchiveWork
from tidemill.spark.source.work import DataLost
from tidemill.types import TopicPartition

KILLS = int(os.environ.get("TIDEMILL_ARCHIVE_KILLS", "6"))
DRIVER_KILLS = int(os.environ.get("TIDEMILL_ARCHIVE_DRIVER_KILLS", "0"))
# Of the files that a run opens or renames, the last at which it is killed.
STEPS = 60
REPO = Path(__file__).parents[2]
# Many files and commits, so that a kill meets something.
TINY = ("--chunk-bytes", "3000", "--round-bytes", "6000")


def run_here(pipeline: Any, bootstrap: str, *words: str) -> tuple[Summary, list[str]]:
    notes: list[str] = []
    summary = pipeline.run(
        cast(Any, InProcess()), parse(pipeline, bootstrap, *words), Progress(note=notes.append)
    )
    return summary, notes


def archived_rows(root: Path, topic: FilledTopic) -> list[Row]:
    """Returns the rows of the archive, by its manifests alone."""
    opened = Archive(str(root))
    works = []
    for partition in opened.partitions(topic.name):
        manifest = opened.manifest(partition)
        assert manifest is not None
        if manifest.chunks:
            works.append(ArchiveWork(partition, 0, manifest.end_offset, str(root), manifest.chunks))
    return rows_of(works)


def covered(root: Path, topic: FilledTopic) -> list[Row]:
    """Returns the records below the offsets at which the manifests end."""
    opened = Archive(str(root))
    manifests = [opened.manifest(partition) for partition in opened.partitions(topic.name)]
    ends = {m.partition.partition: m.end_offset for m in manifests if m is not None}
    return [row for row in topic.rows() if row.offset < ends.get(row.partition, -1)]


def files_of(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*.parquet")}


def named_files(root: Path, topic: str) -> set[str]:
    opened = Archive(str(root))
    manifests = [opened.manifest(partition) for partition in opened.partitions(topic)]
    return {file.path for m in manifests if m is not None for chunk in m.chunks for file in chunk.files}


class Killed:
    """Archivers that are killed at random points."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._rng = random.Random(os.environ.get("TIDEMILL_ARCHIVE_SEED", "1"))

    def run(self, *words: str) -> bool:
        """Whether it came to the point before it was done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        point = (self._rng.randrange(1, STEPS), self._rng.choice([0.0, self._rng.random() / 50]))
        print(json.dumps([*point, *words]), file=self._process.stdin, flush=True)
        ended = int(self._process.stdout.readline())
        assert ended in (0, -signal.SIGKILL)
        return ended != 0


@pytest.fixture
def killed() -> Iterator[Killed]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.spark.archive_process"],
        cwd=REPO,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Killed(process)
        process.kill()


def test_an_archiver_that_is_killed_leaves_no_gap_and_no_duplicate(
    target: RunningBroker, topic: str, tmp_path: Path, killed: Killed
) -> None:
    root = tmp_path / "archive"
    filled = FilledTopic(target.bootstrap, topic, configs=SMALL_SEGMENTS)
    words = [target.bootstrap, "--topic", topic, "--archive", str(root), *TINY]
    ends = []
    kills = 0
    for round_number in range(KILLS):
        filled.write(300)
        filled.write_transaction(30, is_commit=round_number % 2 == 0)
        kills += killed.run(*words)
        if root.exists():
            found = archived_rows(root, filled)
            ends.append(len(found))
            assert found == covered(root, filled)
    assert kills >= KILLS // 2
    assert len(set(ends)) > 1, f"kills never met a run between two commits: {ends}"
    leftovers = files_of(root) - named_files(root, topic)
    (root / f"topic={topic}" / "date=2026-01-01").mkdir(parents=True)
    junk = root / f"topic={topic}" / "date=2026-01-01" / "0-5-9-junk.parquet"
    junk.write_bytes(b"not Parquet")
    assert archived_rows(root, filled) == covered(root, filled)
    summary, _ = run_here(archive, *words)
    assert dict(summary.fields)["leftover files removed"] == len(leftovers) + 1
    assert files_of(root) == named_files(root, topic)
    assert archived_rows(root, filled) == filled.rows()
    again, _ = run_here(archive, *words)
    assert dict(again.fields)["records archived"] == 0


@pytest.mark.skipif(
    not DRIVER_KILLS, reason="TIDEMILL_ARCHIVE_DRIVER_KILLS says how often; a session takes long to start"
)
def test_a_driver_that_is_killed_leaves_no_gap_and_no_duplicate(
    target: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """The same with the command and a real session, killed at some time after its first file."""
    root = tmp_path / "archive"
    filled = FilledTopic(target.bootstrap, topic)
    words = [*command(), "pipeline", "run", "archive", "--topic", topic, "--archive", str(root)]
    words += ["--bootstrap", target.bootstrap, "--master", "local[2]", *TINY]
    rng = random.Random(os.environ.get("TIDEMILL_ARCHIVE_SEED", "1"))
    for _ in range(DRIVER_KILLS):
        filled.write(300)
        before = files_of(root)
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:

            def has_begun(before: set[str] = before, driver: subprocess.Popen[bytes] = driver) -> bool:
                return files_of(root) != before or driver.poll() is not None

            eventually(has_begun, "the driver writes a file", 300)
            time.sleep(rng.random() * 2)  # not to wait for anything: it is killed at a random moment
            driver.kill()
        assert archived_rows(root, filled) == covered(root, filled)
    run_here(archive, target.bootstrap, "--topic", topic, "--archive", str(root))
    assert archived_rows(root, filled) == filled.rows()


@pytest.mark.parametrize("is_commit", [True, False])
def test_records_behind_an_open_transaction_wait_for_its_end(
    target: RunningBroker, topic: str, tmp_path: Path, is_commit: bool
) -> None:
    filled = FilledTopic(target.bootstrap, topic)
    words = ("--topic", topic, "--archive", str(tmp_path))
    filled.write(50)
    with filled.transaction(20, is_commit=is_commit):
        before = filled.rows()
        filled.write(50)
        run_here(archive, target.bootstrap, *words)
        assert archived_rows(tmp_path, filled) == before == covered(tmp_path, filled)
    run_here(archive, target.bootstrap, *words)
    assert archived_rows(tmp_path, filled) == filled.rows()


def test_it_goes_on_until_it_is_interrupted(target: RunningBroker, topic: str, tmp_path: Path) -> None:
    filled = FilledTopic(target.bootstrap, topic)
    filled.write(50)
    looks: list[int] = []

    def display(status: Status) -> None:
        """More is written while it waits; the third wait is interrupted."""
        if "next in" in status.phase and (not looks or status.rows != looks[-1]):
            looks.append(status.rows or 0)
            if len(looks) == 3:
                raise KeyboardInterrupt
            filled.write(20)

    words = ("--topic", topic, "--archive", str(tmp_path), "--follow", "--interval", "0.05s")
    report = Progress(display)
    summary = archive.run(cast(Any, InProcess()), parse(archive, target.bootstrap, *words), report)
    assert report.is_interrupted
    assert looks == [50, 70, 90]
    assert dict(summary.fields)["records archived"] == 90
    assert archived_rows(tmp_path, filled) == filled.rows()


def test_of_two_archivers_the_first_says_that_it_was_taken_over(
    target: RunningBroker, topic: str, tmp_path: Path
) -> None:
    filled = FilledTopic(target.bootstrap, topic)
    filled.write(100)
    words = ("--topic", topic, "--archive", str(tmp_path), *TINY)
    second_ran = False

    class Overtaken(InProcess):
        """The second archiver does all its work while the first one's tasks run."""

        def parallelize(self, numbers: Any, count: int) -> Any:
            nonlocal second_ran
            mapped = super().parallelize(numbers, count)
            first_collect = mapped.collect

            def collect() -> list[Any]:
                nonlocal second_ran
                results = first_collect()
                if not second_ran:
                    second_ran = True
                    run_here(archive, target.bootstrap, *words)
                return results

            mapped.collect = collect  # type: ignore[method-assign]
            return mapped

    with pytest.raises(
        ArchiveTaken, match=rf"{topic}-0: its manifest .* was taken over by archiver .*; this archiver"
    ):
        archive.run(cast(Any, Overtaken()), parse(archive, target.bootstrap, *words), Progress())
    assert archived_rows(tmp_path, filled) == filled.rows()
    assert files_of(tmp_path) == named_files(tmp_path, topic)


def test_old_archived_records_are_deleted_and_the_table_stays_whole(
    target: RunningBroker, topic: str, tmp_path: Path
) -> None:
    filled = FilledTopic(target.bootstrap, topic)
    hour_ms = 3_600_000
    wall_ms = int(time.time() * 1000)
    old = [wall_ms - 30 * hour_ms + n for n in range(200)]
    filled.write(200, timestamps_ms=old)
    filled.write(100, timestamps_ms=[wall_ms - hour_ms] * 100)
    words = ("--topic", topic, "--archive", str(tmp_path), *TINY)
    summary, notes = run_here(archive, target.bootstrap, *words, "--delete-archived-after", "24h")
    assert any("retention.ms" in note for note in notes)
    with Cluster(target.bootstrap) as cluster:
        partitions = cluster.partitions_of(topic)
        starts = Admin(cluster).start_offsets(partitions)
        assert 0 < sum(starts.values()) <= 200
        assert dict(summary.fields)["offsets deleted from topics"] == sum(starts.values())
        filled.write(50)
        lags = {each: end - GroupAdmin(cluster).committed("archive-" + tmp_path.name)[each]
                for each, end in Admin(cluster).end_offsets(partitions).items()}  # fmt: skip
        assert sum(lags.values()) == 50
    assert rows_of(planned(filled, archive=str(tmp_path))) == filled.rows()


def test_offsets_that_retention_took_first_are_named_or_marked_as_lost(
    target: RunningBroker, topic: str, tmp_path: Path
) -> None:
    filled = FilledTopic(target.bootstrap, topic, partition_count=1)
    words = ("--topic", topic, "--archive", str(tmp_path))
    filled.write(30)
    run_here(archive, target.bootstrap, *words)
    filled.write(30)
    with Cluster(target.bootstrap) as cluster:
        Admin(cluster).delete_records({TopicPartition(topic, 0): 45})
    with pytest.raises(
        PipelineError, match=rf"{topic}-0: offsets 30 to 44 were deleted before they were archived"
    ):
        run_here(archive, target.bootstrap, *words)
    run_here(archive, target.bootstrap, *words, "--skip-lost")
    with pytest.raises(
        DataLost, match=rf"{topic}-0: offsets 30 to 44 were deleted before they were archived"
    ):
        planned(filled, archive=str(tmp_path))
    found = rows_of(planned(filled, archive=str(tmp_path), failOnDataLoss="false"))
    assert [row.offset for row in found] == [*range(30), *range(45, 60)]


def replayed(bootstrap: str, topic: str) -> list[Row]:
    copied = FilledTopic.__new__(FilledTopic)
    copied.bootstrap, copied.name = bootstrap, topic
    return rows_of(planned(copied))


def without_offset(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(row.partition, *row[2:]) for row in rows]


def test_a_replay_goes_on_where_it_was_stopped_and_never_repeats(
    target: RunningBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.spark.source.archive._READ_BYTES", 300)
    monkeypatch.setattr("tidemill.spark.pipelines.replay.TRANSACTION_BYTES", 700)
    filled = FilledTopic(target.bootstrap, topic)
    filled.write(300)
    run_here(archive, target.bootstrap, "--topic", topic, "--archive", str(tmp_path), *TINY)
    words = ("--archive", str(tmp_path), "--topic", topic, "--to-topic", f"{topic}-again")
    from tidemill.spark.arrow import encode

    real, calls = encode.encode, 0

    def failing(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (9, 20, 31):
            raise RuntimeError("the task dies")
        return real(*arguments, **named)

    monkeypatch.setattr(encode, "encode", failing)
    counts = []
    for _ in range(3):
        with pytest.raises(RuntimeError, match="the task dies"):
            run_here(replay, target.bootstrap, *words)
        counts.append(len(replayed(target.bootstrap, f"{topic}-again")))
    assert 0 < counts[0] < counts[1] < counts[2] < 300
    run_here(replay, target.bootstrap, *words)
    assert without_offset(replayed(target.bootstrap, f"{topic}-again")) == without_offset(filled.rows())
    again, notes = run_here(replay, target.bootstrap, *words)
    assert dict(again.fields)["records replayed"] == 0
    assert any("another --name" in note for note in notes)


def test_a_replay_of_a_time_range_by_key(target: RunningBroker, topic: str, tmp_path: Path) -> None:
    filled = FilledTopic(target.bootstrap, topic)
    filled.write(200)
    run_here(archive, target.bootstrap, "--topic", topic, "--archive", str(tmp_path), *TINY)
    other = FilledTopic(target.bootstrap, f"{topic}-3", partition_count=3)
    times = sorted(row.timestamp_ms for row in filled.rows())
    words = ("--archive", str(tmp_path), "--topic", topic, "--to-topic", other.name)
    _, notes = run_here(
        replay, target.bootstrap, *words, "--from-time", str(times[50]), "--to-time", str(times[150])
    )
    assert any("has 3 partitions and 2 were archived" in note for note in notes)
    found = replayed(target.bootstrap, other.name)
    chosen = [row for row in filled.rows() if times[50] <= row.timestamp_ms < times[150]]
    assert {row[2:] for row in found} == {row[2:] for row in chosen}
    assert len(found) == len(chosen) == 100
    # Every key is in one partition, in the order it had in each partition it came from.
    for key in {row.key for row in chosen if row.key}:
        assert len({row.partition for row in found if row.key == key}) == 1
        for partition in (0, 1):
            before = [row.timestamp_ms for row in chosen if row.key == key and row.partition == partition]
            after = [row.timestamp_ms for row in found if row.key == key and row.timestamp_ms in before]
            assert after == before


def test_with_a_real_session(spark: SparkSession, target: RunningBroker, topic: str, tmp_path: Path) -> None:
    """Archive, read the archive and what came after it as one table, and replay it."""
    filled = FilledTopic(target.bootstrap, topic)
    filled.write(500)
    filled.write_transaction(50, is_commit=False)
    filled.write_transaction(50, is_commit=True)
    options = parse(
        archive, target.bootstrap, "--topic", topic, "--archive", str(tmp_path), "--chunk-bytes", "3000"
    )
    summary = archive.run(spark, options, Progress())
    assert dict(summary.fields)["records archived"] == 550
    filled.write(100)
    read = spark.read.format("tidemill").options(**options_of(filled, archive=str(tmp_path))).load()
    assert sorted(row_of(row.asDict(recursive=True)) for row in read.collect()) == filled.rows()
    # Anybody's Parquet reader finds the same records in the folder.
    assert spark.read.parquet(str(tmp_path)).count() == 550
    words = ("--archive", str(tmp_path), "--topic", topic, "--to-topic", f"{topic}-again")
    summary = replay.run(spark, parse(replay, target.bootstrap, *words), Progress())
    assert dict(summary.fields)["records replayed"] == 550
    expected = covered(tmp_path, filled)
    assert without_offset(replayed(target.bootstrap, f"{topic}-again")) == without_offset(expected)
