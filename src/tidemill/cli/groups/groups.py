"""`tidemill groups`: lists and describes consumer groups with their lag, resets their offsets and deletes them."""

from __future__ import annotations

import argparse
import sys

from tidemill.cli.failures import CommandError
from tidemill.cli.groups import reset as group_reset
from tidemill.cli.options import add_verb, add_verbs, connect, print_json
from tidemill.cli.prompt import confirm
from tidemill.cli.table import plural, print_fields, print_table
from tidemill.client.admin.groups import GroupAdmin, GroupDescription, GroupMember, PartitionLag
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.types import TopicPartition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    add_verb(verbs, "list", _list, "list the groups", "tidemill groups list\ntidemill groups list --json")
    describe = add_verb(
        verbs,
        "describe",
        _describe,
        "show a group's members, committed offsets and lag",
        "tidemill groups describe billing\ntidemill groups describe billing --json",
    )
    describe.add_argument("group", metavar="GROUP")
    group_reset.add_arguments(verbs)
    delete = add_verb(
        verbs,
        "delete",
        _delete,
        "delete groups that have no members, with their committed offsets",
        "tidemill groups delete billing\ntidemill groups delete billing audit --yes",
    )
    delete.add_argument("groups", metavar="GROUP", nargs="+")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete_offsets = add_verb(
        verbs,
        "delete-offsets",
        _delete_offsets,
        "delete what a group has committed for a topic that it no longer reads",
        "tidemill groups delete-offsets billing --topic orders\n"
        "tidemill groups delete-offsets billing --topic orders:0,1 --yes",
    )
    delete_offsets.add_argument("group", metavar="GROUP")
    delete_offsets.add_argument(
        "--topic", metavar="T[:P,P]", action="append", required=True, help="repeatable"
    )
    delete_offsets.add_argument("--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        groups = GroupAdmin(cluster).groups()
    if arguments.json:
        print_json(
            [
                {
                    "group": each.group_id,
                    "state": each.group_state,
                    "type": each.group_type.lower(),
                    "protocol_type": each.protocol_type,
                }
                for each in groups
            ]
        )
    elif groups:
        rows = [(each.group_id, each.group_state, each.group_type.lower()) for each in groups]
        print_table(("GROUP", "STATE", "TYPE"), rows)
    else:
        print("no groups yet; one begins when a consumer joins or commits", file=sys.stderr)
    return 0


def _describe(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        admin = GroupAdmin(cluster)
        try:
            group = admin.describe(arguments.group)
        except ApiError as error:
            raise _no_group(error, arguments.group) from None
        lags = admin.lags(group)
    if arguments.json:
        print_json(_as_json(group, lags))
        return 0
    print_fields(
        [
            ("group", group.group_id),
            ("state", group.state),
            ("type", group.type),
            ("assignor", group.assignor or None),
            ("members", len(group.members)),
            ("lag", _lag_text(lags)),
        ]
    )
    if group.members:
        print()
        print_table(
            ("MEMBER", "CLIENT", "HOST", "INSTANCE", "ASSIGNED"),
            [
                (each.member_id, each.client_id, each.host, each.instance_id, assignment_text(each))
                for each in group.members
            ],
        )
    if lags:
        print()
        print_table(
            ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"),
            [
                (*each.partition, each.committed_offset, each.end_offset, each.lag, _member_name(each.member))
                for each in lags
            ],
        )
    return 0


def _no_group(error: ApiError, group_id: str) -> TidemillError:
    if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
        return CommandError(f"there is no group {group_id}; `tidemill groups list` shows what there is")
    return error


def _total_lag(lags: list[PartitionLag]) -> int:
    return sum(each.lag or 0 for each in lags)


def _lag_text(lags: list[PartitionLag]) -> str:
    if not lags:
        return "unknown: nothing is committed or assigned"
    uncommitted = _without_commit(lags)
    text = str(_total_lag(lags))
    return f"{text} ({plural(uncommitted, 'partition')} without a commit: all of it)" if uncommitted else text


def _without_commit(lags: list[PartitionLag]) -> int:
    return sum(each.committed_offset is None and bool(each.lag) for each in lags)


def _member_name(member: GroupMember | None) -> str | None:
    return None if member is None else member.instance_id or member.member_id


def assignment_text(member: GroupMember) -> str | None:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(member.assignment):
        topics.setdefault(topic, []).append(index)
    return " ".join(f"{topic}:{','.join(map(str, each))}" for topic, each in topics.items()) or None


def _as_json(group: GroupDescription, lags: list[PartitionLag]) -> dict[str, object]:
    return {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "assignor": group.assignor,
        "total_lag": _total_lag(lags),
        "partitions_without_commit": _without_commit(lags),
        "members": [
            {
                "member_id": each.member_id,
                "instance_id": each.instance_id,
                "client_id": each.client_id,
                "host": each.host,
                "assignment": [partition._asdict() for partition in sorted(each.assignment)],
            }
            for each in group.members
        ],
        "partitions": [
            {
                **each.partition._asdict(),
                "committed_offset": each.committed_offset,
                "end_offset": each.end_offset,
                "lag": each.lag,
                "member_id": each.member and each.member.member_id,
            }
            for each in lags
        ],
    }


def _delete(arguments: argparse.Namespace) -> int:
    names = list(dict.fromkeys(arguments.groups))
    with connect(arguments) as cluster:
        confirm(f"Delete {', '.join(names)} with the committed offsets?", arguments.yes)
        admin = GroupAdmin(cluster)
        for name in names:
            try:
                admin.delete(name)
            except ApiError as error:
                if error.code is ErrorCode.NON_EMPTY_GROUP:
                    raise CommandError(f"group {name} has members; stop every one of them first") from None
                raise _no_group(error, name) from None
            if not arguments.json:
                print(f"deleted {name}", flush=True)
    if arguments.json:
        print_json(names)
    return 0


def _delete_offsets(arguments: argparse.Namespace) -> int:
    group = arguments.group
    with connect(arguments) as cluster:
        admin = GroupAdmin(cluster)
        committed = admin.committed(group)
        partitions = [each for topic in arguments.topic for each in _committed_partitions(topic, committed)]
        if not partitions:
            raise CommandError(f"group {group} has committed nothing for {', '.join(arguments.topic)}")
        confirm(
            f"Delete what {group} has committed for {plural(len(partitions), 'partition')}?", arguments.yes
        )
        try:
            admin.delete_offsets(group, partitions)
        except ApiError as error:
            if error.code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
                raise CommandError(f"group {group} still reads the topic; stop its members first") from None
            raise _no_group(error, group) from None
    if arguments.json:
        print_json([each._asdict() for each in partitions])
    else:
        for each in partitions:
            print(f"deleted the offset of {each} in {group}")
    return 0


def _committed_partitions(text: str, committed: dict[TopicPartition, int]) -> list[TopicPartition]:
    """Select partitions among the commits, not among the topics: offsets of deleted topics can be deleted too."""
    topic, indexes = group_reset.parse_topic(text)
    return sorted(
        each for each in committed if each.topic == topic and (not indexes or each.partition in indexes)
    )
