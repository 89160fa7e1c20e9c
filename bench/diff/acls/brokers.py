"""Both brokers with an authorizer: a plaintext listener for the administrator, and one with SASL for the users."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.apache_kafka import ApacheKafka, free_ports
from bench.diff.acls.questions import NODE_ID
from bench.diff.acls.rules import USERS
from bench.diff.brokers import NotStartedError

SUPER_USER = "root"
# Finds out which ACLs are in force.
PROBE = "probe"
STOP_SECONDS_MAX = 15.0
START_SECONDS_MAX = 30.0
# Whoever reaches the plaintext listener is a super user: that is the administrator of these runs.
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:ANONYMOUS;User:{SUPER_USER}",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.users.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    + " ".join(f'user_{name}="{name}"' for name in (*USERS, SUPER_USER, PROBE))
    + ";",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # The member of the consumer group lives through the run without heartbeats, and so does the open transaction.
    "group.consumer.session.timeout.ms": "3600000",
    "group.consumer.max.session.timeout.ms": "3600000",
    "transaction.max.timeout.ms": "7200000",
}
DENIES, ALLOWS = "denied without an ACL", "allowed without an ACL"
# What holds for a resource that no ACL covers.
PAIRS = {DENIES: "false", ALLOWS: "true"}
_WITHOUT_ACL = "allow.everyone.if.no.acl.found"
_LISTENS = re.compile(r"listens on (\S+):(\d+)")


class Doors(NamedTuple):
    """The ports of one broker at 127.0.0.1."""

    admin: int
    users: int


@contextmanager
def apache_kafka(data_dir: Path, pair: str) -> Iterator[Doors]:
    (users,) = free_ports(1)
    kafka = ApacheKafka(data_dir, SETTINGS | {_WITHOUT_ACL: PAIRS[pair]})
    node = kafka.nodes[0]
    listeners = f"PLAINTEXT://{node.address},USERS://127.0.0.1:{users}"
    kafka.overrides |= {
        "listeners": f"{listeners},CONTROLLER://{node.host}:{node.controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT",
    }
    with kafka:
        yield Doors(node.client_port, users)


@contextmanager
def tidemill(data_dir: Path, pair: str) -> Iterator[Doors]:
    data_dir.mkdir(parents=True)
    config, log_path = data_dir / "server.properties", data_dir / "server.log"
    settings = SETTINGS | {
        _WITHOUT_ACL: PAIRS[pair],
        "node.id": str(NODE_ID),
        "log.dirs": str(data_dir / "log"),
        "listeners": "PLAINTEXT://127.0.0.1:0,USERS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT",
    }
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [str(Path(sys.executable).with_name("tidemill")), "serve", "--config", str(config)]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        yield _listening(process, log_path)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _listening(process: subprocess.Popen[bytes], log_path: Path) -> Doors:
    """The ports in the broker's output. A silent broker is ended, which ends the reading."""
    assert process.stdout is not None
    silence = threading.Timer(START_SECONDS_MAX, process.kill)
    silence.start()
    ports: list[int] = []
    try:
        for line in process.stdout:
            match = _LISTENS.search(line.decode(errors="replace"))
            ports += [int(match.group(2))] if match else []
            if len(ports) == len(Doors._fields):
                threading.Thread(target=process.stdout.read, daemon=True).start()
                return Doors(*ports)
    finally:
        silence.cancel()
    raise NotStartedError(f"tidemill serve did not start:\n{log_path.read_text(errors='replace')[-2000:]}")
