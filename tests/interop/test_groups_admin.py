"""Groups and their offsets through the admin clients."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.brokers import eventually
from tests.interop.clients import (
    GROUP_ID_NOT_FOUND,
    GROUP_SUBSCRIBED_TO_TOPIC,
    NON_EMPTY_GROUP,
    UNKNOWN_MEMBER_ID,
    Client,
    ClientError,
)
from tests.interop.confluent_group import ConfluentConsumer, ConfluentNewConsumer
from tests.interop.group_consumers import GroupConsumer, Position
from tests.interop.group_table import with_members
from tests.interop.members import Member, shared_out
from tests.interop.table import CLIENTS, column
from tidemill.types import TopicPartition

Join = Callable[..., Member]


def with_tools(*capabilities: str) -> pytest.MarkDecorator:
    able = [kind for kind in CLIENTS if not kind.gaps.keys() & set(capabilities)]
    return pytest.mark.parametrize("tool", [column(kind) for kind in able], indirect=True)


@pytest.fixture
def member(join: Join, admin: Client, topic: str) -> Member:
    """A member of the test's group that has committed offset 5 of partition 0."""
    admin.create_topic(topic, 2)
    member = join(ConfluentConsumer)
    shared_out([member], 2, topic)
    member.do(lambda consumer: consumer.commit({TopicPartition(topic, 0): Position(5, "note")}))
    return member


@with_tools("list_groups")
def test_groups_are_listed(tool: Client, member: Member, group: str) -> None:
    assert group in tool.list_groups()
    member.stop()
    assert group in tool.list_groups()


@with_tools("describe_group")
def test_a_group_is_described(tool: Client, member: Member, group: str) -> None:
    eventually(lambda: tool.describe_group(group).state == "stable", "a stable group")
    assert tool.describe_group(group).member_count == 1
    member.stop()
    eventually(lambda: tool.describe_group(group).state == "empty", "an empty group")


@with_tools("group_offsets")
def test_offsets_are_listed(tool: Client, member: Member, group: str, topic: str) -> None:
    ((place, (offset, metadata)),) = tool.group_offsets(group).items()
    assert (place, offset) == ((topic, 0), 5)
    assert metadata.rstrip("\0") == "note"  # librdkafka sends the end of its C string along


@with_tools("group_offsets")
def test_a_group_that_does_not_exist_has_no_offsets(tool: Client, group: str) -> None:
    assert tool.group_offsets(group) == {}


@with_tools("delete_group")
def test_an_empty_group_is_deleted(tool: Client, member: Member, admin: Client, group: str) -> None:
    member.stop()
    eventually(lambda: admin.describe_group(group).state == "empty", "an empty group")
    tool.delete_group(group)
    assert group not in admin.list_groups()
    assert admin.group_offsets(group) == {}


@with_tools("delete_group")
def test_a_group_with_members_is_not_deleted(tool: Client, member: Member, group: str) -> None:
    with pytest.raises(ClientError) as refused:
        tool.delete_group(group)
    assert refused.value.code == NON_EMPTY_GROUP


@with_tools("delete_group")
def test_a_group_that_does_not_exist_is_not_deleted(tool: Client, group: str) -> None:
    with pytest.raises(ClientError) as refused:
        tool.delete_group(group)
    assert refused.value.code == GROUP_ID_NOT_FOUND


@with_tools("alter_group_offsets", "group_offsets")
def test_offsets_of_an_empty_group_are_altered(
    tool: Client, member: Member, admin: Client, group: str, topic: str
) -> None:
    member.stop()
    eventually(lambda: admin.describe_group(group).state == "empty", "an empty group")
    tool.alter_group_offsets(group, topic, {0: 3, 1: 4})
    assert admin.group_offsets(group) == {(topic, 0): (3, ""), (topic, 1): (4, "")}


@with_tools("alter_group_offsets")
def test_a_group_may_begin_with_altered_offsets(tool: Client, admin: Client, group: str, topic: str) -> None:
    admin.create_topic(topic)
    tool.alter_group_offsets(group, topic, {0: 3})
    assert admin.group_offsets(group) == {(topic, 0): (3, "")}
    assert admin.describe_group(group).state == "empty"


@with_tools("alter_group_offsets")
def test_offsets_of_a_group_with_members_are_not_altered(
    tool: Client, member: Member, admin: Client, group: str, topic: str
) -> None:
    with pytest.raises(ClientError) as refused:
        tool.alter_group_offsets(group, topic, {0: 3})
    assert refused.value.code == UNKNOWN_MEMBER_ID
    assert admin.group_offsets(group) == {(topic, 0): (5, "note")}


@with_tools("delete_group_offsets")
def test_offsets_are_deleted(tool: Client, member: Member, admin: Client, group: str, topic: str) -> None:
    with pytest.raises(ClientError) as refused:
        tool.delete_group_offsets(group, topic, [0])
    assert refused.value.code == GROUP_SUBSCRIBED_TO_TOPIC
    member.stop()
    eventually(lambda: admin.describe_group(group).state == "empty", "an empty group")
    tool.delete_group_offsets(group, topic, [0])
    assert admin.group_offsets(group) == {}


@with_members(ConfluentConsumer, ConfluentNewConsumer)
def test_the_description_names_members_and_what_they_own(
    kind: type[GroupConsumer], join: Join, admin: Client, group: str, topic: str
) -> None:
    admin.create_topic(topic, 3)
    members = [join(kind, instance_id=name) for name in ("a", "b")]
    shared_out(members, 3, topic)

    def described() -> dict[str, set[TopicPartition]]:
        found = admin._admin.describe_consumer_groups([group])[group].result(30)  # type: ignore[attr-defined]
        return {
            one.group_instance_id: {
                TopicPartition(place.topic, place.partition) for place in one.assignment.topic_partitions
            }
            for one in found.members
        }

    expected = {"a": members[0].owned, "b": members[1].owned}
    eventually(lambda: described() == expected, f"a description that says {expected}")
