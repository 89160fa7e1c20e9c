"""Whole clusters from seeds: a fixed few here; `make sim SEEDS=1000` runs many."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.sim.cluster import Shape
from tidemill.sim.crowds.guarded import GuardedCrowd
from tidemill.sim.platform.disk import Stopped
from tidemill.sim.stage import Plan
from tidemill.sim.world import Outcome, World, _clean_ups_watched

_ROOT = Path(__file__).parents[2]


def run(seed: int, shape: Shape, duration_s: float) -> Outcome:
    return World(seed, Plan(shape=shape, duration_s=duration_s, mean_fault_interval_s=6.0)).run()


@pytest.mark.parametrize(
    ("shape", "seed"),
    [
        (Shape(combined=1), 3),
        (Shape(combined=3), 1),
        pytest.param(Shape(combined=3), 2, marks=pytest.mark.long),
        pytest.param(Shape(combined=5), 5, marks=pytest.mark.long),
        (Shape(combined=0, brokers=3, controllers=3), 7),
    ],
    ids=str,
)
def test_seed_keeps_all_guarantees(shape: Shape, seed: int) -> None:
    outcome = run(seed, shape, 90.0)
    assert outcome.violations == [], "\n".join(outcome.last_lines)
    assert outcome.acked > 50
    assert outcome.committed > 5


@pytest.mark.parametrize("seed", [3, *(pytest.param(each, marks=pytest.mark.long) for each in (1, 5))])
def test_seed_with_two_phase_commits_keeps_all_guarantees(seed: int) -> None:
    shape = Shape(combined=seed)
    plan = Plan(
        shape=shape,
        duration_s=90.0,
        mean_fault_interval_s=6.0,
        mean_upset_interval_s=6.0,
        transaction_pause_s_max=1.0,
        has_transactions=False,
        has_two_phase=True,
    )
    outcome = World(seed, plan).run()
    assert outcome.violations == [], "\n".join(outcome.last_lines)
    assert outcome.committed > 5


@pytest.mark.parametrize(
    "shape",
    [
        Shape(combined=3),
        pytest.param(Shape(combined=0, brokers=3, controllers=3), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_seed_with_authentication_keeps_all_guarantees(shape: Shape) -> None:
    plan = Plan(
        shape=shape,
        duration_s=120.0,
        mean_fault_interval_s=6.0,
        has_transactions=False,
        has_authentication=True,
    )
    world = World(4, plan)
    outcome = world.run()
    assert outcome.violations == [], "\n".join(outcome.last_lines)
    assert outcome.acked > 50
    (crowd,) = world._crowds
    assert isinstance(crowd, GuardedCrowd)
    stranger, impostor, nobody, guest = crowd._visitors
    assert min(stranger.denied, impostor.denied, nobody.denied, guest.denied, guest.served) > 3
    assert stranger.served == impostor.served == nobody.served == 0


# One with transactions, one with two-phase commits, and one with authentication.
@pytest.mark.parametrize("seed", [pytest.param("1", marks=pytest.mark.long), "25", "41"])
def test_the_same_seed_gives_the_same_trace_in_any_process(seed: str, tmp_path: Path) -> None:
    """Byte for byte, whatever the hashes of strings and the addresses of objects are."""
    traces = []
    for hash_seed in ("1", "2"):
        path = tmp_path / hash_seed
        subprocess.run(
            [sys.executable, "-m", "tidemill.sim", "--seed", seed, "--minutes", "1", "--trace", str(path)],
            check=True,
            cwd=_ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
        )
        traces.append(path.read_bytes())
    assert traces[0] == traces[1]
    assert traces[0].count(b"\n") > 1000


def test_another_seed_gives_another_trace() -> None:
    digests = [World(seed, Plan(duration_s=5.0)).run().digest for seed in (1, 2)]
    assert digests[0] != digests[1]


def test_violation_names_seed_and_replay_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidemill.broker.quorum import state as quorum_state
    from tidemill.sim import __main__ as command

    monkeypatch.setattr(quorum_state.QuorumStateFile, "write", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["sim", "--seed", "4", "--minutes", "3"])
    assert command.main() == 1
    printed = capsys.readouterr().out
    assert "seed 4 breaks its promises" in printed
    assert "make sim SEED=4" in printed


_FAIL_SEVEN = """
from tidemill.sim import seeds

run_seed = seeds.run_seed

def fail_seven(seed, duration_s):
    if seed == 7:
        raise IndexError("nobody is left")
    return run_seed(seed, duration_s)

seeds.run_seed = fail_seven
for outcome in sorted(seeds.run_seeds((3, 7), 1.0, 2), key=lambda outcome: outcome.seed):
    print(outcome.seed, outcome.violations)
"""


def test_failing_world_fails_only_its_seed() -> None:
    # In a process of its own: it forks, and other tests may hold connections that a fork must not share.
    words = [sys.executable, "-c", _FAIL_SEVEN]
    done = subprocess.run(words, check=True, cwd=_ROOT, capture_output=True, text=True)
    three, seven = done.stdout.splitlines()
    assert three == "3 []"
    assert seven.startswith("7 [")
    assert "IndexError: nobody is left" in seven


@pytest.mark.parametrize(
    ("error", "accusations"),
    [(ValueError("broken"), 1), (Stopped("this process is dead"), 0)],
    ids=["of living code", "of a dead process"],
)
def test_failure_in_a_clean_up_is_an_accusation_unless_the_process_is_dead(
    error: BaseException, accusations: int
) -> None:
    def steps() -> Iterator[None]:
        try:
            yield
        finally:
            raise error

    accused: list[str] = []
    with _clean_ups_watched(accused.append):
        begun = steps()
        next(begun)
        del begun
    assert len(accused) == accusations
    assert all("broken" in each for each in accused)
