"""The conversion of a classic group to a consumer group and back: the same state as records of the other kind."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidemill.coordinator.consumer_groups.embedded import (
    by_topic_id,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    version_of,
)
from tidemill.coordinator.consumer_groups.machine import ConsumerGroup
from tidemill.coordinator.consumer_groups.member import ConsumerMember
from tidemill.coordinator.consumer_groups.records import (
    current_assignment_record,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
)
from tidemill.coordinator.groups.classic import ClassicGroup
from tidemill.coordinator.groups.classic_member import ClassicMember
from tidemill.coordinator.groups.group import CONSUMER_PROTOCOL_TYPE, Topics
from tidemill.coordinator.records import Record, group_metadata_tombstone
from tidemill.errors import ApiError, ErrorCode, ProtocolError
from tidemill.protocol.api.coordinator_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from tidemill.protocol.api.groups import JoinGroupRequestProtocol
from tidemill.types import TopicId


def upgrade_records(group: ClassicGroup, topics: Topics) -> list[Record]:
    """Convert to a consumer group. All members keep the assignment of the last generation and join again, one by one."""
    generation = group.generation
    taken: set[tuple[TopicId, int]] = set()
    try:
        members = [_to_consumer(group, each, topics, taken) for each in group.members.values()]
    except ProtocolError:
        raise ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"classic group {group.group_id} cannot become a consumer group: a subscription does not parse",
        ) from None
    group_id = group.group_id
    records = [group_metadata_tombstone(group_id)]
    records += [member_record(group_id, member) for member in members]
    records.append(epoch_record(group_id, generation, 0))
    for member in members:
        target = {topic_id: frozenset(epochs) for topic_id, epochs in member.assigned.items()}
        records.append(target_record(group_id, member.member_id, target))
    records.append(target_epoch_record(group_id, generation, 0))
    records += [current_assignment_record(group_id, member) for member in members]
    return records


def _to_consumer(
    group: ClassicGroup, member: ClassicMember, topics: Topics, taken: set[tuple[TopicId, int]]
) -> ConsumerMember:
    name = group.protocol_name if group.protocol_name in member.protocol_names() else group.select_protocol()
    assert name is not None
    subscription = decode_subscription(member.metadata(name))
    assignment = decode_assignment(member.assignment)
    if assignment.user_data:
        raise ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"classic group {group.group_id} cannot become a consumer group: its own assignor keeps data that "
            "would be lost",
        )
    assigned: dict[TopicId, dict[int, int]] = {}
    for topic_id, partitions in by_topic_id(assignment.assigned_partitions, topics).items():
        for partition in partitions:
            if (topic_id, partition) not in taken:
                taken.add((topic_id, partition))
                assigned.setdefault(topic_id, {})[partition] = group.generation
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=classic_metadata(member.session_timeout_ms, member.protocols),
        member_epoch=group.generation,
        previous_member_epoch=group.generation,
        assigned=assigned,
    )


def classic_metadata(
    session_timeout_ms: int, protocols: Sequence[JoinGroupRequestProtocol]
) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(
        session_timeout_ms=session_timeout_ms,
        supported_protocols=[ClassicProtocol(name=each.name, metadata=each.metadata) for each in protocols],
    )


def downgrade_records(
    group: ConsumerGroup, members: Sequence[ConsumerMember], topics: Topics, steady_ms: int
) -> list[Record]:
    """Convert to a classic group. `members`, all classic, keep their partitions as a new complete generation."""
    protocol = common_protocol(members)
    assert protocol is not None, group.group_id
    value = GroupMetadataValue(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=group.group_epoch,
        protocol=protocol,
        leader=members[0].member_id,
        current_state_timestamp=steady_ms,
        members=[_to_classic(member, protocol, topics) for member in members],
    )
    return [*group.deletion_records(), Record(GroupMetadataKey(group=group.group_id), value)]


def common_protocol(members: Collection[ConsumerMember]) -> str | None:
    """Returns the first member's first choice among the protocols that all members support."""
    common: dict[str, None] | None = None
    for member in members:
        assert member.classic is not None, member.member_id
        names = dict.fromkeys(each.name for each in member.classic.supported_protocols)
        common = names if common is None else {name: None for name in common if name in names}
    return next(iter(common or ()), None)


def _to_classic(member: ConsumerMember, protocol: str, topics: Topics) -> MemberMetadata:
    assert member.classic is not None, member.member_id
    metadata = next(each.metadata for each in member.classic.supported_protocols if each.name == protocol)
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.classic.session_timeout_ms,
        subscription=metadata,
        assignment=encode_assignment(member.assigned, topics, version_of(metadata)),
    )
