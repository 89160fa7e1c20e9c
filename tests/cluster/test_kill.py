"""Rounds of `kill -9` under load: what was acked under `flush.messages=1` is there, what is there is whole.

Each round starts a broker on the data of the last one. Several producers write until a seeded number of acks is
reached. Then the broker is killed, and the test reads the partition's files with a parser of its own. The next broker
then recovers and must serve exactly what the rules allow: every acked batch at its acked offset, no gap, no damaged
batch, nothing that was never sent. Five rounds by default; `TIDEMILL_KILL_ROUNDS=200` for the long run.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
import pytest

from tests.brokers import Broker, eventually, serve_arguments, spawn, start_broker
from tests.conftest import BOOTSTRAP
from tests.wire.batches import BadBatchError, Batch, Header, Record, encode, parse_batch
from tests.wire.connection import Connection, ConnectionClosedError, read_all

ROUNDS = int(os.environ.get("TIDEMILL_KILL_ROUNDS", "5"))
SEED = int(os.environ.get("TIDEMILL_KILL_SEED", "1"))
TOPIC = "killed"
PARTITIONS = 2
PRODUCERS_PER_PARTITION = 2
CONFIGS = {"flush.messages": "1", "segment.bytes": "1048576"}

pytestmark = pytest.mark.skipif(
    bool(BOOTSTRAP), reason="kills the broker; TIDEMILL_INTEROP_BOOTSTRAP names another's"
)


@dataclass
class History:
    """The messages that one partition was sent, and those that it acked, over all rounds."""

    sent: set[bytes] = field(default_factory=set)
    acked: dict[int, list[bytes]] = field(default_factory=dict)
    checked_end: int = 0


class Load:
    """Producers that write until their connection breaks. Values are unique, so that a duplicate shows."""

    def __init__(
        self, broker: Broker, histories: list[History], rng: random.Random, round_number: int
    ) -> None:
        self._broker = broker
        self._histories = histories
        self._lock = threading.Lock()
        self._round = round_number
        self.acks = 0
        self.failures: list[str] = []
        self.threads = [
            threading.Thread(target=self._run, args=(partition, name, rng.randrange(1 << 30)))
            for partition in range(PARTITIONS)
            for name in range(PRODUCERS_PER_PARTITION)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, partition: int, name: int, seed: int) -> None:
        try:
            self._produce(partition, name, random.Random(seed))
        except (ConnectionClosedError, OSError):
            return
        except Exception as failure:
            self.failures.append(repr(failure))

    def _produce(self, partition: int, name: int, rng: random.Random) -> None:
        history = self._histories[partition]
        number = 0
        with Connection(self._broker) as connection:
            while True:
                values = []
                for _ in range(rng.choice([1, 1, 5, 50])):
                    filler = rng.randbytes(rng.choice([0, 10, 100, 4000]))
                    values.append(b"%d/%d/%d/%d " % (self._round, partition, name, number) + filler)
                    number += 1
                with self._lock:
                    history.sent.update(values)
                answer = connection.produce(
                    TOPIC, encode([Record(value) for value in values]), partition=partition
                )
                assert answer.error_code == 0, answer
                with self._lock:
                    history.acked[answer.base_offset] = values
                    self.acks += 1

    def wait_for(self, acks: int) -> None:
        eventually(lambda: self.acks >= acks or self.failures, f"{acks} acks", limit_s=120)

    def join(self) -> None:
        for thread in self.threads:
            thread.join()
        assert self.failures == []


def segments(data_dir: Path, partition: int, from_offset: int) -> list[Path]:
    """The partition's log files, without those that end before an offset."""
    (directory,) = data_dir.rglob(f"{TOPIC}-{partition}")
    found = sorted(directory.glob("*.log"))
    assert found
    assert all(len(path.stem) == 20 and path.stem.isdigit() for path in found)
    return [
        path
        for path, after in zip(found, [*found[1:], None], strict=True)
        if not after or int(after.stem) > from_offset
    ]


def parse_segments(paths: list[Path], *, may_be_torn: bool) -> list[Batch]:
    """Every batch of a partition's files. Only the last file may end in something that is no whole batch."""
    batches: list[Batch] = []
    for path in paths:
        data = path.read_bytes()
        at = 0
        first = True
        while at < len(data):
            try:
                batch = parse_batch(data, at)
            except BadBatchError:
                if may_be_torn and path == paths[-1]:
                    break
                raise
            if first:
                assert batch.base_offset == int(path.stem), (
                    f"{path.name} begins with offset {batch.base_offset}"
                )
                first = False
            batches.append(batch)
            at += batch.size
    return batches


def check(batches: list[Batch], history: History) -> None:
    """No gap, nothing acked lost or moved, nothing invented, nothing twice; from what the last check covered on."""
    next_offset = history.checked_end
    found: dict[int, list[bytes]] = {}
    for batch in batches:
        assert batch.base_offset == next_offset, f"a gap before offset {batch.base_offset}"
        next_offset = batch.last_offset + 1
        found[batch.base_offset] = [value or b"" for value in batch.values()]
    present = [value for values in found.values() for value in values]
    assert len(present) == len(set(present)), "a record is there twice"
    assert set(present) <= history.sent, "a record that was not sent"
    missing = {
        offset: values
        for offset, values in history.acked.items()
        if offset >= history.checked_end and found.get(offset) != values
    }
    assert not missing, f"acked and lost: offsets {sorted(missing)[:10]}"


def fresh(batches: list[Batch], history: History) -> list[Batch]:
    return [batch for batch in batches if batch.base_offset >= history.checked_end]


def consume_with_a_stock_client(broker: Broker, partition: int, start: int, end: int) -> list[int]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "kill",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    offsets: list[int] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, partition, start)])
        while not offsets or offsets[-1] < end - 1:
            # It waits for as many as it is asked for, so ask for no more than there are.
            left = end - 1 - (offsets[-1] if offsets else start - 1)
            messages = consumer.consume(min(left, 1000), timeout=30)
            assert messages, (
                f"nothing after offset {offsets[-1:]} of {TOPIC}-{partition}, which ends at {end}"
            )
            for message in messages:
                assert message.error() is None, message.error()
                offsets.append(message.offset() or 0)
    finally:
        consumer.close()
    return offsets


def check_served(broker: Broker, histories: list[History]) -> None:
    """After recovery: the files, the wire and a stock consumer have the same records."""
    for partition, history in enumerate(histories):
        on_disk = parse_segments(segments(broker.data_dir, partition, history.checked_end), may_be_torn=False)
        served = read_all(broker, TOPIC, partition, history.checked_end)
        check(served, history)
        assert served == fresh(on_disk, history)
        if served:
            end = served[-1].last_offset + 1
            offsets = consume_with_a_stock_client(broker, partition, history.checked_end, end)
            assert offsets == list(range(history.checked_end, end))
            history.checked_end = end


def kill_while_starting(data_dir: Path, delay_s: float) -> None:
    """A kill in the middle of recovery, whatever it is doing by then."""
    process = spawn(serve_arguments(data_dir), data_dir.with_name("starting.stderr"))
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(delay_s)
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _stored(*batches: tuple[int, list[bytes]]) -> list[Batch]:
    return [parse_batch(encode([*values], Header(base_offset=offset))) for offset, values in batches]


WRONG = {
    "lost": [(0, [b"a"])],
    "a gap": [(0, [b"a"]), (2, [b"c"])],
    "changed": [(0, [b"a"]), (1, [b"x", b"c"])],
    "moved": [(0, [b"b", b"c"]), (2, [b"a"])],
    "invented": [(0, [b"a"]), (1, [b"b", b"c"]), (3, [b"z"])],
    "twice": [(0, [b"a"]), (1, [b"b", b"c"]), (3, [b"c"])],
    "late start": [(1, [b"b", b"c"])],
}


@pytest.mark.parametrize("name", WRONG)
def test_stored_records_check_finds_each_violation(name: str) -> None:
    history = History({b"a", b"b", b"c", b"x", b"unacked"}, {0: [b"a"], 1: [b"b", b"c"]})
    check(_stored((0, [b"a"]), (1, [b"b", b"c"]), (3, [b"unacked"])), history)
    with pytest.raises(AssertionError):
        check(_stored(*WRONG[name]), history)


def test_kill_rounds(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    data_dir = tmp_path / "data"
    histories = [History() for _ in range(PARTITIONS)]
    for round_number in range(ROUNDS):
        broker = start_broker(data_dir)
        try:
            with Connection(broker) as connection:
                if round_number == 0:
                    connection.create_topic(TOPIC, PARTITIONS, CONFIGS)
            check_served(broker, histories)
            load = Load(broker, histories, rng, round_number)
            load.wait_for(rng.randrange(1, 200))
        finally:
            broker.kill()
        load.join()
        for partition, history in enumerate(histories):
            files = segments(data_dir, partition, history.checked_end)
            check(fresh(parse_segments(files, may_be_torn=True), history), history)
        if rng.random() < 0.4:
            kill_while_starting(data_dir, rng.uniform(0.05, 0.6))
    with start_broker(data_dir) as broker:
        check_served(broker, histories)
        for history in histories:
            history.checked_end = 0
        check_served(broker, histories)
    assert sum(len(history.acked) for history in histories) >= ROUNDS


def test_a_topic_created_and_acked_survives_a_kill(tmp_path: Path) -> None:
    """Metadata is durable before the answer: created, reconfigured and deleted topics stay so."""
    data_dir = tmp_path / "data"
    broker = start_broker(data_dir)
    with Connection(broker) as connection:
        kept = connection.create_topic("kept", 3, {"retention.ms": "5000000"})
        connection.create_topic("deleted")
        asked = [{"name": "deleted", "topic_id": None}]
        assert (
            connection.request("delete_topics", 6, topics=asked, timeout=20_000).responses[0].error_code == 0
        )
        new = [{"name": "kept", "count": 5, "assignments": None}]
        assert (
            connection.request("create_partitions", 3, topics=new, timeout=20_000).results[0].error_code == 0
        )
    broker.kill()
    with start_broker(data_dir) as again, Connection(again) as connection:
        described = connection.metadata("kept")
        assert (described.topic_id, len(described.partitions)) == (kept, 5)
        assert connection.metadata("deleted").error_code == 3
        resource = {"resource_type": 2, "resource_name": "kept", "configuration_keys": ["retention.ms"]}
        (result,) = connection.request("describe_configs", 4, resources=[resource]).results
        assert result.configs[0].value == "5000000"


def test_an_idempotent_producer_does_not_duplicate_across_a_kill(tmp_path: Path) -> None:
    """The retry of a batch that was stored before the crash, sent to the broker after it."""
    data_dir = tmp_path / "data"
    broker = start_broker(data_dir)
    with Connection(broker) as connection:
        connection.create_topic(TOPIC, 1, CONFIGS)
        body = connection.request(
            "init_producer_id", 4, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        )
        producer_id = body.producer_id
        sent = [
            encode([b"%d" % n], Header(producer_id=producer_id, producer_epoch=0, base_sequence=n))
            for n in range(8)
        ]
        for batch in sent[:7]:
            assert connection.produce(TOPIC, batch).error_code == 0
    broker.kill()
    with start_broker(data_dir) as again, Connection(again) as connection:
        for number in range(3, 7):
            repeated = connection.produce(TOPIC, sent[number])
            assert (repeated.error_code, repeated.base_offset) == (0, number)
        assert connection.produce(TOPIC, sent[7]).base_offset == 7
        other = connection.request(
            "init_producer_id", 4, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        )
        assert other.producer_id != producer_id
        assert connection.end_offset(TOPIC) == 8
