"""`python -m bench.diff`: exit status 0 without unexplained differences, 1 with, 2 when it cannot run."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import bench.diff.cases
from bench.apache_kafka import ApacheKafka
from bench.diff import brokers, report
from bench.diff.compare import Difference, compare, read_accepted
from bench.diff.messages import api_name
from bench.diff.script import USUAL, Answer, Case, Key, Ranges, Script, advertised, selected, shared_ranges

FIELDS_SHOWN = 8


def main() -> int:
    options = _options()
    chosen = selected(options.api)
    if not chosen:
        print(f"no API matches {options.api!r}", file=sys.stderr)
        return 2
    missing = None if options.kafka else ApacheKafka.available()
    if missing:
        print(f"diff-kafka cannot run: {missing}", file=sys.stderr)
        return 2
    if options.kafka or options.tidemill:
        # These have the settings that they have.
        chosen = [item for item in chosen if item.pair == USUAL]
    left: dict[Key, Answer] = {}
    right: dict[Key, Answer] = {}
    skipped: set[str] = set()
    try:
        for pair in brokers.PAIRS:
            of_pair = [item for item in chosen if item.pair == pair]
            if of_pair:
                skipped |= _ask_pair(options, pair, of_pair, left, right)
    except brokers.NotStartedError as error:
        print(error, file=sys.stderr)
        return 2
    if options.save:
        report.write_answers(options.save / "kafka", left)
        report.write_answers(options.save / ("kafka-again" if options.itself else "tidemill"), right)
    return _report(options, compare(left, right), len(left), sorted(skipped))


def _ask_pair(
    options: argparse.Namespace,
    pair: str,
    chosen: list[Case],
    left: dict[Key, Answer],
    right: dict[Key, Answer],
) -> set[str]:
    """Run the cases against a pair. Returns the APIs without a common version."""
    with tempfile.TemporaryDirectory(prefix="diff-kafka-") as scratch, ExitStack() as running:
        first, second = Path(scratch) / "kafka", Path(scratch) / "tidemill"
        kafka = running.enter_context(brokers.apache_kafka(options.kafka, first, pair))
        if options.itself:
            other = running.enter_context(brokers.apache_kafka(None, second, pair))
        else:
            other = running.enter_context(brokers.tidemill(options.tidemill, second, pair))
        shared = shared_ranges(advertised(*kafka), advertised(*other))
        # One clock for both runs: a timestamp in a script is the same number on either side.
        wall_ms = time.time_ns() // 1_000_000
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(_answers, chosen, address, shared, wall_ms) for address in (kafka, other)]
            left |= asked[0].result()
            right |= asked[1].result()
    return {item.api for item in chosen} - set(shared)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.diff", description=bench.diff.__doc__)
    parser.add_argument("--api", help="only this API: CreateTopics, 'describe*'")
    parser.add_argument("--verbose", action="store_true", help="every field, and the accepted differences")
    parser.add_argument("--tidemill", metavar="HOST:PORT", help="a running Tidemill instead of a new one")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a running Apache Kafka instead of a new one")
    parser.add_argument(
        "--itself",
        action="store_true",
        help="Apache Kafka against Apache Kafka: tests this tool, finds nothing",
    )
    parser.add_argument("--save", metavar="DIR", type=Path, help="write every answer of both as text")
    return parser.parse_args()


def _answers(chosen: list[Case], address: brokers.Address, shared: Ranges, wall_ms: int) -> dict[Key, Answer]:
    script = Script(*address, shared, wall_ms)
    try:
        script.learn()
        for item in chosen:
            for version in item.versions(shared):
                script.run(item, version)
    finally:
        script.close()
    return script.answers


def _report(
    options: argparse.Namespace, differences: list[Difference], answers: int, skipped: list[str]
) -> int:
    accepted = [] if options.itself else read_accepted()
    unexplained = []
    for difference in differences:
        covering = [entry for entry in accepted if entry.covers(difference)]
        for entry in covering:
            entry.used += 1
        if not covering:
            unexplained.append(difference)
    for line in report.difference_lines(unexplained, None if options.verbose else FIELDS_SHOWN):
        print(line)
    if options.verbose:
        print(*report.accepted_lines(accepted), sep="\n")
    stale = report.stale_lines(accepted) if options.api is None else []
    print(*stale, sep="\n", end="\n" if stale else "")
    for api in skipped:
        print(f"{api_name(api)}: no version that both brokers advertise; nothing was asked")
    explained = len(differences) - len(unexplained)
    print(f"{answers} answers compared: {len(unexplained)} unexplained differences, {explained} accepted")
    return 1 if unexplained or skipped else 0


if __name__ == "__main__":
    sys.exit(main())
