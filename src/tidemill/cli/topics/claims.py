"""`tidemill claims`: lists and verifies the claims of topics, and sweeps objects that no record refers to."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from tidemill.claims.claim import Claim, parse_claim
from tidemill.claims.errors import ClaimError, ClaimStoreDown
from tidemill.claims.large_payloads import LargePayloads
from tidemill.claims.sweep import GRACE_MS, Standing
from tidemill.cli.options import add_store_alias, add_verb, add_verbs, connect, positive, print_json
from tidemill.cli.positions import parse_age_ms
from tidemill.cli.progress import Progress
from tidemill.cli.prompt import confirm
from tidemill.cli.table import plural, print_table, size_text
from tidemill.client.admin.claims import ClaimRecord, ClaimScan, Sweeper
from tidemill.client.cluster import Cluster
from tidemill.objects.opening import open_store

_LISTED = "TOPIC", "PARTITION", "OFFSET", "SIZE", "URI"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    listing = add_verb(
        verbs,
        "list",
        _list,
        "list the records of a topic whose payload is in an object store",
        "tidemill claims list scans\ntidemill claims list scans --max 10 --json",
    )
    listing.add_argument("topic", metavar="TOPIC", help="the name of a topic")
    listing.add_argument(
        "--max", metavar="N", type=positive, default=1000, help="stop after so many (default 1000)"
    )
    verify = add_verb(
        verbs,
        "verify",
        _verify,
        "check that the payload of every claim is in the store and has its size; with --full, its hash",
        "tidemill claims verify scans --store s3://bucket/claims\ntidemill claims verify scans --store /mnt/payloads --full",
    )
    verify.add_argument("topic", metavar="TOPIC", help="the name of a topic")
    _add_store(verify)
    add_store_alias(verify)
    verify.add_argument("--full", action="store_true", help="read every payload and compare its SHA-256")
    sweep = add_verb(
        verbs,
        "sweep",
        _sweep,
        "show the objects that no record of the cluster refers to; with --delete, remove them",
        "tidemill claims sweep --store s3://bucket/claims\n"
        "tidemill claims sweep --store s3://bucket/claims --delete\n"
        "tidemill claims sweep --store /mnt/payloads --delete --deleted-topics --yes",
    )
    _add_store(sweep)
    sweep.add_argument("--delete", action="store_true", help="remove them; without it nothing is changed")
    sweep.add_argument(
        "--grace",
        metavar="AGE",
        type=parse_age_ms,
        default=GRACE_MS,
        help="how long after the day of its key an object stays in any case, such as 36h (default 24h)",
    )
    sweep.add_argument(
        "--deleted-topics",
        action="store_true",
        help="also objects of topics that the cluster does not show: deleted ones, and those hidden from this user",
    )
    sweep.add_argument("--yes", action="store_true", help="do not ask")


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store", metavar="STORE", required=True, help="a folder, or a URL such as s3://bucket/prefix"
    )


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _claims(
    cluster: Cluster, topic: str, progress: Progress
) -> Iterator[tuple[ClaimRecord, Claim | ClaimError]]:
    """Every claim of a topic, or what is wrong with it."""
    scan = ClaimScan(cluster)
    starts, ends = scan.starts([topic]), scan.ends([topic])
    for found in scan.records(
        starts, ends, lambda done, total: progress.show(done / total if total else 1, topic)
    ):
        try:
            claim = parse_claim(found.record.value, found.record.headers, found.place)
        except ClaimError as error:
            yield found, error
        else:
            if claim is not None:
                yield found, claim


def _list(arguments: argparse.Namespace) -> int:
    listed: list[tuple[ClaimRecord, Claim]] = []
    with connect(arguments) as cluster, Progress() as progress:
        for found, claim in _claims(cluster, arguments.topic, progress):
            if isinstance(claim, ClaimError):
                progress.note(str(claim))
                continue
            listed.append((found, claim))
            if len(listed) == arguments.max:
                break
    if arguments.json:
        print_json(
            [
                {**found.place._asdict(), "size": claim.size, "sha256": claim.sha256, "uri": claim.uri}
                for found, claim in listed
            ]
        )
    elif listed:
        print_table(_LISTED, [(*found.place, size_text(claim.size), claim.uri) for found, claim in listed])
    else:
        print(f"no record of {arguments.topic} has its payload in a store", file=sys.stderr)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    large_payloads = LargePayloads(arguments.store, aliases=arguments.store_alias)
    checked = 0
    problems: list[dict[str, object]] = []
    with connect(arguments) as cluster, Progress() as progress:
        for found, claim in _claims(cluster, arguments.topic, progress):
            checked += 1
            error = (
                claim
                if isinstance(claim, ClaimError)
                else _problem(large_payloads, claim, found, arguments.full)
            )
            if isinstance(error, ClaimStoreDown):
                raise error
            if error is not None:
                problems.append(
                    {**found.place._asdict(), "error": type(error).__name__, "message": str(error)}
                )
                if not arguments.json:
                    progress.note(f"{type(error).__name__}: {error}")
    if arguments.json:
        print_json({"topic": arguments.topic, "claims": checked, "problems": problems})
    else:
        print(
            f"{plural(checked, 'claim')} of {arguments.topic} checked, {plural(len(problems), 'problem')} found"
        )
    return 1 if problems else 0


def _problem(
    large_payloads: LargePayloads, claim: Claim, found: ClaimRecord, is_full: bool
) -> ClaimError | None:
    try:
        if is_full:
            for _ in large_payloads.chunks(claim, found.place):
                pass
        else:
            large_payloads.check_exists(claim, found.place)
    except ClaimError as error:
        return error
    return None


def _sweep(arguments: argparse.Namespace) -> int:
    store = open_store(arguments.store)
    with connect(arguments) as cluster, Progress() as progress:
        wall_ms = int(time.time() * 1000)
        sweeper = Sweeper(cluster, store, wall_ms, arguments.grace, arguments.deleted_topics)
        found = sweeper.examine(
            lambda done, total: progress.show(done / total if total else 1, "records read")
        )
        removed = found.removable
        if arguments.delete and found.removable:
            total = size_text(sum(each.size for each in found.removable))
            confirm(
                f"Remove {plural(len(found.removable), 'object')} ({total}) from {store.uri}? No record refers to them.",
                arguments.yes,
            )
            removed = sweeper.remove(lambda done, total: progress.show(done / total, "objects removed"))
    size = sum(each.size for each in removed)
    kept = {
        standing.value: found.standings[standing]
        for standing in Standing
        if standing is not Standing.CANDIDATE
    }
    kept["referred to"] = found.standings[Standing.CANDIDATE] - len(removed)
    if arguments.json:
        print_json(
            {
                "store": store.uri,
                "deleted": arguments.delete,
                "objects": [each._asdict() for each in removed],
                "bytes": size,
                "claims": found.claim_count,
                "kept": kept,
            }
        )
        return 0
    for each in removed:
        print(each.key)
    verb = "removed" if arguments.delete else "can be removed; --delete removes them"
    reasons = ", ".join(f"{count} {standing}" for standing, count in kept.items() if count)
    print(f"{plural(len(removed), 'object')} ({size_text(size)}) {verb}", file=sys.stderr)
    print(f"kept: {reasons or 'none'}", file=sys.stderr)
    return 0
