"""Both brokers with an authorizer: a plaintext listener for the administrator, and one with SASL for the users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.apache_kafka import ApacheKafka, free_ports
from bench.diff.acls.requests.dice import NODE_ID
from bench.diff.acls.rules import USERS
from bench.diff.brokers import serving

SUPER_USER = "root"
# Finds out which ACLs are in force.
PROBE = "probe"
# Every peer at the plaintext listener is a super user: the administrator of these runs.
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
    with serving(["--config", str(config)], log_path, len(Doors._fields)) as listeners:
        yield Doors(*(port for _, port in listeners))
