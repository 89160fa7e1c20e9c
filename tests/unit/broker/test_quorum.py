"""A quorum of real replicas over a network in memory: electing, committing, failing over, snapshots, restarts."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.quorum_world import WALL_MS, TestNode, World
from tests.virtual_time import in_virtual_time
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.quorum import FetchSnapshotRequest, VoteRequestPartitionData, VoteResponse
from tidemill.raft.messages import vote_request
from tidemill.raft.voters import ReplicaKey


@in_virtual_time
async def test_three_voters_elect_commit_and_go_on_without_one() -> None:
    world = World([1, 2, 3])
    await world.start()
    first = await world.leader()
    await world.commit(b"a", b"b")
    await world.agree(b"a", b"b")
    first.kill()
    second = await world.leader()
    assert second is not first
    assert second.quorum.epoch > 1
    await world.commit(b"c")
    await world.agree(b"a", b"b", b"c")
    await first.start()
    await world.agree(b"a", b"b", b"c")
    await world.stop()


@in_virtual_time
async def test_metadata_is_known_until_lately_only_while_a_majority_is_reached() -> None:
    world = World([1, 2, 3])
    await world.start()
    leader = await world.leader()
    await world.commit(b"a")

    async def advancing() -> set[int]:
        """The nodes whose knowledge keeps up with the time."""
        before = {node.id: node.quorum.known_ms for node in world.up}
        await asyncio.sleep(4)
        return {node.id for node in world.up if node.quorum.known_ms - before[node.id] >= 3_000}

    assert await advancing() == {1, 2, 3}
    world.isolate(leader.id)
    await world.until(lambda: world.active() not in (None, leader))
    assert await advancing() == {1, 2, 3} - {leader.id}
    await world.stop()


@in_virtual_time
async def test_voters_of_the_configuration_have_the_name_of_their_listener() -> None:
    """Kafka's `kafka-metadata-quorum` fails on an empty one."""
    world = World([1, 2, 3])
    await world.start()
    leader = await world.leader()
    described = await leader.describe()
    assert [node.node_id for node in described.nodes] == [1, 2, 3]
    assert {each.name for node in described.nodes for each in node.listeners} == {"CONTROLLER"}
    await world.stop()


@in_virtual_time
async def test_only_the_active_controller_may_append() -> None:
    world = World([1, 2, 3])
    await world.start()
    for node in world.nodes.values():
        node.listener.on_activated = lambda node=node: node.quorum.append([b"first"])
    leader = await world.leader()
    await world.agree(b"first")
    follower = next(node for node in world.up if node is not leader)
    with pytest.raises(ApiError) as refused:
        follower.quorum.append([b"no"])
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    assert follower.quorum.leader_id == leader.id
    assert follower.quorum.leader_address() == leader.address
    await world.stop()


@in_virtual_time
async def test_a_node_alone_is_its_own_quorum_and_continues_with_a_higher_epoch() -> None:
    world = World([1], {})
    node = world.nodes[1]
    await node.start()
    await world.commit(b"a")
    epoch = node.quorum.epoch
    assert node.quorum.voters.is_dynamic
    await node.stop()
    await node.start()
    await world.commit(b"b")
    assert node.listener.values == [b"a", b"b"]
    assert node.quorum.epoch > epoch
    node.kill(power=True)
    await node.start()
    await world.leader()
    assert node.listener.values == [b"a", b"b"]
    await world.stop()


@in_virtual_time
async def test_record_is_not_committed_before_a_majority_has_it() -> None:
    world = World([1, 2, 3])
    await world.start()
    await world.commit(b"a")
    await world.agree(b"a")
    for node in world.nodes.values():
        node.kill()
    await world.nodes[1].start()
    await asyncio.sleep(30)
    assert world.nodes[1].listener.values == []
    assert world.nodes[1].quorum.leader_id is None
    await world.nodes[2].start()
    await world.agree(b"a")
    await world.stop()


@in_virtual_time
async def test_a_broker_follows_and_does_not_vote() -> None:
    world = World([1, 2, 3])
    voters = world.nodes[1].settings["controller.quorum.voters"]
    world.nodes[7] = TestNode(
        world,
        7,
        {
            "process.roles": "broker",
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
        },
        b"7" * 16,
    )
    await world.start()
    await world.commit(b"a")
    await world.agree(b"a")
    for voter in (1, 2, 3):
        world.nodes[voter].kill()
    await asyncio.sleep(20)
    broker = world.nodes[7]
    assert broker.failure is None
    assert (7, "VoteRequest") not in world.seen
    assert broker.quorum.machine is not None
    assert not broker.quorum.machine.is_leader
    for voter in (1, 2):
        await world.nodes[voter].start()
    await world.commit(b"b")
    await world.agree(b"a", b"b")
    await world.stop()


@in_virtual_time
async def test_a_leader_that_is_cut_off_resigns_and_loses_what_was_not_committed() -> None:
    world = World([1, 2, 3])
    await world.start()
    await world.commit(b"a")
    await world.agree(b"a")
    old = await world.leader()
    world.isolate(old.id)
    old.quorum.append([b"lost", b"lost too"])
    await world.until(lambda: old.listener.active_epoch is None)
    await world.commit(b"b")
    assert old.listener.values == [b"a"]
    world.cut.clear()
    await world.agree(b"a", b"b")
    assert old.quorum.log_end_offset == (await world.leader()).quorum.log_end_offset
    # The truncation holds over a power failure, too.
    old.kill(power=True)
    await old.start()
    await world.agree(b"a", b"b")
    await world.stop()


@in_virtual_time
async def test_a_leader_that_stops_hands_over_at_once() -> None:
    world = World([1, 2, 3])
    await world.start()
    await world.commit(b"a")
    await world.agree(b"a")
    leader = await world.leader()
    before = asyncio.get_running_loop().time()
    await leader.stop()
    await world.leader()
    # No voter had to wait for a timeout of 2 s to miss it.
    assert asyncio.get_running_loop().time() - before < 0.5
    await world.stop()


@in_virtual_time
async def test_a_new_epoch_after_the_caller_gave_up_resigning_ends_nothing() -> None:
    """The time limit of `resign` cancels its future; the machine steps again before the caller has run."""
    world = World([1, 2, 3])
    await world.start()
    leader = await world.leader()
    world.isolate(leader.id)
    resigning = asyncio.get_running_loop().create_task(leader.quorum.resign())
    await world.until(lambda: leader.listener.active_epoch is None)
    candidate = next(node for node in world.nodes.values() if node is not leader)
    epoch = leader.quorum.epoch + 1
    part = VoteRequestPartitionData(
        replica_epoch=epoch,
        replica_id=candidate.id,
        last_offset_epoch=epoch - 1,
        last_offset=leader.quorum.log_end_offset,
    )
    resigning.cancel()
    answer = await leader.quorum.answer(vote_request(None, ReplicaKey(leader.id), part))
    assert isinstance(answer, VoteResponse)
    assert answer.topics[0].partitions[0].vote_granted
    assert leader.failure is None
    world.cut.clear()
    await world.commit(b"a")
    await world.agree(b"a")
    await world.stop()


@in_virtual_time
async def test_votes_survive_a_power_failure() -> None:
    world = World([1, 2, 3])
    await world.start()
    await world.commit(b"a")
    await world.agree(b"a")
    states = {}
    for node in world.nodes.values():
        assert node.quorum.machine is not None
        states[node.id] = node.quorum.machine.election
        node.kill(power=True)
    for node in world.nodes.values():
        await node.start()
        assert node.quorum.machine is not None
        assert node.quorum.machine.election == states[node.id]
    await world.agree(b"a")
    await world.stop()


@in_virtual_time
async def test_another_cluster_is_refused_with_both_ids(caplog: pytest.LogCaptureFixture) -> None:
    world = World([1, 2, 3])
    world.nodes[3].cluster_id = "theirs"
    # It has forgotten its log, or it could not be told from a replica that lost it.
    await world.start()
    await world.commit(b"a")
    for node in (world.nodes[1], world.nodes[2]):
        node.quorum.set_cluster_id("ours")
    await asyncio.sleep(20)
    assert world.nodes[3].listener.values in ([], [b"a"])
    before = world.nodes[3].listener.values
    await world.commit(b"b")
    await asyncio.sleep(20)
    assert world.nodes[3].listener.values == before
    assert world.nodes[3].failure is None
    await world.stop()
    refusals = [message for message in caplog.messages if "theirs" in message and "ours" in message]
    assert refusals
    assert len(refusals) <= 3


@in_virtual_time
async def test_a_cluster_id_of_any_length_in_every_request_fills_neither_log_nor_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World([1])
    await world.start()
    leader = await world.leader()
    leader.quorum.set_cluster_id("ours")
    for number in range(1_000):
        request = FetchSnapshotRequest(cluster_id=f"{number}" + "x" * 30_000)
        assert await leader.quorum.answer(request)
    await world.stop()
    refusals = [record for record in caplog.records if "refusing FetchSnapshot" in record.getMessage()]
    assert 1 <= len(refusals) <= 50
    assert max(len(record.getMessage()) for record in refusals) < 300
    assert {record.levelname for record in refusals} == {"WARNING"}


@in_virtual_time
async def test_full_disk_fails_the_append_only() -> None:
    world = World([1], {})
    node = world.nodes[1]
    await node.start()
    await world.commit(b"a")
    node.disk.free_bytes = 20
    with pytest.raises(ApiError) as full:
        node.quorum.append([b"x" * 1000])
    assert full.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert node.quorum.is_active
    node.disk.heal()
    await world.commit(b"b")
    assert node.listener.values == [b"a", b"b"]
    assert node.failure is None
    await world.stop()


@in_virtual_time
async def test_a_follower_with_a_full_disk_waits_for_space() -> None:
    world = World([1, 2, 3])
    await world.start()
    await world.commit(b"a")
    await world.agree(b"a")
    leader = await world.leader()
    follower = next(node for node in world.up if node is not leader)
    follower.disk.free_bytes = 20
    await world.commit(b"x" * 1000)
    await asyncio.sleep(5)
    assert follower.listener.values == [b"a"]
    assert follower.failure is None
    follower.disk.heal()
    await world.agree(b"a", b"x" * 1000)
    await world.stop()


@in_virtual_time
async def test_a_sync_that_fails_ends_the_node() -> None:
    world = World([1], {})
    node = world.nodes[1]
    await node.start()
    await world.commit(b"a")
    node.disk.fail("sync", pattern="*.log")
    node.quorum.append([b"b"])
    await world.until(lambda: node.failure is not None)
    assert node.failure is not None
    assert "sync" in node.failure
    assert node.listener.active_epoch is None
    assert node.listener.values == [b"a"]
    assert not await node.quorum.close()


@in_virtual_time
async def test_failure_28_the_wall_clock_may_jump() -> None:
    world = World([1, 2, 3])
    await world.start()
    await world.commit(b"a")
    leader = await world.leader()
    epoch = leader.quorum.epoch
    for node in world.nodes.values():
        node.wall_offset_ms = 3_600_000 if node is leader else -3_600_000
    await asyncio.sleep(30)
    assert leader.quorum.is_active
    assert leader.quorum.epoch == epoch
    await world.commit(b"b")
    await world.agree(b"a", b"b")
    await world.stop()


@in_virtual_time
async def test_describe_quorum_returns_offsets_and_wall_time() -> None:
    world = World([1, 2, 3])
    await world.start()
    await world.commit(b"a")
    await world.agree(b"a")
    leader = await world.leader()
    await asyncio.sleep(1)
    response = await leader.describe()
    part = response.topics[0].partitions[0]
    assert part.error_code == 0
    assert part.leader_id == leader.id
    assert part.high_watermark == leader.quorum.log_end_offset
    assert [state.replica_id for state in part.current_voters] == [1, 2, 3]
    assert all(state.log_end_offset == part.high_watermark for state in part.current_voters)
    wall_ms = WALL_MS + int(asyncio.get_running_loop().time() * 1000)
    assert all(wall_ms - 3000 < state.last_fetch_timestamp <= wall_ms for state in part.current_voters)
    assert {node.node_id: node.listeners[0].host for node in response.nodes} == {
        1: "host-1",
        2: "host-2",
        3: "host-3",
    }
    follower = next(node for node in world.up if node is not leader)
    answer = (await follower.describe()).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.leader_id == leader.id
    await world.stop()


@in_virtual_time
async def test_batches_damaged_on_their_way_are_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    world = World([1, 2, 3])
    await world.start()
    await world.commit(b"a")
    await world.agree(b"a")
    leader = await world.leader()
    follower = next(node for node in world.up if node is not leader)
    world.tamper = lambda receiver, frame: (
        frame.replace(b"precious", b"precioux") if receiver is follower else frame
    )
    await world.commit(b"precious")
    await asyncio.sleep(5)
    assert follower.listener.values == [b"a"]
    assert follower.failure is None
    world.tamper = None
    await world.agree(b"a", b"precious")
    await world.stop()
    assert any("damaged" in message for message in caplog.messages)


@in_virtual_time
async def test_failure_15_a_leader_finds_its_own_damage_and_is_healed_by_the_others() -> None:
    world = World([1, 2, 3])
    await world.start()
    await world.commit(b"a")
    await world.agree(b"a")
    leader = await world.leader()
    away = next(node for node in world.up if node is not leader)
    away.kill()
    position = leader.disk.size(leader.log_path)
    await world.commit(b"b")
    leader.disk.flip_bit(leader.log_path, position + 65)
    await away.start()
    # Asked for the damaged batch, it stops instead of sending it.
    await world.until(lambda: leader.failure is not None)
    leader.kill()
    leader.failure = None
    await world.agree(b"a", b"b")
    await leader.start()
    assert leader.quorum.log.is_incomplete
    await world.agree(b"a", b"b")
    assert not leader.quorum.log.is_incomplete
    await world.stop()


@in_virtual_time
async def test_death_of_the_leaders_process_starts_an_election_at_once() -> None:
    world = World([1, 2, 3])
    await world.start()
    await world.commit(b"a")
    await world.agree(b"a")
    leader = await world.leader()
    before = asyncio.get_running_loop().time()
    leader.kill()
    await world.leader()
    # Its connections are refused; a silent leader would be given controller.quorum.fetch.timeout.ms = 2 s.
    assert asyncio.get_running_loop().time() - before < 1.2
    await world.stop()
