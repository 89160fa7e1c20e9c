"""The checks of addresses: whether one leads to a Kafka broker, and otherwise what listens there.

Each step is tried only when the one before succeeded: the name, the connection, the protocol. When a connection does
not speak Kafka, TLS and HTTP are tried on new connections: most mistakes are a port of another protocol.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterable

from tidemill.cli.checks.finding import Finding, ok, problem
from tidemill.cli.checks.ports import owner_of
from tidemill.client.cluster import check as check_error
from tidemill.client.connections.connection import Address, Connection
from tidemill.client.connections.sasl import AuthenticationFailed
from tidemill.client.connections.security import SecurityOptions
from tidemill.errors import ConfigError, TidemillError
from tidemill.protocol.api.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidemill.protocol.api.cluster import MetadataRequest, MetadataResponse, MetadataResponseBroker

_BROKER_RESOURCE = 4
_PROBE_BYTES = 512


class Network:
    """The addresses as seen from this machine. `connections` holds those that speak Kafka, and `close` closes them."""

    def __init__(self, security: SecurityOptions, timeout_s: float) -> None:
        self._security = security
        self._timeout_s = timeout_s
        self.connections: dict[Address, Connection] = {}

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()

    # -- one address -----------------------------------------------------------------------------------------------

    def reach(self, address: Address) -> Finding:
        check = f"broker at {address}"
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except OSError as error:
            return problem(
                check,
                f"the name {address.host} does not resolve: {str(error.strerror or error).lower()}",
                "check the spelling, or add the name to DNS or to /etc/hosts of this machine",
            )
        numbers = list(dict.fromkeys(str(each[4][0]) for each in found))
        failures = {}
        for number in numbers:
            started_s = time.monotonic()
            try:
                socket.create_connection((number, address.port), self._timeout_s).close()
            except OSError as error:
                failures[number] = error
                continue
            return self._speak(check, address, time.monotonic() - started_s)
        return _unreachable(check, address, failures)

    def _speak(self, check: str, address: Address, connect_s: float) -> Finding:
        try:
            self.connections[address] = Connection(
                address, client_id="tidemill-doctor", timeout_s=self._timeout_s, security=self._security
            )
        except AuthenticationFailed as error:
            return problem(
                check,
                f"it is reachable, but does not let us in: {error}",
                "correct the security options in --command-config",
            )
        except ConfigError as error:
            return problem(check, f"the security options cannot be used: {error}", "correct --command-config")
        except TidemillError as error:
            return self._other_language(check, address, str(error))
        return ok(check, f"speaks Kafka, connected in {connect_s * 1000:.1f} ms")

    def _other_language(self, check: str, address: Address, reason: str) -> Finding:
        if self._speaks_tls(address) and self._speaks_http(address, has_tls=True):
            return problem(
                check,
                "it speaks HTTPS, not Kafka: perhaps the gateway or a status listener",
                "give --bootstrap the broker's own port (9092 unless it was changed)",
            )
        if not self._security.has_tls and self._speaks_tls(address):
            return problem(
                check,
                "it speaks TLS, and we do not",
                "put security.protocol=SSL (or SASL_SSL) and ssl.ca.location=FILE into a file, and name it with "
                "--command-config",
            )
        if self._speaks_http(address):
            return problem(
                check,
                "it speaks HTTP, not Kafka: perhaps the gateway or a status listener",
                "give --bootstrap the broker's own port (9092 unless it was changed)",
            )
        if self._security.has_tls:
            with contextlib.suppress(TidemillError):
                Connection(address, timeout_s=self._timeout_s, security=SecurityOptions()).close()
                return problem(
                    check,
                    "it speaks Kafka without TLS, and we use TLS",
                    "set security.protocol to PLAINTEXT or SASL_PLAINTEXT in --command-config, or use the port "
                    "of its TLS listener",
                )
        return problem(
            check,
            f"something listens there that does not speak Kafka: {reason}",
            _what_listens(address) or "give --bootstrap the broker's own port",
        )

    def _speaks_tls(self, address: Address) -> bool:
        try:
            with (
                socket.create_connection(address, self._timeout_s) as plain,
                _trusting().wrap_socket(plain, server_hostname=address.host),
            ):
                return True
        except ssl.SSLError as error:
            # An alert is a TLS response: the peer speaks TLS and rejects this client.
            return "alert" in str(error.reason or "").lower()
        except OSError:
            return False

    def _speaks_http(self, address: Address, *, has_tls: bool = False) -> bool:
        request = f"GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        try:
            with contextlib.ExitStack() as stack:
                sock = stack.enter_context(socket.create_connection(address, self._timeout_s))
                if has_tls:
                    sock = stack.enter_context(_trusting().wrap_socket(sock, server_hostname=address.host))
                sock.sendall(request.encode())
                return sock.recv(_PROBE_BYTES).startswith(b"HTTP/")
        except OSError:
            return False

    # -- what brokers tell their clients ---------------------------------------------------------------------------

    def advertised(self) -> list[Finding]:
        """Check every advertised address: it must lead from here to its broker and no other."""
        told: dict[int, tuple[str | None, MetadataResponseBroker]] = {}
        clusters: dict[str, Address] = {}
        findings = []
        came_from_afar = False
        for address, connection in list(self.connections.items()):
            try:
                answer = connection.request(MetadataRequest(topics=[]), MetadataResponse)
                check_error(answer.error_code)
            except TidemillError as error:
                findings.append(
                    problem(f"broker at {address}", f"Metadata failed: {error}", "look into the broker's log")
                )
                continue
            clusters.setdefault(answer.cluster_id or "", address)
            told.update((each.node_id, (answer.cluster_id, each)) for each in answer.brokers)
            came_from_afar = came_from_afar or not is_loopback(address.host)
        if len(clusters) > 1:
            named = ", ".join(f"{address} is of {cluster}" for cluster, address in clusters.items())
            findings.append(
                problem(
                    "bootstrap addresses",
                    f"they lead to different clusters: {named}",
                    "give --bootstrap the brokers of one cluster",
                )
            )
        findings += (
            self._advertised_by(broker, cluster_id, came_from_afar)
            for _, (cluster_id, broker) in sorted(told.items())
        )
        return findings

    def _advertised_by(
        self, broker: MetadataResponseBroker, cluster_id: str | None, came_from_afar: bool
    ) -> Finding:
        address = Address(broker.host, broker.port)
        check = f"advertised address of broker {broker.node_id}"
        advice = (
            "set advertised.listeners of that broker to an address that its clients can dial, and restart it"
        )
        if came_from_afar and is_loopback(address.host):
            return problem(
                check, f"clients are sent to {address}, which is their own machine, not the broker's", advice
            )
        if address not in self.connections:
            finding = self.reach(address)
            if finding.remedy is not None:
                return problem(check, f"clients are sent to {address}: {finding.text}", advice)
        try:
            other = self._other_than(address, broker.node_id, cluster_id)
        except TidemillError as error:
            other = str(error)
        if other is not None:
            return problem(
                check,
                f"clients are sent to {address}, where another process responds: {other}",
                "every broker needs an address of its own in advertised.listeners, behind a load balancer at least a port",
            )
        return ok(check, f"{address} leads to it")

    def _other_than(self, address: Address, node_id: int, cluster_id: str | None) -> str | None:
        """The node that responds in place of the expected broker, if any: a broker describes only its own
        configuration.
        """
        connection = self.connections[address]
        metadata = connection.request(MetadataRequest(topics=[]), MetadataResponse)
        if metadata.cluster_id != cluster_id:
            return f"a broker of cluster {metadata.cluster_id}, not of {cluster_id}"
        resource = DescribeConfigsResource(resource_type=_BROKER_RESOURCE, resource_name=str(node_id))
        answer = connection.request(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse)
        check_error(answer.results[0].error_code, answer.results[0].error_message)
        return None


def _unreachable(check: str, address: Address, failures: dict[str, OSError]) -> Finding:
    reasons = {str(error.strerror or error).lower() for error in failures.values()}
    numbers = ", ".join(failures)
    where = f" ({address.host} is {numbers})" if numbers != address.host else ""
    if any(isinstance(error, TimeoutError) for error in failures.values()):
        return problem(
            check,
            f"no answer{where}",
            "is the machine up, and does a firewall or security group let this port through?",
        )
    remedy = f"start a broker there (`tidemill serve --listen {address}`), or correct --bootstrap"
    if not is_loopback(address.host):
        remedy += "; a broker that listens on 127.0.0.1 only is not reachable from other machines"
    return problem(check, f"{' and '.join(sorted(reasons))}{where}", remedy)


def _what_listens(address: Address) -> str | None:
    owner = owner_of(address.port) if is_loopback(address.host) else None
    return f"the port is held by {owner}; give --bootstrap the broker's port" if owner else None


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address, also by name: /etc/hosts may map a machine's name to 127.0.1.1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return _all_loopback(str(each[4][0]) for each in found)


def _all_loopback(numbers: Iterable[str]) -> bool:
    return all(ipaddress.ip_address(number.partition("%")[0]).is_loopback for number in numbers)


def _trusting() -> ssl.SSLContext:
    """For finding out what a peer speaks. Nothing is sent that would matter."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
