"""`tidemill brokers`: lists brokers, and drains or removes one without losing a replica."""

from __future__ import annotations

import argparse
import sys

from tidemill.cli.cluster.moving import GOES_ON, Moved, Moving, State
from tidemill.cli.cluster.reassign import add_throttle
from tidemill.cli.cluster.replica_plan import PlanError, evacuate
from tidemill.cli.cluster.view import broker_rows, print_brokers
from tidemill.cli.failures import CommandError
from tidemill.cli.options import add_verb, add_verbs, connect, natural, print_json
from tidemill.cli.prompt import confirm
from tidemill.cli.table import plural, size_text
from tidemill.client.admin.health import examine
from tidemill.client.admin.topics import Admin
from tidemill.errors import ApiError, ErrorCode

# Partitions may be created on the broker while it is drained.
_ROUNDS_MAX = 5
_NOTHING_MOVED = Moved(0, 0, 0.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    add_verb(verbs, "list", _list, "list the brokers", "tidemill brokers list\ntidemill brokers list --json")
    drain = add_verb(
        verbs,
        "drain",
        _drain,
        "move all replicas of a broker to the others, and wait until they are there",
        "tidemill brokers drain 3\ntidemill brokers drain 3 --throttle 50000000",
    )
    drain.add_argument("broker", metavar="ID", type=natural)
    add_throttle(drain)
    remove = add_verb(
        verbs,
        "remove",
        _remove,
        "drain a broker and, once it is stopped, take it out of the cluster",
        "tidemill brokers remove 3\ntidemill brokers remove 3 --yes",
    )
    remove.add_argument("broker", metavar="ID", type=natural)
    remove.add_argument("--yes", action="store_true", help="do not ask")
    add_throttle(remove)


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        rows = broker_rows(Admin(cluster), examine(cluster))
    if arguments.json:
        print_json([row._asdict() for row in rows])
    else:
        print_brokers(rows)
    return 0


def _drain(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        moved = _emptied(Moving(cluster), arguments.broker, arguments.throttle)
    if arguments.json:
        print_json({"broker": arguments.broker, **moved._asdict()})
    else:
        print(_drained_text(arguments.broker, moved))
    return 0


def _drained_text(broker_id: int, moved: Moved) -> str:
    if not moved.partitions:
        return f"broker {broker_id} holds no replicas"
    size = size_text(moved.size_bytes)
    return f"broker {broker_id} is empty: {plural(moved.partitions, 'replica')} moved, {size}"


def _emptied(moving: Moving, broker_id: int, rate_bytes: int | None) -> Moved:
    total = _NOTHING_MOVED
    for _ in range(_ROUNDS_MAX):
        state = moving.state()
        if broker_id not in state.brokers:
            raise CommandError(
                f"there is no broker {broker_id}; `tidemill brokers list` shows which there are"
            )
        if not state.held_by(broker_id):
            return total
        moved = _move_away(moving, state, broker_id, rate_bytes)
        total = Moved(
            total.partitions + moved.partitions,
            total.size_bytes + moved.size_bytes,
            total.seconds + moved.seconds,
        )
    raise CommandError(
        f"broker {broker_id} keeps getting new partitions; stop creating topics while it is drained, and try again"
    )


def _move_away(moving: Moving, state: State, broker_id: int, rate_bytes: int | None) -> Moved:
    targets = [each for each in state.live if each != broker_id]
    try:
        planned = evacuate(state.assignments, state.racks, {broker_id}, targets)
    except PlanError as error:
        raise CommandError(
            f"broker {broker_id} cannot be drained: {error}; start another broker first, or lower the number of "
            "replicas with `tidemill reassign plan --replication-factor`"
        ) from None
    # A replica that is already leaving is watched, not reassigned again.
    leaving = {each: state.assignments[each] for each in state.held_by(broker_id) if each not in planned}
    if planned:
        moving.begin(state, planned, rate_bytes)
    try:
        return moving.finish(state, planned | leaving, rate_bytes)
    except KeyboardInterrupt:
        print(f"\n{GOES_ON}", file=sys.stderr)
        raise


def _remove(arguments: argparse.Namespace) -> int:
    broker_id: int = arguments.broker
    with connect(arguments) as cluster:
        moving = Moving(cluster)
        confirm(f"Move everything off broker {broker_id} and remove it?", arguments.yes)
        moved = _emptied(moving, broker_id, arguments.throttle)
        if broker_id in moving.state().live:
            raise CommandError(
                f"{_drained_text(broker_id, moved)}; it is still running: stop it, and once "
                f"`tidemill brokers list` shows it as fenced, run `tidemill brokers remove {broker_id}` again"
            )
        is_voter = _leave_quorum(moving, broker_id)
        moving.cluster_admin.unregister_broker(broker_id)
    if is_voter:
        print(
            f"node {broker_id} is still a voter: controller.quorum.voters is fixed in the nodes' files; take it "
            "out there and restart them one by one",
            file=sys.stderr,
        )
    if arguments.json:
        print_json({"broker": broker_id, "is_voter": is_voter, **moved._asdict()})
    else:
        print(f"broker {broker_id} is removed")
    return 0


def _leave_quorum(moving: Moving, broker_id: int) -> bool:
    """Remove the node from the voters. Returns whether it remains one because the voter set is fixed (KIP-853)."""
    voters = {voter.replica_id: voter for voter in moving.cluster_admin.quorum().voters}
    if broker_id not in voters:
        return False
    try:
        moving.cluster_admin.remove_voter(broker_id, voters[broker_id].replica_directory_id)
    except ApiError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return True
    return False
