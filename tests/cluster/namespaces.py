"""Nodes in network namespaces of their own, joined by a router that loses packets on demand.

Packets are dropped silently in the middle, in one direction or both, as a broken switch does it: nobody gets an error.
The tests themselves stay in the namespace they were started in, with a link to the router like everybody else.
Needs root and iproute2; `unavailable` says what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType

from tests.cluster.clusters import Place

BROKER_PORT, CONTROLLER_PORT = 9092, 9093
# The id of the tests' own end of the network.
CLIENTS = 0


class NetworkError(RuntimeError):
    """`ip` refused."""


def unavailable() -> str | None:
    """None, or one line that says what to do."""
    if sys.platform != "linux":
        return "network namespaces exist on Linux only"
    if os.geteuid() != 0:
        return "network namespaces need root: run as root, or with sudo -E"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip: install iproute2"
    probe = f"tm{os.getpid()}-probe"
    try:
        _ip("netns", "add", probe)
        _ip("netns", "del", probe)
    except NetworkError as refused:
        return (
            f"network namespaces are not allowed here ({refused}): run with CAP_SYS_ADMIN and CAP_NET_ADMIN"
        )
    return None


class Namespaces:
    """One for each node, and the router's. Node `n` has the address `198.18.x.(4n + 2)`, of the range kept for tests."""

    def __init__(self, ids: Sequence[int]) -> None:
        assert all(0 < node_id < 60 for node_id in ids)
        self._ids = ids
        self._name = f"tm{os.getpid() % 1_000_000}"
        self._subnet = f"198.18.{os.getpid() % 250}"
        self._router = f"{self._name}-r"
        self._rules: list[list[str]] = []

    def __enter__(self) -> Namespaces:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def host(self, node_id: int) -> str:
        return f"{self._subnet}.{4 * node_id + 2}"

    def places(self) -> dict[int, Place]:
        return {
            node_id: Place(
                self.host(node_id),
                BROKER_PORT,
                CONTROLLER_PORT,
                ("ip", "netns", "exec", self._namespace(node_id)),
            )
            for node_id in self._ids
        }

    # -- losing ----------------------------------------------------------------------------------------------

    def cut_off(self, node_id: int) -> None:
        """From everybody, clients too."""
        self._lose(["from", self.host(node_id)])
        self._lose(["to", self.host(node_id)])

    def cut(self, node_id: int, other_id: int) -> None:
        self.cut_one_way(node_id, other_id)
        self.cut_one_way(other_id, node_id)

    def cut_one_way(self, sender_id: int, receiver_id: int) -> None:
        self._lose(["from", self.host(sender_id), "to", self.host(receiver_id)])

    def heal(self) -> None:
        while self._rules:
            _ip("-n", self._router, "rule", "del", "blackhole", *self._rules.pop())

    def _lose(self, selector: list[str]) -> None:
        _ip("-n", self._router, "rule", "add", "blackhole", *selector)
        self._rules.append(selector)

    # -- building --------------------------------------------------------------------------------------------

    def _namespace(self, node_id: int) -> str:
        return f"{self._name}-{node_id}"

    def _build(self) -> None:
        _ip("netns", "add", self._router)
        _run("ip", "netns", "exec", self._router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self._join_router(CLIENTS, None)
        _ip("route", "add", f"{self._subnet}.0/24", "via", f"{self._subnet}.1")
        for node_id in self._ids:
            namespace = self._namespace(node_id)
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
            self._join_router(node_id, namespace)
            _ip("-n", namespace, "route", "add", "default", "via", f"{self._subnet}.{4 * node_id + 1}")

    def _join_router(self, node_id: int, namespace: str | None) -> None:
        inside = ["-n", namespace] if namespace else []
        end, router_end = f"{self._name}n{node_id}", f"{self._name}r{node_id}"
        _ip(*inside, "link", "add", end, "type", "veth", "peer", "name", router_end, "netns", self._router)
        _ip(*inside, "addr", "add", f"{self.host(node_id)}/30", "dev", end)
        _ip(*inside, "link", "set", end, "up")
        _ip("-n", self._router, "addr", "add", f"{self._subnet}.{4 * node_id + 1}/30", "dev", router_end)
        _ip("-n", self._router, "link", "set", router_end, "up")

    def _remove(self) -> None:
        """A namespace takes its interfaces with it, some time later; ours has to be gone before the next one is made."""
        own_end = f"{self._name}n{CLIENTS}"
        if os.path.exists(f"/sys/class/net/{own_end}"):
            _ip("link", "del", own_end)
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        for line in listed.splitlines():
            name = line.split()[0]
            if name == self._router or name in map(self._namespace, self._ids):
                _ip("netns", "del", name)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*arguments: str) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(arguments)}: {done.stderr.strip()}")
