"""`tidemill doctor`: finds problems and names remedies.

Every check has a verdict: ok, warning or problem, the last two with a remedy. Checks change nothing, neither in the
cluster nor on disk. The exit code is 1 when there is a problem; warnings alone do not fail the command.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tidemill.cli.checks.cluster import cluster_checks, versions
from tidemill.cli.checks.data_dir import cluster_id_of, data_dir
from tidemill.cli.checks.finding import Finding, Verdict, ok, problem
from tidemill.cli.checks.machine import machine
from tidemill.cli.checks.network import Network
from tidemill.cli.checks.ports import can_bind, owner_of
from tidemill.cli.checks.security import cluster_security, configuration_security
from tidemill.cli.options import complete, print_json, properties_file, security_options
from tidemill.cli.table import BOLD, plural, printable, styled
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster, parse_bootstrap
from tidemill.client.connections.connection import Address
from tidemill.config import BrokerConfig, load_broker_config
from tidemill.errors import TidemillError

_ASK_S_MAX = 5.0
_GREEN, _YELLOW, _RED = "32", "33", "31"
_STYLES = {Verdict.OK: _GREEN, Verdict.WARNING: _YELLOW, Verdict.PROBLEM: _RED}
_WIDTH = max(len(verdict) for verdict in Verdict)


class _Area(NamedTuple):
    """A group of checks with a title."""

    name: str
    findings: list[Finding]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="a broker's server.properties: checks it, its ports and its data directory on this machine",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        type=Path,
        action="append",
        default=[],
        help="a broker's data; repeatable",
    )
    parser.add_argument(
        "--offline", action="store_true", help="check only this machine and its files, no broker"
    )
    complete(
        parser,
        run,
        "tidemill doctor\n"
        "tidemill doctor --bootstrap broker-1:9092,broker-2:9092 --command-config client.properties\n"
        "tidemill doctor --config server.properties --offline\n"
        "tidemill doctor --data-dir /var/lib/tidemill --json",
    )


def run(arguments: argparse.Namespace) -> int:
    shown = []
    for area in _areas(arguments):
        shown.append(area)
        if not arguments.json:
            _print(area)
    findings = [finding for area in shown for finding in area.findings]
    worst = Verdict.OK
    for verdict in (Verdict.WARNING, Verdict.PROBLEM):
        if any(finding.verdict is verdict for finding in findings):
            worst = verdict
    if arguments.json:
        print_json(
            {
                "verdict": worst,
                "checks": [
                    {"area": area.name, **finding._asdict()} for area in shown for finding in area.findings
                ],
            }
        )
    else:
        print(f"\n{_summary(findings)}")
    return 1 if worst is Verdict.PROBLEM else 0


def _areas(arguments: argparse.Namespace) -> Iterator[_Area]:
    yield _Area("this machine", machine(with_java=True))
    directories: list[Path] = list(arguments.data_dir)
    if arguments.config is not None:
        config, findings = _config(arguments.config)
        if config is not None:
            directories += [Path(each) for each in config.storage.log_dirs if Path(each) not in directories]
        yield _Area(f"configuration {arguments.config}", findings)
    cluster_id: str | None = None
    if not arguments.offline:
        network = Network(security_options(arguments), min(arguments.timeout, _ASK_S_MAX))
        try:
            yield _Area("network", _network(network, arguments.bootstrap))
            if network.connections:
                with Cluster(
                    ",".join(str(address) for address in network.connections),
                    client_id="tidemill-doctor",
                    timeout_s=arguments.timeout,
                    security=security_options(arguments),
                ) as cluster:
                    cluster_id, findings = _cluster(cluster)
                    yield _Area("cluster", findings)
                    yield _Area("security", _security(cluster, network))
        finally:
            network.close()
    for directory in directories:
        yield _Area(f"data directory {directory}", _directory(directory, cluster_id))


def _network(network: Network, bootstrap: str) -> list[Finding]:
    findings = [network.reach(address) for address in parse_bootstrap(bootstrap)]
    findings += network.advertised()
    findings += (versions(address, each) for address, each in network.connections.items())
    return findings


def _cluster(cluster: Cluster) -> tuple[str | None, list[Finding]]:
    try:
        cluster_id = Admin(cluster).describe_cluster().cluster_id
    except TidemillError as error:
        return None, [problem("cluster", f"it does not answer: {error}", "look into the brokers' logs")]
    return cluster_id, [ok("cluster", f"id {cluster_id}"), *cluster_checks(cluster)]


def _security(cluster: Cluster, network: Network) -> list[Finding]:
    try:
        return cluster_security(cluster, network.connections)
    except TidemillError as error:
        return [
            problem(
                "security",
                f"the cluster did not answer: {error}",
                "`tidemill cluster status` shows what is up",
            )
        ]


def _directory(path: Path, cluster_id: str | None) -> list[Finding]:
    findings = data_dir(path)
    found = cluster_id_of(path)
    if cluster_id is not None and found is not None and found != cluster_id:
        findings.append(
            problem(
                "identity",
                f"it is of cluster {found}, and --bootstrap leads to cluster {cluster_id}",
                "name the brokers of its own cluster with --bootstrap, or another --data-dir",
            )
        )
    return findings


def _config(path: Path) -> tuple[BrokerConfig | None, list[Finding]]:
    try:
        config, complaints = load_broker_config(_broker_properties(path))
    except TidemillError as error:
        return None, [
            problem("configuration", str(error), f"correct {path}; the broker does not start with it")
        ]
    findings = [ok("configuration", f"node {config.node_id}, {plural(len(complaints), 'remark')}")]
    findings += (
        Finding("configuration", Verdict.WARNING, complaint, f"correct {path}, or leave the line out")
        for complaint in complaints
    )
    network = config.network
    for listener in (*network.listeners, *network.controller_listeners):
        findings.append(_port(Address(listener.host, listener.port), f"listener {listener}"))
    return config, findings + configuration_security(path, config)


def _broker_properties(path: Path) -> dict[str, str]:
    """The broker's properties, without keys of the process such as tidemill.status.listener."""
    return {key: value for key, value in properties_file(path).items() if not key.startswith("tidemill.")}


def _port(address: Address, check: str) -> Finding:
    reason = can_bind(*address) if address.port else None
    if reason is None:
        return ok(check, "free")
    owner = owner_of(address.port)
    if owner is not None and "tidemill" in owner:
        return ok(check, f"in use by {owner}")
    return problem(
        check,
        f"{reason}{f': {owner}' if owner else ''}",
        "stop what listens there, or give the broker another port",
    )


# -- what is shown ---------------------------------------------------------------------------------------------


def _print(area: _Area) -> None:
    print(styled(area.name, BOLD))
    for finding in area.findings:
        mark = styled(finding.verdict.ljust(_WIDTH), _STYLES[finding.verdict])
        print(f"  {mark}  {finding.check}: {printable(finding.text)}", flush=True)
        if finding.remedy is not None:
            print(f"  {' ' * _WIDTH}  -> {printable(finding.remedy)}", flush=True)


def _summary(findings: list[Finding]) -> str:
    problems = sum(finding.verdict is Verdict.PROBLEM for finding in findings)
    warnings = sum(finding.verdict is Verdict.WARNING for finding in findings)
    if not problems and not warnings:
        return f"{plural(len(findings), 'check')}, all well"
    return f"{plural(len(findings), 'check')}: {plural(problems, 'problem')}, {plural(warnings, 'warning')}"
