"""`tidemill groups reset`: changes the committed offsets of a group without members.

A member would continue from its own position and overwrite the change, so the command refuses while the group has
members. An offset outside the log becomes the nearest end. The commit creates a missing group, which sets the start of
a new consumer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, NamedTuple

from tidemill.cli import positions
from tidemill.cli.failures import CommandError, UsageError
from tidemill.cli.options import add_verb, chosen_partitions, connect, print_json
from tidemill.cli.resolve import resolve
from tidemill.cli.table import Quantity, plural, print_table
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.retry import UnknownTopic
from tidemill.errors import ApiError, ErrorCode
from tidemill.types import TopicPartition

# The errors of a coordinator when a member has joined after the check.
_HAS_MEMBERS = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)


class Move(NamedTuple):
    """A change of one committed offset."""

    partition: TopicPartition
    before: int | None
    after: int


def add_arguments(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "reset",
        _reset,
        "move a group that has no members to other offsets",
        "tidemill groups reset billing --topic orders --to earliest --dry-run\n"
        "tidemill groups reset billing --topic orders:0,1 --to 1200\n"
        "tidemill groups reset billing --all-topics --to 2026-01-01T12:00Z\n"
        "tidemill groups reset billing --topic orders --by -100",
    )
    parser.add_argument("group", metavar="GROUP")
    topics = parser.add_mutually_exclusive_group(required=True)
    topics.add_argument(
        "--topic", metavar="T[:P,P]", action="append", help="a topic, or some of its partitions; repeatable"
    )
    topics.add_argument("--all-topics", action="store_true", help="everything that the group has committed")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--to", metavar="WHERE", help=f"earliest, latest, or as {positions.HELP}")
    target.add_argument("--by", metavar="N", type=int, help="move by this many records, back when negative")
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")


def parse_topic(text: str) -> tuple[str, list[int]]:
    """Parse `topic` or `topic:0,2`. Without indexes all partitions are meant."""
    topic, colon, indexes = text.partition(":")
    parts = indexes.split(",") if colon else []
    if not topic or not all(part.isdecimal() for part in parts):
        raise UsageError(f"--topic takes TOPIC or TOPIC:PARTITION,PARTITION, not {text!r}")
    return topic, [int(part) for part in parts]


def existing_partitions(cluster: Cluster, topic: str, indexes: Iterable[int] | None) -> list[TopicPartition]:
    """Returns the named partitions of a topic, or all of them, as `chosen_partitions` with a hint for a missing topic."""
    try:
        return chosen_partitions(cluster, topic, indexes)
    except UnknownTopic:
        raise CommandError(f"there is no topic {topic}; `tidemill topics list` shows what there is") from None


def named_partitions(cluster: Cluster, topics: Iterable[str]) -> list[TopicPartition]:
    """Returns the partitions that values of `--topic` name, sorted."""
    named = (parse_topic(text) for text in topics)
    return sorted({each for topic, indexes in named for each in existing_partitions(cluster, topic, indexes)})


def plan(
    targets: dict[TopicPartition, int],
    committed: dict[TopicPartition, int],
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
) -> list[Move]:
    """The moves, each limited to its log."""
    return [
        Move(each, committed.get(each), min(max(targets[each], starts[each]), ends[each]))
        for each in sorted(targets)
    ]


def _reset(arguments: argparse.Namespace) -> int:
    position = None if arguments.to is None else positions.parse_position(arguments.to)
    with connect(arguments) as cluster:
        groups, admin = GroupAdmin(cluster), Admin(cluster)
        _refuse_members(groups, arguments.group)
        committed = groups.committed(arguments.group)
        partitions = _partitions(cluster, arguments, committed)
        if position is None:
            targets = _moved_by(arguments, partitions, committed)
        else:
            targets = resolve(admin, partitions, position)
        moves = plan(targets, committed, admin.start_offsets(partitions), admin.end_offsets(partitions))
        if not arguments.dry_run:
            _commit(groups, arguments.group, moves)
    if arguments.json:
        document = [
            {**each.partition._asdict(), "offset_before": each.before, "offset": each.after} for each in moves
        ]
        print_json({"group": arguments.group, "is_dry_run": arguments.dry_run, "partitions": document})
        return 0
    rows = [(*each.partition, each.before, each.after, change_text(each)) for each in moves]
    print_table(("TOPIC", "PARTITION", "BEFORE", "AFTER", "CHANGE"), rows)
    if arguments.dry_run:
        print("nothing was changed: this was a dry run")
    return 0


def change_text(move: Move) -> Quantity | None:
    return None if move.before is None else Quantity(f"{move.after - move.before:+d}")


def _refuse_members(groups: GroupAdmin, group_id: str) -> None:
    try:
        members = groups.describe(group_id).members
    except ApiError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if members:
        clients = ", ".join(sorted({f"{each.client_id} on {each.host}" for each in members}))
        raise CommandError(
            f"group {group_id} has {plural(len(members), 'member')} ({clients}); stop every member first, then reset"
        )


def _commit(groups: GroupAdmin, group_id: str, moves: list[Move]) -> None:
    try:
        groups.commit(group_id, {each.partition: each.after for each in moves})
    except ApiError as error:
        if error.code in _HAS_MEMBERS:
            raise CommandError(
                f"a member has just joined group {group_id}; stop every member first, then reset"
            ) from None
        raise


def _partitions(
    cluster: Cluster, arguments: argparse.Namespace, committed: dict[TopicPartition, int]
) -> list[TopicPartition]:
    if arguments.all_topics:
        if not committed:
            raise CommandError(f"group {arguments.group} has committed nothing; name topics with --topic")
        existing = Admin(cluster).existing_topics(sorted({each.topic for each in committed}))
        return sorted(each for each in committed if each.topic in existing)
    return named_partitions(cluster, arguments.topic)


def _moved_by(
    arguments: argparse.Namespace, partitions: list[TopicPartition], committed: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    known = [each for each in partitions if each in committed]
    if not known:
        raise CommandError(
            f"group {arguments.group} has committed nothing there, so --by has nowhere to start; use --to"
        )
    return {each: committed[each] + arguments.by for each in known}
