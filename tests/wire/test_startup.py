"""Starting with bad settings or a bad data directory: refused with a reason, before any data is touched."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.brokers import Broker, command, eventually, run_to_end, serve_arguments, start_broker
from tests.wire import health
from tests.wire.batches import encode
from tests.wire.connection import Connection, fetch_fields, read_all

BAD_SETTINGS = {
    "num.partitions": "many",
    "log.segment.bytes": "-1",
    "log.retention.ms": "soon",
    "compression.type": "rar",
    "auto.create.topics.enable": "perhaps",
    "message.max.bytes": "-5",
    "log.message.timestamp.type": "Yesterday",
    "listeners": "nonsense",
    "max.connections": "-1",
}


@pytest.mark.parametrize("key", BAD_SETTINGS)
def test_a_bad_value_is_named_and_nothing_is_touched(tmp_path: Path, key: str) -> None:
    data_dir = tmp_path / "data"
    arguments = [*command(), "serve", "--data-dir", str(data_dir), "--set", f"{key}={BAD_SETTINGS[key]}"]
    if key != "listeners":
        arguments += ["--listen", "127.0.0.1:0"]
    ended = run_to_end(arguments)
    assert ended.returncode not in (0, -signal.SIGSEGV, -signal.SIGABRT)
    assert key in ended.stderr
    assert BAD_SETTINGS[key] in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not data_dir.exists() or not any(data_dir.iterdir())


def test_a_bad_value_in_the_file_is_named(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("# a comment\nnum.partitions = 3\nlog.retention.hours=a week\n")
    ended = run_to_end(serve_arguments(tmp_path / "data", config=config))
    assert ended.returncode != 0
    assert "log.retention.hours" in ended.stderr
    assert "a week" in ended.stderr


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    ended = run_to_end(serve_arguments(tmp_path / "data", config=tmp_path / "no-such-file"))
    assert ended.returncode != 0
    assert "no-such-file" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_unknown_key_is_a_warning_that_names_it(start: Callable[..., Broker]) -> None:
    broker = start({"no.such.key": "1"})
    health.assert_serves(broker)
    assert "no.such.key" in broker.log()
    with Connection(broker) as connection:
        asked = {"resource_type": 4, "resource_name": "1", "configuration_keys": ["no.such.key"]}
        (result,) = connection.request("describe_configs", 4, resources=[asked]).results
        assert [(each.name, each.value, each.is_sensitive) for each in result.configs] == [
            ("no.such.key", None, True)
        ]


def test_an_unknown_key_that_was_set_at_run_time_is_a_warning_at_every_start(tmp_path: Path) -> None:
    entry = {"name": "no.such.key", "config_operation": 0, "value": "1"}
    change = {"resource_type": 4, "resource_name": "1", "configs": [entry]}
    with start_broker(tmp_path / "data") as broker, Connection(broker) as connection:
        (response,) = connection.request("incremental_alter_configs", 1, resources=[change]).responses
        assert response.error_code == 0
        eventually(lambda: "no.such.key is kept" in broker.log(), "the warning")
    with start_broker(tmp_path / "data", log_path=tmp_path / "second.log") as again:
        assert "no.such.key is kept" in again.log()


def test_settings_of_the_file_are_used(tmp_path: Path, topic: str) -> None:
    config = tmp_path / "server.properties"
    config.write_text("num.partitions=4\nlog.retention.hours=1\n")
    with start_broker(tmp_path / "data", config=config) as broker, Connection(broker) as connection:
        eventually(lambda: len(connection.metadata(topic, create=True).partitions) == 4, "four partitions")
        asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": ["retention.ms"]}
        (result,) = connection.request("describe_configs", 4, resources=[asked]).results
        assert result.configs[0].value == "3600000"


def test_a_data_dir_in_use_is_refused_with_the_pid(start: Callable[..., Broker]) -> None:
    broker = start()
    health.assert_serves(broker)
    ended = run_to_end(serve_arguments(broker.data_dir))
    assert ended.returncode != 0
    assert re.search(rf"\b{broker.pid}\b", ended.stderr), ended.stderr
    assert "Traceback" not in ended.stderr
    health.assert_serves(broker)


def test_a_data_dir_whose_broker_was_killed_is_free(start: Callable[..., Broker]) -> None:
    start().kill()
    health.assert_serves(start())


def test_a_port_in_use_is_refused(start: Callable[..., Broker], tmp_path: Path) -> None:
    broker = start()
    arguments = [*command(), "serve", "--data-dir", str(tmp_path / "other"), "--listen", broker.bootstrap]
    ended = run_to_end(arguments)
    assert ended.returncode != 0
    assert str(broker.port) in ended.stderr
    assert "Traceback" not in ended.stderr


@contextlib.contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Root ignores permissions, so for root the directory is mounted on itself, read-only."""
    if os.geteuid() != 0:
        directory.chmod(0o555)
        try:
            yield
        finally:
            directory.chmod(0o755)
        return
    mounted = subprocess.run(["mount", "--bind", str(directory), str(directory)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("root, but mounting is not allowed here: " + mounted.stderr.decode().strip())
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(directory)], check=True, capture_output=True)
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def test_a_read_only_data_dir_is_refused(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    with read_only(data_dir):
        ended = run_to_end(serve_arguments(data_dir))
    assert ended.returncode != 0
    assert str(data_dir) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_data_dir_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("not a directory")
    ended = run_to_end(serve_arguments(path))
    assert ended.returncode != 0
    assert str(path) in ended.stderr
    assert "Traceback" not in ended.stderr
    assert path.read_text() == "not a directory"


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_broker_cleanly_and_nothing_is_lost(
    start: Callable[..., Broker], topic: str, signal_number: int
) -> None:
    broker = start()
    with Connection(broker) as connection:
        topic_id = connection.create_topic(topic, partitions=2, configs={"retention.ms": "5000000"})
        for number in range(20):
            connection.produce(topic, encode([b"%d" % number]), partition=number % 2)
        assert broker.stop(signal_number) == 0
    again = start()
    with Connection(again) as connection:
        described = connection.metadata(topic)
        assert (described.topic_id, len(described.partitions)) == (topic_id, 2)
        asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": ["retention.ms"]}
        (result,) = connection.request("describe_configs", 4, resources=[asked]).results
        assert result.configs[0].value == "5000000"
        assert connection.produce(topic, encode([b"20"])).base_offset == 10
    stored = [value for batch in read_all(again, topic) for value in batch.values()]
    assert stored == [b"%d" % number for number in range(0, 21, 2)]


def test_a_stop_answers_or_closes_waiting_fetches(start: Callable[..., Broker], topic: str) -> None:
    broker = start()
    with Connection(broker) as connection:
        connection.create_topic(topic)
        connection.start("fetch", 12, **fetch_fields(topic, 0, max_wait=60_000))
        assert broker.stop() == 0
        connection.answer_or_close()


@pytest.mark.parametrize("identity", ["missing", "another directory", "another cluster", "all another"])
def test_a_foreign_identity_is_named_at_once(
    start: Callable[..., Broker], tmp_path: Path, identity: str
) -> None:
    """The metadata knows the owner of the directory, so the start does not wait for an old session."""
    start().stop()
    path = tmp_path / "data" / "meta.properties"
    content = path.read_text()
    own_directory = re.search("directory.id=(.*)", content)
    own_cluster = re.search("cluster.id=(.*)", content)
    assert own_directory is not None
    assert own_cluster is not None
    if identity != "another cluster":
        content = content.replace(own_directory[1], "BBBBBBBBBBBBBBBBBBBBBA")
    if identity != "another directory":
        content = content.replace(own_cluster[1], "AAAAAAAAAAAAAAAAAAAAAA")
    path.write_text(content)
    if identity == "missing":
        path.unlink()
    ended = run_to_end(serve_arguments(tmp_path / "data"))
    assert ended.returncode != 0
    assert (own_cluster if identity == "another cluster" else own_directory)[1] in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_data_dir_with_the_cluster_id_in_a_record_of_its_own_still_starts(tmp_path: Path) -> None:
    """Tidemill wrote that record, which Kafka's tools refuse, before 17 November 2026."""
    with tarfile.open(Path(__file__).parent / "old_versions" / "cluster-id-record.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    for _ in range(2):
        with start_broker(tmp_path / "data") as broker, Connection(broker) as connection:
            described = connection.request(
                "metadata", 12, topics=[{"name": "kept"}], allow_auto_topic_creation=False
            )
            assert described.cluster_id == "FKtP_7qwQXS0Jadd3cSztA"
            assert [len(topic.partitions) for topic in described.topics] == [1]
