"""How a query reaches a secured cluster: options and files of properties, and that neither shows a secret."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark import SparkFiles

from tidemill.client.connections.security import SecurityOptions
from tidemill.errors import ConfigError
from tidemill.spark.access import BrokerAccess
from tidemill.spark.sink.options import SinkOptions
from tidemill.spark.source.options import SourceOptions

SECRET = "open-sesame"
JAAS = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="{SECRET}";'
FILE = f"""bootstrap.servers=elsewhere:9092
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config={JAAS}
acks=1
"""
READ = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}
WRITE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "orders"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(FILE)
    return path


def access(options: dict[str, str]) -> tuple[BrokerAccess, BrokerAccess]:
    return SourceOptions.parse({**READ, **options}).access, SinkOptions.parse({**WRITE, **options}).access


def security(found: BrokerAccess) -> SecurityOptions:
    security = found.cluster()._security
    assert security is not None
    return security


def test_file_secures_source_and_sink_and_names_no_broker(file: Path) -> None:
    for found in access({"commandconfig": str(file)}):
        assert found.bootstrap == "127.0.0.1:9092"
        assert security(found).protocol == "SASL_SSL"
        assert security(found).password == SECRET


def test_option_goes_before_the_file(file: Path) -> None:
    for found in access({"commandConfig": str(file), "kafka.security.protocol": "SASL_PLAINTEXT"}):
        assert security(found).protocol == "SASL_PLAINTEXT"


def test_task_gets_the_name_of_the_file_and_not_what_is_in_it(file: Path) -> None:
    for found in access({"commandConfig": str(file)}):
        sent = pickle.dumps(found)
        assert SECRET.encode() not in sent
        file.write_text(FILE.replace(SECRET, "another"))
        assert security(pickle.loads(sent)).password == "another"
        file.write_text(FILE)


def test_options_are_in_no_repr() -> None:
    inline = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "SCRAM-SHA-512"}
    inline["kafka.sasl.jaas.config"] = JAAS
    for options in (SourceOptions.parse({**READ, **inline}), SinkOptions.parse({**WRITE, **inline})):
        assert SECRET not in repr(options)
        assert security(options.access).password == SECRET


def test_file_that_spark_sent_is_found_by_its_name(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    for found in access({"commandConfig": f"/not/on/this/machine/{file.name}"}):
        assert security(found).password == SECRET


def test_missing_file_is_named(tmp_path: Path) -> None:
    for parse, options in ((SourceOptions.parse, READ), (SinkOptions.parse, WRITE)):
        with pytest.raises(ConfigError, match=r"commandConfig=.*/absent cannot be read: no such file"):
            parse({**options, "commandConfig": str(tmp_path / "absent")})


@pytest.mark.parametrize("name", ["kafka.ssl.keystore.key", "kafka.ssl.key.pem", "kafka.ssl.certificate.pem"])
def test_private_key_in_clear_text_is_refused_without_showing_it(name: str) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIGHAgEA\n-----END PRIVATE KEY-----"
    for parse, options in ((SourceOptions.parse, READ), (SinkOptions.parse, WRITE)):
        with pytest.raises(ConfigError, match="private key in clear text") as refused:
            parse({**options, "kafka.security.protocol": "SSL", name: key})
        assert "MIGHAgEA" not in str(refused.value)
