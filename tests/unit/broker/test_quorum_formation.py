"""How nodes find each other without a list of voters, join, move and come back with another disk."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.unit.broker.quorum_world import TestNode, World
from tests.virtual_time import in_virtual_time
from tidemill.broker.net.network import Address
from tidemill.errors import ErrorCode
from tidemill.protocol.api.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)

SERVERS = "controller.quorum.bootstrap.servers"
LISTED = {SERVERS: "host-1:9093,host-2:9093,host-3:9093"}


def _voters(node: TestNode) -> list[int]:
    return node.quorum.voters.ids


async def _until_all_vote(world: World, ids: list[int]) -> None:
    await world.until(lambda: all(_voters(node) == ids for node in world.up))


@in_virtual_time
async def test_listed_servers_agree_on_one_quorum_and_all_join_it() -> None:
    world = World([1, 2, 3], LISTED)
    await world.start()
    await world.commit(b"a")
    await world.agree(b"a")
    await _until_all_vote(world, [1, 2, 3])
    # Now any one of them may go.
    world.nodes[1].kill()
    await world.commit(b"b")
    await world.nodes[1].start()
    await world.agree(b"a", b"b")
    for node in world.nodes.values():
        node.kill(power=True)
    await world.start()
    await world.agree(b"a", b"b")
    await _until_all_vote(world, [1, 2, 3])
    await world.stop()


@in_virtual_time
async def test_no_quorum_is_formed_while_a_listed_server_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World([1, 2, 3], LISTED)
    await world.nodes[1].start()
    await world.nodes[2].start()
    await asyncio.sleep(60)
    assert world.active() is None
    assert all(node.quorum.machine is None for node in world.up)
    await world.nodes[3].start()
    await world.commit(b"a")
    await _until_all_vote(world, [1, 2, 3])
    await world.stop()
    waiting = [message for message in caplog.messages if "waiting for host-3:9093" in message]
    # One line in ten seconds for each of the two.
    assert 6 <= len(waiting) <= 14


@in_virtual_time
async def test_the_first_server_with_an_empty_disk_does_not_begin_another_quorum() -> None:
    world = World([1, 2, 3], LISTED)
    await world.start()
    await world.commit(b"a")
    await world.agree(b"a")
    await _until_all_vote(world, [1, 2, 3])
    first = world.nodes[1]
    first.kill()
    first.disk.remove("/data/__cluster_metadata-0")
    first.directory_id = b"new disk" * 2
    await first.start()
    await world.agree(b"a")
    # The old replica's place is taken by the new one.
    await world.until(lambda: first.quorum.own in first.quorum.voters.keys)
    assert _voters(first) == [1, 2, 3]
    await world.commit(b"b")
    await world.agree(b"a", b"b")
    await world.stop()


@in_virtual_time
async def test_a_node_alone_is_joined_later() -> None:
    world = World([1, 2], {SERVERS: "host-1:9093"})
    world.nodes[1].settings = {}
    broker = {
        SERVERS: "host-1:9093",
        "process.roles": "broker",
        "controller.listener.names": "CONTROLLER",
    }
    world.nodes[5] = TestNode(world, 5, broker, b"5" * 16)
    await world.nodes[1].start()
    await world.commit(b"alone")
    await world.nodes[5].start()
    await world.agree(b"alone")
    await world.nodes[2].start()
    await _until_all_vote(world, [1, 2])
    await world.commit(b"together")
    await world.agree(b"alone", b"together")
    assert _voters(world.nodes[5]) == [1, 2]
    await world.stop()


@in_virtual_time
async def test_voter_that_moved_announces_its_new_address() -> None:
    world = World([1, 2, 3], LISTED)
    await world.start()
    await world.commit(b"a")
    await _until_all_vote(world, [1, 2, 3])
    mover = next(node for node in world.up if node is not world.active())
    mover.kill()
    mover.address = Address("elsewhere", 7777)
    await mover.start()

    def is_known() -> bool:
        endpoints = [node.quorum.voters.get(mover.id) for node in world.up]
        return all(voter is not None and voter.endpoints[0].host == "elsewhere" for voter in endpoints)

    await world.until(is_known)
    # It is reached there: the other two do not make a quorum without it, one of them and it do.
    await world.leader()
    for node in list(world.up):
        if node is not mover:
            node.kill()
            break
    await world.commit(b"b")
    await world.agree(b"a", b"b")
    await world.stop()


@in_virtual_time
async def test_a_voter_that_was_removed_stays_out() -> None:
    world = World([1, 2, 3], LISTED)
    await world.start()
    await world.commit(b"a")
    await _until_all_vote(world, [1, 2, 3])
    leader = await world.leader()
    victim = next(node for node in world.up if node is not leader)
    response = await leader.quorum.answer(
        RemoveRaftVoterRequest(voter_id=victim.id, voter_directory_id=victim.directory_id)
    )
    assert isinstance(response, RemoveRaftVoterResponse)
    assert response.error_code == ErrorCode.NONE
    await asyncio.sleep(10)
    assert victim.id not in _voters(leader)
    # It still follows.
    await world.commit(b"b")
    await world.agree(b"a", b"b")
    await world.stop()


@in_virtual_time
async def test_a_fixed_set_of_voters_cannot_be_changed() -> None:
    world = World([1, 2, 3])
    await world.start()
    leader = await world.leader()
    response = await leader.quorum.answer(AddRaftVoterRequest(voter_id=9, voter_directory_id=b"9" * 16))
    assert isinstance(response, AddRaftVoterResponse)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    await world.stop()


@in_virtual_time
async def test_node_without_a_quorum_answers_with_the_reason() -> None:
    world = World([1, 2, 3], LISTED)
    node = world.nodes[2]
    await node.start()
    response = await node.describe()
    part = response.topics[0].partitions[0]
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [state.replica_id for state in part.observers] == [2]
    assert node.quorum.leader_id is None
    assert node.quorum.leader_address() is None
    assert node.quorum.records_since_snapshot == 0
    await world.stop()
