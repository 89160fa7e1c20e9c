"""The cluster's part of server.properties: roles and listeners, the quorum, membership, replication."""

from __future__ import annotations

import pytest

from tidemill.config import (
    ControllerQuorumConfig,
    Listener,
    MembershipConfig,
    QuorumVoter,
    ReplicationConfig,
    load_broker_config,
)
from tidemill.errors import ConfigError
from tidemill.types import BrokerId

VOTERS = "1@a:9093,2@b:9093,3@c:9093"
COMBINED = {
    "node.id": "1",
    "listeners": "PLAINTEXT://a:9092,CONTROLLER://a:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": VOTERS,
}
BROKER = {
    "process.roles": "broker",
    "node.id": "4",
    "listeners": "PLAINTEXT://d:9092",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": VOTERS,
}
CONTROLLER = {
    "process.roles": "controller",
    "node.id": "1",
    "listeners": "CONTROLLER://a:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": VOTERS,
}
SERVERS = "controller.quorum.bootstrap.servers"


def test_a_standalone_node_is_broker_and_controller_and_needs_no_setting() -> None:
    config, _ = load_broker_config({})
    assert config.is_broker
    assert config.is_controller
    assert config.quorum == ControllerQuorumConfig()
    assert config.membership == MembershipConfig()
    assert config.replication == ReplicationConfig()
    assert config.network.controller_listeners == ()
    assert config.network.inter_broker_listener_name == "PLAINTEXT"


def test_the_defaults_are_kafkas() -> None:
    config, _ = load_broker_config({})
    assert config.membership.heartbeat_interval_ms == 2_000
    assert config.membership.session_timeout_ms == 9_000
    assert config.membership.registration_timeout_ms == 60_000
    assert config.membership.controlled_shutdown_enable is True
    assert config.replication.lag_time_max_ms == 30_000
    assert config.replication.fetch_wait_max_ms == 500
    assert config.replication.leader_imbalance_check_interval_ms == 300_000
    assert config.quorum.fetch_timeout_ms == 2_000
    assert config.offsets_topic.replication_factor == 3


def test_one_node_of_three_that_are_both() -> None:
    config, warnings = load_broker_config(COMBINED)
    assert warnings == []
    assert config.quorum.voters == (
        QuorumVoter(BrokerId(1), "a", 9093),
        QuorumVoter(BrokerId(2), "b", 9093),
        QuorumVoter(BrokerId(3), "c", 9093),
    )
    assert config.network.controller_listeners == (Listener("CONTROLLER", "a", 9093, "PLAINTEXT"),)


def test_a_broker_only_and_a_controller_only() -> None:
    broker, broker_warnings = load_broker_config(BROKER)
    assert (broker.is_broker, broker.is_controller) == (True, False)
    assert broker.network.controller_listener_names == ("CONTROLLER",)
    controller, controller_warnings = load_broker_config(CONTROLLER)
    assert (controller.is_broker, controller.is_controller) == (False, True)
    assert controller.network.listeners == ()
    assert controller.network.controller_listeners == (Listener("CONTROLLER", "a", 9093, "PLAINTEXT"),)
    assert broker_warnings == controller_warnings == []


def test_a_controller_may_advertise_its_listener() -> None:
    config, _ = load_broker_config({**CONTROLLER, "advertised.listeners": "CONTROLLER://outside:9093"})
    assert config.network.advertised_listeners == ()
    assert config.network.advertised_controller_listeners == (
        Listener("CONTROLLER", "outside", 9093, "PLAINTEXT"),
    )


def test_bootstrap_servers_and_ipv6() -> None:
    properties = {**COMBINED, "controller.quorum.voters": "", SERVERS: "a:9093, [::1]:9094"}
    config, _ = load_broker_config(properties)
    assert config.quorum.bootstrap_servers == (("a", 9093), ("::1", 9094))
    voters, _ = load_broker_config({"controller.quorum.voters": "1@[::1]:9093"})
    assert str(voters.quorum.voters[0]) == "1@[::1]:9093"


def test_settings_reach_the_dataclasses() -> None:
    config, warnings = load_broker_config(
        {
            "broker.heartbeat.interval.ms": "500",
            "broker.session.timeout.ms": "2000",
            "controlled.shutdown.enable": "false",
            "controller.quorum.election.timeout.ms": "300",
            "controller.quorum.auto.join.enable": "true",
            "leader.imbalance.check.interval.seconds": "7",
            "num.replica.fetchers": "3",
            "replica.lag.time.max.ms": "4000",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "unclean.leader.election.enable": "true",
            "unclean.leader.election.interval.ms": "11",
        }
    )
    assert warnings == []
    assert config.membership == MembershipConfig(500, 2_000, 60_000, False)
    assert config.quorum == ControllerQuorumConfig(auto_join=True, election_timeout_ms=300)
    assert config.replication == ReplicationConfig(
        fetchers=3,
        lag_time_max_ms=4_000,
        leader_imbalance_check_interval_ms=7_000,
        selector_class="org.apache.kafka.common.replica.RackAwareReplicaSelector",
        unclean_leader_election_interval_check_ms=11,
    )
    assert config.topics.defaults.unclean_leader_election_enable is True


@pytest.mark.parametrize("value", ["0", "-5"])
@pytest.mark.parametrize(
    "name",
    [
        "broker.heartbeat.interval.ms",
        "broker.session.timeout.ms",
        "controller.quorum.election.timeout.ms",
        "controller.quorum.fetch.timeout.ms",
        "controller.quorum.request.timeout.ms",
        "controller.quorum.retry.backoff.ms",
        "initial.broker.registration.timeout.ms",
    ],
)
def test_zero_timeout_is_rejected(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load_broker_config({name: value})


@pytest.mark.parametrize(
    ("properties", "key", "advice"),
    [
        ({"controller.quorum.voters": "a:9093"}, "controller.quorum.voters", "id@host:port"),
        ({"controller.quorum.voters": "x@a:9093"}, "controller.quorum.voters", "id@host:port"),
        ({"controller.quorum.voters": "1@a:0"}, "controller.quorum.voters", "id@host:port"),
        ({"controller.quorum.voters": "1@a:70000"}, "controller.quorum.voters", "id@host:port"),
        (COMBINED | {"controller.quorum.voters": "1@a:1,1@b:1"}, "controller.quorum.voters", "another id"),
        (
            COMBINED | {"controller.quorum.voters": "1@a:1,2@a:1"},
            "controller.quorum.voters",
            "another address",
        ),
        (COMBINED | {SERVERS: "a"}, SERVERS, "host:port"),
        (COMBINED | {"node.id": "4"}, "controller.quorum.voters", "this node, 4"),
        ({"controller.quorum.voters": VOTERS}, "controller.listener.names", "add CONTROLLER://host:port"),
        ({SERVERS: "a:9093"}, "controller.listener.names", "add CONTROLLER://host:port"),
        ({"controller.listener.names": "CONTROLLER"}, "controller.listener.names", "CONTROLLER://host:port"),
        (BROKER | {"node.id": "1"}, "controller.quorum.voters", "another node.id"),
        (BROKER | {"controller.quorum.voters": ""}, SERVERS, "where the controllers are"),
        (BROKER | {"controller.listener.names": ""}, "controller.listener.names", "as CONTROLLER"),
        (BROKER | {"listeners": COMBINED["listeners"]}, "listeners", "without CONTROLLER"),
        (BROKER | {"controller.quorum.auto.join.enable": "true"}, "controller.quorum.auto.join.enable", ""),
        (CONTROLLER | {"listeners": COMBINED["listeners"]}, "listeners", "only listeners of controller"),
        (CONTROLLER | {"controller.listener.names": ""}, "listeners", "controller.listener.names"),
        (
            COMBINED | {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"},
            "listener.security.protocol.map",
            "add CONTROLLER:PLAINTEXT",
        ),
        (
            COMBINED | {"inter.broker.listener.name": "CONTROLLER"},
            "inter.broker.listener.name",
            "not one of controllers",
        ),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
            "security.inter.broker.protocol",
            "left out",
        ),
        ({"security.inter.broker.protocol": "SSL"}, "inter.broker.listener.name", "which of PLAINTEXT"),
        (
            {
                "listeners": "A://:1,B://:2",
                "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
            },
            "inter.broker.listener.name",
            "which of A, B",
        ),
        (
            {
                "listeners": "PLAINTEXT://:1,SSL://:2",
                "advertised.listeners": "SSL://h:2",
                "inter.broker.listener.name": "PLAINTEXT",
            },
            "inter.broker.listener.name",
            "one of SSL",
        ),
        ({"replica.fetch.wait.max.ms": "30001"}, "replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
        ({"replica.lag.time.max.ms": "100"}, "replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
        ({"replica.selector.class": "my.Selector"}, "replica.selector.class", "RackAwareReplicaSelector"),
    ],
)
def test_contradictions_name_the_key_and_what_to_do(
    properties: dict[str, str], key: str, advice: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_broker_config(properties)
    assert f"onfiguration {key}" in str(caught.value)
    assert advice in str(caught.value)


def test_the_only_listener_is_the_brokers_own_whatever_its_name() -> None:
    config, _ = load_broker_config(
        {"listeners": "INSIDE://:9092", "listener.security.protocol.map": "INSIDE:PLAINTEXT"}
    )
    assert config.network.inter_broker_listener_name == "INSIDE"


def test_doubtful_settings_are_warned_about() -> None:
    _, warnings = load_broker_config({**COMBINED, "broker.session.timeout.ms": "3000"})
    assert len(warnings) == 1
    assert "broker.heartbeat.interval.ms" in warnings[0]
    _, warnings = load_broker_config({**COMBINED, "controller.quorum.voters": "1@a:9999,2@b:9093"})
    assert len(warnings) == 1
    assert "a:9999" in warnings[0]
    assert "CONTROLLER://a:9093" in warnings[0]
