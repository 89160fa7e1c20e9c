"""`python -m bench.diff.acls`: exit status 0 without unexplained differences, 1 with, 2 when it cannot run."""

from __future__ import annotations

import argparse
import random
import re
import secrets
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import bench.diff.acls
from bench.apache_kafka import ApacheKafka
from bench.diff.acls import brokers
from bench.diff.acls.outcome import is_refused, outcome
from bench.diff.acls.questions import Question, random_question
from bench.diff.acls.rules import ALLOW, GROUP, HOSTS, LITERAL, READ, USERS, Rule, random_rules
from bench.diff.acls.world import HOST, NONE, World, WorldError
from bench.diff.brokers import NotStartedError
from bench.diff.compare import ORDER, Accepted, Difference, differences_of, read_accepted
from bench.diff.messages import Tree, api_name
from bench.diff.report import accepted_lines, stale_lines
from bench.diff.script import Ranges, advertised, shared_ranges

ACCEPTED_PATH = Path(__file__).parent / "accepted.toml"
CASES = 10_000
CASES_PER_SET = 100
SETS_PER_EXPRESSION = 5
EXPRESSION = "a|a[.]b|ab|b"
SHOWN_MAX = 20


class Case(NamedTuple):
    rules: Sequence[Rule]
    user: str
    host: str
    question: Question


@dataclass
class Tally:
    """What was asked, and what came of it."""

    cases: int = 0
    apis: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    different: int = 0
    explained: int = 0


class Pair:
    """Both brokers, asked at the same time."""

    def __init__(self, kafka: World, tidemill: World) -> None:
        self._worlds = (kafka, tidemill)
        self._pool = ThreadPoolExecutor(2)

    def prepare(self) -> None:
        list(self._pool.map(World.prepare, self._worlds))

    def set_rules(self, rules: Sequence[Rule]) -> None:
        list(self._pool.map(lambda world: world.set_rules(rules), self._worlds))

    def assigned_by_expression(self, user: str, host: str, group: str) -> tuple[Tree, Tree]:
        left, right = self._pool.map(
            lambda world: world.assigned_by_expression(user, host, group, EXPRESSION), self._worlds
        )
        return left, right

    def ask(self, case: Case) -> tuple[Tree, Tree]:
        def answer(world: World) -> Tree:
            told = world.ask(case.user, case.host, case.question)
            names = {known: name for name, known in world.topic_ids.items()}
            if case.question.api == "delete_topics":
                deleted = {each["name"] for each in told["responses"] if each["error_code"] == NONE}
                world.restore_topics([known for known, name in names.items() if name in deleted])
            return outcome(told, names)

        left, right = self._pool.map(answer, self._worlds)
        return left, right


def main() -> int:
    options = _options()
    missing = ApacheKafka.available()
    if missing:
        print(f"diff-acls cannot run: {missing}", file=sys.stderr)
        return 2
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    accepted = read_accepted(ACCEPTED_PATH)
    tally = Tally()
    try:
        for number, pair in enumerate(brokers.PAIRS):
            _run(pair, random.Random(f"{seed} {pair}"), options, number, accepted, tally)
    except (NotStartedError, WorldError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.verbose:
        print(*accepted_lines(accepted), sep="\n")
        for api, count in sorted(tally.apis.items()):
            print(f"{api_name(api)}: {count} cases, {tally.refused[api]} with a refusal")
    elif options.only_set is None:
        print(*stale_lines(accepted), sep="\n", end="\n" if stale_lines(accepted) else "")
    print(
        f"{tally.cases} cases of {len(tally.apis)} APIs compared, {tally.refused.total()} of them with a refusal: "
        f"{tally.different} unexplained differences, {tally.explained} accepted (seed {seed})"
    )
    return 1 if tally.different else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.diff.acls", description=bench.diff.acls.__doc__)
    parser.add_argument("--seed", type=int, help="repeats a run; a random one is printed otherwise")
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--set", dest="only_set", type=int, metavar="N", help="only the Nth set of ACLs")
    parser.add_argument("--verbose", action="store_true", help="also cases by API, and accepted differences")
    return parser.parse_args()


def _run(
    pair: str,
    rng: random.Random,
    options: argparse.Namespace,
    number: int,
    accepted: list[Accepted],
    tally: Tally,
) -> None:
    """Half of the cases: those of brokers that decide in one way where no ACL covers a resource."""
    sets = -(-options.cases // (CASES_PER_SET * len(brokers.PAIRS)))
    with ExitStack() as running:
        scratch = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="diff-acls-")))
        first = running.enter_context(brokers.apache_kafka(scratch / "kafka", pair))
        second = running.enter_context(brokers.tidemill(scratch / "tidemill", pair))
        shared = shared_ranges(advertised(HOST, first.admin), advertised(HOST, second.admin))
        worlds = [
            running.enter_context(closing(World(*each))) for each in (("Kafka", first), ("Tidemill", second))
        ]
        both = Pair(*worlds)
        both.prepare()
        for position in range(sets):
            rules, cases = _random_set(rng, shared)
            name = number * sets + position
            if options.only_set is None or options.only_set == name:
                _compare_set(both, pair, name, rules, cases, accepted, tally)


def _random_set(rng: random.Random, shared: Ranges) -> tuple[list[Rule], list[Case]]:
    rules = random_rules(rng)
    users = (*USERS, *USERS, *USERS, brokers.SUPER_USER)
    return rules, [
        Case(rules, rng.choice(users), rng.choice(HOSTS), random_question(rng, shared))
        for _ in range(CASES_PER_SET)
    ]


def _compare_set(
    both: Pair,
    pair: str,
    name: int,
    rules: Sequence[Rule],
    cases: Sequence[Case],
    accepted: list[Accepted],
    tally: Tally,
) -> None:
    both.set_rules(rules)
    unexplained = []
    for case in cases:
        kafka, tidemill = both.ask(case)
        tally.cases += 1
        tally.apis[case.question.api] += 1
        tally.refused[case.question.api] += is_refused(kafka)
        found = _differences(case, kafka, tidemill)
        covering = [[entry for entry in accepted if entry.covers(each)] for each in found]
        for entries in covering:
            for entry in entries:
                entry.used += 1
        tally.explained += sum(map(bool, covering))
        if not all(covering):
            tally.different += 1
            unexplained.append((case, _kind(found)))
    if name % SETS_PER_EXPRESSION == 0:
        _compare_expression(both, pair, name, rules, tally)
    for case, kind in unexplained:
        tally.kinds[kind] += 1
        if tally.kinds[kind] == 1 and len(tally.kinds) <= SHOWN_MAX:
            print(_shown(both, pair, name, case), flush=True)


def _compare_expression(both: Pair, pair: str, name: int, rules: Sequence[Rule], tally: Tally) -> None:
    """A subscription by regular expression (KIP-848) shows topics by their assignment, not by a list."""
    user, host, group = (
        USERS[name // SETS_PER_EXPRESSION % len(USERS)],
        HOSTS[name % len(HOSTS)],
        f"g.of-set-{name}",
    )
    joining = Rule(GROUP, group, LITERAL, f"User:{user}", "*", READ, ALLOW)
    both.set_rules([*rules, joining])
    kafka, tidemill = both.assigned_by_expression(user, host, group)
    tally.cases += 1
    tally.apis["consumer_group_heartbeat"] += 1
    if kafka != tidemill:
        tally.different += 1
        asked = (
            f"ConsumerGroupHeartbeat of User:{user} at {host}, {pair} (set {name}), expression {EXPRESSION}"
        )
        print(asked, *(f"    {rule}" for rule in [*rules, joining]), sep="\n")
        print(f"        Kafka     {kafka}\n        Tidemill  {tidemill}", flush=True)


def _kind(found: Sequence[Difference]) -> str:
    """What differs, whatever the names are: of each kind one case is shown."""
    fields = {
        (re.sub(r"\[.*?\]", "[]", each.field), _codes(each.kafka), _codes(each.tidemill)) for each in found
    }
    return f"{found[0].api} {sorted(fields)}"


def _codes(value: Tree) -> str:
    return " ".join(sorted(set(re.findall(r"[A-Z_]+\(-?\d+\)", str(value)))))


def _differences(case: Case, kafka: Tree, tidemill: Tree) -> list[Difference]:
    question = case.question
    return [
        Difference(question.api, question.version, "random", path or "(answer)", left, right)
        for path, left, right in differences_of(kafka, tidemill)
        if not path.endswith(ORDER)
    ]


def _shown(both: Pair, pair: str, name: int, case: Case) -> str:
    """The case with as few ACLs as still show the difference."""
    rules = list(case.rules)

    def differs(fewer: Sequence[Rule]) -> list[Difference]:
        both.set_rules(fewer)
        return _differences(case, *both.ask(case))

    found = differs(rules)
    if not found:
        return f"{_header(pair, name, case)}\n    it does not differ when it is asked again: an earlier request matters"
    for rule in list(rules):
        fewer = [each for each in rules if each != rule]
        if again := differs(fewer):
            rules, found = fewer, again
    lines = [_header(pair, name, case), *(f"    {rule}" for rule in rules)]
    lines += [
        f"    {each.field}\n        Kafka     {each.kafka}\n        Tidemill  {each.tidemill}"
        for each in found
    ]
    return "\n".join(lines)


def _header(pair: str, name: int, case: Case) -> str:
    asked = case.question
    return (
        f"{api_name(asked.api)} v{asked.version} of User:{case.user} at {case.host}, {pair} (set {name})\n"
        f"    {asked.request}"
    )


if __name__ == "__main__":
    sys.exit(main())
