"""Failures that broke other systems, played on a whole cluster: what processes, networks and members do to it.

Each is known by its number. Disks, clocks and background work are in `test_disk_failures.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.scripted import ORDERS, Stage, dynamic_quorum, play
from tidemill.coordinator.partitions import partition_for_group
from tidemill.errors import ErrorCode
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidemill.protocol.api.quorum import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from tidemill.protocol.api.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from tidemill.raft.core import RaftMachine
from tidemill.raft.roles import Candidate
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.fetching import Position
from tidemill.sim.cluster import Machine, Shape
from tidemill.types import BrokerId, TopicPartition

_FOUR = Shape(combined=4)
_DYNAMIC = dynamic_quorum(_FOUR, (1, 2, 3))
_ALONE = "alone"


def _voters(stage: Stage, machine: Machine) -> set[int]:
    quorum = stage.quorum_of(machine)
    return set(quorum.voters.ids) if quorum is not None else set()


def _wait_voters(stage: Stage, *ids: int) -> None:
    stage.wait(
        lambda: all(_voters(stage, machine) == set(ids) for machine in stage.machines()),
        f"everybody knows the voters {ids}",
    )


# How far a change of the voters has come.


def _is_appended(stage: Stage, leader: Machine, wanted: set[int]) -> bool:
    return _voters(stage, leader) == wanted


def _is_copied(stage: Stage, leader: Machine, wanted: set[int]) -> bool:
    return _is_appended(stage, leader, wanted) and any(
        _voters(stage, machine) == wanted for machine in stage.machines() if machine is not leader
    )


def _is_committed(stage: Stage, leader: Machine, wanted: set[int]) -> bool:
    quorum = stage.quorum_of(leader)
    return (
        _is_appended(stage, leader, wanted)
        and quorum is not None
        and quorum.high_watermark > quorum.log.voters.offset
    )


Moment = Callable[[Stage, Machine, set[int]], bool]
_MOMENTS = {"appended": _is_appended, "copied": _is_copied, "committed": _is_committed}


@pytest.mark.parametrize("moment", _MOMENTS)
@pytest.mark.parametrize("victim_is", ["leader", "newcomer", "bystander"])
def test_failure_14_a_kill_while_a_voter_joins(victim_is: str, moment: str) -> None:
    def course(stage: Stage) -> None:
        _wait_voters(stage, 1, 2, 3)
        leader, newcomer = stage.controller(), stage.machine(4)
        bystander = next(each for each in stage.machines() if each is not leader)
        stage.absent.discard(4)
        stage.cluster.start(newcomer)
        stage.wait(lambda: _MOMENTS[moment](stage, leader, {1, 2, 3, 4}), f"the new voter is {moment}")
        victim = {"leader": leader, "newcomer": newcomer, "bystander": bystander}[victim_is]
        stage.cluster.kill(victim)
        stage.let(4)
        stage.cluster.start(victim)
        _wait_voters(stage, 1, 2, 3, 4)
        stage.wait_healthy()
        stage.wait_acks()

    play(course, shape=_FOUR, settings=_DYNAMIC, starts=(1, 2, 3))


@pytest.mark.parametrize("moment", _MOMENTS)
@pytest.mark.parametrize("removed_is", ["leader", "follower"])
@pytest.mark.parametrize("victim_is", ["leader", "other"])
def test_failure_14_a_kill_while_a_voter_leaves(victim_is: str, removed_is: str, moment: str) -> None:
    def course(stage: Stage) -> None:
        _wait_voters(stage, 1, 2, 3, 4)
        leader = stage.controller()
        follower, other, *_ = (each for each in stage.machines() if each is not leader)
        removed = leader if removed_is == "leader" else follower
        victim = leader if victim_is == "leader" else other
        answer = stage.begin(_removal(stage, removed), RemoveRaftVoterResponse)
        left = {1, 2, 3, 4} - {removed.id}
        stage.wait(lambda: _MOMENTS[moment](stage, leader, left), f"the removal is {moment}")
        stage.cluster.kill(victim)
        stage.let(4)
        stage.cluster.start(victim)
        stage.wait_healthy()
        stage.agree()
        if victim is removed:
            # A controller that starts joins.
            _wait_voters(stage, 1, 2, 3, 4)
        elif moment == "committed" or (answer.response is not None and not answer.response.error_code):
            _wait_voters(stage, *left)
        stage.wait_acks()

    play(course, shape=_FOUR, settings=dynamic_quorum(_FOUR, (1, 2, 3, 4)))


def _removal(stage: Stage, machine: Machine) -> RemoveRaftVoterRequest:
    quorum = stage.quorum_of(machine)
    assert quorum is not None
    return RemoveRaftVoterRequest(voter_id=machine.id, voter_directory_id=quorum.own.directory_id)


def _reassignment(tps: list[TopicPartition], replicas: list[int]) -> AlterPartitionReassignmentsRequest:
    topics: dict[str, ReassignableTopic] = {}
    for tp in tps:
        topic = topics.setdefault(tp.topic, ReassignableTopic(name=tp.topic, partitions=[]))
        topic.partitions.append(ReassignablePartition(partition_index=tp.partition, replicas=replicas))
    return AlterPartitionReassignmentsRequest(timeout_ms=5_000, topics=list(topics.values()))


def _reassign(stage: Stage, tps: list[TopicPartition], replicas: list[int]) -> None:
    answer = stage.ask(_reassignment(tps, replicas), AlterPartitionReassignmentsResponse)
    codes = [answer.error_code, *(p.error_code for topic in answer.responses for p in topic.partitions)]
    stage.require(not any(codes), f"the reassignment was refused: {codes}")


def _has_begun(stage: Stage, target: int) -> bool:
    return stage.controller_or_none() is not None and target in stage.partition().adding_replicas


def _is_copying(stage: Stage, target: int) -> bool:
    node = stage.machine(target).node
    if node is None:
        return False
    found, _ = node.broker.replicas.find((ORDERS.topic, ORDERS.partition))
    return found is not None and found.log is not None and found.log.log_end_offset > 0


def _is_in_sync(stage: Stage, target: int) -> bool:
    return stage.controller_or_none() is not None and target in stage.partition().isr


_STEPS = {"begun": _has_begun, "copying": _is_copying, "in sync": _is_in_sync}


@pytest.mark.parametrize("step", _STEPS)
@pytest.mark.parametrize("victim_is", ["leader", "target", "controller"])
@pytest.mark.parametrize(
    "has_power",
    [pytest.param(True, id="kill"), pytest.param(False, id="power", marks=pytest.mark.long)],
)
def test_failure_14_a_kill_while_a_partition_moves(victim_is: str, step: str, has_power: bool) -> None:
    def course(stage: Stage) -> None:
        stage.wait_acks(30)
        leader, controller = stage.leader_of(), stage.controller()
        replicas = list(stage.partition().replicas)
        target = next(each for each in (1, 2, 3, 4) if each not in replicas)
        # The leader is one of those that go.
        wanted = [each for each in replicas if each != leader.id] + [target]
        stage.begin(_reassignment([ORDERS], wanted), AlterPartitionReassignmentsResponse)
        stage.wait(lambda: _STEPS[step](stage, target), f"the move is {step}")
        victim = {"leader": leader, "target": stage.machine(target), "controller": controller}[victim_is]
        (stage.cluster.kill if has_power else stage.cluster.cut_power)(victim)
        stage.let(8)
        stage.cluster.start(victim)
        stage.wait(
            lambda: stage.controller_or_none() is not None and list(stage.partition().replicas) == wanted,
            "the partition has moved",
        )
        stage.wait_healthy()
        stage.require(not stage.partition().adding_replicas, "nothing is being added any more")
        stage.require(stage.partition().leader in wanted, "one of the new replicas leads")
        stage.wait_acks()

    play(course, shape=_FOUR)


# -- 17 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("victim_is", ["leader", "controller", "follower"])
def test_failure_17_one_power_failure_and_pauses_of_the_others(victim_is: str, seed: int) -> None:
    def course(stage: Stage) -> None:
        victims = {
            "leader": stage.leader_of(),
            "controller": stage.controller(),
            "follower": stage.followers_of()[0],
        }
        victim = victims[victim_is]
        one, two = (machine for machine in stage.machines() if machine is not victim)
        stage.cluster.cut_power(victim)
        stage.pause(one)
        stage.let(9)
        stage.cluster.start(victim)
        stage.let(0.5 * seed)
        stage.pause(two)
        stage.resume(one)
        stage.let(9)
        stage.resume(two)
        stage.wait_healthy()
        stage.wait_acks()

    play(course, seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_failure_17_a_leader_whose_followers_pause_and_which_then_loses_its_power(seed: int) -> None:
    """What it took alone was not acknowledged; what was acknowledged the others have."""

    def course(stage: Stage) -> None:
        leader, followers = stage.leader_of(), stage.followers_of()
        for follower in followers:
            stage.pause(follower)
        stage.wait(lambda: list(stage.partition().isr) == [leader.id], "the leader is in sync alone")
        stage.let(1)
        stage.cluster.cut_power(leader)
        stage.let(2)
        for follower in followers:
            stage.resume(follower)
        stage.wait(lambda: stage.partition().leader in [each.id for each in followers], "another one leads")
        stage.wait_acks()
        stage.cluster.start(leader)
        stage.wait_healthy()
        stage.wait_acks()

    play(course, seed, shape=Shape(combined=0, brokers=3, controllers=3))


@pytest.mark.parametrize("seed", [1, 2])
def test_failure_17_paused_leaders_do_not_continue_to_lead(seed: int) -> None:
    """A leader and a controller that sleep while others take over wake up to a world that has moved on."""

    def course(stage: Stage) -> None:
        # A member whose metadata is as old as the sleeper's asks it for an offset that was written elsewhere since.
        stage.expected.append("its leader says OFFSET_OUT_OF_RANGE")
        leader = stage.leader_of()
        for sleeper in (leader, stage.controller()):
            stage.pause(sleeper)
            stage.wait(
                lambda sleeper=sleeper: (  # type: ignore[misc]
                    (found := stage.controller_or_none()) is not None
                    and found is not sleeper
                    and stage.partition().leader not in (sleeper.id, -1)
                ),
                "others have taken over",
            )
            successor = stage.leader_of()
            stage.wait_acks(3)
            stage.cluster.cut_power(successor)
            stage.resume(sleeper)
            stage.let(2)
            stage.cluster.start(successor)
            stage.wait_healthy()
            stage.wait_acks()

    play(course, seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("has_power", [True, False], ids=["killed", "without power"])
def test_failure_03_killed_replica_leads_before_replica_that_lost_power(has_power: bool, seed: int) -> None:
    """All processes end. What the killed ones wrote is still there, so one of them leads, without a request."""

    def course(stage: Stage) -> None:
        leader, followers = stage.leader_of(), stage.followers_of()
        stage.wait_acks()
        for machine in followers:
            stage.cluster.kill(machine)
        if has_power:
            stage.cluster.kill(leader)
        else:
            stage.cluster.cut_power(leader)
        stage.let(1)
        stage.cluster.start(leader)
        stage.let(8)
        for machine in followers:
            stage.cluster.start(machine)
        stage.wait_healthy()
        stage.require(stage.partition().leader_recovery_state == 0, "the election was clean")
        stage.wait_acks()

    play(course, seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_failure_04_a_stale_proposal_does_not_bring_a_new_incarnation_into_the_isr(seed: int) -> None:
    """The leader's request to add a follower arrives when that follower has lost its power and is back."""

    def course(stage: Stage) -> None:
        controller, wires = stage.controller(), stage.cluster.wires
        tp = next(each for each in stage.partitions if stage.leader_of(each) is not controller)
        leader = stage.leader_of(tp)
        follower = next(each for each in stage.followers_of(tp) if each is not controller)

        def broker_epoch() -> int:
            return stage.image().brokers[BrokerId(follower.id)].epoch

        def proposes_follower() -> bool:
            assert leader.node is not None
            hosted, _ = leader.node.broker.replicas.find(tp)
            machine = hosted.leader if hosted is not None else None
            proposal = machine._proposal if machine is not None else None
            return proposal is not None and proposal.is_expansion and follower.id in proposal.isr

        wires.cut(follower.host, leader.host)
        stage.wait(lambda: follower.id not in stage.partition(tp).isr, "the follower leaves the ISR")
        stage.wait_acks()
        wires.cut(leader.host, controller.host)
        wires.heal(follower.host, leader.host)
        stage.wait(proposes_follower, "the leader proposes the follower")
        before = broker_epoch()
        stage.cluster.cut_power(follower)
        wires.cut(follower.host, leader.host)
        stage.cluster.start(follower)
        stage.wait(lambda: broker_epoch() > before, "the follower is registered again")
        wires.heal(leader.host, controller.host)
        stage.wait(lambda: not proposes_follower(), "the controller has answered")
        stage.require(
            follower.id not in stage.partition(tp).isr, "a replica that has fetched nothing is not in the ISR"
        )
        stage.heal()
        stage.wait_healthy()
        stage.wait_acks()

    play(course, seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_failure_17_a_candidate_that_sleeps_counts_the_votes_of_an_epoch_that_is_over(seed: int) -> None:
    """It may take itself for the leader of its epoch; what later epochs have committed it need not have."""

    def course(stage: Stage) -> None:
        old = stage.controller()
        stage.cluster.kill(old)
        stage.wait(lambda: _candidate(stage) is not None, "a node stands for election")
        sleeper = _candidate(stage)
        assert sleeper is not None
        epoch = _raft(stage, sleeper).epoch
        stage.pause(sleeper)
        stage.cluster.start(old)
        stage.wait(lambda: stage.controller_or_none() is not None, "the others elect one of themselves")
        stage.wait_acks(3)
        stage.resume(sleeper)
        stage.wait(
            lambda: _raft(stage, sleeper).is_leader and _raft(stage, sleeper).epoch == epoch,
            "the sleeper has won an election that is over",
        )
        stage.wait_healthy()
        stage.wait_acks()

    play(course, seed)


def _raft(stage: Stage, machine: Machine) -> RaftMachine:
    quorum = stage.quorum_of(machine)
    assert quorum is not None
    assert quorum.machine is not None
    return quorum.machine


def _candidate(stage: Stage) -> Machine | None:
    for machine in stage.machines():
        quorum = stage.quorum_of(machine)
        raft = quorum.machine if quorum is not None else None
        if raft is not None and isinstance(raft.role, Candidate):
            return machine
    return None


# -- 18 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_failure_18_a_partition_and_kills_and_the_removal_of_a_peer(seed: int) -> None:
    def course(stage: Stage) -> None:
        _wait_voters(stage, 1, 2, 3, 4)
        leaver = stage.machine(seed)
        stayers = [machine for machine in stage.machines() if machine is not leaver]
        ids = [machine.id for machine in stayers]
        # A network that is parted, and a kill on the larger side.
        stage.part([leaver], stayers)
        stage.let(8)
        stage.cluster.kill(stayers[0])
        stage.let(2)
        stage.cluster.wires.heal_all()
        stage.cluster.start(stayers[0])
        stage.wait_healthy()
        # The drain, with a kill in the middle.
        tps = [
            TopicPartition(name, index)
            for name, topic in stage.image().topics_by_name.items()
            for index in range(len(topic.partitions))
        ]
        _reassign(stage, tps, ids)
        stage.let(0.2 * seed)
        stage.cluster.kill(stayers[1])
        stage.let(5)
        stage.cluster.start(stayers[1])
        stage.wait(lambda: _is_drained(stage, leaver), "the leaver is drained")
        stage.wait_healthy()
        # It leaves while another is cut off.
        stage.part([stayers[2]], [leaver, *stayers[:2]])
        _remove_voter(stage, leaver)
        stage.cluster.kill(leaver)
        stage.absent.add(leaver.id)
        _unregister(stage, leaver)
        stage.cluster.wires.heal_all()
        stage.wait_healthy()
        _wait_voters(stage, *ids)
        # One more of those that are left may die.
        stage.cluster.kill(stage.leader_of())
        stage.wait_acks()

    play(course, seed, shape=_FOUR, settings=dynamic_quorum(_FOUR, (1, 2, 3, 4)))


def _is_drained(stage: Stage, leaver: Machine) -> bool:
    return stage.controller_or_none() is not None and not any(
        leaver.id in partition.replicas
        for topic in stage.image().topics_by_name.values()
        for partition in topic.partitions
    )


def _remove_voter(stage: Stage, leaver: Machine) -> None:
    """As an administrator does: again, until it is so."""
    request = _removal(stage, leaver)
    for _ in range(20):
        code = stage.ask(request, RemoveRaftVoterResponse).error_code
        if code in (ErrorCode.NONE, ErrorCode.VOTER_NOT_FOUND):
            return
        stage.let(1)
    stage.require(False, f"the voter could not be removed: {ErrorCode(code).name}")


def _unregister(stage: Stage, leaver: Machine) -> None:
    request = UnregisterBrokerRequest(broker_id=leaver.id)
    for _ in range(20):
        code = stage.ask(request, UnregisterBrokerResponse).error_code
        if code in (ErrorCode.NONE, ErrorCode.BROKER_ID_NOT_REGISTERED):
            return
        stage.let(1)
    stage.require(False, f"the broker could not be removed: {ErrorCode(code).name}")


# -- 19 ------------------------------------------------------------------------------------------------------


def test_failure_19_no_fault_at_all_only_load() -> None:
    def course(stage: Stage) -> None:
        epochs = {tp: stage.partition(tp).leader_epoch for tp in stage.partitions}
        for tp in stage.partitions:
            stage.add_producer(tp)
        watcher = stage.client("watcher")
        stage.spawn(watcher, _watch(stage, watcher))
        for group in ("audit", "search"):
            stage.add_member(group)
        stage.let(2)
        # More members come while everybody works.
        for group in ("audit", "search", "audit", "search"):
            stage.add_member(group)
            stage.let(1.5)
        stage.wait_acks(20)
        for tp, epoch in epochs.items():
            stage.require(
                stage.partition(tp).leader_epoch == epoch, f"{tp} was led by one broker all the time"
            )

    outcome = play(course, partitions=6, pause_s_max=0.3, settings={"auto.leader.rebalance.enable": "false"})
    assert outcome.acked > 1_000


async def _watch(stage: Stage, client: Client) -> None:
    """Ends of logs and commits of a group only grow; none is zero or unknown again."""
    ends: dict[TopicPartition, int] = {}
    commits: dict[TopicPartition, int] = {}
    await client.refresh([ORDERS.topic])
    while not client.record.is_ending:
        for tp in stage.partitions:
            end = await Position(client, tp).end_offset()
            if end < ends.get(tp, 0):
                stage.accuse(f"{tp} ended at {ends[tp]} and then at {end}")
            ends[tp] = end
        for tp, offset in (await _committed(stage, client, "audit")).items():
            if offset < commits.get(tp, -1):
                stage.accuse(f"audit had committed {commits[tp]} of {tp}, and then {offset}")
            commits[tp] = offset
        await client.back_off()


async def _committed(stage: Stage, client: Client, group: str) -> dict[TopicPartition, int]:
    topic = OffsetFetchRequestTopics(
        name=ORDERS.topic,
        topic_id=client.topic_ids[ORDERS.topic],
        partition_indexes=[tp.partition for tp in stage.partitions],
    )
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[topic])])
    answer = await client.ask(await client.coordinator_of(group), request, OffsetFetchResponse)
    if answer is None or answer.groups[0].error_code:
        stage.accuse(f"without any fault, the offsets of {group} are not told: {answer}")
        return {}
    return {
        TopicPartition(ORDERS.topic, partition.partition_index): partition.committed_offset
        for topic in answer.groups[0].topics
        for partition in topic.partitions
    }


# -- 25 ------------------------------------------------------------------------------------------------------


def test_failure_25_connections_that_break_while_their_requests_wait() -> None:
    """Fetches wait for data and writes for replicas when their connections go; no answer reaches another connection."""

    def course(stage: Stage) -> None:
        for _ in range(40):
            stage.let(0.1)
            while stage.cluster.wires.reset_some() is not None:
                pass
        stage.wait_acks()
        stage.let(10)
        for machine in stage.machines():
            assert machine.node is not None
            for partition in machine.node.broker.replicas.partitions():
                waiting = len(partition.delayed.fetches)
                stage.require(
                    waiting <= 6, f"{waiting} fetches wait for {partition.name}: more than there are readers"
                )

    play(course)


def test_failure_11_a_coordinator_that_is_alone_confirms_no_commit() -> None:
    """It takes a commit, and would answer it when others have it; by then another one coordinates."""
    codes: list[ErrorCode] = []

    async def commit(client: Client) -> None:
        request = OffsetCommitRequest(
            group_id=_ALONE,
            topics=[
                OffsetCommitRequestTopic(
                    name=ORDERS.topic,
                    topic_id=client.topic_ids[ORDERS.topic],
                    partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
                )
            ],
        )
        address = await client.coordinator_of(_ALONE)
        answer = await client.ask(address, request, OffsetCommitResponse, purpose=_ALONE, timeout_s=60)
        if answer is not None:
            codes.extend(ErrorCode(each.error_code) for topic in answer.topics for each in topic.partitions)

    async def find(client: Client) -> None:
        await client.find_topics([ORDERS.topic])
        await client.coordinator_of(_ALONE)

    def course(stage: Stage) -> None:
        client = stage.client("committer")
        stage.finished(stage.perform(client, find(client)), "the coordinator is known")
        topic = stage.image().topics_by_name["__consumer_offsets"]
        place = TopicPartition(topic.name, partition_for_group(_ALONE, len(topic.partitions)))
        coordinator = stage.leader_of(place)
        others = [machine for machine in stage.machines() if machine is not coordinator]
        stage.part([coordinator], others)
        committing = stage.perform(client, commit(client))
        stage.let(2)
        stage.require(not codes, "a commit that one broker has alone is answered")
        stage.wait(
            lambda: stage.controller_or_none() in others and stage.leader_of(place) in others,
            "another one coordinates",
        )
        stage.heal()
        stage.finished(committing, "the commit is answered")
        stage.require(ErrorCode.NONE not in codes, "a commit that was lost is confirmed")

    play(course)
