"""`tidemill cluster`: runs a cluster on this machine, and shows the state of any cluster."""

from __future__ import annotations

import argparse
import sys
import time

from tidemill.cli.cluster.view import broker_rows, print_brokers
from tidemill.cli.options import add_verb, add_verbs, connect, print_json
from tidemill.cli.serving import local_cluster
from tidemill.cli.table import Quantity, plural, print_fields, print_table
from tidemill.client.admin.cluster import ClusterAdmin, Quorum
from tidemill.client.admin.health import Health, PartitionFact, Symptom, examine, quorum_symptoms
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.errors import ApiError, TidemillError
from tidemill.protocol.api.quorum import ReplicaState

_PARTITIONS_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    local_cluster.add_verb_start(verbs)
    add_verb(
        verbs,
        "status",
        _status,
        "show the controller quorum, the brokers, and partitions that lack replicas",
        "tidemill cluster status\ntidemill cluster status --json",
    )
    add_verb(
        verbs,
        "describe",
        _describe,
        "show the cluster's id, controller and brokers",
        "tidemill cluster describe\ntidemill cluster describe --bootstrap broker-1:9092 --json",
    )


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _describe(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        admin = Admin(cluster)
        described = admin.describe_cluster()
        # A KRaft broker returns any broker as the controller.
        quorum, _ = _quorum(cluster)
        controller_id = described.controller_id if quorum is None else quorum.leader_id
        topics = admin.topics()
        brokers = broker_rows(admin, examine(cluster))
    internal = sum(topic.is_internal for topic in topics)
    partitions = sum(len(topic.partitions) for topic in topics)
    if arguments.json:
        print_json(
            {
                "cluster_id": described.cluster_id,
                "controller_id": controller_id,
                "topics": len(topics) - internal,
                "partitions": partitions,
                "brokers": [each._asdict() for each in brokers],
            }
        )
        return 0
    print_fields(
        [
            ("cluster", described.cluster_id),
            ("controller", controller_id),
            ("topics", f"{len(topics) - internal}, and {internal} internal"),
            ("partitions", partitions),
        ]
    )
    print_brokers(brokers)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        admin = Admin(cluster)
        described = admin.describe_cluster()
        health = examine(cluster)
        brokers = broker_rows(admin, health)
        quorum, reason = _quorum(cluster)
        moving = [] if quorum is None else sorted(ClusterAdmin(cluster).reassignments())
    symptoms = [*health.symptoms, *([] if quorum is None else quorum_symptoms(quorum))]
    if arguments.json:
        print_json(
            {
                "cluster_id": described.cluster_id,
                "quorum": None if quorum is None else _quorum_json(quorum),
                "quorum_error": reason,
                "brokers": [each._asdict() for each in brokers],
                "partitions": health.partition_count,
                "problems": [each._asdict() for each in symptoms],
                "offline": [each._asdict() for each in health.offline],
                "led_by_silent": [each._asdict() for each in health.led_by_silent],
                "under_min_isr": [each._asdict() for each in health.under_min_isr],
                "under_replicated": [each._asdict() for each in health.under_replicated],
                "reassigning": [str(each) for each in moving],
            }
        )
        return 0
    _print_quorum(described.cluster_id, quorum, reason)
    print()
    print_brokers(brokers)
    print()
    _print_health(health, symptoms)
    if moving:
        print(f"{plural(len(moving), 'partition')} on the move; `tidemill reassign status` shows them")
    return 0


def _quorum(cluster: Cluster) -> tuple[Quorum | None, str | None]:
    """The quorum, or the reason why it is unknown. Brokers know much without a controller, and that is shown.

    The controller is queried once, without retries: the command shows the present state.
    """
    try:
        return ClusterAdmin(cluster).quorum_now(), None
    except TidemillError as error:
        return None, error.message if isinstance(error, ApiError) else str(error)


def _quorum_json(quorum: Quorum) -> dict[str, object]:
    wall_ms = time.time() * 1000
    return {
        "leader_id": quorum.leader_id,
        "epoch": quorum.epoch,
        "high_watermark": quorum.high_watermark,
        "voters": [_replica_json(quorum, each, wall_ms) for each in quorum.voters],
        "observers": [_replica_json(quorum, each, wall_ms) for each in quorum.observers],
    }


def _replica_json(quorum: Quorum, replica: ReplicaState, wall_ms: float) -> dict[str, object]:
    return {
        "id": replica.replica_id,
        "address": quorum.addresses.get(replica.replica_id),
        "log_end_offset": replica.log_end_offset,
        "lag": _lag(quorum, replica),
        "caught_up_ms_ago": _caught_up_ms_ago(replica, wall_ms),
    }


def _lag(quorum: Quorum, replica: ReplicaState) -> int | None:
    """The number of metadata records that the replica lacks; None when it has never fetched."""
    end_offset = max(each.log_end_offset for each in (*quorum.voters, *quorum.observers))
    return end_offset - replica.log_end_offset if replica.log_end_offset >= 0 else None


def _caught_up_ms_ago(replica: ReplicaState, wall_ms: float) -> int | None:
    return (
        max(0, int(wall_ms - replica.last_caught_up_timestamp))
        if replica.last_caught_up_timestamp > 0
        else None
    )


def _print_quorum(cluster_id: str, quorum: Quorum | None, reason: str | None) -> None:
    print_fields(
        [
            ("cluster", cluster_id),
            ("controller", None if quorum is None else quorum.leader_id),
            ("epoch", None if quorum is None else quorum.epoch),
        ]
    )
    if quorum is None:
        print(
            f"no controller responds ({reason}): topics and leaders cannot change until a majority of the "
            "voters is up",
            file=sys.stderr,
        )
        return
    wall_ms = time.time() * 1000
    print()
    print_table(
        ("NODE", "ROLE", "ADDRESS", "METADATA END", "LAG", "CAUGHT UP"),
        [
            (
                each.replica_id,
                _role(quorum, each),
                quorum.addresses.get(each.replica_id),
                each.log_end_offset,
                _lag(quorum, each),
                _ago_text(_caught_up_ms_ago(each, wall_ms)),
            )
            for each in (*quorum.voters, *quorum.observers)
        ],
    )


def _role(quorum: Quorum, replica: ReplicaState) -> str:
    if replica.replica_id == quorum.leader_id:
        return "leader"
    return "voter" if replica in quorum.voters else "observer"


def _ago_text(age_ms: int | None) -> Quantity | None:
    return None if age_ms is None else Quantity(f"{age_ms / 1000:.1f} s ago")


def _print_health(health: Health, symptoms: list[Symptom]) -> None:
    if not symptoms:
        print(
            f"all brokers answer, all {health.partition_count} partitions have a leader and all their replicas in sync"
        )
    for symptom in symptoms:
        if symptom.about != "partitions":
            print(symptom.sentence)
    for what, rows in (
        ("offline (no leader: neither written nor read)", health.offline),
        ("led by a broker that does not answer (neither written nor read)", health.led_by_silent),
        ("under min.insync.replicas (acks=all is refused)", health.under_min_isr),
        ("under-replicated", health.under_replicated),
    ):
        if rows:
            print(f"{plural(len(rows), 'partition')} {what}:")
            _print_partitions(rows)


def _print_partitions(rows: list[PartitionFact]) -> None:
    print_table(
        ("PARTITION", "LEADER", "REPLICAS", "IN SYNC", "MINIMUM"),
        [
            (
                each.name,
                each.leader,
                ",".join(map(str, each.replicas)),
                ",".join(map(str, each.in_sync)) or None,
                each.min_in_sync,
            )
            for each in rows[:_PARTITIONS_SHOWN]
        ],
    )
    if len(rows) > _PARTITIONS_SHOWN:
        print(f"and {len(rows) - _PARTITIONS_SHOWN} more; --json lists them all")
