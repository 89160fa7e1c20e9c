"""The simulator bites: each planted bug is found.

Each is looked for in the seeds from 0 on, up to the number that its entry states, until one finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sim import test_failures
from tests.sim import test_transaction_failures as courses
from tests.sim import test_two_phase_failures as two_phase_courses
from tests.sim.planted import transactions, two_phase
from tests.sim.planted.bugs import (
    BUGS,
    Bug,
    commits_are_answered_before_replication,
    planted,
    stale_broker_epoch_is_accepted,
)
from tests.sim.planted.delays import DELAY_BUGS, DELAY_COURSES
from tests.sim.planted.guards import GUARD_BUGS
from tests.sim.planted.shares import SHARE_BUGS, SHARE_COURSES
from tests.sim.planted.shrinking import SHRINKING_BUGS, SHRINKING_COURSES
from tests.sim.planted.transactions import TRANSACTION_BUGS
from tests.sim.planted.two_phase import TWO_PHASE_BUGS
from tests.sim.planted.views import VIEW_BUGS, VIEW_COURSES
from tidemill.sim.world import World

ROOT = Path(__file__).resolve().parents[2]
# Those that take the most simulated time to be found.
_LONG = {
    "a new leader shows everything",
    "a new coordinator forgets who took over",
    "an end leaves the epoch to who took over",
    "votes for anybody",
    "ack before replication",
    "a snapshot loses a topic",
    "a new producer keeps the old epoch",
    "a reader is never moved past what is hidden",
    "a takeover aborts",
    "a takeover leaves the timeout on",
    "what is found open is aborted",
    "a decision is replaced before it is finished",
    "the report of a task is not compared",
    "cancels are ignored",
    "a new leader does not know what was delivered",
    "a batch is shown whole or not at all",
    "duplicates are not found",
    "truncates to its own high watermark",
    "a new coordinator forgets what was decided",
    "aborted offsets are applied",
    "the limit archives nothing",
    "a new leader forgets what was acknowledged",
    "an update replaces the states",
    "a snapshot lacks the change that caused it",
    "the log is pruned with its last snapshot",
    "delivered before their time",
    "the start offset passes locked records",
    "nothing is delivered after an election",
    "open transactions deliver",
    "aborted transactions deliver",
    "committed transactions deliver nothing",
    "a new leader does not know what was carried",
    "answered before it is durable",
    "records are given up one delivery early",
    "joins the ISR when it is behind",
    "releases are not counted",
    "a new coordinator reads only snapshots",
    "the backoff does not grow",
    "runs are joined whatever their dictionaries are",
    "a record is taken for the one before it",
    "what did not fit is skipped",
    *(bug.name for bug in SHRINKING_BUGS),
}
# Those whose course waits longest for what does not come.
_LONG_COURSES = {"a new coordinator forgets who took over", "a new coordinator forgets what was decided"}


def test_there_are_enough_bugs_and_each_has_a_name() -> None:
    assert not _LONG_COURSES - {bug.name for bug, _ in SCRIPTED}
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 16
    assert len({bug.name for bug in TRANSACTION_BUGS}) == len(TRANSACTION_BUGS) >= 6
    assert len({bug.name for bug in TWO_PHASE_BUGS}) == len(TWO_PHASE_BUGS) >= 4
    assert len({bug.name for bug in VIEW_BUGS}) == len(VIEW_BUGS) >= 8
    assert len({bug.name for bug in DELAY_BUGS}) == len(DELAY_BUGS) >= 11
    assert len({bug.name for bug in GUARD_BUGS}) == len(GUARD_BUGS) >= 7
    assert len({bug.name for bug in SHARE_BUGS}) == len(SHARE_BUGS) >= 9
    assert len({bug.name for bug, _ in SHRINKING_COURSES}) == len(SHRINKING_COURSES) >= 12


def _violations(bug: Bug, seed: int) -> list[str]:
    with planted(bug):
        return World(seed, bug.plan).run().violations


def _as_parameter(bug: Bug) -> object:
    return pytest.param(bug, id=bug.name, marks=[pytest.mark.long] if bug.name in _LONG else [])


def _as_course_parameter(bug: Bug, course: Callable[[], None]) -> object:
    marks = [pytest.mark.long] if bug.name in _LONG_COURSES else []
    return pytest.param(bug, course, id=bug.name, marks=marks)


FOUND_BY_SEEDS: tuple[Bug, ...] = (
    *BUGS,
    *TRANSACTION_BUGS,
    *TWO_PHASE_BUGS,
    *VIEW_BUGS,
    *DELAY_BUGS,
    *GUARD_BUGS,
    *SHARE_BUGS,
    *SHRINKING_BUGS,
)


@pytest.mark.parametrize("bug", [_as_parameter(bug) for bug in FOUND_BY_SEEDS])
def test_a_planted_bug_is_found(bug: Bug) -> None:
    # The likeliest first: what a seed leads to changes with every change of the code.
    seeds = sorted(range(bug.seeds), key=lambda seed: seed != bug.found_in)
    assert any(_violations(bug, seed) for seed in seeds)


# What takes a coincidence that few seeds have: the course of events that brings it out is written down.
SCRIPTED: tuple[tuple[Bug, Callable[[], None]], ...] = (
    (
        Bug("commits are answered before replication", commits_are_answered_before_replication),
        test_failures.test_failure_11_a_coordinator_that_is_alone_confirms_no_commit,
    ),
    (
        Bug("a stale broker epoch is accepted", stale_broker_epoch_is_accepted),
        lambda: test_failures.test_failure_04_a_stale_proposal_does_not_bring_a_new_incarnation_into_the_isr(
            1
        ),
    ),
    (
        Bug("nothing is verified", transactions.nothing_is_verified),
        lambda: courses.test_failure_06_a_late_write_arrives_after_the_abort(False),
    ),
    (
        Bug("ends are taken whatever their epoch", transactions.ends_are_taken_whatever_their_epoch),
        lambda: courses.test_failure_07_a_delayed_end_does_not_decide_a_later_transaction(True),
    ),
    (
        Bug("late markers are accepted", transactions.late_markers_are_accepted),
        lambda: courses.test_failure_07_a_late_marker_does_not_end_a_later_transaction(True),
    ),
    (
        Bug("repeated markers are written", transactions.repeated_markers_are_written),
        lambda: courses.test_failure_07_a_repeated_marker_does_not_end_a_later_transaction(False),
    ),
    (
        Bug(
            "markers of a stale coordinator are accepted",
            transactions.markers_of_a_stale_coordinator_are_accepted,
        ),
        courses.test_failure_07_a_marker_of_an_earlier_coordinator_ends_nothing,
    ),
    (
        Bug(
            "a new coordinator forgets what was decided",
            transactions.a_new_coordinator_forgets_what_was_decided,
        ),
        lambda: courses.test_failure_12_the_coordinator_moves_after_the_decision(True, True),
    ),
    (
        Bug("who wrote it may still end it", two_phase.who_wrote_it_may_still_end_it),
        lambda: two_phase_courses.test_original_producer_cannot_end_transaction_after_takeover(False),
    ),
    (
        Bug(
            "a new coordinator forgets who took over",
            two_phase.a_new_coordinator_forgets_who_took_over,
        ),
        lambda: two_phase_courses.test_original_producer_cannot_end_transaction_after_takeover(True),
    ),
    (
        Bug("a takeover leaves the timeout on", two_phase.a_takeover_leaves_the_timeout_on),
        two_phase_courses.test_transaction_taken_over_in_two_phases_does_not_time_out,
    ),
    (
        Bug(
            "decisions are read up to the high watermark",
            two_phase.decisions_are_read_up_to_the_high_watermark,
        ),
        two_phase_courses.test_a_decision_is_not_overlooked_at_a_leader_that_was_replaced,
    ),
    *VIEW_COURSES,
    *DELAY_COURSES,
    *SHARE_COURSES,
    *SHRINKING_COURSES,
)


@pytest.mark.parametrize(("bug", "course"), [_as_course_parameter(bug, course) for bug, course in SCRIPTED])
def test_a_planted_bug_is_found_by_its_course(bug: Bug, course: Callable[[], None]) -> None:
    with planted(bug), pytest.raises(AssertionError):
        course()


def test_pages_state_how_many_bugs_are_planted() -> None:
    seeds = {bug.name: bug.seeds for bug in FOUND_BY_SEEDS}
    at_once = sum(count <= 5 for count in seeds.values())
    others = {bug.name for bug, _ in SCRIPTED} - seeds.keys()
    count = len(seeds) + len(others)
    proved = " ".join((ROOT / "docs/proved.md").read_text().split())
    assert f"plants {count} bugs" in proved
    assert f"The first five seeds find {at_once} of them, more seeds {len(seeds) - at_once}," in proved
    assert f"scripted courses of events the other {len(others)}." in proved
    assert f"- {count} bugs are planted" in (ROOT / "README.md").read_text()
