"""`tidemill reassign`: moves partitions between brokers by a plan that can be read, edited and undone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemill.cli.cluster import throttle
from tidemill.cli.cluster.moving import GOES_ON, Moving, State
from tidemill.cli.cluster.plan_file import parse_plan, plan_text
from tidemill.cli.cluster.replica_plan import PlanError, balance
from tidemill.cli.failures import CommandError, UsageError
from tidemill.cli.options import add_verb, add_verbs, connect, positive, print_json
from tidemill.cli.table import plural, print_table, size_text
from tidemill.client.admin.cluster import raise_first_refusal
from tidemill.types import TopicPartition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    _add_plan(verbs)
    execute = add_verb(
        verbs,
        "execute",
        _execute,
        "move partitions according to a plan, and wait until they have arrived",
        "tidemill reassign execute plan.json\n"
        "tidemill reassign execute plan.json --throttle 50000000 --rollback back.json\n"
        "tidemill reassign execute plan.json --no-wait",
    )
    execute.add_argument("plan", metavar="PLAN", help="a file, or - for standard input")
    add_throttle(execute)
    execute.add_argument("--rollback", metavar="FILE", help="write a plan here that undoes this one")
    execute.add_argument(
        "--no-wait", action="store_true", help="return at once; a throttle then stays until it is removed"
    )
    add_verb(
        verbs,
        "status",
        _status,
        "show the moves in progress",
        "tidemill reassign status\ntidemill reassign status --json",
    )
    cancel = add_verb(
        verbs,
        "cancel",
        _cancel,
        "cancel the moves in progress, and remove their throttle",
        "tidemill reassign cancel\ntidemill reassign cancel --topic orders",
    )
    cancel.add_argument("--topic", metavar="TOPIC", action="append", help="only of this topic; repeatable")
    rate = add_verb(
        verbs,
        "throttle",
        _throttle,
        "change the rate at which partitions move, or remove the limit",
        "tidemill reassign throttle 20000000\ntidemill reassign throttle off",
    )
    rate.add_argument("rate", metavar="BYTES", help="a second, for each broker; or off")


def _add_plan(verbs: Any) -> None:
    plan = add_verb(
        verbs,
        "plan",
        _plan,
        "write a plan that spreads partitions evenly over brokers, moving as little as it can",
        "tidemill reassign plan > plan.json\n"
        "tidemill reassign plan --brokers 1,2,3,4 --output plan.json\n"
        "tidemill reassign plan --topic orders --replication-factor 3 --output plan.json",
    )
    plan.add_argument(
        "--brokers",
        metavar="IDS",
        help="the brokers that shall hold the partitions (default: all that are up)",
    )
    plan.add_argument("--topic", metavar="TOPIC", action="append", help="only this topic; repeatable")
    plan.add_argument(
        "--replication-factor", metavar="N", type=positive, help="also give each partition this many replicas"
    )
    plan.add_argument("--output", metavar="FILE", help="write the plan here instead of standard output")


def add_throttle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--throttle",
        metavar="BYTES",
        type=positive,
        help="most bytes a second that a broker may send or receive for this; removed at the end",
    )


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _plan(arguments: argparse.Namespace) -> int:
    wanted = None if arguments.brokers is None else _broker_ids(arguments.brokers)
    with connect(arguments) as cluster:
        state = Moving(cluster).state()
    targets = state.live if wanted is None else wanted
    for broker_id in targets:
        if broker_id not in state.live:
            raise CommandError(
                f"broker {broker_id} is not up; `tidemill brokers list` shows which brokers there are"
            )
    chosen = _of_topics(state.assignments, arguments.topic)
    try:
        resized = _resized(chosen, arguments.replication_factor, targets)
        planned = balance(resized, state.racks, targets)
    except PlanError as error:
        raise CommandError(f"{error}; name more brokers with --brokers, or start another one") from None
    planned = {
        each: planned.get(each, tuple(resized[each]))
        for each in chosen
        if planned.get(each, tuple(resized[each])) != chosen[each]
    }
    text = plan_text(planned)
    if arguments.output:
        _write(arguments.output, text)
    else:
        sys.stdout.write(text)
    copies = sum(len(set(replicas) - set(chosen[each])) for each, replicas in planned.items())
    where = f" in {arguments.output}" if arguments.output else ""
    print(
        f"{plural(len(planned), 'partition')} of {len(chosen)} would change, {plural(copies, 'replica')} would be "
        f"copied; the plan{where} is carried out by `tidemill reassign execute`",
        file=sys.stderr,
    )
    return 0


def _broker_ids(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words) or len(set(words)) != len(words):
        raise UsageError(f"--brokers takes different ids with commas, as 1,2,3, not {text!r}")
    return sorted(map(int, words))


def _of_topics(
    assignments: Mapping[TopicPartition, tuple[int, ...]], topics: Sequence[str] | None
) -> dict[TopicPartition, tuple[int, ...]]:
    for topic in topics or ():
        if not any(partition.topic == topic for partition in assignments):
            raise CommandError(f"there is no topic {topic}; `tidemill topics list` shows what there is")
    return {each: replicas for each, replicas in assignments.items() if not topics or each.topic in topics}


def _resized(
    assignments: Mapping[TopicPartition, tuple[int, ...]],
    replication_factor: int | None,
    targets: Sequence[int],
) -> dict[TopicPartition, tuple[int, ...]]:
    """Change the number of replicas. `balance` decides where added replicas go."""
    if replication_factor is None:
        return dict(assignments)
    if replication_factor > len(targets):
        raise PlanError(f"{replication_factor} replicas need as many brokers, and there are {len(targets)}")
    resized = {}
    for number, (partition, replicas) in enumerate(sorted(assignments.items())):
        rotated = [targets[(number + step) % len(targets)] for step in range(len(targets))]
        extended = [*replicas, *(each for each in rotated if each not in replicas)]
        resized[partition] = tuple(extended[:replication_factor])
    return resized


def _execute(arguments: argparse.Namespace) -> int:
    source = "standard input" if arguments.plan == "-" else arguments.plan
    plan = parse_plan(_read(arguments.plan), source)
    with connect(arguments) as cluster:
        moving = Moving(cluster)
        state = moving.state()
        _check_plan(plan, state)
        targets = {each: replicas for each, replicas in plan.items() if replicas != state.assignments[each]}
        if arguments.rollback:
            _write(arguments.rollback, plan_text({each: state.assignments[each] for each in targets}))
        if targets:
            moving.begin(state, targets, arguments.throttle)
        if arguments.no_wait or not targets:
            return _report_begun(arguments, len(targets))
        try:
            moved = moving.finish(state, targets, arguments.throttle)
        except KeyboardInterrupt:
            print(f"\n{GOES_ON}", file=sys.stderr)
            raise
    if arguments.json:
        print_json(moved._asdict())
    else:
        print(f"moved {plural(moved.partitions, 'partition')}, {size_text(moved.size_bytes)}")
    return 0


def _report_begun(arguments: argparse.Namespace, count: int) -> int:
    if arguments.json:
        print_json({"partitions": count})
    elif count:
        print(f"began to move {plural(count, 'partition')}; `tidemill reassign status` shows how far it is")
    else:
        print("nothing to do: every partition is where the plan wants it")
    return 0


def _check_plan(plan: Mapping[TopicPartition, tuple[int, ...]], state: State) -> None:
    for partition, replicas in plan.items():
        if partition not in state.assignments:
            raise CommandError(f"the plan names {partition}, which does not exist")
        for broker_id in replicas:
            if broker_id not in state.brokers:
                raise CommandError(f"the plan puts {partition} on broker {broker_id}, which does not exist")


def _status(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        moving = Moving(cluster)
        state = moving.state()
        arrived = moving.arrived_bytes({each: move.adding for each, move in state.moving.items()})
        topics = sorted({partition.topic for partition in state.assignments})
        throttled = throttle.throttled_topics(moving.admin, topics)
    if arguments.json:
        print_json(
            {
                "throttled_topics": throttled,
                "partitions": [
                    {
                        "topic": each.topic,
                        "partition": each.partition,
                        "target": list(state.assignments[each]),
                        "adding": move.adding,
                        "removing": move.removing,
                        "arrived_bytes": arrived[each].there,
                        "total_bytes": arrived[each].total,
                    }
                    for each, move in sorted(state.moving.items())
                ],
            }
        )
        return 0
    if state.moving:
        _print_moves(state, arrived)
    else:
        print("no partition is being moved")
    if throttled:
        print(
            f"replication of {', '.join(throttled)} is throttled; `tidemill reassign throttle off` ends that",
            file=sys.stderr,
        )
    return 0


def _print_moves(state: State, arrived: Mapping[TopicPartition, Any]) -> None:
    print_table(
        ("PARTITION", "TARGET", "ADDING", "REMOVING", "ARRIVED", "OF"),
        [
            (
                str(each),
                ",".join(map(str, state.assignments[each])),
                ",".join(map(str, move.adding)) or None,
                ",".join(map(str, move.removing)) or None,
                size_text(arrived[each].there),
                size_text(arrived[each].total),
            )
            for each, move in sorted(state.moving.items())
        ],
    )


def _cancel(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        moving = Moving(cluster)
        state = moving.state()
        chosen = [each for each in state.moving if not arguments.topic or each.topic in arguments.topic]
        if chosen:
            raise_first_refusal(moving.cluster_admin.reassign(dict.fromkeys(chosen)))
        topics = arguments.topic or sorted({each.topic for each in state.assignments})
        throttled = throttle.throttled_topics(moving.admin, topics)
        if throttled:
            throttle.stop(moving.admin, state.live, throttled)
    if arguments.json:
        print_json({"cancelled": [str(each) for each in sorted(chosen)]})
    elif chosen:
        print(f"took back the move of {plural(len(chosen), 'partition')}")
    else:
        print("no partition is being moved")
    return 0


def _throttle(arguments: argparse.Namespace) -> int:
    if arguments.rate != "off" and not (arguments.rate.isdecimal() and int(arguments.rate)):
        raise UsageError(f"the rate is a number of bytes a second, or off, not {arguments.rate!r}")
    rate_bytes = None if arguments.rate == "off" else int(arguments.rate)
    with connect(arguments) as cluster:
        moving = Moving(cluster)
        state = moving.state()
        if rate_bytes is None:
            topics = sorted({each.topic for each in state.assignments})
            throttle.stop(moving.admin, state.live, throttle.throttled_topics(moving.admin, topics))
        elif not state.moving:
            raise CommandError("no partition is being moved, so there is nothing to throttle")
        else:
            present = {
                each: [replica for replica in move.replicas if replica not in move.adding]
                for each, move in state.moving.items()
            }
            targets = {each: state.assignments[each] for each in state.moving}
            throttle.start(moving.admin, state.live, present, targets, rate_bytes)
    if arguments.json:
        print_json({"rate_bytes": rate_bytes, "brokers": state.live})
    elif rate_bytes is None:
        print("replication is not throttled any more")
    else:
        print(
            f"{plural(len(state.moving), 'partition')} move at most at {size_text(rate_bytes)}/s for each broker"
        )
    return 0


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {name}: {error}") from None


def _write(name: str, text: str) -> None:
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {name}: {error}") from None
