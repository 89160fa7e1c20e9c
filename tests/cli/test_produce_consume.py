"""`tidemill produce` and `tidemill consume`: what goes in comes out, wherever it starts and ends."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import confluent_kafka
import pytest

from tests.brokers import RunningBroker, eventually, readable
from tests.cli.conftest import LIMIT_S, Run, write
from tidemill.cli.records.record_format import NewRecord
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.consumer import Consumer
from tidemill.client.producing.partitioner import partition_of_key
from tidemill.client.producing.producer import Producer
from tidemill.protocol.records import Header
from tidemill.types import TopicPartition

Spawn = Callable[..., subprocess.Popen[bytes]]
JANUARY_MS = 1_767_225_600_000


def records(cli: Run, *words: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in cli("consume", *words, "--json").ok.splitlines()]


def test_values_from_arguments(cli: Run, orders: str) -> None:
    done = cli("produce", orders, "--partition", "1", "a", "ü", "c d")
    assert (done.ok, done.err) == ("", f"3 records written to {orders}: partition 1 offsets 0 to 2\n")
    assert cli("consume", orders).ok == "a\nü\nc d\n"


def test_lines_from_standard_input_keep_their_bytes(cli: Run, orders: str) -> None:
    done = cli("produce", orders, "--partition", "0", stdin=b"one\n\ntwo \xff\nlast without an end")
    assert done.err.startswith("4 records written")
    values = [each.get("value", each.get("value_base64")) for each in records(cli, orders)]
    assert values == ["one", "", "dHdvIP8=", "last without an end"]


def test_keys_headers_and_times(cli: Run, orders: str) -> None:
    cli(
        "produce", orders, "-", "--key-separator", ":", "--header", "h=1", "--header", "i=",
        "--timestamp", "2026-01-01T00:00:00Z", stdin=b"21:a:b\nfoobar:c\n",
    )  # fmt: skip
    found = {str(each["key"]): each for each in records(cli, orders)}
    assert {key: each["value"] for key, each in found.items()} == {"21": "a:b", "foobar": "c"}
    for key, each in found.items():
        assert each["partition"] == partition_of_key(key.encode(), 3)
        assert each["timestamp"] == JANUARY_MS
        assert each["headers"] == [{"key": "h", "value": "1"}, {"key": "i", "value": ""}]


def test_a_tombstone_has_a_key_and_no_value(cli: Run, orders: str) -> None:
    cli("produce", orders, "--key", "42", "--tombstone")
    (record,) = records(cli, orders)
    assert (record["key"], record["value"]) == ("42", None)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression(cli: Run, orders: str, codec: str) -> None:
    lines = "".join(f"record {number}\n" for number in range(1000))
    done = cli("produce", orders, "--compression", codec, "--partition", "2", stdin=lines.encode())
    assert (done.ok, done.err) == ("", f"1000 records written to {orders}: partition 2 offsets 0 to 999\n")
    assert cli("consume", orders).ok == lines


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(cli: Run, orders: str, acks: str) -> None:
    assert cli("produce", orders, "--acks", acks, "--partition", "0", "x").code == 0
    assert eventually(lambda: cli("consume", orders).ok, "the record") == "x\n"


def test_a_large_input_is_spread_over_the_partitions(cli: Run, orders: str) -> None:
    lines = [f"{number:0100d}" for number in range(40_000)]
    done = cli("produce", orders, stdin="\n".join(lines).encode())
    assert done.err.startswith(f"{len(lines)} records written")
    assert sorted(cli("consume", orders).ok.split()) == lines


def test_input_that_pauses_is_written_at_once(cli: Run, spawn: Spawn, orders: str) -> None:
    producer = spawn("produce", orders, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert producer.stdin is not None
    producer.stdin.write(b"early\n")
    producer.stdin.flush()
    eventually(lambda: cli("consume", orders).ok == "early\n", "the line, while the input stays open")
    producer.stdin.close()
    assert producer.wait(LIMIT_S) == 0


def test_consume_begins_and_ends_where_its_options_say(cli: Run, cluster: Cluster, orders: str) -> None:
    for day, value in enumerate("abc"):
        write(cluster, orders, 0, value, timestamp_ms=JANUARY_MS + day * 86_400_000)
    write(cluster, orders, 1, "z", timestamp_ms=JANUARY_MS)
    assert cli("consume", orders, "--partition", "0", "--from", "1").ok == "b\nc\n"
    assert cli("consume", orders, "--from", "2026-01-02T00:00:00Z").ok == "b\nc\n"
    assert cli("consume", orders, "--from", "1767225600001", "--max", "1").ok == "b\n"
    assert cli("consume", orders, "--from", "end", "--no-follow").ok == ""
    assert cli("consume", orders, "--partition", "1", "--partition", "0", "--max", "9").ok.split() == list(
        "abcz"
    )
    assert (
        cli(
            "consume",
            orders,
            "--partition",
            "0",
            "--max",
            "1",
            "--format",
            r"{topic}[{partition}]@{offset}={value}\n",
        ).ok
        == f"{orders}[0]@0=a\n"
    )


def test_following_prints_what_comes_until_it_is_stopped(cluster: Cluster, spawn: Spawn, orders: str) -> None:
    consumer = spawn("consume", orders, "--follow", stdout=subprocess.PIPE)
    assert consumer.stdout is not None
    for value in ("first", "second"):
        write(cluster, orders, 2, value)
        assert readable([consumer.stdout], LIMIT_S)
        assert consumer.stdout.readline().decode() == f"{value}\n"
    consumer.send_signal(signal.SIGINT)
    assert consumer.wait(LIMIT_S) == 0


def test_following_goes_on_when_partitions_disappear(
    cli: Run, cluster: Cluster, spawn: Spawn, topic: str
) -> None:
    cli("topics", "create", topic, "--partitions", "4", "--config", "tidemill.partitions.kept.ms=0").check()
    consumer = spawn("consume", topic, "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert consumer.stdout is not None
    assert consumer.stderr is not None
    write(cluster, topic, 0, "first")
    assert consumer.stdout.readline().decode() == "first\n"
    cli("topics", "shrink", topic, "--partitions", "2").check()
    for index in (2, 3):
        said = consumer.stderr.readline().decode()
        assert said == f"{topic}-{index} is gone: its topic has fewer partitions now\n"
    write(cluster, topic, 1, "second")
    assert readable([consumer.stdout], LIMIT_S)
    assert consumer.stdout.readline().decode() == "second\n"
    consumer.send_signal(signal.SIGINT)
    assert consumer.wait(LIMIT_S) == 0


def test_a_reader_that_leaves_ends_the_command_quietly(cli: Run, spawn: Spawn, orders: str) -> None:
    cli("produce", orders, stdin=b"a line\n" * 50_000)
    consumer = spawn("consume", orders, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert consumer.stdout is not None
    assert consumer.stderr is not None
    consumer.stdout.readline()
    consumer.stdout.close()
    assert consumer.stderr.read() == b""
    assert consumer.wait(LIMIT_S) == 141


def test_a_record_cannot_steer_the_terminal(cli: Run, terminal: Run, orders: str) -> None:
    cli("produce", orders, stdin=b"\x1b[2Jgone\n")
    assert terminal("consume", orders).ok == "\\x1b[2Jgone\n"


def test_produce_and_consume_reject_wrong_arguments(cli: Run, orders: str) -> None:
    assert cli("produce", f"{orders}-no", "x").error == (
        f"tidemill produce: there is no topic {orders}-no; create it with `tidemill topics create {orders}-no`"
    )
    assert "there is no topic" in cli("consume", f"{orders}-no").error
    assert "no partition 9, only 0 to 2" in cli("consume", orders, "--partition", "9").error
    assert "holds 0 to 0" in cli("consume", orders, "--partition", "0", "--from", "5").error


def test_records_written_before_failure_are_reported(cli: Run, orders: str) -> None:
    cli("configs", "set", "topic", orders, "max.message.bytes=1000")
    failed = cli("produce", orders, "--partition", "0", stdin=b"small\n" + b"x" * 5000 + b"\nlate\n")
    assert failed.code == 1
    report, error = failed.err.splitlines()
    assert report.startswith("1 record written")
    assert "MESSAGE_TOO_LARGE" in error
    missing_key = cli("produce", orders, "--key-separator", ":", stdin=b"no key here\n")
    assert missing_key.code == 1
    assert "line 1: it has no ':' between key and value" in missing_key.err
    assert "has no partition 9, only 0 to 2" in cli("produce", orders, "--partition", "9", "x").err


def _all_kinds_of_records() -> list[NewRecord]:
    """Each pair of a key and a value that could be taken for another, then random ones."""
    texts = (
        None,
        b"",
        b"null",
        b"a:b",
        b"two\nlines\r\n",
        b'{"value": null}',
        "\u2028 ü \x00".encode(),
        b"\xff\xfe",
    )
    headers = (
        Header("", None),
        Header("h", b""),
        Header("h", b"again"),
        Header("ü", b"\x80"),
        Header("h", b"\n"),
    )
    records = [
        NewRecord(key, value, headers[:number], number % 3, timestamp_ms)
        for key in texts
        for number, (value, timestamp_ms) in enumerate(itertools.product(texts, (-1, 0, JANUARY_MS)))
    ]
    random = Random(15)
    for _ in range(500):
        key, value, header = (random.choice((None, random.randbytes(random.randrange(40)))) for _ in range(3))
        records.append(
            NewRecord(key, value, [Header("r", header)], random.randrange(3), random.getrandbits(40))
        )
    return [*records, NewRecord(b"large", bytes(400_000), (), 0, JANUARY_MS)]


def _held_records(cluster: Cluster, topic: str) -> dict[int, list[NewRecord]]:
    """Returns the records of each partition, in order."""
    partitions = cluster.partitions_of(topic)
    ends = Admin(cluster).end_offsets(partitions)
    consumer = Consumer(cluster, dict.fromkeys(partitions, 0))
    held: dict[int, list[NewRecord]] = {index: [] for index in range(len(partitions))}
    while any(consumer.positions[each] < ends[each] for each in partitions):
        for partition, (_, timestamp_ms, key, value, headers) in consumer.poll():
            record = NewRecord(key, value, tuple(headers), partition.partition, timestamp_ms)
            held[partition.partition].append(record)
    return held


@pytest.mark.parametrize("as_member", [False, True])
def test_a_topic_is_copied_without_loss(cli: Run, cluster: Cluster, orders: str, as_member: bool) -> None:
    written, copy = _all_kinds_of_records(), f"{orders}-copy"
    producer = Producer(cluster)
    for each in written:
        producer.add(
            orders,
            each.value,
            key=each.key,
            headers=each.headers,
            partition=each.partition,
            timestamp_ms=each.timestamp_ms,
        )
    producer.flush()
    Admin(cluster).create_topic(copy, partition_count=3)
    lines = cli("consume", orders, "--json", *(("--group", f"{orders}-g") if as_member else ())).ok
    assert cli("produce", copy, "--json", stdin=lines.encode()).json["records"] == len(written)
    expected = {
        index: [each._replace(headers=tuple(each.headers)) for each in written if each.partition == index]
        for index in range(3)
    }
    assert _held_records(cluster, orders) == expected
    assert _held_records(cluster, copy) == expected


def test_records_in_json_go_to_their_partition_or_by_key(cli: Run, orders: str) -> None:
    lines = b'{"key": "21", "value": "a", "partition": 2}\n{"key": "21", "value": "b"}'
    report = cli("produce", orders, "--json", stdin=lines).json
    by_key = partition_of_key(b"21", 3)
    assert report["records"] == 2
    assert {(each["value"], each["partition"]) for each in records(cli, orders)} == {("a", 2), ("b", by_key)}
    cli("produce", orders, "--json", "--repartition", stdin=lines).check()
    assert Counter(each["partition"] for each in records(cli, orders)) == Counter([2, by_key, by_key, by_key])


def test_a_bad_line_of_json_is_named_and_only_what_stands_before_it_is_written(cli: Run, orders: str) -> None:
    lines = b'{"value": "a"}\n{"value": "b"}\n{"vlaue": "c"}\n{"value": "d"}\n'
    failed = cli("produce", orders, "--json", stdin=lines)
    assert failed.code == 1
    assert "line 3: a record has no 'vlaue'; there are topic, partition" in failed.err
    assert json.loads(failed.out)["records"] == 2
    assert sorted(str(each["value"]) for each in records(cli, orders)) == ["a", "b"]
    beyond = cli("produce", orders, "--json", '{"value": "x", "partition": 3}')
    assert f"value 1: topic {orders} has no partition 3, only 0 to 2; --repartition" in beyond.err
    assert cli("produce", orders, "--json", "--key", "k", "x").code == 2
    assert cli("produce", orders, "--repartition", "x").code == 2


def test_a_group_goes_on_where_it_was(cli: Run, cluster: Cluster, orders: str) -> None:
    group = f"{orders}-g"
    write(cluster, orders, 0, "a", "b")
    assert cli("consume", orders, "--group", group, "--max", "1").ok == "a\n"
    assert cli("consume", orders, "--group", group).ok == "b\n"


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_a_group_that_has_read_everything_has_no_lag_behind_transaction_markers(
    cli: Run, cluster: Cluster, target: RunningBroker, orders: str, isolation_level: str
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": target.bootstrap, "transactional.id": orders})
    producer.init_transactions()
    for partition, (value, end) in enumerate(
        [("kept", producer.commit_transaction), ("dropped", producer.abort_transaction)]
    ):
        producer.begin_transaction()
        producer.produce(orders, value, partition=partition)
        producer.flush()
        end()
    group = f"{orders}-g"
    read = cli("consume", orders, "--group", group, "--isolation-level", isolation_level).ok.split()
    assert sorted(read) == (["kept"] if isolation_level == "read_committed" else ["dropped", "kept"])
    admin = GroupAdmin(cluster)
    lags = {each.partition.partition: each for each in admin.lags(admin.describe(group))}
    # A record and its marker.
    assert {index: each.committed_offset for index, each in lags.items()} == {0: 2, 1: 2, 2: 0}
    assert {each.lag for each in lags.values()} == {0}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_member_that_is_stopped_leaves_its_group(
    cluster: Cluster, spawn: Spawn, orders: str, number: signal.Signals
) -> None:
    group = f"{orders}-g"
    write(cluster, orders, 0, "a")
    consumer = spawn("consume", orders, "--group", group, "--follow", stdout=subprocess.PIPE)
    assert consumer.stdout is not None
    assert consumer.stdout.readline() == b"a\n"
    consumer.send_signal(number)
    assert consumer.wait(LIMIT_S) == 0
    admin = GroupAdmin(cluster)
    assert admin.describe(group).members == ()
    assert admin.committed(group)[TopicPartition(orders, 0)] == 1


def test_a_group_without_its_package_says_how_to_get_it(cli: Run, orders: str, tmp_path: Path) -> None:
    (tmp_path / "confluent_kafka.py").write_text("raise ImportError('not installed')\n")
    failed = cli("consume", orders, "--group", "g", environment={"PYTHONPATH": str(tmp_path)})
    assert "pip install 'tidemill[client]'" in failed.error


def test_connecting_without_listener_is_refused(cli: Run, target: RunningBroker) -> None:
    for words in (("topics", "list"), ("produce", "t", "x")):
        error = cli(*words, "--bootstrap", "127.0.0.1:1").error
        assert "127.0.0.1:1: connection refused" in error
        assert "tidemill serve" in error
        assert "--bootstrap" in error
