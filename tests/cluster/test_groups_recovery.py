"""Groups over the death of the broker, rolling restarts of static members, and commits that meet a rebalance."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from contextlib import ExitStack

from tests.brokers import Broker, eventually
from tests.cluster.member_process import MemberProcess
from tests.cluster.producing import producing_to, read_log
from tests.interop.clients import ClientError
from tests.interop.confluent_group import ConfluentConsumer, ConfluentNewConsumer
from tests.interop.group_consumers import GroupConsumer, MemberSettings
from tests.interop.group_table import GROUP_SETTINGS, with_members
from tests.interop.members import Member, shared_out
from tidemill.sim.checks import checker
from tidemill.types import TopicPartition

TOPIC, GROUP = "recovered", "recovering"
PARTITIONS = 2
STATIC_MEMBERS = 20
REBALANCE = re.compile(r"group (\S+) rebalances to generation (\d+)")


def _count(member: MemberProcess, kind: type[checker.Event]) -> int:
    return sum(isinstance(event, kind) for event in list(member.events))


@with_members(ConfluentConsumer, ConfluentNewConsumer)
def test_a_killed_consumer_resumes_at_its_commit_after_the_broker_was_killed(
    kind: type[GroupConsumer], start: Callable[..., Broker]
) -> None:
    settings = MemberSettings(GROUP, topics=(TOPIC,), session_timeout_ms=1_000)
    broker = start(GROUP_SETTINGS)
    with producing_to(broker, TOPIC, PARTITIONS) as producing:
        first = MemberProcess("first", kind, broker.bootstrap, settings)
        eventually(lambda: _count(first, checker.Committed) >= 10, "ten commits")
        first.kill()
    broker.kill()
    broker = start(GROUP_SETTINGS)
    second = MemberProcess("second", kind, broker.bootstrap, settings)
    acked = producing.acked()
    events = [*producing.events, *first.events]

    def is_drained() -> bool:
        got = [*events, *list(second.events)]
        return acked <= {event.message for event in got if isinstance(event, checker.Delivered)}

    try:
        eventually(is_drained, "everything delivered")
    finally:
        second.leave()
    history = [*events, *second.events, *read_log(broker, TOPIC, range(PARTITIONS))]
    history.append(checker.Drained(time.monotonic(), GROUP))
    history.sort(key=lambda event: event.at_s)
    assert [str(violation) for violation in checker.check(history)] == []


def _generations(broker: Broker, group: str) -> list[int]:
    return [int(found[2]) for found in REBALANCE.finditer(broker.log()) if found[1] == group]


def test_a_rolling_restart_of_20_static_members_causes_no_rebalance(start: Callable[..., Broker]) -> None:
    broker = start({**GROUP_SETTINGS, "group.initial.rebalance.delay.ms": "1000"})
    with producing_to(broker, TOPIC, STATIC_MEMBERS, per_pause=1), ExitStack() as stack:

        def join(number: int) -> Member:
            settings = MemberSettings(
                GROUP, topics=(TOPIC,), instance_id=f"instance-{number}", session_timeout_ms=60_000
            )
            return stack.enter_context(Member(ConfluentConsumer, broker.bootstrap, settings))

        members = [join(number) for number in range(STATIC_MEMBERS)]
        shared_out(members, STATIC_MEMBERS, TOPIC)
        before = _generations(broker, GROUP)
        rebalances = [member.rebalances for member in members]
        for number in range(STATIC_MEMBERS):
            share = set(members[number].owned)
            members[number].stop()
            members[number] = join(number)
            eventually(lambda: members[number].owned == share, f"the share of instance {number}")  # noqa: B023
        eventually(lambda: all(member.records for member in members), "records for everybody")
        assert [member.rebalances for member in members] == [1] * STATIC_MEMBERS, rebalances
        assert _generations(broker, GROUP) == before


@with_members()
def test_failure_22_a_commit_overlaps_a_rebalance_and_fetching_goes_on(
    kind: type[GroupConsumer], start: Callable[..., Broker]
) -> None:
    """One member commits at every chance while another comes and goes; afterwards it reads on, from every partition."""
    broker = start(GROUP_SETTINGS)
    settings = MemberSettings(GROUP, topics=(TOPIC,))
    with (
        producing_to(broker, TOPIC, PARTITIONS),
        Member(kind, broker.bootstrap, settings) as committing,
    ):
        shared_out([committing], PARTITIONS, TOPIC)
        commits = itertools.count()
        for _ in range(3):
            with Member(kind, broker.bootstrap, settings) as other:
                eventually(
                    lambda: _commit(committing, next(commits)) and other.owned, "a share for the other"
                )
            eventually(
                lambda: _commit(committing, next(commits)) and len(committing.owned) == PARTITIONS,
                "everything back",
            )
        seen = len(committing.records)

        def partitions_read_since() -> set[int]:
            return {record.partition for _, record in committing.records[seen:]}

        eventually(lambda: partitions_read_since() == set(range(PARTITIONS)), "records of every partition")
        committing.do(lambda consumer: consumer.commit())
        assert committing.do(lambda consumer: consumer.committed(TopicPartition(TOPIC, 0))) is not None


def _commit(member: Member, number: int) -> bool:
    """Synchronous and asynchronous in turn. It may be refused, for a rebalance is under way."""
    try:
        if number % 2:
            member.do(lambda consumer: consumer.commit())
        else:
            member.do(lambda consumer: consumer.commit_async())
    except ClientError as refused:
        member.errors.append(refused)
    return True
