"""`tidemill produce` and `tidemill consume`: what goes in comes out, wherever it starts and ends."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.brokers import RunningBroker, eventually, readable
from tests.cli.conftest import LIMIT_S, Run, write
from tidemill.client.cluster import Cluster
from tidemill.client.partitioner import partition_of_key

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
    report = cli(
        "produce", orders, "--compression", codec, "--partition", "2", "--json", stdin=lines.encode()
    ).json
    assert report == {
        "topic": orders,
        "records": 1000,
        "partitions": [{"partition": 2, "records": 1000, "first_offset": 0, "last_offset": 999}],
    }
    assert cli("consume", orders).ok == lines


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(cli: Run, orders: str, acks: str) -> None:
    assert cli("produce", orders, "--acks", acks, "--partition", "0", "x").code == 0
    assert eventually(lambda: cli("consume", orders).ok, "the record") == "x\n"


def test_a_large_input_is_spread_over_the_partitions(cli: Run, orders: str) -> None:
    lines = [f"{number:0100d}" for number in range(40_000)]
    report = cli("produce", orders, "--json", stdin="\n".join(lines).encode()).json
    assert report["records"] == len(lines)
    assert sorted(cli("consume", orders).ok.split()) == lines


def test_input_that_pauses_is_written_at_once(cli: Run, spawn: Spawn, orders: str) -> None:
    producer = spawn("produce", orders, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert producer.stdin is not None
    producer.stdin.write(b"early\n")
    producer.stdin.flush()
    eventually(lambda: cli("consume", orders).ok == "early\n", "the line, while the input stays open")
    producer.stdin.close()
    assert producer.wait(LIMIT_S) == 0


def test_where_to_begin_and_end(cli: Run, cluster: Cluster, orders: str) -> None:
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


def test_errors(cli: Run, orders: str) -> None:
    assert cli("produce", f"{orders}-no", "x").error == (
        f"tidemill produce: there is no topic {orders}-no; create it with `tidemill topics create {orders}-no`"
    )
    assert "there is no topic" in cli("consume", f"{orders}-no").error
    assert "no partition 9, only 0 to 2" in cli("consume", orders, "--partition", "9").error
    assert "holds 0 to 0" in cli("consume", orders, "--partition", "0", "--from", "5").error


def test_what_was_written_before_a_failure_is_reported(cli: Run, orders: str) -> None:
    cli("configs", "set", "topic", orders, "max.message.bytes=1000")
    failed = cli("produce", orders, "--partition", "0", stdin=b"small\n" + b"x" * 5000 + b"\nlate\n")
    assert failed.code == 1
    report, error = failed.err.splitlines()
    assert report.startswith("1 record written")
    assert "MESSAGE_TOO_LARGE" in error
    missing_key = cli("produce", orders, "--key-separator", ":", stdin=b"no key here\n")
    assert missing_key.code == 1
    assert "record 1 has no ':' between key and value" in missing_key.err


def test_a_group_goes_on_where_it_was(cli: Run, cluster: Cluster, orders: str) -> None:
    group = f"{orders}-g"
    write(cluster, orders, 0, "a", "b")
    assert cli("consume", orders, "--group", group, "--max", "1").ok == "a\n"
    assert cli("consume", orders, "--group", group).ok == "b\n"


def test_a_group_without_its_package_says_how_to_get_it(cli: Run, orders: str, tmp_path: Path) -> None:
    (tmp_path / "confluent_kafka.py").write_text("raise ImportError('not installed')\n")
    failed = cli("consume", orders, "--group", "g", environment={"PYTHONPATH": str(tmp_path)})
    assert "pip install 'tidemill[client]'" in failed.error


def test_nobody_listens(cli: Run, target: RunningBroker) -> None:
    for words in (("topics", "list"), ("produce", "t", "x")):
        error = cli(*words, "--bootstrap", "127.0.0.1:1").error
        assert "127.0.0.1:1: connection refused" in error
        assert "tidemill serve" in error
        assert "--bootstrap" in error
