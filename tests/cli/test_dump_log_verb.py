"""`tidemill dump-log` on the files of a broker that runs, and on copies of them that are damaged on purpose."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer, TopicPartition

from tests.brokers import command
from tests.cli.conftest import LIMIT_S
from tidemill.cli.dump.scan import Batch, Scan
from tidemill.protocol.records import Record, build_batch
from tidemill.testing import InProcessBroker

# In the past, within the retention.
START_MS = int(time.time() * 1000) - 60_000
FIRST = "00000000000000000000"


class Dumped(NamedTuple):
    code: int
    events: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["type"] == kind]


def dump(*words: object) -> Dumped:
    done = subprocess.run(
        [*command(), "dump-log", "--json", *map(str, words)],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stderr == b"", done.stderr.decode()
    return Dumped(done.returncode, [json.loads(line) for line in done.stdout.splitlines()])


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker({"num.partitions": 1, "log.index.interval.bytes": 64}) as broker:
        yield broker


@pytest.fixture(scope="module")
def folder(broker: InProcessBroker) -> Path:
    """Twenty batches of one record each, while the broker goes on running."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "none"})
    for number in range(20):
        producer.produce(
            "orders",
            key=b"%d" % number,
            value=b"v" * 50,
            headers=[("n", b"\xff")],
            timestamp=START_MS + number,
        )
        assert producer.flush(20) == 0
    return broker.data_dir / "orders-0"


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "orders-0"))


def _overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_batches_and_records_are_those_that_were_written(folder: Path) -> None:
    dumped = dump(folder / f"{FIRST}.log", "--records")
    assert dumped.code == 0
    batches = dumped.of("batch")
    assert [each["base_offset"] for each in batches] == list(range(20))
    assert all(each["is_valid"] and each["record_count"] == 1 for each in batches)
    assert [each["position"] for each in batches[1:]] == [
        each["position"] + each["size_bytes"] for each in batches[:-1]
    ]
    assert dumped.of("record")[7] == {
        "type": "record",
        "offset": 7,
        "timestamp": START_MS + 7,
        "key": "7",
        "value": "v" * 50,
        "headers": [{"key": "n", "value": {"base64": "/w=="}}],
    }
    (summary,) = dumped.of("summary")
    assert (summary["batches"], summary["records"], summary["end_offset"]) == (20, 20, 20)


def test_a_part_by_offset(folder: Path) -> None:
    dumped = dump(folder / f"{FIRST}.log", "--records", "--from", "12", "--max", "2")
    assert [each["offset"] for each in dumped.of("record")] == [12, 13]


def test_text_has_a_line_for_each(folder: Path) -> None:
    done = subprocess.run(
        [*command(), "dump-log", str(folder / f"{FIRST}.log"), "--records", "--max", "1"],
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
        text=True,
    )
    _, batch, record = done.stdout.splitlines()
    assert batch.startswith("offsets 0-0  count 1  position 0 ")
    assert "crc ok" in batch
    assert 'key "0"  value "vvv' in record


def test_internal_topics_are_readable(broker: InProcessBroker, folder: Path) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "billing"})
    producer.init_transactions(20)
    for is_kept in (True, False):
        producer.begin_transaction()
        producer.produce("paid", b"x")
        assert producer.flush(20) == 0
        (producer.commit_transaction if is_kept else producer.abort_transaction)(20)
    _commit(broker)

    names = [
        each["value"].get("name")
        for each in dump(broker.data_dir / "__cluster_metadata-0", "--records").of("record")
        if each.get("record_type") == "TopicRecord"
    ]
    assert {"orders", "paid"} <= set(names)
    records = dump(*broker.data_dir.glob("__transaction_state-*"), "--records").of("record")
    assert {each["key"]["transactional_id"] for each in records} == {"billing"}
    records = dump(*broker.data_dir.glob("__consumer_offsets-*"), "--records").of("record")
    commits = [each for each in records if each["record_type"] == "OffsetCommit"]
    assert [(each["key"]["group"], each["value"]["offset"]) for each in commits] == [("auditors", 7)]
    records = dump(broker.data_dir / "paid-0", "--records").of("record")
    assert [each.get("control") for each in records] == [None, "commit", None, "abort"]


def _commit(broker: InProcessBroker) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "auditors"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
    consumer.close()


def test_a_broken_record_is_shown_and_what_follows_too(copied: Path) -> None:
    log = copied / f"{FIRST}.log"
    batches = dump(log).of("batch")
    broken = batches[10]
    _overwrite(log, broken["position"] + broken["size_bytes"] - 3, b"!")
    dumped = dump(log)
    assert dumped.code == 1
    (damage,) = dumped.of("damage")
    assert damage["position"] == broken["position"]
    assert "checksum" in damage["reason"]
    assert [each["is_valid"] for each in dumped.of("batch")] == [number != 10 for number in range(20)]


def test_a_broken_header_is_passed_over(copied: Path) -> None:
    log = copied / f"{FIRST}.log"
    broken = dump(log).of("batch")[10]
    _overwrite(log, broken["position"], b"\xff" * 40)
    dumped = dump(log)
    assert dumped.code == 1
    (damage,) = dumped.of("damage")
    assert (damage["position"], damage["size_bytes"]) == (broken["position"], broken["size_bytes"])
    assert [each["base_offset"] for each in dumped.of("batch")] == [n for n in range(20) if n != 10]


def test_an_unfinished_end_is_no_damage_unless_a_segment_follows(copied: Path) -> None:
    log = copied / f"{FIRST}.log"
    last = dump(log).of("batch")[-1]
    with log.open("r+b") as file:
        file.truncate(last["position"] + 70)
    dumped = dump(log)
    assert dumped.code == 0
    (tail,) = dumped.of("tail")
    assert (tail["position"], tail["size_bytes"]) == (last["position"], 70)
    (copied / "00000000000000000020.log").write_bytes(b"")
    assert dump(log).code == 1


def test_verify_finds_an_index_that_lies(copied: Path) -> None:
    (summary,) = dump(copied, "--verify").events
    assert {"index", "timeindex"} <= set(summary["checked"])
    entries = dump(copied / f"{FIRST}.index").of("index")
    assert len(entries) > 5
    # Entry 3: its position, which is the second half of its eight bytes, is one too large.
    _overwrite(copied / f"{FIRST}.index", 3 * 8 + 4, struct.pack(">i", entries[3]["position"] + 1))
    dumped = dump(copied, "--verify")
    assert dumped.code == 1
    (mismatch,) = dumped.of("mismatch")
    assert (
        f"offset {entries[3]['offset']} at {entries[3]['position'] + 1} is not where a batch begins"
        in mismatch["reason"]
    )


def test_verify_finds_a_time_index_that_lies(copied: Path) -> None:
    entries = dump(copied / f"{FIRST}.timeindex").of("timeindex")
    _overwrite(copied / f"{FIRST}.timeindex", 3 * 12, struct.pack(">q", entries[3]["timestamp"] - 5))
    (mismatch,) = dump(copied, "--verify").of("mismatch")
    assert mismatch["reason"].startswith(f"timeindex: {entries[3]['timestamp'] - 5}")


def test_damaged_side_files_are_said_to_be(copied: Path) -> None:
    (copied / f"{FIRST}.snapshot").write_bytes(b"\0" * 30)
    (copied / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n")
    with (copied / f"{FIRST}.index").open("ab") as file:
        file.write(b"\1\2\3")
    dumped = dump(copied, "--verify")
    assert dumped.code == 1
    assert {Path(each["file"]).name for each in dumped.of("damage")} == {
        f"{FIRST}.snapshot",
        f"{FIRST}.index",
        "leader-epoch-checkpoint",
    }


def test_a_large_segment_takes_little_memory(tmp_path: Path) -> None:
    """64 MiB in batches of 8 MiB: more than is ever held."""
    batch = bytes(build_batch([Record(0, 0, None, b"x" * (8 << 20))]))
    path = tmp_path / f"{FIRST}.log"
    with path.open("wb") as file:
        for number in range(8):
            file.write(number.to_bytes(8, "big") + batch[8:])
    tracemalloc.start()
    try:
        with path.open("rb") as file:
            found = list(Scan(file))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [each.is_valid for each in found if isinstance(each, Batch)] == [True] * 8
    assert peak_bytes < 4 << 20


def test_refuses_what_is_no_such_file(tmp_path: Path) -> None:
    stranger = tmp_path / "notes.txt"
    stranger.write_text("hello")
    for path in (stranger, tmp_path / "missing.log"):
        done = subprocess.run(
            [*command(), "dump-log", str(path)], capture_output=True, timeout=LIMIT_S, text=True
        )
        assert done.returncode == 1
        assert done.stderr.startswith("tidemill dump-log: ")
        assert str(path) in done.stderr
