"""Group clients for unit tests, on the world of the scenarios."""

from __future__ import annotations

from typing import Any

from tests.scenarios.groups_world import World
from tidemill.protocol.api.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tidemill.protocol.schema import Request


def answer_of(world: World, client: str, request: Request, version: int | None = None) -> Any:
    """The answer to a request that is answered at once."""
    world.take_answers()
    world.ask(client, request, version)
    answers = [response for asked, response in world.take_answers() if asked.client == client]
    assert len(answers) == 1, answers
    return answers[0]


def join_request(group_id: str = "g", **fields: Any) -> JoinGroupRequest:
    fields.setdefault("session_timeout_ms", 10_000)
    fields.setdefault("rebalance_timeout_ms", 60_000)
    fields.setdefault("protocol_type", "consumer")
    fields.setdefault("protocols", [JoinGroupRequestProtocol(name="range", metadata=b"")])
    return JoinGroupRequest(group_id=group_id, **fields)


def sync_request(joined: JoinGroupResponse, **fields: Any) -> SyncGroupRequest:
    """The sync that follows a join."""
    return SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name=joined.protocol_name,
        **fields,
    )


def heartbeat(world: World, client: str, member_id: str, generation: int, group_id: str = "g") -> int:
    response = answer_of(
        world, client, HeartbeatRequest(group_id=group_id, generation_id=generation, member_id=member_id)
    )
    assert isinstance(response, HeartbeatResponse)
    return response.error_code


def stable_group(world: World, *clients: str, static: bool = False) -> dict[str, JoinGroupResponse]:
    """All clients join `g` and sync; the leader assigns to each its own name."""
    for client in clients:
        instance_id = client if static else None
        world.ask(client, join_request(group_instance_id=instance_id), 5 if static else 3)
    world.advance(world.config.group_initial_rebalance_delay_ms * 2)
    joined = {asked.client: response for asked, response in world.take_answers()}
    assert set(joined) == set(clients)
    assignments = [
        SyncGroupRequestAssignment(member_id=response.member_id, assignment=client.encode())
        for client, response in joined.items()
    ]
    for client, response in joined.items():
        assert isinstance(response, JoinGroupResponse)
        is_leader = response.leader == response.member_id
        world.ask(client, sync_request(response, assignments=assignments if is_leader else []))
    for asked, response in world.take_answers():
        assert isinstance(response, SyncGroupResponse)
        assert response.assignment == asked.client.encode()
    return joined


def commit(
    world: World,
    offset: int,
    topic: str = "t",
    *,
    member_id: str = "",
    generation: int = -1,
    metadata: str = "",
) -> int:
    """Commits for partition 0 and returns the partition's error."""
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=metadata
    )
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )
    code: int = answer_of(world, "committer", request, 9).topics[0].partitions[0].error_code
    return code


def fetch(world: World, topic: str = "t") -> int:
    """The committed offset of partition 0."""
    wanted = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=wanted)])
    offset: int = answer_of(world, "reader", request, 9).groups[0].topics[0].partitions[0].committed_offset
    return offset
