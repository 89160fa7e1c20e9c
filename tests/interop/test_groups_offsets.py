"""Committed offsets through stock clients: where a group resumes, and how it goes back."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.brokers import eventually
from tests.interop.clients import Client, ClientError, Message
from tests.interop.group_consumers import GroupConsumer, Position
from tests.interop.group_table import with_members
from tests.interop.members import Member, shared_out
from tidemill.types import TopicPartition

Join = Callable[..., Member]
COUNT = 50
OFFSET_METADATA_TOO_LARGE = 12


@pytest.fixture
def filled(admin: Client, topic: str) -> TopicPartition:
    """One partition with records that are a second apart."""
    admin.create_topic(topic)
    start_ms = _start_ms()
    admin.produce(topic, [Message(b"%d" % n, timestamp_ms=start_ms + n * 1000) for n in range(COUNT)])
    return TopicPartition(topic, 0)


def _start_ms() -> int:
    """Yesterday's midnight: the same in the fixture and in its test."""
    return (int(time.time()) // 86_400 - 1) * 86_400_000


def _all_read(member: Member) -> None:
    eventually(lambda: len(member.records) >= COUNT, f"{COUNT} records")


@with_members()
@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_group_resumes_at_its_commit(
    kind: type[GroupConsumer], way: str, join: Join, admin: Client, filled: TopicPartition, group: str
) -> None:
    first = join(kind)
    _all_read(first)
    position = {filled: Position(30)}
    if way == "sync":
        first.do(lambda consumer: consumer.commit(position))
    else:
        first.do(lambda consumer: consumer.commit_async(position))
    eventually(lambda: admin.group_offsets(group) == {(*filled,): (30, "")}, "the commit")
    first.stop()
    second = join(kind)
    eventually(lambda: second.values(), "a record")
    assert second.records[0][1].offset == 30


@with_members()
def test_a_commit_without_offsets_commits_what_was_read(
    kind: type[GroupConsumer], join: Join, admin: Client, filled: TopicPartition, group: str
) -> None:
    member = join(kind)
    _all_read(member)
    member.do(lambda consumer: consumer.commit())
    assert member.do(lambda consumer: consumer.committed(filled)) == Position(COUNT)
    assert admin.group_offsets(group)[(*filled,)][0] == COUNT


@with_members()
def test_offsets_are_committed_by_the_clock(
    kind: type[GroupConsumer], join: Join, admin: Client, filled: TopicPartition, group: str
) -> None:
    member = join(kind, auto_commit_ms=100)
    _all_read(member)
    eventually(lambda: admin.group_offsets(group).get((*filled,), (0, ""))[0] == COUNT, "an automatic commit")


@with_members()
def test_offsets_are_committed_when_the_member_closes(
    kind: type[GroupConsumer], join: Join, admin: Client, filled: TopicPartition, group: str
) -> None:
    member = join(kind, auto_commit_ms=3_600_000)
    _all_read(member)
    member.stop()
    assert admin.group_offsets(group)[(*filled,)][0] == COUNT


@with_members()
def test_metadata_is_kept_with_the_commit(
    kind: type[GroupConsumer], join: Join, admin: Client, filled: TopicPartition, group: str
) -> None:
    member = join(kind)
    shared_out([member], 1, filled.topic)
    member.do(lambda consumer: consumer.commit({filled: Position(7, "here, ☕")}))
    assert member.do(lambda consumer: consumer.committed(filled)) == Position(7, "here, ☕")
    assert admin.group_offsets(group) == {(*filled,): (7, "here, ☕")}


@with_members()
def test_too_much_metadata_is_refused_and_the_group_goes_on(
    kind: type[GroupConsumer], join: Join, filled: TopicPartition
) -> None:
    member = join(kind)
    shared_out([member], 1, filled.topic)
    with pytest.raises(ClientError) as refused:
        member.do(lambda consumer: consumer.commit({filled: Position(7, "x" * 5000)}))
    assert refused.value.code == OFFSET_METADATA_TOO_LARGE
    member.do(lambda consumer: consumer.commit({filled: Position(8)}))
    assert member.do(lambda consumer: consumer.committed(filled)) == Position(8)


@with_members()
def test_nothing_is_committed_in_a_new_group(
    kind: type[GroupConsumer], join: Join, filled: TopicPartition
) -> None:
    member = join(kind)
    shared_out([member], 1, filled.topic)
    assert member.do(lambda consumer: consumer.committed(filled)) is None


@with_members()
def test_a_member_goes_back_by_offset(kind: type[GroupConsumer], join: Join, filled: TopicPartition) -> None:
    member = join(kind)
    _all_read(member)
    member.do(lambda consumer: consumer.seek(filled, 40))
    eventually(lambda: len(member.records) == COUNT + 10, "the last ten again")
    assert [record.offset for _, record in member.records[COUNT:]] == list(range(40, COUNT))


@with_members()
def test_a_member_goes_back_by_time(kind: type[GroupConsumer], join: Join, filled: TopicPartition) -> None:
    member = join(kind)
    _all_read(member)

    def rewind(consumer: GroupConsumer) -> None:
        consumer.seek(filled, consumer.offset_at(filled, _start_ms() + 44_500))

    member.do(rewind)
    eventually(lambda: len(member.records) == COUNT + 5, "the last five again")
    assert member.records[COUNT][1].offset == 45


@with_members()
@pytest.mark.parametrize(("reset", "expected"), [("earliest", b"0"), ("latest", b"later")])
def test_a_new_group_starts_where_its_reset_policy_says(
    kind: type[GroupConsumer],
    join: Join,
    admin: Client,
    filled: TopicPartition,
    reset: str,
    expected: bytes,
) -> None:
    member = join(kind, reset=reset)
    shared_out([member], 1, filled.topic)

    def first() -> bytes | None:
        # With `latest` only what comes after the position was looked up is seen.
        admin.produce(filled.topic, [Message(b"later")])
        return next(iter(member.values()), None)

    assert eventually(first, "a record") == expected


@with_members()
def test_failure_21_a_commit_from_before_a_deleted_and_recreated_topic_does_not_apply(
    kind: type[GroupConsumer], join: Join, admin: Client, filled: TopicPartition, group: str
) -> None:
    """Failure 21: the old offset must not be taken for one of the new topic."""
    first = join(kind)
    _all_read(first)
    first.do(lambda consumer: consumer.commit())
    first.stop()
    admin.delete_topic(filled.topic)
    eventually(lambda: filled.topic not in admin.list_topics(), "the topic is gone")
    eventually(lambda: admin.group_offsets(group) == {}, "its offsets are gone too")
    admin.create_topic(filled.topic)
    eventually(lambda: admin.partitions(filled.topic) == {0}, "the new topic")
    admin.produce(filled.topic, [Message(b"new")])
    second = join(kind)
    eventually(lambda: second.values() == [b"new"], "the first record of the new topic")
