"""Groups whose members come, go and are killed while a producer writes: nothing is lost or processed twice at once.

A schedule is a seeded list of joins, leaves and `kill -9`s of member processes, of one library or of several. After each
step the group has to make progress. At the end everything is judged by the checker. One schedule for each column by
default; `TIDEMILL_GROUP_SCHEDULES=50` for the long run, `TIDEMILL_GROUP_SEED` for the first seed.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator

import pytest

from tests.brokers import Broker, eventually, start_broker
from tests.cluster.member_process import MemberProcess
from tests.cluster.producing import Producing, producing_to, read_log
from tests.conftest import BOOTSTRAP
from tests.interop.aiokafka_group import AiokafkaConsumer
from tests.interop.confluent_group import ConfluentConsumer, ConfluentNewConsumer
from tests.interop.group_consumers import GroupConsumer, MemberSettings
from tests.interop.group_table import GROUP_SETTINGS
from tests.interop.kafka_python_group import KafkaPythonConsumer
from tidemill.sim.checks import checker

# Whose members, with which assignor.
COLUMNS: tuple[tuple[tuple[type[GroupConsumer], ...], str], ...] = (
    ((ConfluentConsumer,), "range"),
    ((ConfluentConsumer,), "cooperative-sticky"),
    ((ConfluentNewConsumer,), "uniform"),
    ((AiokafkaConsumer,), "sticky"),
    ((KafkaPythonConsumer,), "cooperative-sticky"),
    ((ConfluentConsumer, AiokafkaConsumer, KafkaPythonConsumer), "range"),
)
# A cooperative group, one of KIP-848 and a mixed one; `make long` has the others.
_SHORT = (1, 2, 5)
SCHEDULES = int(os.environ.get("TIDEMILL_GROUP_SCHEDULES", str(len(COLUMNS))))
SEED = int(os.environ.get("TIDEMILL_GROUP_SEED", "1"))
PARTITIONS = 4
MEMBERS_MAX = 4
STEPS = 5
# How much a group has to get done before the next step.
PROGRESS = 50
LIMIT_S = 60.0

pytestmark = pytest.mark.skipif(
    bool(BOOTSTRAP), reason="TIDEMILL_INTEROP_BOOTSTRAP names a broker that is not ours"
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_broker(tmp_path_factory.mktemp("schedules") / "data", settings=GROUP_SETTINGS) as broker:
        yield broker


class Schedule:
    """Members of one group, and what was done to them."""

    def __init__(
        self, broker: Broker, group: str, topic: str, kinds: tuple[type[GroupConsumer], ...], assignor: str
    ) -> None:
        self.members: list[MemberProcess] = []
        self.steps: list[str] = []
        self._broker, self._kinds = broker, itertools.cycle(kinds)
        self._settings = MemberSettings(
            group, topics=(topic,), assignor=assignor, session_timeout_ms=2_000, heartbeat_interval_ms=200
        )
        self._names = (f"m{number}" for number in itertools.count(1))

    @property
    def alive(self) -> list[MemberProcess]:
        return [member for member in self.members if member.is_alive]

    def join(self) -> None:
        name, kind = next(self._names), next(self._kinds)
        self.steps.append(f"join {name} {kind.name}")
        self.members.append(MemberProcess(name, kind, self._broker.bootstrap, self._settings))

    def leave(self, member: MemberProcess) -> None:
        self.steps.append(f"leave {member.name.member}")
        member.leave()

    def kill(self, member: MemberProcess) -> None:
        self.steps.append(f"kill {member.name.member}")
        member.kill()

    def step(self, rng: random.Random) -> None:
        alive = self.alive
        action = rng.choice(["join", "join", "leave", "kill"])
        if not alive or (action == "join" and len(alive) < MEMBERS_MAX):
            self.join()
        elif action == "leave":
            self.leave(rng.choice(alive))
        else:
            self.kill(rng.choice(alive))
        if not self.alive:
            self.join()

    def await_newest(self) -> None:
        """There are as many partitions as members: everybody gets one."""
        newest = self.alive[-1]
        eventually(newest.owned, f"a share for {newest.name.member} after {self.steps}", LIMIT_S)

    def delivered(self) -> int:
        return sum(member.delivered() for member in self.members)

    def await_progress(self) -> None:
        wanted = self.delivered() + PROGRESS
        eventually(lambda: self.delivered() >= wanted, f"progress after {self.steps}", LIMIT_S)

    def await_drained(self, producing: Producing) -> None:
        acked = producing.acked()

        def is_drained() -> bool:
            got = {
                event.message
                for member in self.members
                for event in list(member.events)
                if isinstance(event, checker.Delivered)
            }
            return acked <= got

        eventually(is_drained, f"everything delivered after {self.steps}", LIMIT_S)

    def events(self) -> list[checker.Event]:
        return [event for member in self.members for event in member.events]

    def end(self) -> None:
        for member in self.alive:
            member.kill()


def _name(number: int) -> str:
    kinds, assignor = COLUMNS[number % len(COLUMNS)]
    return f"{SEED + number}, {' and '.join(kind.name for kind in kinds)}, {assignor}"


@pytest.fixture
def schedule_of(broker: Broker) -> Iterator[Callable[[int], Schedule]]:
    schedules: list[Schedule] = []

    def make(number: int) -> Schedule:
        kinds, assignor = COLUMNS[number % len(COLUMNS)]
        schedules.append(Schedule(broker, f"group-{number}", f"topic-{number}", kinds, assignor))
        return schedules[-1]

    yield make
    for schedule in schedules:
        schedule.end()


def _as_parameter(number: int) -> object:
    is_long = number not in _SHORT and len(COLUMNS) >= SCHEDULES
    return pytest.param(number, id=_name(number), marks=[pytest.mark.long] if is_long else [])


@pytest.mark.parametrize("number", [_as_parameter(number) for number in range(SCHEDULES)])
def test_members_come_and_go_and_nothing_is_lost_or_shared(
    number: int, broker: Broker, schedule_of: Callable[[int], Schedule]
) -> None:
    rng = random.Random(SEED + number)
    schedule = schedule_of(number)
    topic = f"topic-{number}"
    with producing_to(broker, topic, PARTITIONS) as producing:
        schedule.join()
        schedule.join()
        schedule.await_progress()
        for _ in range(STEPS):
            schedule.step(rng)
            # Mostly one change after the other; now and then the next comes before the group has settled.
            if rng.random() < 0.7:
                schedule.await_newest()
            schedule.await_progress()
        producing.stop()
        schedule.await_drained(producing)
    for member in schedule.alive:
        schedule.leave(member)
    history = producing.events + schedule.events() + read_log(broker, topic, range(PARTITIONS))
    history.append(checker.Drained(time.monotonic(), f"group-{number}"))
    history.sort(key=lambda event: event.at_s)
    violations = checker.check(history)
    assert not violations, f"seed {SEED + number}: {schedule.steps}\n" + "\n".join(map(str, violations[:20]))
