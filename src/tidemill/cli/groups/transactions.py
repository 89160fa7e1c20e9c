"""`tidemill transactions`: lists and describes transactions, and ends hanging ones.

A transaction hangs when a partition has it open and its coordinator does not know it. It never ends, and
`read_committed` consumers of the partition wait for ever. `list --hanging` finds such transactions, `abort` ends one.
A transaction that its coordinator knows needs neither: its timeout ends it, or its producer does after a restart. A
two-phase commit has no timeout. When its decision never arrives, `end` decides instead.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from typing import Any

from tidemill.cli.failures import CommandError, UsageError
from tidemill.cli.groups import reset as group_reset
from tidemill.cli.options import add_verb, add_verbs, connect, natural, print_json
from tidemill.cli.positions import time_text
from tidemill.cli.prompt import confirm
from tidemill.cli.table import print_fields, print_table
from tidemill.client.admin.topics import Admin
from tidemill.client.admin.transactions import OpenTransaction, TransactionAdmin, TransactionDescription
from tidemill.client.cluster import Cluster
from tidemill.client.producing.transaction_coordinator import TransactionCoordinator
from tidemill.errors import ApiError, ErrorCode
from tidemill.spark.sink.two_phase import query_of, settle
from tidemill.types import TopicPartition

# The largest transaction timeout, unless `transaction.max.timeout.ms` was changed.
HANGING_MS_MIN = 900_000
# The timeout value of a transaction without a timeout.
TIMEOUT_NEVER_MS = 2**31 - 1
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    listing = add_verb(
        verbs,
        "list",
        _list,
        "list the transactions of all coordinators, or those that hang",
        "tidemill transactions list\n"
        "tidemill transactions list --state Ongoing --min-duration 5m\n"
        "tidemill transactions list --id-pattern 'billing-.*' --json\n"
        "tidemill transactions list --hanging --topic orders",
    )
    listing.add_argument(
        "--state", metavar="STATE", action="append", default=[], help="such as Ongoing; repeatable"
    )
    listing.add_argument(
        "--producer-id", metavar="N", type=natural, action="append", default=[], help="repeatable"
    )
    listing.add_argument(
        "--min-duration",
        metavar="TIME",
        type=duration_ms,
        help="open for longer than that, such as 30s or 15m",
    )
    listing.add_argument("--id-pattern", metavar="REGEX", help="that the whole transactional id matches")
    listing.add_argument(
        "--hanging",
        action="store_true",
        help="list open transactions of partitions that no coordinator will end; not written to for "
        "--min-duration (default 15m)",
    )
    listing.add_argument(
        "--topic",
        metavar="T[:P,P]",
        action="append",
        default=[],
        help="with --hanging, only there; repeatable",
    )
    describe = add_verb(
        verbs,
        "describe",
        _describe,
        "show a transactional id's state, producer and open transaction",
        "tidemill transactions describe billing-1\ntidemill transactions describe billing-1 --json",
    )
    describe.add_argument("transactional_id", metavar="ID")
    abort = add_verb(
        verbs,
        "abort",
        _abort,
        "end a hanging transaction in a partition, so that consumers can continue",
        "tidemill transactions abort --topic orders --partition 0 --start-offset 1200\n"
        "tidemill transactions abort --topic orders --partition 0 --producer-id 4000 --yes",
    )
    abort.add_argument("--topic", metavar="TOPIC", required=True)
    abort.add_argument(
        "--partition", metavar="N", type=natural, required=True, help="where the transaction hangs"
    )
    which = abort.add_mutually_exclusive_group(required=True)
    which.add_argument("--start-offset", metavar="N", type=natural, help="as `list --hanging` shows it")
    which.add_argument("--producer-id", metavar="N", type=natural, help="whose open transaction it is")
    abort.add_argument(
        "--force", action="store_true", help="even if its coordinator knows of it and will end it"
    )
    abort.add_argument("--yes", action="store_true", help="do not ask")
    _add_end(verbs)


def _add_end(verbs: Any) -> None:
    end = add_verb(
        verbs,
        "end",
        _end,
        "commit or abort a transaction that is left open, by its transactional id",
        "tidemill transactions end billing-1 --abort\n"
        "tidemill transactions end 'spark-5d2c…/0-0.0' --as-decided --yes",
    )
    end.add_argument("transactional_id", metavar="ID")
    how = end.add_mutually_exclusive_group(required=True)
    how.add_argument("--commit", action="store_true", help="make what it has written visible")
    how.add_argument("--abort", action="store_true", help="take back what it has written")
    how.add_argument(
        "--as-decided",
        action="store_true",
        help="of a task of Spark: as its driver has decided, with all that its query has left open",
    )
    end.add_argument("--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 500ms, 30s, 15m, 2h or 1d")
    return int(found[1]) * _UNIT_MS[found[2]]


# --- list ---


def _list(arguments: argparse.Namespace) -> int:
    if arguments.hanging:
        return _list_hanging(arguments)
    if arguments.topic:
        raise UsageError("--topic is for --hanging: a coordinator lists transactions by id, not by topic")
    with connect(arguments) as cluster:
        try:
            found = TransactionAdmin(cluster).transactions(
                states=arguments.state,
                producer_ids=arguments.producer_id,
                duration_ms_min=arguments.min_duration,
                id_pattern=arguments.id_pattern,
            )
        except ApiError as error:
            if error.code is ErrorCode.INVALID_REGULAR_EXPRESSION:
                raise CommandError(f"{arguments.id_pattern!r} is not a regular expression") from None
            raise
    if arguments.json:
        print_json([each._asdict() for each in found])
    elif found:
        rows = [(each.transactional_id, each.producer_id, each.state, each.coordinator_id) for each in found]
        print_table(("ID", "PRODUCER ID", "STATE", "COORDINATOR"), rows)
    else:
        is_filtered = (
            arguments.state or arguments.producer_id or arguments.min_duration or arguments.id_pattern
        )
        print("no transactions" + (" match" if is_filtered else ""), file=sys.stderr)
    return 0


def _list_hanging(arguments: argparse.Namespace) -> int:
    if arguments.state or arguments.id_pattern:
        raise UsageError("--state and --id-pattern are for coordinators; a hanging transaction has neither")
    age_ms_min = HANGING_MS_MIN if arguments.min_duration is None else arguments.min_duration
    with connect(arguments) as cluster:
        admin = TransactionAdmin(cluster)
        before_ms = int(time.time() * 1000) - age_ms_min
        candidates = [
            each
            for each in admin.open_transactions(_partitions(cluster, arguments.topic))
            if each.last_timestamp_ms <= before_ms
            and (not arguments.producer_id or each.producer_id in arguments.producer_id)
        ]
        owned = admin.owners(candidates)
    hanging = [each for each in candidates if each not in owned]
    if arguments.json:
        print_json([_open_as_json(each) for each in hanging])
    elif hanging:
        print_table(
            ("TOPIC", "PARTITION", "START OFFSET", "PRODUCER ID", "EPOCH", "LAST WRITTEN"),
            [
                (
                    *each.partition,
                    each.start_offset,
                    each.producer_id,
                    each.producer_epoch,
                    time_text(each.last_timestamp_ms),
                )
                for each in hanging
            ],
        )
    else:
        print("no transaction hangs", file=sys.stderr)
    return 0


def _partitions(cluster: Cluster, topics: list[str]) -> list[TopicPartition]:
    if not topics:
        return [
            TopicPartition(topic.name, each.partition_index)
            for topic in Admin(cluster).topics()
            for each in topic.partitions
            if topic.name and not topic.error_code
        ]
    return group_reset.named_partitions(cluster, topics)


def _open_as_json(each: OpenTransaction) -> dict[str, object]:
    values = each._asdict()
    return {**values.pop("partition")._asdict(), **values}


# --- describe ---


def _described(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    try:
        return TransactionAdmin(cluster).describe(transactional_id)
    except ApiError as error:
        if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise CommandError(
                f"there is no transactional id {transactional_id}; "
                "`tidemill transactions list` shows what there is"
            ) from None
        raise


def _describe(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        found = _described(cluster, arguments.transactional_id)
    if arguments.json:
        print_json({**found._asdict(), "partitions": [each._asdict() for each in found.partitions]})
        return 0
    print_fields(
        [
            ("id", found.transactional_id),
            ("state", found.state),
            ("producer id", found.producer_id),
            ("producer epoch", found.producer_epoch),
            ("timeout", _timeout_text(found)),
            ("started", _started_text(found)),
            ("partitions", len(found.partitions)),
        ]
    )
    if found.partitions:
        print()
        print_table(("TOPIC", "PARTITION"), found.partitions)
    return 0


def _timeout_text(found: TransactionDescription) -> str:
    return (
        "none (two-phase commit)"
        if found.timeout_ms == TIMEOUT_NEVER_MS
        else f"{found.timeout_ms / 1000:g} s"
    )


def _started_text(found: TransactionDescription) -> str | None:
    if found.started_ms is None:
        return None
    age_s = max(0.0, time.time() - found.started_ms / 1000)
    return f"{time_text(found.started_ms)} ({age_s:.0f} s ago)"


# --- abort ---


def _abort(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        admin = TransactionAdmin(cluster)
        (partition,) = group_reset.existing_partitions(cluster, arguments.topic, [arguments.partition])
        transaction = _chosen(arguments, partition, admin.open_transactions([partition]))
        owner = admin.owners([transaction]).get(transaction)
        if owner is not None and not arguments.force:
            raise CommandError(
                f"the transaction does not hang: it is one of {owner}, whose coordinator ends it after its timeout, or when "
                f"its producer starts again (`tidemill transactions describe {owner}`); --force aborts it in this "
                "partition alone"
            )
        confirm(
            f"Abort the transaction of producer {transaction.producer_id} in {partition} from offset "
            f"{transaction.start_offset} on?",
            arguments.yes,
        )
        admin.abort(transaction)
    if arguments.json:
        print_json(_open_as_json(transaction))
    else:
        print(
            f"aborted the transaction of producer {transaction.producer_id} in {partition} from offset "
            f"{transaction.start_offset} on"
        )
    return 0


def _chosen(
    arguments: argparse.Namespace, partition: TopicPartition, found: list[OpenTransaction]
) -> OpenTransaction:
    for each in found:
        if arguments.start_offset == each.start_offset or arguments.producer_id == each.producer_id:
            return each
    what = (
        f"begins at offset {arguments.start_offset}"
        if arguments.start_offset is not None
        else f"is of producer {arguments.producer_id}"
    )
    there = ", ".join(f"offset {each.start_offset} of producer {each.producer_id}" for each in found)
    raise CommandError(f"no open transaction in {partition} {what}; open there: {there or 'none'}")


# --- end ---


def _end(arguments: argparse.Namespace) -> int:
    transactional_id = arguments.transactional_id
    with connect(arguments) as cluster:
        found = _described(cluster, transactional_id)
        if found.state != "Ongoing":
            raise CommandError(f"{transactional_id} has no transaction open: its state is {found.state}")
        what = "as decided" if arguments.as_decided else "as committed" if arguments.commit else "as aborted"
        confirm(
            f"End the transaction of {transactional_id} in {len(found.partitions)} partitions, {what}? Its producer is "
            "fenced",
            arguments.yes,
        )
        if arguments.as_decided:
            settle(cluster, _query_of(transactional_id))
        else:
            _take_over_and_end(cluster, transactional_id, is_commit=arguments.commit)
        found = _described(cluster, transactional_id)
    if arguments.json:
        print_json({**found._asdict(), "partitions": [each._asdict() for each in found.partitions]})
    else:
        print(f"ended the transaction of {transactional_id} {what}: its state is {found.state}")
    return 0


def _take_over_and_end(cluster: Cluster, transactional_id: str, *, is_commit: bool) -> None:
    coordinator = TransactionCoordinator(cluster, transactional_id)
    try:
        taken = coordinator.take_over()
    except ApiError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        if is_commit:
            raise CommandError(
                "the brokers cannot have a transaction taken over (KIP-939), only aborted: use --abort"
            ) from None
        coordinator.init()
        return
    if taken.writer is not None:
        coordinator.end(taken.producer, is_commit=is_commit)


def _query_of(transactional_id: str) -> str:
    query_id = query_of(transactional_id)
    if query_id is None:
        raise CommandError(f"{transactional_id} is not a task of Spark: say --commit or --abort")
    return query_id
