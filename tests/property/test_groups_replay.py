"""Random histories of groups: the live state equals a replay, every request is answered, no partition has two owners.

Clients join, sync, heartbeat, leave, commit and restart in any order, also in transactions that overlap, while time
passes, writes fail, commits are held back and the coordinator moves. After every step the machine agrees with itself
(`World` checks that) and with a machine rebuilt from the log; every request is answered exactly once in the end.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.property.offset_ledger import Ledger, committed_offsets
from tests.scenarios.groups_world import World
from tests.thoroughness import examples
from tidemill.config import GroupsConfig
from tidemill.coordinator.groups.classic import ClassicGroup
from tidemill.coordinator.groups.group import TopicsChanged
from tidemill.errors import ErrorCode
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.api.groups import (
    DeleteGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidemill.protocol.api.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

PARTITIONS = 6
PRODUCERS = st.integers(1, 3)
CLIENTS = st.sampled_from(["c1", "c2", "c3", "s1", "s2"])
GROUPS = st.sampled_from(["g", "h"])
PROTOCOLS = st.sampled_from([("range",), ("range", "roundrobin"), ("roundrobin", "range")])
FAILURES = st.sampled_from([None, None, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR])


class Client:
    def __init__(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.members: list[str] = []
        self.protocol_name = "range"


class GroupLives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        config = GroupsConfig(
            group_initial_rebalance_delay_ms=100,
            group_max_size=4,
            offsets_retention_ms=60_000,
            offsets_retention_check_interval_ms=20_000,
        )
        self.world = World(config=config)
        self.world.topics.create("t", PARTITIONS)
        self.clients: dict[tuple[str, str], Client] = {}
        # The assignments that members got, by generation. A static member is the same under every member id.
        self.owners: dict[tuple[str, int, str], str] = {}

    def client(self, name: str, group: str) -> Client:
        return self.clients.setdefault((name, group), Client())

    def instance(self, name: str) -> str | None:
        return name if name.startswith("s") else None

    def ask(self, name: str, request: Any, version: int | None = None) -> None:
        self.world.ask(name, request, version)
        self.note_answers()

    def note_answers(self) -> None:
        for asked, response in self.world.take_answers():
            group = getattr(asked.request, "group_id", "")
            if isinstance(response, JoinGroupResponse):
                client = self.client(asked.client, group)
                client.member_id = response.member_id or client.member_id
                if response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                    client.member_id = ""
                if not response.error_code:
                    client.generation = response.generation_id
                    client.protocol_name = response.protocol_name or ""
                    client.members = [each.member_id for each in response.members]
            if isinstance(response, SyncGroupResponse) and not response.error_code:
                self.note_assignment(asked.client, asked.request, response.assignment)

    def note_assignment(self, name: str, request: Any, assignment: bytes) -> None:
        owner = self.instance(name) or request.member_id
        for partition in filter(None, assignment.decode().split(",")):
            key = (request.group_id, request.generation_id, partition)
            assert self.owners.setdefault(key, owner) == owner, f"{key} is owned twice"

    @rule(name=CLIENTS, group=GROUPS, protocols=PROTOCOLS, version=st.sampled_from([3, 5, 9]))
    def join(self, name: str, group: str, protocols: tuple[str, ...], version: int) -> None:
        client = self.client(name, group)
        self.ask(
            name,
            JoinGroupRequest(
                group_id=group,
                session_timeout_ms=6_000,
                rebalance_timeout_ms=3_000,
                member_id=client.member_id,
                group_instance_id=self.instance(name),
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name=each, metadata=b"") for each in protocols],
            ),
            version,
        )

    @rule(name=CLIENTS, group=GROUPS)
    def restart(self, name: str, group: str) -> None:
        self.clients.pop((name, group), None)

    @rule(name=CLIENTS, group=GROUPS)
    def sync(self, name: str, group: str) -> None:
        client = self.client(name, group)
        shares: dict[str, list[str]] = {member_id: [] for member_id in client.members}
        for partition in range(PARTITIONS if shares else 0):
            shares[client.members[partition % len(client.members)]].append(str(partition))
        self.ask(
            name,
            SyncGroupRequest(
                group_id=group,
                generation_id=client.generation,
                member_id=client.member_id,
                group_instance_id=self.instance(name),
                protocol_type="consumer",
                protocol_name=client.protocol_name,
                assignments=[
                    SyncGroupRequestAssignment(member_id=member_id, assignment=",".join(share).encode())
                    for member_id, share in shares.items()
                ],
            ),
        )

    @rule(name=CLIENTS, group=GROUPS)
    def heartbeat(self, name: str, group: str) -> None:
        client = self.client(name, group)
        self.ask(
            name,
            HeartbeatRequest(group_id=group, generation_id=client.generation, member_id=client.member_id),
        )

    @rule(name=CLIENTS, group=GROUPS)
    def leave(self, name: str, group: str) -> None:
        client = self.client(name, group)
        identity = MemberIdentity(member_id=client.member_id, group_instance_id=self.instance(name))
        self.ask(name, LeaveGroupRequest(group_id=group, members=[identity]))

    @rule(
        name=CLIENTS, group=GROUPS, partition=st.integers(0, PARTITIONS), is_member=st.booleans(),
        offset=st.integers(0, 9),
    )  # fmt: skip
    def commit(self, name: str, group: str, partition: int, is_member: bool, offset: int) -> None:
        client = self.client(name, group) if is_member else Client()
        wanted = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        self.ask(
            name,
            OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=client.generation,
                member_id=client.member_id,
                topics=[OffsetCommitRequestTopic(name="t", partitions=[wanted])],
            ),
            9,
        )

    @rule(
        name=CLIENTS, group=GROUPS, partition=st.integers(0, PARTITIONS - 1), is_member=st.booleans(),
        offset=st.integers(0, 9), producer_id=PRODUCERS,
    )  # fmt: skip
    def commit_in_transaction(
        self, name: str, group: str, partition: int, is_member: bool, offset: int, producer_id: int
    ) -> None:
        client = self.client(name, group) if is_member else Client()
        wanted = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        self.ask(
            name,
            TxnOffsetCommitRequest(
                transactional_id="t",
                group_id=group,
                producer_id=producer_id,
                generation_id_or_member_epoch=client.generation,
                member_id=client.member_id,
                topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[wanted])],
            ),
            5,
        )

    @rule(producer_id=PRODUCERS, is_commit=st.booleans())
    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        end = TransactionEnd(producer_id, producer_epoch=0, coordinator_epoch=0, is_commit=is_commit)
        self.world.end_transaction(end)
        self.note_answers()

    @rule(group=GROUPS, partition=st.integers(0, PARTITIONS - 1))
    def delete_offset(self, group: str, partition: int) -> None:
        wanted = OffsetDeleteRequestPartition(partition_index=partition)
        topics = [OffsetDeleteRequestTopic(name="t", partitions=[wanted])]
        self.ask("admin", OffsetDeleteRequest(group_id=group, topics=topics))

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        self.ask("admin", DeleteGroupsRequest(groups_names=[group]))
        if group not in self.world.groups.groups:
            self.owners = {key: owner for key, owner in self.owners.items() if key[0] != group}

    @rule()
    def recreate_topic(self) -> None:
        topic_id = self.world.topics.delete("t")
        self.world.topics.create("t", PARTITIONS)
        self.world.tell(TopicsChanged(deleted={"t": topic_id}))
        self.note_answers()

    @rule(duration_ms=st.sampled_from([0, 100, 500, 3_000, 6_000, 30_000]))
    def advance(self, duration_ms: int) -> None:
        self.world.advance(duration_ms)
        self.note_answers()
        known = self.world.groups.groups
        self.owners = {key: owner for key, owner in self.owners.items() if key[0] in known}

    @rule(error=FAILURES)
    def set_append(self, error: ErrorCode | None) -> None:
        self.world.log.refuse_with = error

    @rule(holds=st.booleans())
    def hold_commits(self, holds: bool) -> None:
        if holds:
            self.world.holds_commits = True
        else:
            self.world.release_commits()
        self.note_answers()

    @rule()
    def move(self) -> None:
        self.world.move_coordinator()
        self.note_answers()

    @invariant()
    def live_state_is_what_the_log_says(self) -> None:
        assert self.world.rebuilt().replicated_state() == self.world.groups.replicated_state()

    @invariant()
    def offsets_are_what_the_records_say(self) -> None:
        assert committed_offsets(self.world) == Ledger(self.world.log.records).committed

    @invariant()
    def nobody_is_assigned_more_than_the_generation_has(self) -> None:
        for group in self.world.groups.groups.values():
            assert isinstance(group, ClassicGroup)
            if group.is_stable:
                owned = [p for m in group.members.values() for p in m.assignment.split(b",") if p]
                assert len(owned) == len(set(owned)), group.group_id

    def teardown(self) -> None:
        """Requests that still wait are answered when the coordinator moves. A second answer fails in `World`."""
        self.world.shard.fail(ErrorCode.NOT_COORDINATOR)
        assert not self.world.asked, "a request was never answered"


TestGroupLives = GroupLives.TestCase
TestGroupLives.settings = settings(
    max_examples=examples(60), stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
