"""`python -m tests.wire.fuzz`: attack one broker or a cluster for some minutes, or repeat a single frame."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.brokers import KEEPS_EVERYTHING, RunningBroker, raise_descriptor_limit, start_broker
from tests.cluster.clusters import Cluster
from tests.wire.fuzz.attack import HANG_LIMIT_S, send_one
from tests.wire.fuzz.campaign import QUICK_GROUPS, Campaign
from tests.wire.fuzz.topics import prepare
from tests.wire.fuzz.values import Pools
from tests.wire.fuzz.watchdog import Target, Watchdog, target_of_broker, target_of_cluster


@contextlib.contextmanager
def running(brokers: int, folder: Path) -> Iterator[Target]:
    settings = {**KEEPS_EVERYTHING, **QUICK_GROUPS}
    if brokers == 1:
        with start_broker(folder / "data", settings=settings) as broker:
            yield target_of_broker(broker)
    else:
        with Cluster(brokers, folder, settings=settings) as cluster:
            yield target_of_cluster(cluster)


def repeat(target: Target, wire: bytes) -> int:
    """One frame to each listener: what becomes of it, and whether the brokers stay well."""
    prepare(target, Pools())
    with Watchdog(target) as watchdog:
        listeners: list[RunningBroker] = [*target.brokers, *target.controllers]
        for listener in listeners:
            print(f"{listener.bootstrap}: {asyncio.run(send_one(listener, wire, HANG_LIMIT_S))}")
    for finding in watchdog.findings:
        print(f"FINDING {finding}")
    print(watchdog.report())
    return 1 if watchdog.findings else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--frames", type=int, default=1 << 40, help="stop after so many")
    parser.add_argument("--seed", type=int, help="by default another one each time")
    parser.add_argument("--brokers", type=int, default=1, help="1 is a lone node, 3 a cluster")
    parser.add_argument(
        "--p99-ms",
        type=float,
        help="fail when the innocent client's p99 of any ten seconds is not below this",
    )
    parser.add_argument("--frame", help="repeat this frame, in hex with its length, and nothing else")
    parser.add_argument("--folder", type=Path, help="keep data and logs here")
    arguments = parser.parse_args()
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    raise_descriptor_limit(65536)
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemill-fuzz-"))
        )
        folder.mkdir(parents=True, exist_ok=True)
        target = stack.enter_context(running(arguments.brokers, folder))
        if arguments.frame:
            return repeat(target, bytes.fromhex(arguments.frame))
        print(f"seed {seed}, {arguments.brokers} broker(s), {arguments.minutes:g} minutes", flush=True)
        campaign = Campaign(
            target,
            seed,
            frames_max=arguments.frames,
            seconds=arguments.minutes * 60,
            p99_ms_max=arguments.p99_ms,
            say=lambda line: print(line, flush=True),
        )
        return 1 if campaign.run() else 0


if __name__ == "__main__":
    sys.exit(main())
