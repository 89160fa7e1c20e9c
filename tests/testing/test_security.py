"""Test brokers with TLS, SASL and ACLs: who gets in, what is refused, and that faults strike there too."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tidemill.client.cluster import Cluster
from tidemill.client.connections.sasl import AuthenticationFailed
from tidemill.errors import ConfigError
from tidemill.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from tidemill.testing import InProcessBroker, InProcessCluster, Security
from tidemill.testing.security import binding

PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
SECRET = 'a "quoted" secret = \\ and more'


def write(producer: Producer, topic: str) -> str | None:
    """The name of the error, if there is one."""
    errors: list[str | None] = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error.name() if error else None))
    assert producer.flush(20) == 0
    return errors[0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_acls_hold_for_each_protocol(protocol: str) -> None:
    security = Security(protocol, users={"alice": SECRET}, acls={"alice": ["write topic:orders"]})  # type: ignore[arg-type]
    with InProcessBroker(security=security) as broker:
        for topic in ("orders", "others"):
            broker.create_topic(topic)
        producer = Producer(broker.client_options("alice").confluent_kafka)
        assert write(producer, "orders") is None
        assert write(producer, "others") == "TOPIC_AUTHORIZATION_FAILED"
        broker.allow("alice", "write topic:oth*")
        assert write(Producer(broker.client_options("alice").confluent_kafka), "others") is None
        assert len(broker.records("others")) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_client_without_options_is_not_served(protocol: str) -> None:
    with InProcessBroker(security=protocol) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=1)


def test_wrong_password_is_refused_and_restart_keeps_users() -> None:
    with InProcessBroker(security=Security("SASL_SSL", users=["alice"])) as broker:
        broker.restart()
        broker.set_password("bob", "his own")
        for user in ("alice", "bob"):
            with Cluster(broker.bootstrap, security=broker.client_options(user).security) as cluster:
                assert cluster.load_metadata(None).brokers
        broker._secured.passwords["bob"] = "a guess"  # type: ignore[union-attr]
        guess = Cluster(broker.bootstrap, security=broker.client_options("bob").security)
        with pytest.raises(AuthenticationFailed):
            guess.load_metadata(None)


def test_faults_strike_behind_a_login() -> None:
    with InProcessBroker(security="SASL_SSL") as broker:
        broker.create_topic("orders")
        producer = Producer(broker.client_options().confluent_kafka | {"enable.idempotence": True})
        with broker.faults.lose_next_ack(topic="orders"):
            assert write(producer, "orders") is None
        assert len(broker.records("orders")) == 1
        with broker.faults.refuse_next("Produce", "INVALID_RECORD"):
            assert write(producer, "orders") == "INVALID_RECORD"


def test_cluster_with_security_survives_a_crash_and_follows_acls_everywhere() -> None:
    security = Security("SASL_SSL", users=["alice"], acls={})
    with InProcessCluster(security=security) as cluster:
        cluster.create_topic("orders", partitions=3)
        cluster.allow("alice", "write topic:orders")
        cluster.broker(cluster.leader_of("orders")).crash()
        assert write(Producer(cluster.client_options("alice").confluent_kafka), "orders") is None
        cluster.revoke("alice", "write topic:orders")
        refused = write(Producer(cluster.client_options("alice").confluent_kafka), "orders")
        assert refused == "TOPIC_AUTHORIZATION_FAILED"


def test_no_secret_is_shown_and_no_file_is_left() -> None:
    security = Security("SASL_SSL", users={"alice": "open sesame"})
    with InProcessBroker(security=security) as broker:
        options = broker.client_options("alice")
        for shown in (repr(security), repr(options), repr(options.security)):
            assert "open sesame" not in shown
        folder = Path(options.properties_file).parent
        assert folder.exists()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("rule", "kind", "name", "pattern", "operation", "permission"),
    [
        ("read topic:a", ResourceType.TOPIC, "a", PatternType.LITERAL, Operation.READ, Permission.ALLOW),
        ("deny all group:a*", ResourceType.GROUP, "a", PatternType.PREFIXED, Operation.ALL, Permission.DENY),
        ("write topic:*", ResourceType.TOPIC, "*", PatternType.LITERAL, Operation.WRITE, Permission.ALLOW),
        (
            "allow describe-configs cluster",
            ResourceType.CLUSTER,
            "kafka-cluster",
            PatternType.LITERAL,
            Operation.DESCRIBE_CONFIGS,
            Permission.ALLOW,
        ),
    ],
)
def test_rule_is_read(
    rule: str,
    kind: ResourceType,
    name: str,
    pattern: PatternType,
    operation: Operation,
    permission: Permission,
) -> None:
    assert binding("alice", rule) == AclBinding(kind, name, pattern, "User:alice", "*", operation, permission)


@pytest.mark.parametrize(
    "rule", ["", "read", "read topic:", "look topic:a", "read shelf:a", "read topic:a b"]
)
def test_rule_that_cannot_be_read_is_refused_before_the_broker_starts(rule: str) -> None:
    with pytest.raises(ConfigError, match="write topic:orders"):
        Security("SASL_SSL", acls={"alice": [rule]})


@pytest.mark.parametrize("given", [{"protocol": "PLAINTEXT"}, {"mechanisms": ["GSSAPI"]}])
def test_unknown_protocol_or_mechanism_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Security(**given)  # type: ignore[arg-type]
