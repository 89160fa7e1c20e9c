"""From a number to a world, and from many numbers to many worlds at once."""

from __future__ import annotations

import gc
import multiprocessing
import traceback
from collections.abc import Iterable, Iterator
from functools import partial

from tidemill.sim.cluster import Shape
from tidemill.sim.world import Outcome, Plan, World

# The shapes that seeds take in turn: mostly three combined nodes, now and then another.
_SHAPES = (
    Shape(combined=3),
    Shape(combined=3),
    Shape(combined=3),
    Shape(combined=1),
    Shape(combined=3),
    Shape(combined=5),
    Shape(combined=3),
    Shape(combined=0, brokers=3, controllers=3),
)

_WARM_UP_S = 20.0


def plan_of(seed: int, duration_s: float) -> Plan:
    # Transactions double what a seed costs: every other round of the shapes has them. Every fourth has two-phase commits,
    # which cost as much.
    round_ = seed // len(_SHAPES)
    return Plan(
        shape=_SHAPES[seed % len(_SHAPES)],
        duration_s=duration_s,
        has_transactions=round_ % 2 == 0,
        has_two_phase=round_ % 4 == 3,
    )


def run_seed(seed: int, duration_s: float) -> Outcome:
    return World(seed, plan_of(seed, duration_s)).run()


def run_seeds(seeds: Iterable[int], duration_s: float, jobs: int) -> Iterator[Outcome]:
    """The outcomes as they come. A process for each seed: nothing that one world leaves behind can reach the next."""
    # What every world needs once, codecs above all, is made here and inherited.
    run_seed(0, _WARM_UP_S)
    # A world leaves no more garbage in cycles than a process can carry; looking for it costs a sixth of the time.
    gc.collect()
    gc.freeze()
    try:
        with multiprocessing.get_context("fork").Pool(jobs, gc.disable, maxtasksperchild=1) as pool:
            yield from pool.imap_unordered(
                partial(_run_to_an_outcome, duration_s=duration_s), seeds, chunksize=1
            )
    finally:
        gc.unfreeze()


def _run_to_an_outcome(seed: int, duration_s: float) -> Outcome:
    """A world that cannot go on is one seed's failure, and not the end of all."""
    try:
        return run_seed(seed, duration_s)
    except Exception:
        return Outcome.of_failure(seed, f"the world itself failed:\n{traceback.format_exc()}")
