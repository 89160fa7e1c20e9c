"""Runs of seeds: maps a seed to a world, and runs many worlds in parallel."""

from __future__ import annotations

import gc
import multiprocessing
import traceback
from collections.abc import Iterable, Iterator
from functools import partial

from tidemill.sim.cluster import Shape
from tidemill.sim.stage import Plan
from tidemill.sim.world import Outcome, World

# The shapes that seeds take in turn: mostly three combined nodes, sometimes another.
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
# From this seed on every world has authentication, so that a run can have no other kind.
_FIRST_SECURED = 50_000
# From this seed on every world has a share group.
_FIRST_SHARED = 60_000
# From this seed on every world has a topic whose number of partitions changes, and nothing else that costs much.
_FIRST_SHRINKING = 80_000
# From this seed on every world has delayed records with schedules.
_FIRST_SCHEDULED = 90_000
# From this seed on some of them are written in transactions, and retention carries what waits.
_FIRST_CARRIED = 95_000
# From this seed on every world has all clients at once: transactions, two-phase queries, delays, shares and shrinks.
_FIRST_MIXED = 100_000


def plan_of(seed: int, duration_s: float) -> Plan:
    # Transactions double the cost of a seed, so every other round of the shapes has them. Every fourth has two-phase
    # commits, every fourth delayed records, every fourth a share group, and every eighth authentication.
    round_ = seed // len(_SHAPES)
    if seed >= _FIRST_MIXED:
        return Plan(
            shape=_SHAPES[seed % len(_SHAPES)],
            duration_s=duration_s,
            has_transactions=True,
            has_two_phase=True,
            has_delays=True,
            has_schedules=True,
            has_transactional_delays=True,
            has_expiring_delays=True,
            has_shares=True,
            has_shrinking=True,
            has_authentication=round_ % 4 == 3,
        )
    if seed >= _FIRST_SCHEDULED:
        return Plan(
            shape=_SHAPES[seed % len(_SHAPES)],
            duration_s=duration_s,
            has_transactions=round_ % 4 == 0,
            has_delays=True,
            has_schedules=True,
            has_transactional_delays=seed >= _FIRST_CARRIED,
            has_expiring_delays=seed >= _FIRST_CARRIED,
        )
    if seed >= _FIRST_SHRINKING:
        return Plan(
            shape=_SHAPES[seed % len(_SHAPES)],
            duration_s=duration_s,
            has_transactions=round_ % 4 == 0,
            has_shares=round_ % 4 == 2,
            has_authentication=round_ % 8 == 5,
            has_shrinking=True,
        )
    return Plan(
        shape=_SHAPES[seed % len(_SHAPES)],
        duration_s=duration_s,
        has_transactions=round_ % 2 == 0,
        has_two_phase=round_ % 4 == 3,
        has_delays=round_ % 4 == 1,
        has_shares=round_ % 4 == 2 or seed >= _FIRST_SHARED,
        has_authentication=round_ % 8 == 5 or _FIRST_SECURED <= seed < _FIRST_SHARED,
    )


def run_seed(seed: int, duration_s: float) -> Outcome:
    return World(seed, plan_of(seed, duration_s)).run()


def run_seeds(seeds: Iterable[int], duration_s: float, jobs: int) -> Iterator[Outcome]:
    """Returns the outcomes as they arrive. Each seed runs in its own process, so worlds cannot affect each other."""
    # Codecs and other shared objects are made here and inherited.
    run_seed(0, _WARM_UP_S)
    # A world leaves little garbage in cycles, and collecting it costs a sixth of the time.
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
    """Run a seed. A world that fails to run is an outcome of its seed."""
    try:
        return run_seed(seed, duration_s)
    except Exception:
        return Outcome.of_failure(seed, f"the world itself failed:\n{traceback.format_exc()}")
