"""A group of very many members that all join at once: one rebalance, one leader, and a broker that stays healthy.

A join waits for the others, and answers of one connection come in order, so every member has its own connection. 500
members by default; `TIDEMILL_GROUP_MEMBERS=5000` for the long run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

from tests.brokers import Broker, eventually, raise_descriptor_limit
from tests.wire.connection import Connection, open_many

MEMBERS = int(os.environ.get("TIDEMILL_GROUP_MEMBERS", "500"))
GROUP = "crowd"
JOIN, SYNC, HEARTBEAT, LEAVE = 7, 5, 4, 4
MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS = 79, 27
DELAY_MS = 1000


def _join(connection: Connection, member_id: str) -> int:
    return connection.start(
        "join_group",
        JOIN,
        group_id=GROUP,
        session_timeout=600_000,
        rebalance_timeout=600_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b"\0\0" + bytes(8)}],
    )


def test_all_members_join_at_once(start: Callable[..., Broker]) -> None:
    raise_descriptor_limit(2 * MEMBERS + 1000)
    broker = start({"group.initial.rebalance.delay.ms": str(DELAY_MS)})
    with Connection(broker) as connection:
        eventually(lambda: _is_coordinated(connection), "a coordinator")
    connections = open_many(broker, MEMBERS)
    try:
        member_ids = _ask_for_ids(connections)
        generation, leader = _join_together(connections, member_ids)
        _sync(connections, member_ids, generation, leader)
        _judge(broker, member_ids, generation)
    finally:
        for connection in connections:
            connection.close()


def _is_coordinated(connection: Connection) -> bool:
    """Asking creates the offsets topic, which takes a moment."""
    found = connection.request("find_coordinator", 4, key_type=0, coordinator_keys=[GROUP])
    described = connection.request("describe_groups", 5, groups=[GROUP]).groups[0]
    return not found.coordinators[0].error_code and not described.error_code


def _ask_for_ids(connections: Sequence[Connection]) -> list[str]:
    asked = [(connection, _join(connection, "")) for connection in connections]
    answers = [connection.finish("join_group", JOIN, number) for connection, number in asked]
    assert {answer.error_code for answer in answers} == {MEMBER_ID_REQUIRED}
    member_ids = [answer.member_id for answer in answers]
    assert len(set(member_ids)) == MEMBERS
    return member_ids


def _join_together(connections: Sequence[Connection], member_ids: list[str]) -> tuple[int, str]:
    asked = [
        (connection, _join(connection, member_id))
        for connection, member_id in zip(connections, member_ids, strict=True)
    ]
    answers = [connection.finish("join_group", JOIN, number) for connection, number in asked]
    assert {answer.error_code for answer in answers} == {0}
    assert {answer.generation_id for answer in answers} == {1}
    (leader,) = {answer.leader for answer in answers}
    for answer in answers:
        assert len(answer.members) == (MEMBERS if answer.member_id == leader else 0)
    return 1, leader


def _sync(connections: Sequence[Connection], member_ids: list[str], generation: int, leader: str) -> None:
    """The followers first: they wait until the leader has brought the assignment."""
    shares = [{"member_id": member_id, "assignment": member_id.encode()} for member_id in member_ids]
    order = sorted(zip(connections, member_ids, strict=True), key=lambda pair: pair[1] == leader)
    asked = [
        (
            connection,
            member_id,
            connection.start(
                "sync_group",
                SYNC,
                group_id=GROUP,
                generation_id=generation,
                member_id=member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=shares if member_id == leader else [],
            ),
        )
        for connection, member_id in order
    ]
    for connection, member_id, number in asked:
        answer = connection.finish("sync_group", SYNC, number)
        assert (answer.error_code, answer.assignment) == (0, member_id.encode())


def _judge(broker: Broker, member_ids: list[str], generation: int) -> None:
    with Connection(broker) as connection:
        described = connection.request("describe_groups", 5, groups=[GROUP]).groups[0]
        assert (described.group_state, len(described.members)) == ("Stable", MEMBERS)
        for member_id in member_ids[:10]:
            beat = connection.request(
                "heartbeat", HEARTBEAT, group_id=GROUP, generation_id=generation, member_id=member_id
            )
            assert beat.error_code == 0
        left = connection.request(
            "leave_group", LEAVE, group_id=GROUP, members=[{"member_id": name} for name in member_ids]
        )
        assert {member.error_code for member in left.members} == {0}
        assert connection.request("describe_groups", 5, groups=[GROUP]).groups[0].group_state == "Empty"
    rebalances = re.findall(rf"group {GROUP} rebalances to generation (\d+) \((\d+) -> (\d+)", broker.log())
    assert rebalances[0] == ("1", "0", str(MEMBERS))
    assert len(rebalances) == 2, rebalances
