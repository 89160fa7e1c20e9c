"""`tidemill delays`: lists, cancels and reschedules the delayed records of a topic."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime

from tidemill.cli.options import add_verb, add_verbs, connect, natural, positive, print_json
from tidemill.cli.table import print_table
from tidemill.client.admin.delays import DelayAdmin, PendingMessage
from tidemill.delays.requests import DELAY, DELIVER_AT, SCHEDULE, TIME_ZONE
from tidemill.protocol.records import Header


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    listing = add_verb(
        verbs,
        "list",
        _list,
        "list the records of a topic that wait for their time, the next one first",
        "tidemill delays list orders\ntidemill delays list orders --max 10 --json",
    )
    listing.add_argument("topic", metavar="TOPIC")
    listing.add_argument("--max", metavar="N", type=positive, default=1000, help="default 1000")
    cancel = add_verb(
        verbs,
        "cancel",
        _cancel,
        "cancel a record that waits",
        "tidemill delays cancel orders --offset 42\ntidemill delays cancel orders --partition 3 --offset 42",
    )
    _add_place(cancel)
    reschedule = add_verb(
        verbs,
        "reschedule",
        _reschedule,
        "give a record that waits another time",
        "tidemill delays reschedule orders --offset 42 --delay 2h\n"
        "tidemill delays reschedule orders --offset 42 --deliver-at 2030-01-01T08:00:00Z",
    )
    _add_place(reschedule)
    times = reschedule.add_mutually_exclusive_group(required=True)
    times.add_argument("--delay", metavar="TIME", help="such as 30s, 15m, 2h or 1d, from now")
    times.add_argument(
        "--deliver-at", metavar="TIME", help="ISO 8601 with an offset, or milliseconds since 1970"
    )
    times.add_argument("--cron", metavar="EXPRESSION", help="a schedule; the record needs a schedule id")
    reschedule.add_argument("--time-zone", metavar="NAME", help="of the schedule; UTC unless it is given")


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--partition", metavar="N", type=natural, default=0, help="default 0")
    parser.add_argument("--offset", metavar="N", type=natural, required=True, help="as `list` shows it")


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        total, shown = DelayAdmin(cluster).pending(arguments.topic, arguments.max)
    if arguments.json:
        print_json([_as_json(message) for message in shown])
        return 0
    if not shown:
        print(f"nothing waits in {arguments.topic}", file=sys.stderr)
        return 0
    print_table(
        ("DUE", "PARTITION", "OFFSET", "KEY", "SCHEDULE ID", "SCHEDULE"),
        [
            (
                _time(each.due_ms),
                each.partition,
                each.offset,
                _text(each.key),
                each.schedule_id,
                each.schedule,
            )
            for each in shown
        ],
    )
    if len(shown) < total:
        print(f"{total - len(shown)} more wait; see --max", file=sys.stderr)
    return 0


def _as_json(message: PendingMessage) -> dict[str, object]:
    return {
        **message._asdict(),
        "due": _time(message.due_ms),
        "key": _text(message.key),
        "value": _text(message.value),
    }


def _time(wall_ms: int) -> str:
    return (
        datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="replace")


def _cancel(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        DelayAdmin(cluster).cancel(arguments.topic, arguments.partition, arguments.offset)
    if arguments.json:
        print_json({"topic": arguments.topic, "partition": arguments.partition, "offset": arguments.offset})
    else:
        print(f"cancelled {arguments.topic}-{arguments.partition} at offset {arguments.offset}")
    return 0


def _reschedule(arguments: argparse.Namespace) -> int:
    given = {
        DELAY: arguments.delay,
        DELIVER_AT: arguments.deliver_at,
        SCHEDULE: arguments.cron,
        TIME_ZONE: arguments.time_zone,
    }
    times = [Header(name, text.encode()) for name, text in given.items() if text is not None]
    place = arguments.topic, arguments.partition, arguments.offset
    with connect(arguments) as cluster:
        offset = DelayAdmin(cluster).reschedule(*place, times)
    if arguments.json:
        print_json({"topic": arguments.topic, "partition": arguments.partition, "offset": offset})
    else:
        print(f"rescheduled {arguments.topic}-{arguments.partition}: it waits at offset {offset} now")
    return 0
