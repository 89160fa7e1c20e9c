"""`tidemill queues`: lists and describes share groups, moves their start offsets, and deletes them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import NoReturn

from tidemill.cli import positions
from tidemill.cli.failures import CommandError
from tidemill.cli.groups.groups import assignment_text
from tidemill.cli.groups.reset import Move, change_text, named_partitions, plan
from tidemill.cli.options import add_verb, add_verbs, connect, print_json
from tidemill.cli.prompt import confirm
from tidemill.cli.resolve import resolve
from tidemill.cli.table import print_fields, print_table
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.share_groups import (
    InFlight,
    ShareGroupAdmin,
    ShareGroupDescription,
    SharePosition,
    deliveries_text,
)
from tidemill.client.admin.topics import Admin
from tidemill.errors import ApiError, ErrorCode
from tidemill.types import TopicPartition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    add_verb(
        verbs, "list", _list, "list the share groups", "tidemill queues list\ntidemill queues list --json"
    )
    describe = add_verb(
        verbs,
        "describe",
        _describe,
        "show a share group's members, start offsets, lag, and how often records in flight were delivered",
        "tidemill queues describe workers\ntidemill queues describe workers --json",
    )
    describe.add_argument("group", metavar="GROUP")
    reset = add_verb(
        verbs,
        "reset-offsets",
        _reset,
        "let a share group without members begin at other offsets",
        "tidemill queues reset-offsets workers --topic jobs --to earliest --dry-run\n"
        "tidemill queues reset-offsets workers --topic jobs:0,1 --to 1200\n"
        "tidemill queues reset-offsets workers --topic jobs --to 2026-01-01T12:00Z",
    )
    reset.add_argument("group", metavar="GROUP")
    reset.add_argument(
        "--topic",
        metavar="T[:P,P]",
        action="append",
        required=True,
        help="a topic, or some of its partitions; repeatable",
    )
    reset.add_argument(
        "--to", metavar="WHERE", required=True, help=f"earliest, latest, or as {positions.HELP}"
    )
    reset.add_argument("--dry-run", action="store_true", help="only show what would change")
    delete_offsets = add_verb(
        verbs,
        "delete-offsets",
        _delete_offsets,
        "forget what a share group without members has done in a topic",
        "tidemill queues delete-offsets workers --topic jobs\n"
        "tidemill queues delete-offsets workers --topic jobs --yes",
    )
    delete_offsets.add_argument("group", metavar="GROUP")
    delete_offsets.add_argument("--topic", metavar="T", action="append", required=True, help="repeatable")
    delete_offsets.add_argument("--yes", action="store_true", help="do not ask")
    delete = add_verb(
        verbs,
        "delete",
        _delete,
        "delete share groups that have no members, with all that they have done",
        "tidemill queues delete workers\ntidemill queues delete workers --yes",
    )
    delete.add_argument("groups", metavar="GROUP", nargs="+")
    delete.add_argument("--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        groups = ShareGroupAdmin(cluster).groups()
    if arguments.json:
        print_json([{"group": each.group_id, "state": each.group_state} for each in groups])
    elif groups:
        print_table(("GROUP", "STATE"), [(each.group_id, each.group_state) for each in groups])
    else:
        print("no share groups yet; one begins when a share consumer joins", file=sys.stderr)
    return 0


def _describe(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        admin = ShareGroupAdmin(cluster)
        try:
            group = admin.describe(arguments.group)
        except ApiError as error:
            _refuse(error, arguments.group)
        found = admin.positions(arguments.group)
        in_flight = admin.in_flight(arguments.group, [each.partition for each in found])
    if arguments.json:
        print_json(_as_json(group, found, in_flight))
        return 0
    print_fields(
        [
            ("group", group.group_id),
            ("state", group.state),
            ("assignor", group.assignor),
            ("epoch", group.epoch),
            ("members", len(group.members)),
            ("lag", sum(each.lag or 0 for each in found)),
            ("in flight", sum(each.acquired for each in in_flight.values()) if in_flight else None),
        ]
    )
    if group.members:
        print()
        print_table(
            ("MEMBER", "CLIENT", "HOST", "ASSIGNED"),
            [(each.member_id, each.client_id, each.host, assignment_text(each)) for each in group.members],
        )
    if found:
        sharing = _members_of(group)
        print()
        print_table(
            ("TOPIC", "PARTITION", "START", "LAG", "MEMBERS", "IN FLIGHT", "WAITING", "DELIVERIES"),
            [
                (
                    *each.partition,
                    each.start_offset,
                    each.lag,
                    sharing.get(each.partition, 0),
                    *_in_flight_cells(in_flight.get(each.partition)),
                )
                for each in found
            ],
        )
    return 0


def _in_flight_cells(found: InFlight | None) -> tuple[int | None, int | None, str | None]:
    if found is None:
        return None, None, None
    return found.acquired, found.waiting, deliveries_text(found.by_deliveries) or None


def _members_of(group: ShareGroupDescription) -> dict[TopicPartition, int]:
    counts: dict[TopicPartition, int] = {}
    for member in group.members:
        for partition in member.assignment:
            counts[partition] = counts.get(partition, 0) + 1
    return counts


def _as_json(
    group: ShareGroupDescription,
    found: list[SharePosition],
    in_flight: Mapping[TopicPartition, InFlight],
) -> dict[str, object]:
    return {
        "group": group.group_id,
        "state": group.state,
        "assignor": group.assignor,
        "epoch": group.epoch,
        "total_lag": sum(each.lag or 0 for each in found),
        "members": [
            {
                "member_id": each.member_id,
                "client_id": each.client_id,
                "host": each.host,
                "assignment": [partition._asdict() for partition in sorted(each.assignment)],
            }
            for each in group.members
        ],
        "partitions": [
            {
                **each.partition._asdict(),
                "start_offset": each.start_offset,
                "lag": each.lag,
                "in_flight": None
                if each.partition not in in_flight
                else {
                    "acquired": in_flight[each.partition].acquired,
                    "waiting": in_flight[each.partition].waiting,
                    "dead_letters_owed": in_flight[each.partition].owed,
                    "by_deliveries": list(in_flight[each.partition].by_deliveries),
                },
            }
            for each in found
        ],
    }


def _refuse(error: ApiError, group_id: str) -> NoReturn:
    if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
        raise CommandError(
            f"there is no share group {group_id}; `tidemill queues list` shows what there is"
        ) from None
    if error.code is ErrorCode.NON_EMPTY_GROUP:
        raise CommandError(f"share group {group_id} has members; stop every one of them first") from None
    raise error


def _reset(arguments: argparse.Namespace) -> int:
    position = positions.parse_position(arguments.to)
    with connect(arguments) as cluster:
        groups, admin = ShareGroupAdmin(cluster), Admin(cluster)
        before = {
            each.partition: each.start_offset
            for each in groups.positions(arguments.group)
            if each.start_offset is not None
        }
        partitions = named_partitions(cluster, arguments.topic)
        targets = resolve(admin, partitions, position)
        moves = plan(targets, before, admin.start_offsets(partitions), admin.end_offsets(partitions))
        if not arguments.dry_run:
            try:
                groups.alter_offsets(arguments.group, {each.partition: each.after for each in moves})
            except ApiError as error:
                _refuse(error, arguments.group)
    _show(arguments, moves)
    return 0


def _show(arguments: argparse.Namespace, moves: list[Move]) -> None:
    if arguments.json:
        document = [
            {**each.partition._asdict(), "offset_before": each.before, "offset": each.after} for each in moves
        ]
        print_json({"group": arguments.group, "is_dry_run": arguments.dry_run, "partitions": document})
        return
    rows = [(*each.partition, each.before, each.after, change_text(each)) for each in moves]
    print_table(("TOPIC", "PARTITION", "BEFORE", "AFTER", "CHANGE"), rows)
    if arguments.dry_run:
        print("nothing was changed: this was a dry run")


def _delete_offsets(arguments: argparse.Namespace) -> int:
    topics = list(dict.fromkeys(arguments.topic))
    with connect(arguments) as cluster:
        confirm(f"Forget what {arguments.group} has done in {', '.join(topics)}?", arguments.yes)
        try:
            ShareGroupAdmin(cluster).delete_offsets(arguments.group, topics)
        except ApiError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise CommandError(f"share group {arguments.group} has no offsets there: {error}") from None
            _refuse(error, arguments.group)
    if arguments.json:
        print_json(topics)
    else:
        for topic in topics:
            print(f"deleted the offsets of {topic} in {arguments.group}")
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    names = list(dict.fromkeys(arguments.groups))
    with connect(arguments) as cluster:
        confirm(f"Delete {', '.join(names)} with all that they have done?", arguments.yes)
        for name in names:
            try:
                ShareGroupAdmin(cluster).describe(name)
                GroupAdmin(cluster).delete(name)
            except ApiError as error:
                _refuse(error, name)
            if not arguments.json:
                print(f"deleted {name}", flush=True)
    if arguments.json:
        print_json(names)
    return 0
