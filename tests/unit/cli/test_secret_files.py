"""What `tidemill doctor --config` says about the files in which a node has secrets."""

from __future__ import annotations

from pathlib import Path

from tidemill.cli.checks.security import configuration_security
from tidemill.config import load_broker_config

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="n" password="p";'


def test_file_of_plain_users_that_others_may_read_is_a_warning(tmp_path: Path) -> None:
    settings, users = tmp_path / "server.properties", tmp_path / "users.properties"
    for path in (settings, users):
        path.write_text("alice=secret\n")
        path.chmod(0o600)
    users.chmod(0o644)
    config, _ = load_broker_config(
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:9092",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.jaas.config": JAAS,
            "tidemill.plain.users.file": str(users),
        }
    )
    found = {each.check: each for each in configuration_security(settings, config)}
    assert "only its owner" in found[f"secrets in {settings}"].text
    assert found[f"secrets in {users}"].text == "others may read it: mode 644"
