"""The simulator bites: each planted bug is found.

Each is looked for in the seeds from 0 on, up to the number that its entry states, until one finds it.
"""

from __future__ import annotations

import pytest

from tests.sim.planted import BUGS, Bug, planted
from tidemill.sim.world import World


def test_there_are_enough_bugs_and_each_has_a_name() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 16


def _violations(bug: Bug, seed: int) -> list[str]:
    with planted(bug):
        return World(seed, bug.plan).run().violations


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    # The likeliest first: what a seed leads to changes with every change of the code.
    seeds = sorted(range(bug.seeds), key=lambda seed: seed != bug.found_in)
    assert any(_violations(bug, seed) for seed in seeds)
