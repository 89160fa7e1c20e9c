"""`tidemill dead-letters`: lists, shows, replays and purges the records that applications gave up on."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from itertools import islice

from tidemill.claims.claim import Place, shown_claim
from tidemill.cli.failures import CommandError
from tidemill.cli.options import add_verb, add_verbs, connect, natural, positive, print_json
from tidemill.cli.prompt import confirm
from tidemill.cli.table import print_table
from tidemill.client.admin.dead_letters import ATTEMPTS_MAX, DeadLetterAdmin, ListedLetter
from tidemill.dead_letters import Failure

_TEXT_CHARS_MAX = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    listing = add_verb(
        verbs,
        "list",
        _list,
        "list the letters of a dead-letter topic, with the reason and where each came from",
        "tidemill dead-letters list orders-dlq\ntidemill dead-letters list orders-dlq --waiting --json",
    )
    listing.add_argument("topic", metavar="TOPIC", help="the dead-letter topic")
    listing.add_argument("--max", metavar="N", type=positive, default=1000, help="default 1000")
    listing.add_argument("--waiting", action="store_true", help="only letters that were not replayed")
    show = add_verb(
        verbs,
        "show",
        _show,
        "show one letter with its headers and value",
        "tidemill dead-letters show orders-dlq --offset 42\n"
        "tidemill dead-letters show orders-dlq --partition 3 --offset 42 --json",
    )
    _add_place(show, is_required=True)
    replay = add_verb(
        verbs,
        "replay",
        _replay,
        "put letters back where they came from, each once",
        "tidemill dead-letters replay orders-dlq\n"
        "tidemill dead-letters replay orders-dlq --reason Timeout\n"
        "tidemill dead-letters replay orders-dlq --partition 3 --offset 42 --to-topic orders",
    )
    _add_place(replay, is_required=False)
    replay.add_argument(
        "--to-topic", metavar="TOPIC", help="where they go (default: where their headers say they came from)"
    )
    replay.add_argument("--reason", metavar="TEXT", help="only letters whose reason contains the text")
    replay.add_argument(
        "--max-attempts",
        metavar="N",
        type=positive,
        default=ATTEMPTS_MAX,
        help=f"how often a letter is replayed that keeps coming back (default {ATTEMPTS_MAX})",
    )
    purge = add_verb(
        verbs,
        "purge",
        _purge,
        "delete letters",
        "tidemill dead-letters purge orders-dlq --replayed\ntidemill dead-letters purge orders-dlq --yes",
    )
    purge.add_argument("topic", metavar="TOPIC", help="the dead-letter topic")
    purge.add_argument(
        "--replayed", action="store_true", help="only those before the first that was not replayed"
    )
    purge.add_argument("--yes", action="store_true", help="do not ask")


def _add_place(parser: argparse.ArgumentParser, *, is_required: bool) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="the dead-letter topic")
    parser.add_argument("--partition", metavar="N", type=natural, default=0, help="default 0")
    what = "as `list` shows it" if is_required else "one letter, as `list` shows it (default: all)"
    parser.add_argument("--offset", metavar="N", type=natural, required=is_required, help=what)


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        found = DeadLetterAdmin(cluster, arguments.topic).letters()
        wanted = (each for each in found if not (arguments.waiting and each.is_replayed))
        shown = list(islice(wanted, arguments.max))
    if arguments.json:
        print_json([_as_json(each) for each in shown])
        return 0
    if not shown:
        print(f"no letters in {arguments.topic}", file=sys.stderr)
        return 0
    print_table(
        ("PARTITION", "OFFSET", "TIME", "KEY", "FROM", "GROUP", "ATTEMPTS", "REASON", "REPLAYED"),
        [
            (
                letter.dead_letter_partition,
                letter.dead_letter_offset,
                _time(letter.timestamp_ms),
                _text(letter.key),
                _from(each),
                letter.failure.group,
                letter.failure.attempts,
                letter.failure.reason[:_TEXT_CHARS_MAX],
                "yes" if each.is_replayed else "no",
            )
            for each in shown
            for letter in [each.letter]
        ],
    )
    return 0


def _show(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        found = DeadLetterAdmin(cluster, arguments.topic).letter(arguments.partition, arguments.offset)
    shown = _as_json(found)
    if arguments.json:
        print_json(shown)
        return 0
    letter = found.letter
    place = Place(arguments.topic, arguments.partition, arguments.offset)
    if (claim := shown_claim(letter.value, letter.headers, place)) is not None:
        shown["value"] = claim
    headers = shown.pop("headers")
    assert isinstance(headers, list)
    shown["replayed"] = "yes" if shown.pop("is_replayed") else "no"
    for name, value in shown.items():
        if value is not None:
            print(f"{name.replace('_', ' ')}: {value}")
    for header in headers:
        print(f"header {header['name']}: {header['value']}")
    return 0


def _replay(arguments: argparse.Namespace) -> int:
    only = None if arguments.offset is None else (arguments.partition, arguments.offset)
    reason = arguments.reason
    with connect(arguments) as cluster:
        done = DeadLetterAdmin(cluster, arguments.topic).replay(
            only,
            to_topic=arguments.to_topic,
            attempts_max=arguments.max_attempts,
            matches=lambda letter: reason is None or reason in _whole_reason(letter.failure),
        )
    if arguments.json:
        print_json(vars(done))
    else:
        print(
            f"replayed {done.published}, replayed before {done.replayed_before}, exhausted {done.exhausted}"
        )
    if done.failed:
        raise CommandError(f"{done.failed} letters were left; {done.reason}")
    return 0


def _purge(arguments: argparse.Namespace) -> int:
    what = "replayed letters" if arguments.replayed else "all letters"
    with connect(arguments) as cluster:
        confirm(f"Delete {what} of {arguments.topic}?", arguments.yes)
        count = DeadLetterAdmin(cluster, arguments.topic).purge(replayed_only=arguments.replayed)
    if arguments.json:
        print_json({"purged": count})
    else:
        print(f"purged {count} offsets of {arguments.topic}")
    return 0


def _as_json(listed: ListedLetter) -> dict[str, object]:
    letter = listed.letter
    said = letter.failure
    return {
        "partition": letter.dead_letter_partition,
        "offset": letter.dead_letter_offset,
        "time": _time(letter.timestamp_ms),
        "convention": said.convention,
        "original_topic": said.topic,
        "original_partition": said.partition,
        "original_offset": said.offset,
        "group": said.group,
        "attempts": said.attempts,
        "exception": said.exception,
        "message": said.message,
        "is_replayed": listed.is_replayed,
        "replays": letter.attempts,
        "key": _text(letter.key),
        "value": _text(letter.value),
        "headers": [{"name": name, "value": _text(value)} for name, value in letter.headers],
    }


def _from(listed: ListedLetter) -> str | None:
    said = listed.letter.failure
    if said.topic is None:
        return None
    place = said.topic if said.partition is None else f"{said.topic}-{said.partition}"
    return place if said.offset is None else f"{place} at {said.offset}"


def _whole_reason(failure: Failure) -> str:
    return f"{failure.exception or ''} {failure.message or ''}"


def _time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
