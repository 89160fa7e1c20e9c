"""`tidemill consume`: prints the records of a topic.

Without a group it reads partitions directly and commits nothing. It stops at the end that the topic had at the start,
unless --follow is given. With --group it joins as a member (see `consume_group`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from tidemill.cli import positions
from tidemill.cli.failures import CommandError, UsageError
from tidemill.cli.options import add_store_alias, chosen_partitions, complete, connect, natural, positive
from tidemill.cli.positions import AtOffset, End, Position
from tidemill.cli.records.payloads import add_store, large_payloads_of, resolving
from tidemill.cli.records.record_format import DEFAULT_TEMPLATE, Writer, json_writer, template_writer
from tidemill.cli.resolve import resolve
from tidemill.cli.table import plural
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.consumer import Consumed, Consumer
from tidemill.client.retry import UnknownTopic
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.isolation import READ_COMMITTED, READ_UNCOMMITTED
from tidemill.types import TopicPartition

_WAIT_MS = 500
_ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--from", dest="start", metavar="WHERE", help=f"{positions.HELP} (default beginning)")
    parser.add_argument(
        "--partition", metavar="N", type=natural, action="append", help="read only this partition; repeatable"
    )
    parser.add_argument("--max", metavar="N", type=positive, help="stop after so many records")
    parser.add_argument(
        "--follow",
        action=argparse.BooleanOptionalAction,
        help="wait for new records (default: only with --from end)",
    )
    parser.add_argument(
        "--isolation-level",
        choices=_ISOLATION_LEVELS,
        default="read_uncommitted",
        help="read_committed leaves out what aborted transactions wrote, and stops at open ones (default %(default)s)",
    )
    parser.add_argument(
        "--format",
        metavar="TEMPLATE",
        help="fields {topic} {partition} {offset} {timestamp} {time} {key} {value} {headers}, \\n, \\t "
        f"(default {DEFAULT_TEMPLATE!r})".replace("%", "%%"),
    )
    add_store(parser, "where the payloads of claims are")
    add_store_alias(parser)
    parser.add_argument(
        "--group",
        metavar="GROUP",
        help="join this consumer group: go on where it was, commit what was printed",
    )
    complete(
        parser,
        _consume,
        "tidemill consume orders\n"
        "tidemill consume orders --from end --json\n"
        "tidemill consume orders --from 15m --format '{time} {key}: {value}\\n'\n"
        "tidemill consume orders --partition 0 --from 1200 --max 10\n"
        "tidemill consume orders --isolation-level read_committed\n"
        "tidemill consume orders --group billing --follow",
    )


def run(arguments: argparse.Namespace) -> int:
    return _consume(arguments)


def _consume(arguments: argparse.Namespace) -> int:
    if arguments.json and arguments.format is not None:
        raise UsageError("either --json or --format, not both")
    template = DEFAULT_TEMPLATE if arguments.format is None else arguments.format
    write = json_writer if arguments.json else template_writer(template, is_terminal=sys.stdout.isatty())
    write = resolving(write, large_payloads_of(arguments), is_lossless=arguments.json)
    start = positions.parse_position(arguments.start or "beginning")
    follow = isinstance(start, End) if arguments.follow is None else arguments.follow
    try:
        if arguments.group is not None:
            return _consume_as_member(arguments, write, follow)
        with connect(arguments) as cluster:
            _print(_records(cluster, arguments, start, follow), write)
    except KeyboardInterrupt:
        # Ctrl-C is the usual way to end --follow.
        if not follow:
            raise
    return 0


def _consume_as_member(arguments: argparse.Namespace, write: Writer, follow: bool) -> int:
    if arguments.partition:
        raise UsageError("with --group the group decides on partitions; leave --partition out")
    if arguments.start not in (None, "beginning", "earliest", "end", "latest"):
        raise UsageError(
            "with --group, --from is beginning or end; `tidemill groups reset` moves a group elsewhere"
        )
    with connect(arguments) as cluster:
        _partitions(cluster, arguments.topic, None)
    from tidemill.cli.records.consume_group import consume_group

    return consume_group(arguments, write, follow)


def _print(records: Iterator[Consumed], write: Writer) -> None:
    out, is_terminal = sys.stdout.buffer, sys.stdout.isatty()
    for consumed in records:
        out.write(write(consumed))
        if is_terminal:
            out.flush()


def _records(
    cluster: Cluster, arguments: argparse.Namespace, start: Position, follow: bool
) -> Iterator[Consumed]:
    partitions = _partitions(cluster, arguments.topic, arguments.partition)
    admin = Admin(cluster)
    isolation_level = _ISOLATION_LEVELS[arguments.isolation_level]
    ends = admin.end_offsets(partitions, isolation_level)
    begins = _checked(admin, resolve(admin, partitions, start), ends, start)
    wanted = {each: offset for each, offset in begins.items() if follow or offset < ends[each]}
    consumer = Consumer(cluster, wanted, isolation_level=isolation_level)
    left: int = arguments.max or sys.maxsize
    while consumer.positions:
        for consumed in _poll(consumer, cluster):
            if not follow and consumed.record.offset >= ends[consumed.partition]:
                continue
            yield consumed
            left -= 1
            if not left:
                return
        sys.stdout.buffer.flush()
        if not follow:
            for each in [each for each, offset in consumer.positions.items() if offset >= ends[each]]:
                del consumer.positions[each]


def _partitions(cluster: Cluster, topic: str, indexes: list[int] | None) -> list[TopicPartition]:
    try:
        return chosen_partitions(cluster, topic, indexes)
    except UnknownTopic:
        raise CommandError(f"there is no topic {topic}; `tidemill topics list` shows what there is") from None


def _checked(
    admin: Admin, begins: dict[TopicPartition, int], ends: dict[TopicPartition, int], start: Position
) -> dict[TopicPartition, int]:
    """Check the start offsets. An offset outside a partition is an error with a single partition, else its nearest
    end.
    """
    if not isinstance(start, AtOffset):
        return begins
    starts = admin.start_offsets(list(begins))
    if len(begins) == 1:
        ((partition, offset),) = begins.items()
        if not starts[partition] <= offset <= ends[partition]:
            raise CommandError(
                f"{partition} has no offset {offset}: it holds {starts[partition]} to {ends[partition]}"
            )
    return {each: min(max(offset, starts[each]), ends[each]) for each, offset in begins.items()}


def _poll(consumer: Consumer, cluster: Cluster) -> Iterator[Consumed]:
    """Poll once. What is gone before it was read is skipped with a message: old records, and partitions of a shrink."""
    try:
        yield from consumer.poll(_WAIT_MS)
    except UnknownTopic:
        topics = {each.topic for each in consumer.positions}
        gone = consumer.positions.keys() - {each for topic in topics for each in cluster.partitions_of(topic)}
        if not gone:
            raise
        for each in sorted(gone):
            print(f"{each} is gone: its topic has fewer partitions now", file=sys.stderr)
            del consumer.positions[each]
    except ApiError as error:
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
        starts = Admin(cluster).start_offsets(list(consumer.positions))
        behind = {each: starts[each] for each in starts if consumer.positions[each] < starts[each]}
        if not behind:
            raise
        for each, offset in behind.items():
            lost = plural(offset - consumer.positions[each], "record")
            print(f"{each}: skipped {lost} that retention has deleted", file=sys.stderr)
        consumer.positions.update(behind)
