"""Limits of connections: how many, for one address and one listener, and how many a second."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tidemill.broker.net.connection_quotas import ConnectionQuotas, server_limits
from tidemill.broker.net.network import Peer, ServerLimits
from tidemill.broker.net.server import Server
from tidemill.config import load_broker_config

LIMITS = ServerLimits(
    frame_bytes_max=1 << 20, connections_max=10, connections_per_ip_max=10, idle_ms_max=600_000
)
IP, OTHER_IP = "10.0.0.1", "10.0.0.2"


def quotas(**limits: object) -> ConnectionQuotas:
    return ConnectionQuotas(replace(LIMITS, **limits))  # type: ignore[arg-type]


class TestCounts:
    def test_limit_of_all_connections(self) -> None:
        counts = quotas(connections_max=2)
        counts.opened(IP, "A")
        counts.opened(OTHER_IP, "A")
        assert counts.refusal(IP, "A") == "max.connections=2"
        counts.closed(IP, "A")
        assert counts.refusal(IP, "A") is None

    def test_limit_of_one_address(self) -> None:
        counts = quotas(connections_per_ip_max=1, connections_per_ip_overrides={OTHER_IP: 2})
        counts.opened(IP, "A")
        counts.opened(OTHER_IP, "A")
        assert counts.refusal(IP, "A") == "max.connections.per.ip=1"
        assert counts.refusal(OTHER_IP, "A") is None

    def test_limit_of_one_listener(self) -> None:
        counts = quotas(listener_connections_max={"A": 1})
        counts.opened(IP, "A")
        assert counts.refusal(IP, "A") == "listener.name.a.max.connections=1"
        assert counts.refusal(IP, "B") is None

    def test_limit_of_all_connections_does_not_count_at_the_listener_of_brokers(self) -> None:
        counts = quotas(connections_max=1, protected_listeners=frozenset({"BROKERS"}))
        counts.opened(IP, "A")
        assert counts.refusal(IP, "A") is not None
        assert counts.refusal(IP, "BROKERS") is None

    def test_lower_limit_leaves_an_excess(self) -> None:
        counts = quotas()
        for _ in range(5):
            counts.opened(IP, "A")
        assert counts.excess == 0
        counts.configure(replace(LIMITS, connections_max=3), {})
        assert counts.excess == 2


class TestRates:
    def test_listener_waits_when_connections_come_too_fast(self) -> None:
        counts = quotas(connection_rate_max=1)
        for _ in range(10):
            assert not counts.wait_ms("A", 0)
            counts.accepted("A", 0)
        # A first burst is measured over ten seconds.
        assert not counts.wait_ms("A", 0)
        counts.accepted("A", 0)
        assert counts.wait_ms("A", 0) == 1_000
        assert not counts.wait_ms("A", 12_000)

    def test_without_a_limit_nothing_waits(self) -> None:
        counts = quotas()
        for _ in range(1_000):
            counts.accepted("A", 0)
        assert not counts.wait_ms("A", 0)

    def test_rate_of_one_listener_holds_no_other_back(self) -> None:
        counts = quotas(listener_connection_rate_max={"A": 1})
        for _ in range(20):
            counts.accepted("A", 0)
            counts.accepted("B", 0)
        assert counts.wait_ms("A", 0)
        assert not counts.wait_ms("B", 0)

    def test_rate_of_all_listeners_does_not_count_at_that_of_brokers(self) -> None:
        counts = quotas(connection_rate_max=1, protected_listeners=frozenset({"BROKERS"}))
        for _ in range(20):
            counts.accepted("BROKERS", 0)
        assert not counts.wait_ms("BROKERS", 0)
        assert not counts.wait_ms("A", 0)

    def test_higher_limit_counts_at_once(self) -> None:
        counts = quotas(connection_rate_max=1)
        for _ in range(20):
            counts.accepted("A", 0)
        counts.configure(replace(LIMITS, connection_rate_max=1_000), {})
        assert not counts.wait_ms("A", 0)


@pytest.mark.parametrize(
    ("listeners", "protected"),
    [
        ("A://:0,CONTROLLER://:0", {"CONTROLLER"}),
        ("A://:0,B://:0,CONTROLLER://:0", {"A", "CONTROLLER"}),
    ],
)
def test_listeners_of_nodes_are_protected_where_clients_have_others(
    listeners: str, protected: set[str]
) -> None:
    config, _ = load_broker_config(
        {
            "listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "A",
        }
    )
    assert server_limits(config.network, lambda _ip: 0).protected_listeners == protected


def _ignore(_peer: Peer, _frame: memoryview) -> None: ...


async def test_names_of_hosts_are_looked_up_when_the_limits_change(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(asyncio.get_running_loop(), _ignore, LIMITS)
    configure, looked_up = server._quotas.configure, asyncio.Event()

    def configured(limits: ServerLimits, counts: Mapping[str, int]) -> None:
        configure(limits, counts)
        if "127.0.0.1" in counts:
            looked_up.set()

    monkeypatch.setattr(server._quotas, "configure", configured)
    overrides = {"localhost": 3, "192.0.2.7": 4, "no.such.host.invalid": 5}
    server.configure(replace(LIMITS, connections_per_ip_overrides=overrides))
    assert server._quotas.ip_limit("192.0.2.7") == 4
    await asyncio.wait_for(looked_up.wait(), 30)
    assert server._quotas.ip_limit("127.0.0.1") == 3
    assert server._quotas.ip_limit("192.0.2.7") == 4
    server.close()


async def test_client_waits_in_the_backlog_while_its_listener_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = asyncio.Event()
    server = Server(asyncio.get_running_loop(), lambda _peer, _frame: answered.set(), LIMITS)
    waits = [20, 20]
    monkeypatch.setattr(server._quotas, "wait_ms", lambda _name, _steady_ms: waits.pop() if waits else 0)
    port = server.bind("A", "127.0.0.1", 0)
    server.start_accepting("A")
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"\0\0\0\1x")
        await asyncio.wait_for(answered.wait(), 30)
    assert not waits
    server.close()
