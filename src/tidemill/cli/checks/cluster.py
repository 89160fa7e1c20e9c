"""The checks of a cluster over its own protocol: versions, clock, quorum, partitions, disks. They only read.

The clock is that of the quorum's leader: DescribeQuorum returns its current time. Other brokers' clocks cannot be read
without a write, so they are not checked.
"""

from __future__ import annotations

import time

from tidemill.cli.checks.data_dir import disk_space
from tidemill.cli.checks.finding import Finding, ok, problem, warning
from tidemill.cli.table import plural
from tidemill.client.admin.cluster import ClusterAdmin, Quorum
from tidemill.client.admin.health import BrokerState, Health, Severity, Symptom, examine, quorum_symptoms
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import Address, Connection
from tidemill.errors import TidemillError
from tidemill.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest
from tidemill.protocol.api.data import FetchRequest, ListOffsetsRequest, ProduceRequest
from tidemill.protocol.api.groups import JoinGroupRequest
from tidemill.protocol.api.offsets import OffsetCommitRequest
from tidemill.protocol.schema import Request

_SKEW_WARNING_S = 1.0
_SKEW_PROBLEM_S = 60.0
# The APIs that every client needs.
_NEEDED: tuple[type[Request], ...] = (
    ProduceRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    JoinGroupRequest,
)


def versions(address: Address, connection: Connection) -> Finding:
    check = f"versions of {address}"
    try:
        answer = connection.request(
            ApiVersionsRequest(client_software_name="tidemill", client_software_version="doctor"),
            ApiVersionsResponse,
        )
    except TidemillError as error:
        return problem(check, f"ApiVersions failed: {error}", "look into the broker's log")
    offered = {each.api_key: each for each in answer.api_keys}
    lacking = []
    for message in _NEEDED:
        api = offered.get(message.api_key)
        if api is None or api.min_version > message.versions.max or api.max_version < message.versions.min:
            lacking.append(message.__name__.removesuffix("Request"))
    if lacking:
        return problem(
            check,
            f"it offers {', '.join(lacking)} in no version that this client knows",
            "use a broker from Kafka 2.1 on, or a newer Tidemill",
        )
    level = next(
        (each.max_version_level for each in answer.finalized_features if each.name == "metadata.version"),
        None,
    )
    features = "" if level is None else f", metadata.version {level}"
    return ok(check, f"{plural(len(offered), 'API')}{features}")


def cluster_checks(cluster: Cluster) -> list[Finding]:
    admin = Admin(cluster)
    findings = []
    for check, ask in (("quorum", _quorum), ("cluster", _health)):
        try:
            findings += ask(cluster, admin)
        except TidemillError as error:
            findings.append(
                problem(
                    check,
                    f"the cluster did not answer: {error}",
                    "`tidemill cluster status` shows what is up",
                )
            )
    return findings


def _finding(symptom: Symptom) -> Finding:
    judged = problem if symptom.severity is Severity.CRITICAL else warning
    return judged(symptom.about, symptom.text, symptom.remedy)


# -- the quorum ------------------------------------------------------------------------------------------------


def _quorum(cluster: Cluster, admin: Admin) -> list[Finding]:
    asked_s = time.time()
    try:
        quorum = ClusterAdmin(cluster).quorum_now()
    except TidemillError as error:
        return [
            problem(
                "quorum",
                f"no controller answers: {error}",
                "start voters until a majority is up; until then topics and leaders cannot change",
            )
        ]
    answered_s = time.time()
    brokers = len(admin.describe_cluster().brokers)
    return [_clock(quorum, asked_s, answered_s), *_voters(quorum), _size(quorum, brokers)]


def _clock(quorum: Quorum, asked_s: float, answered_s: float) -> Finding:
    leader = next((each for each in quorum.voters if each.replica_id == quorum.leader_id), None)
    if leader is None or leader.last_caught_up_timestamp <= 0:
        return ok("clock", "the controller does not tell its time (DescribeQuorum before version 1)")
    # The clock was read between request and response.
    half_s = (answered_s - asked_s) / 2
    skew_s = leader.last_caught_up_timestamp / 1000 - (asked_s + half_s)
    certain_s = max(0.0, abs(skew_s) - half_s - 0.001)
    text = (
        f"controller {quorum.leader_id} is {abs(skew_s):.3f} s {'ahead of' if skew_s > 0 else 'behind'} this machine, "
        f"give or take {half_s:.3f} s"
    )
    remedy = "run chrony or another NTP client on every machine: timestamps, retention and transactions rely on clocks"
    if certain_s > _SKEW_PROBLEM_S:
        return problem("clock", text, remedy)
    if certain_s > _SKEW_WARNING_S:
        return warning("clock", text, remedy)
    return ok("clock", text)


def _voters(quorum: Quorum) -> list[Finding]:
    found = [_finding(each) for each in quorum_symptoms(quorum)]
    count = plural(len(quorum.voters), "voter")
    return found or [ok("quorum", f"node {quorum.leader_id} leads {count}, all caught up")]


def _size(quorum: Quorum, brokers: int) -> Finding:
    count = len(quorum.voters)
    if count == 1 and brokers > 1:
        return warning(
            "voters",
            f"{plural(brokers, 'broker')}, but a single voter: when it is down, nothing can change",
            "run three voters (controller.quorum.voters)",
        )
    if count > 1 and count % 2 == 0:
        return warning(
            "voters",
            f"{count} voters survive no more failures than {count - 1}",
            "use an odd number of voters",
        )
    return ok("voters", f"{plural(count, 'voter')}: survives {plural((count - 1) // 2, 'failure')}")


# -- brokers, partitions and disks ---------------------------------------------------------------------------------


def _health(cluster: Cluster, admin: Admin) -> list[Finding]:
    health = examine(cluster)
    findings = [_finding(each) for each in health.symptoms]
    about = {finding.check for finding in findings}
    if "brokers" not in about:
        findings.append(ok("brokers", f"{plural(len(health.brokers), 'broker')}, all of them answer"))
    if "partitions" not in about:
        text = f"all {health.partition_count} have a leader and all their replicas in sync"
        findings.append(ok("partitions", text))
    return findings + _disks(admin, health)


def _disks(admin: Admin, health: Health) -> list[Finding]:
    """The disks of the brokers that respond. Another check reports the others."""
    findings = []
    for broker_id, state in sorted(health.brokers.items()):
        if state is not BrokerState.UP:
            continue
        check = f"disk of broker {broker_id}"
        try:
            directories = admin.log_dirs_now(broker_id)
        except TidemillError as error:
            findings.append(problem(check, f"it does not answer: {error}", "look into the broker's log"))
            continue
        for each in directories:
            if each.error_code:
                findings.append(
                    problem(check, f"{each.log_dir} is offline", "replace the disk and restart the broker")
                )
            elif each.usable_bytes >= 0:
                finding = disk_space(check, each.total_bytes, each.usable_bytes)
                findings.append(finding._replace(text=f"{each.log_dir}: {finding.text}"))
    return findings
