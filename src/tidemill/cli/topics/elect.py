"""`tidemill topics elect`: elects preferred leaders, or unclean ones."""

from __future__ import annotations

import argparse
from typing import Any

from tidemill.cli.failures import CommandError, UsageError
from tidemill.cli.options import add_verb, chosen_partitions, connect, natural, print_json
from tidemill.cli.prompt import confirm
from tidemill.cli.table import plural, print_table
from tidemill.client.admin.cluster import ClusterAdmin, ElectionType
from tidemill.client.retry import UnknownTopic
from tidemill.errors import ErrorCode


def add_verb_elect(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "elect",
        _elect,
        "make preferred replicas leaders again, or elect one that is not in sync",
        "tidemill topics elect\n"
        "tidemill topics elect orders --partition 0\n"
        "tidemill topics elect orders --partition 0 --unclean",
    )
    parser.add_argument("topics", metavar="TOPIC", nargs="*", help="default: all")
    parser.add_argument(
        "--partition", metavar="N", type=natural, action="append", help="only this partition; repeatable"
    )
    parser.add_argument(
        "--unclean",
        action="store_true",
        help="where no replica in sync is left, take one that is not: records that it lacks are lost",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _elect(arguments: argparse.Namespace) -> int:
    if arguments.partition and len(arguments.topics) != 1:
        raise UsageError("--partition needs exactly one TOPIC")
    if arguments.unclean and not arguments.topics:
        raise UsageError("--unclean needs the TOPIC: it may lose records")
    kind = ElectionType.UNCLEAN if arguments.unclean else ElectionType.PREFERRED
    with connect(arguments) as cluster:
        try:
            partitions = [
                each
                for topic in dict.fromkeys(arguments.topics)
                for each in chosen_partitions(cluster, topic, arguments.partition)
            ]
        except UnknownTopic as error:
            raise CommandError(f"{error.message}; `tidemill topics list` shows what there is") from None
        if arguments.unclean:
            confirm(f"Elect leaders of {', '.join(arguments.topics)} that may lack records?", arguments.yes)
        results = ClusterAdmin(cluster).elect_leaders(kind, partitions or None)
    elected = sorted(each for each, refusal in results.items() if refusal is None)
    failed = {
        each: refusal
        for each, refusal in sorted(results.items())
        if refusal is not None and refusal.code is not ErrorCode.ELECTION_NOT_NEEDED
    }
    if arguments.json:
        print_json(
            {
                "elected": [str(each) for each in elected],
                "failed": [
                    {"partition": str(each), "error": refusal.code.name, "message": refusal.message}
                    for each, refusal in failed.items()
                ],
            }
        )
    else:
        print(
            f"elected leaders of {plural(len(elected), 'partition')}" if elected else "no election was needed"
        )
        if failed:
            rows = [(str(each), refusal.code.name, refusal.message) for each, refusal in failed.items()]
            print_table(("PARTITION", "ERROR", "REASON"), rows)
    return 1 if failed else 0
