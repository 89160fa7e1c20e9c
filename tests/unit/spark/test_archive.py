"""The archive's layout: chunks, manifests, and claims of archivers. No broker, no Spark."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidemill.claims.claim import Claim
from tidemill.claims.errors import ClaimUnresolved
from tidemill.errors import ConfigError, StorageError
from tidemill.spark.arrow.decode import SCHEMA
from tidemill.spark.source import archive as archives
from tidemill.spark.source.archive import Archive, ArchiveTaken, ArchiveWork, Chunk, Manifest
from tidemill.types import TopicPartition

TP = TopicPartition("orders.eu-x_1", 3)
ODD = TopicPartition("a b/ü=%", 0)
DAY_MS = 86_400_000


def rows(offsets: Sequence[int], timestamps_ms: Sequence[int] | None = None) -> pa.RecordBatch:
    times = timestamps_ms or [1_700_000_000_000 + offset for offset in offsets]
    return pa.RecordBatch.from_pylist(
        [
            {
                "key": b"k%d" % offset if offset % 3 else None,
                "value": b"v" * (offset % 50),
                "topic": TP.topic,
                "partition": TP.partition,
                "offset": offset,
                "timestamp": time * 1000,
                "timestampType": 0,
                "headers": [{"key": "h", "value": None}] if offset % 5 == 0 else None,
            }
            for offset, time in zip(offsets, times, strict=True)
        ],
        schema=SCHEMA,
    )


def read(
    archive: Archive, tp: TopicPartition, start: int, end: int, columns: Sequence[str]
) -> list[dict[str, Any]]:
    manifest = archive.manifest(tp)
    assert manifest is not None
    work = ArchiveWork(tp, start, end, archive.root, manifest.between(start, end))
    found = []
    for batch in work.read(columns):
        assert batch.schema.names == list(columns)
        found += batch.to_pylist()
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tp", [TP, ODD])
def test_any_range_is_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, tp: TopicPartition
) -> None:
    """Offsets have holes, timestamps go back and forth over days, row groups and reads are small."""
    rng = random.Random(seed)
    monkeypatch.setattr(archives, "_ROW_GROUP_BYTES", 500)
    monkeypatch.setattr(archives, "_READ_BYTES", 300)
    archive = Archive(str(tmp_path))
    manifest = archive.claim(tp, "id", "me")
    written: list[dict[str, Any]] = []
    first = 17
    for _ in range(6):
        end = first + rng.randrange(1, 80)
        offsets = sorted(rng.sample(range(first, end), rng.randrange(end - first + 1)))
        spread = rng.choice([0, 3 * DAY_MS])
        times = [1_700_006_400_000 + offset + rng.randrange(-spread, spread + 1) for offset in offsets]
        batch = rows(offsets, times)
        half = len(offsets) // 2
        chunk = archive.write_chunk(tp, first, end, [batch.slice(0, half), batch.slice(half)])
        manifest = archive.commit(manifest, [chunk])
        written += batch.to_pylist()
        first = end
    assert archive.manifest(tp) == manifest
    assert (manifest.first_offset, manifest.end_offset) == (17, first)
    for _ in range(20):
        start, end = sorted(rng.sample(range(10, first + 10), 2))
        columns = rng.sample(SCHEMA.names, rng.randrange(1, 9))
        expected = [{name: row[name] for name in columns} for row in written if start <= row["offset"] < end]
        assert read(archive, tp, start, end, columns) == expected
    for _ in range(10):
        time_ms = 1_700_006_400_000 + rng.randrange(-3 * DAY_MS, 3 * DAY_MS)
        young = [row["offset"] for row in written if row["timestamp"].timestamp() * 1000 >= time_ms]
        assert archive.offset_at(manifest, time_ms) == (young[0] if young else None)
    assert archive.topics() == [tp.topic]
    assert archive.partitions(tp.topic) == [tp]


def test_files_lie_by_topic_and_date(tmp_path: Path) -> None:
    chunk = Archive(str(tmp_path)).write_chunk(TP, 5, 9, [rows([5, 7], [DAY_MS - 1, DAY_MS])])
    assert [file.path.rsplit("-", 1)[0] for file in chunk.files] == [
        "topic=orders.eu-x_1/date=1970-01-01/3-5-9",
        "topic=orders.eu-x_1/date=1970-01-02/3-5-9",
    ]
    assert all((tmp_path / file.path).stat().st_size == file.size_bytes for file in chunk.files)


def test_chunks_follow_each_other(tmp_path: Path) -> None:
    manifest = Manifest(TP, "id", 1, "me", (Chunk(0, 10, ()),))
    for wrong in (Chunk(9, 12, ()), Chunk(11, 12, ()), Chunk(10, 10, ())):
        with pytest.raises(ValueError, match="orders"):
            manifest.with_chunks([wrong])
    assert manifest.with_chunks([Chunk(10, 12, (), is_lost=True)]).end_offset == 12


def test_a_claim_stops_the_archiver_before(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path))
    first = archive.commit(archive.claim(TP, "id", "first"), [Chunk(0, 10, ())])
    second = archive.claim(TP, "id", "second")
    with pytest.raises(
        ArchiveTaken, match=r"orders.eu-x_1-3: .* taken over by archiver second; this archiver \(first\)"
    ):
        archive.commit(first, [Chunk(10, 20, ())])
    second = archive.commit(second, [Chunk(10, 15, ())])
    # Not even the same one may commit twice from the same state.
    archive.commit(second, [Chunk(15, 16, ())])
    with pytest.raises(ArchiveTaken):
        archive.commit(second, [Chunk(15, 16, ())])
    found = archive.manifest(TP)
    assert found is not None
    assert found.end_offset == 16


def test_of_many_commits_at_once_one_wins(tmp_path: Path) -> None:
    claimed = Archive(str(tmp_path)).claim(TP, "id", "me")
    outcomes: list[bool] = []

    def commit(number: int) -> None:
        try:
            Archive(str(tmp_path)).commit(claimed, [Chunk(0, number, ())])
            outcomes.append(True)
        except ArchiveTaken:
            outcomes.append(False)

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False] * 7 + [True]


def test_only_files_without_a_manifest_are_removed(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path))
    manifest = archive.commit(archive.claim(TP, "id", "me"), [archive.write_chunk(TP, 0, 5, [rows([0, 1])])])
    other = TopicPartition(TP.topic, 4)
    kept = archive.write_chunk(other, 0, 5, [rows([0, 1])])
    archive.write_chunk(TP, 5, 9, [rows([6])])
    assert archive.remove_unnamed([manifest]) == 1
    assert archive.remove_unnamed([manifest]) == 0
    assert (tmp_path / kept.files[0].path).exists()
    assert len(read(archive, TP, 0, 5, ["offset"])) == 2


def test_a_topic_that_was_made_anew_is_refused(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path))
    archive.claim(TP, "old", "me")
    with pytest.raises(StorageError, match="of id old, the cluster's has id new"):
        archive.claim(TP, "new", "me")


def test_damage_is_named(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path))
    manifest = archive.commit(archive.claim(TP, "id", "me"), [archive.write_chunk(TP, 0, 5, [rows([0, 1])])])
    path = tmp_path / manifest.chunks[0].files[0].path
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    with pytest.raises(StorageError, match=r"\.parquet is damaged"):
        read(archive, TP, 0, 5, ["offset"])
    path.unlink()
    with pytest.raises(StorageError, match=r"has lost the file topic=.* \(offsets 0 to 1\)"):
        read(archive, TP, 0, 5, ["offset"])
    manifest_path = tmp_path / "_tidemill" / TP.topic / "3.json"
    for wrong in (
        "{",
        json.dumps({"version": 9}),
        json.dumps({**json.loads(manifest_path.read_text()), "partition": 4}),
    ):
        manifest_path.write_text(wrong)
        with pytest.raises(StorageError, match=r"orders.eu-x_1-3: the manifest .*3\.json is damaged"):
            archive.manifest(TP)


def test_a_root_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    for root in ("", "nosuch://bucket/x"):
        with pytest.raises(ConfigError, match="archive: "):
            Archive(root)
    assert Archive(f"file://{tmp_path}").manifest(TP) is None
    assert Archive(str(tmp_path / "not there")).topics() == []


def test_a_claim_is_refused_where_only_its_empty_value_would_be_seen(tmp_path: Path) -> None:
    claim = Claim(f"s3://bucket/orders/2026-11-17/{'ab' * 32}", 5, "ab" * 32)
    stored = rows([1, 2, 3]).to_pylist()
    # An empty value of its own, with other headers; then a claim.
    stored[0] |= {"value": b"", "headers": [{"key": "note", "value": b"tidemill-claim-uri"}]}
    stored[2] |= {
        "value": b"",
        "headers": [{"key": name, "value": content} for name, content in claim.headers()],
    }
    archive = Archive(str(tmp_path))
    chunk = archive.write_chunk(TP, 0, 4, [pa.RecordBatch.from_pylist(stored, schema=SCHEMA)])
    archive.commit(archive.claim(TP, "id", "me"), [chunk])
    with pytest.raises(ClaimUnresolved, match=r"orders\.eu-x_1-3 at offset 3: .*largePayloads.*headers"):
        read(archive, TP, 0, 4, ["key", "value"])
    assert len(read(archive, TP, 0, 4, ["value", "headers"])) == 3
    assert len(read(archive, TP, 0, 4, ["key", "offset"])) == 3
    assert [row["value"] for row in read(archive, TP, 0, 3, ["value"])] == [b"", b"vv"]
