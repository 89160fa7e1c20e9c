"""`tidemill delays`: lists and cancels the delayed records of a topic."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime

from tidemill.cli.options import add_verb, add_verbs, connect, natural, positive, print_json
from tidemill.cli.table import print_table
from tidemill.client.delays import DelayAdmin, PendingMessage


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
    cancel.add_argument("topic", metavar="TOPIC")
    cancel.add_argument("--partition", metavar="N", type=natural, default=0, help="default 0")
    cancel.add_argument("--offset", metavar="N", type=natural, required=True, help="as `list` shows it")


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        pending = DelayAdmin(cluster).pending(arguments.topic)
    shown = pending[: arguments.max]
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
    if len(shown) < len(pending):
        print(f"{len(pending) - len(shown)} more wait; see --max", file=sys.stderr)
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
