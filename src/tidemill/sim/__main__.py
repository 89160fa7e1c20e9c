"""`python -m tidemill.sim`: runs one seed, or many in parallel, and prints the violations."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tidemill.sim.seeds import plan_of, run_seeds
from tidemill.sim.world import Outcome, World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tidemill.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and print its trace's digest")
    parser.add_argument("--seeds", type=int, default=10, help="run so many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0, help="of simulated time, for each seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trace", help="write every line of the trace into this file")
    options = parser.parse_args()
    if options.seed is not None:
        return _run_one(options.seed, options.minutes * 60, options.trace)
    return _run_many(range(options.first, options.first + options.seeds), options.minutes * 60, options.jobs)


def _run_one(seed: int, duration_s: float, trace_path: str | None) -> int:
    world = World(seed, plan_of(seed, duration_s))
    if trace_path is None:
        outcome = world.run()
    else:
        with open(trace_path, "w") as file:
            world.trace.on_line = lambda line: print(line, file=file)
            outcome = world.run()
    _report(outcome)
    print(
        f"seed {seed}: {outcome.acked} messages acked, {outcome.committed} transactions, {outcome.ended_s:.0f} s, "
        f"{outcome.callbacks} callbacks, trace {outcome.digest}"
    )
    return 1 if outcome.violations else 0


def _run_many(seeds: range, duration_s: float, jobs: int) -> int:
    started_s = time.monotonic()
    failed: list[int] = []
    acked = committed = 0
    for done, outcome in enumerate(run_seeds(seeds, duration_s, jobs), 1):
        acked += outcome.acked
        committed += outcome.committed
        if outcome.violations:
            failed.append(outcome.seed)
            _report(outcome)
        elapsed_s = time.monotonic() - started_s
        if done % 10 == 0 or done == len(seeds):
            print(f"{done}/{len(seeds)} seeds, {len(failed)} failed, {elapsed_s:.0f} s", flush=True)
    print(
        f"{len(seeds)} seeds of {duration_s / 60:g} simulated minutes, {acked} messages acked, {committed} transactions"
    )
    if failed:
        print(f"failed: {', '.join(map(str, sorted(failed)))}")
    return 1 if failed else 0


def _report(outcome: Outcome) -> None:
    if not outcome.violations:
        return
    print(f"\n--- seed {outcome.seed}: the last {len(outcome.last_lines)} events")
    for line in outcome.last_lines:
        print(line)
    print(f"--- seed {outcome.seed} breaks its promises:")
    for violation in outcome.violations:
        print(f"  {violation}")
    print(f"replay: make sim SEED={outcome.seed}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
