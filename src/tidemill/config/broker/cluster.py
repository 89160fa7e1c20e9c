"""The cluster settings of a node: the controller quorum, its membership, replication.

`controller.quorum.voters` fixes the voters; `controller.quorum.bootstrap.servers` names where to find them. A
controller with neither is a quorum of its own. Contradicting settings are rejected here, with the key to change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidemill.config.broker.listeners import Listener
from tidemill.config.broker.network import NetworkConfig
from tidemill.config.definitions import invalid_value
from tidemill.config.values import Values
from tidemill.errors import ConfigError
from tidemill.types import BrokerId

_VOTERS = "controller.quorum.voters"
_BOOTSTRAP_SERVERS = "controller.quorum.bootstrap.servers"
_AUTO_JOIN = "controller.quorum.auto.join.enable"
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[^\[\]:/@\s]+)):(?P<port>\d{1,5})")

LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, slots=True)
class QuorumVoter:
    """One voter in `controller.quorum.voters`."""

    id: BrokerId
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.id}@{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ControllerQuorumConfig:
    """The settings `controller.quorum.*`."""

    voters: tuple[QuorumVoter, ...] = ()
    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    auto_join: bool = False
    election_timeout_ms: int = 1_000
    election_backoff_max_ms: int = 1_000
    fetch_timeout_ms: int = 2_000
    request_timeout_ms: int = 2_000
    retry_backoff_ms: int = 20
    fetch_max_bytes: int = 1_048_576
    fetch_snapshot_max_bytes: int = 1_048_576


@dataclass(frozen=True, slots=True)
class MembershipConfig:
    """The settings of a broker's registration. The active controller judges the session."""

    heartbeat_interval_ms: int = 2_000
    session_timeout_ms: int = 9_000
    registration_timeout_ms: int = 60_000
    controlled_shutdown_enable: bool = True


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """The settings of replication. `selector_class` is None when consumers read from leaders only."""

    lag_time_max_ms: int = 30_000
    fetch_max_bytes: int = 1_048_576
    fetch_min_bytes: int = 1
    fetch_wait_max_ms: int = 500
    fetch_response_max_bytes: int = 10_485_760
    fetch_backoff_ms: int = 1_000
    fetchers: int = 1
    high_watermark_checkpoint_interval_ms: int = 5_000
    selector_class: str | None = None
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_ms: int = 300_000
    unclean_leader_election_interval_check_ms: int = 300_000
    socket_timeout_ms: int = 30_000


def load_quorum(
    values: Values, node_id: BrokerId, roles: tuple[str, ...], network: NetworkConfig
) -> ControllerQuorumConfig:
    number = values.number
    quorum = ControllerQuorumConfig(
        voters=_voters(values.texts(_VOTERS)),
        bootstrap_servers=tuple(_server(text) for text in values.texts(_BOOTSTRAP_SERVERS)),
        auto_join=values.flag(_AUTO_JOIN),
        election_timeout_ms=number("controller.quorum.election.timeout.ms"),
        election_backoff_max_ms=number("controller.quorum.election.backoff.max.ms"),
        fetch_timeout_ms=number("controller.quorum.fetch.timeout.ms"),
        request_timeout_ms=number("controller.quorum.request.timeout.ms"),
        retry_backoff_ms=number("controller.quorum.retry.backoff.ms"),
        fetch_max_bytes=number("controller.quorum.fetch.max.bytes"),
        fetch_snapshot_max_bytes=number("controller.quorum.fetch.snapshot.max.bytes"),
    )
    if "controller" in roles:
        _check_controller(quorum, node_id, network)
        values.warnings.extend(_own_address_warnings(quorum, node_id, network))
    else:
        _check_broker(quorum, node_id)
    return quorum


def load_membership(values: Values) -> MembershipConfig:
    heartbeat_ms = values.number("broker.heartbeat.interval.ms")
    session_ms = values.number("broker.session.timeout.ms")
    if heartbeat_ms * 2 > session_ms:
        values.warnings.append(
            f"Configuration broker.heartbeat.interval.ms ({heartbeat_ms}) is more than half of "
            f"broker.session.timeout.ms ({session_ms}): one lost heartbeat fences the broker"
        )
    return MembershipConfig(
        heartbeat_interval_ms=heartbeat_ms,
        session_timeout_ms=session_ms,
        registration_timeout_ms=values.number("initial.broker.registration.timeout.ms"),
        controlled_shutdown_enable=values.flag("controlled.shutdown.enable"),
    )


def load_replication(values: Values) -> ReplicationConfig:
    number = values.number
    wait_ms = number("replica.fetch.wait.max.ms")
    for name in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
        if wait_ms > number(name):
            raise invalid_value(
                "replica.fetch.wait.max.ms", str(wait_ms), f"at most {name}, which is {number(name)}"
            )
    return ReplicationConfig(
        lag_time_max_ms=number("replica.lag.time.max.ms"),
        fetch_max_bytes=number("replica.fetch.max.bytes"),
        fetch_min_bytes=number("replica.fetch.min.bytes"),
        fetch_wait_max_ms=wait_ms,
        fetch_response_max_bytes=number("replica.fetch.response.max.bytes"),
        fetch_backoff_ms=number("replica.fetch.backoff.ms"),
        fetchers=number("num.replica.fetchers"),
        high_watermark_checkpoint_interval_ms=number("replica.high.watermark.checkpoint.interval.ms"),
        selector_class=_selector(values),
        auto_leader_rebalance_enable=values.flag("auto.leader.rebalance.enable"),
        leader_imbalance_check_interval_ms=number("leader.imbalance.check.interval.seconds") * 1_000,
        unclean_leader_election_interval_check_ms=number("unclean.leader.election.interval.ms"),
        socket_timeout_ms=number("replica.socket.timeout.ms"),
    )


def _selector(values: Values) -> str | None:
    name = values.optional_text("replica.selector.class")
    if name not in (None, LEADER_SELECTOR, RACK_AWARE_SELECTOR):
        allowed = f"{RACK_AWARE_SELECTOR} or {LEADER_SELECTOR}: no other class is known here"
        raise invalid_value("replica.selector.class", name or "", allowed)
    return None if name == LEADER_SELECTOR else name


def _voters(texts: tuple[str, ...]) -> tuple[QuorumVoter, ...]:
    voters = tuple(_voter(text) for text in texts)
    text = ",".join(texts)
    if len({voter.id for voter in voters}) != len(voters):
        raise invalid_value(_VOTERS, text, "a list in which each voter has another id")
    if len({(voter.host, voter.port) for voter in voters}) != len(voters):
        raise invalid_value(_VOTERS, text, "a list in which each voter has another address")
    return voters


def _voter(text: str) -> QuorumVoter:
    number, at, address = text.partition("@")
    parsed = _parse_address(address)
    if not at or not number.strip().isdecimal() or parsed is None:
        raise invalid_value(_VOTERS, text, "a list of id@host:port, as 1@broker-1:9093,2@broker-2:9093")
    return QuorumVoter(BrokerId(int(number)), *parsed)


def _server(text: str) -> tuple[str, int]:
    parsed = _parse_address(text)
    if parsed is None:
        raise invalid_value(_BOOTSTRAP_SERVERS, text, "a list of host:port, as broker-1:9093,broker-2:9093")
    return parsed


def _parse_address(text: str) -> tuple[str, int] | None:
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or not 0 < int(match["port"]) < 65_536:
        return None
    return match["ipv6"] or match["host"], int(match["port"])


def _check_controller(quorum: ControllerQuorumConfig, node_id: BrokerId, network: NetworkConfig) -> None:
    ids = [voter.id for voter in quorum.voters]
    if ids and node_id not in ids:
        raise invalid_value(
            _VOTERS,
            ",".join(map(str, quorum.voters)),
            f"a list that has this node, {node_id}, when process.roles has controller; add it, or use "
            "process.roles=broker",
        )
    key = _VOTERS if len(ids) > 1 else _BOOTSTRAP_SERVERS if quorum.bootstrap_servers else None
    if key is not None and not network.controller_listeners:
        raise ConfigError(
            f"Configuration controller.listener.names is missing: {key} names other controllers, which need "
            "a listener of this one; add CONTROLLER://host:port to listeners and set "
            "controller.listener.names=CONTROLLER"
        )


def _check_broker(quorum: ControllerQuorumConfig, node_id: BrokerId) -> None:
    if not quorum.voters and not quorum.bootstrap_servers:
        raise ConfigError(
            f"Configuration {_BOOTSTRAP_SERVERS} is missing: a node with process.roles=broker has to know "
            f"where the controllers are; set it to their host:port, or set {_VOTERS}"
        )
    if node_id in [voter.id for voter in quorum.voters]:
        raise invalid_value(
            _VOTERS,
            ",".join(map(str, quorum.voters)),
            f"a list without this node, {node_id}, when process.roles is broker; give the node another "
            "node.id, or use process.roles=broker,controller",
        )
    if quorum.auto_join:
        raise invalid_value(_AUTO_JOIN, "true", "false when process.roles has no controller")


def _own_address_warnings(
    quorum: ControllerQuorumConfig, node_id: BrokerId, network: NetworkConfig
) -> list[str]:
    """Warnings about the node's own address. It is no error, since the port may be forwarded."""
    own = next((voter for voter in quorum.voters if voter.id == node_id), None)
    listeners = network.controller_listeners + network.advertised_controller_listeners
    if own is None or not listeners or own.port in {listener.port for listener in listeners}:
        return []
    return [
        f"Configuration {_VOTERS} gives this node the address {own.host}:{own.port}, but its controller "
        f"listener is {_described(listeners)}: other controllers find it only if that port leads here"
    ]


def _described(listeners: tuple[Listener, ...]) -> str:
    return ", ".join(dict.fromkeys(map(str, listeners)))
