"""The cluster as it tells itself: versions, clock, quorum, partitions, disks. Only questions; nothing is written.

A clock is read from DescribeQuorum: the leader of the quorum reports itself as caught up now, by its own clock. Other
brokers' clocks cannot be read without writing to a topic, so nothing is said about them.
"""

from __future__ import annotations

import time

from tidemill.cli.checks.data_dir import disk_space
from tidemill.cli.checks.finding import Finding, ok, problem, warning
from tidemill.cli.cluster_view import partition_health, partition_name
from tidemill.cli.table import plural
from tidemill.client.admin import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.cluster_admin import ClusterAdmin, Quorum
from tidemill.client.connection import Address, Connection
from tidemill.errors import TidemillError
from tidemill.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest
from tidemill.protocol.api.data import FetchRequest, ListOffsetsRequest, ProduceRequest
from tidemill.protocol.api.groups import JoinGroupRequest
from tidemill.protocol.api.offsets import OffsetCommitRequest
from tidemill.protocol.schema import Request

_SKEW_WARNING_S = 1.0
_SKEW_PROBLEM_S = 60.0
_CAUGHT_UP_S_MAX = 10.0
_NAMED = 5
# What every client needs.
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
    for check, ask in (("quorum", _quorum), ("partitions", _partitions), ("disks", _disks)):
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
    return [_clock(quorum, asked_s, answered_s), *_voters(quorum, answered_s), _size(quorum, brokers)]


def _clock(quorum: Quorum, asked_s: float, answered_s: float) -> Finding:
    leader = next((each for each in quorum.voters if each.replica_id == quorum.leader_id), None)
    if leader is None or leader.last_caught_up_timestamp <= 0:
        return ok("clock", "the controller does not tell its time (DescribeQuorum before version 1)")
    # It was read between the question and the answer.
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


def _voters(quorum: Quorum, now_s: float) -> list[Finding]:
    end = max(each.log_end_offset for each in quorum.voters)
    late = []
    for voter in quorum.voters:
        age_s = now_s - voter.last_caught_up_timestamp / 1000 if voter.last_caught_up_timestamp > 0 else None
        is_leader = voter.replica_id == quorum.leader_id
        if not is_leader and (age_s is None or age_s > _CAUGHT_UP_S_MAX):
            lag = "it never fetched" if voter.log_end_offset < 0 else f"{end - voter.log_end_offset} behind"
            late.append(f"{voter.replica_id} ({lag})")
    count = len(quorum.voters)
    if not late:
        return [ok("quorum", f"node {quorum.leader_id} leads {plural(count, 'voter')}, all caught up")]
    spare = max(0, (count - 1) // 2 - len(late))
    text = f"{len(late)} of {count} voters do not follow: {', '.join(late)}; it survives {plural(spare, 'more failure')}"
    return [warning("quorum", text, "start them again, or look into their logs")]


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


# -- partitions and disks ------------------------------------------------------------------------------------------


def _partitions(_: Cluster, admin: Admin) -> list[Finding]:
    topics = admin.topics()
    health = partition_health(admin, topics)
    total = sum(len(topic.partitions) for topic in topics)
    findings = []
    for rows, what, remedy in (
        (
            health.offline,
            "have no leader and can neither be written nor read",
            "start the brokers that hold their replicas; `tidemill topics elect --unclean` is the last resort",
        ),
        (
            health.under_min_isr,
            "have fewer replicas in sync than min.insync.replicas: acks=all is refused",
            "start the missing brokers, or move the replicas with `tidemill reassign`",
        ),
    ):
        if rows:
            names = ", ".join(partition_name(row) for row in rows[:_NAMED])
            more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
            findings.append(problem("partitions", f"{len(rows)} of {total} {what}: {names}{more}", remedy))
    if health.under_replicated:
        count = len(health.under_replicated)
        findings.append(
            warning(
                "partitions",
                f"{count} of {total} lack replicas",
                "start the missing brokers, or wait until they have caught up; `tidemill cluster status` lists them",
            )
        )
    if not findings:
        findings.append(ok("partitions", f"all {total} have a leader and all their replicas in sync"))
    return findings


def _disks(_: Cluster, admin: Admin) -> list[Finding]:
    findings = []
    for broker in admin.describe_cluster().brokers:
        check = f"disk of broker {broker.broker_id}"
        if broker.is_fenced:
            findings.append(
                warning(check, "the broker is fenced: it does not take part", "start it, or remove it")
            )
            continue
        try:
            directories = admin.log_dirs_now(broker.broker_id)
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
