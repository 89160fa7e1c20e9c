"""Membership through stock clients: who joins, shares, leaves, stalls, restarts, and what the group does about it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.brokers import eventually
from tests.interop.aiokafka_group import AiokafkaConsumer
from tests.interop.clients import Client, ClientError, Message
from tests.interop.confluent_group import ConfluentConsumer, ConfluentNewConsumer
from tests.interop.group_consumers import CONSUMER, GroupConsumer, Position
from tests.interop.group_table import CLASSIC_KINDS, with_assignors, with_members
from tests.interop.kafka_python_group import KafkaPythonConsumer
from tests.interop.members import Member, shared_out
from tidemill.types import TopicPartition

Join = Callable[..., Member]
PARTITIONS = 4
_numbers = itertools.count()


def fill(admin: Client, topic: str, partitions: int = PARTITIONS, count: int = 20) -> list[bytes]:
    """Writes some records to each partition and returns their values, which no other call writes."""
    messages = [
        Message(b"%d" % next(_numbers), partition=partition)
        for partition in range(partitions)
        for _ in range(count)
    ]
    admin.produce(topic, messages)
    return sorted(message.value or b"" for message in messages)


def received(members: list[Member], values: list[bytes], *, may_repeat: bool = False) -> None:
    """Waits until the members together have these values, each of them once.

    They may repeat where the last rebalance may be yet to come, for these members do not commit.
    """

    def together() -> list[bytes]:
        return sorted(value for member in members for value in member.values())

    eventually(lambda: set(together()) >= set(values), f"{len(values)} records")
    assert (sorted(set(together())) if may_repeat else together()) == values


@with_members()
def test_a_single_member_owns_and_reads_everything(
    kind: type[GroupConsumer], join: Join, admin: Client, topic: str
) -> None:
    admin.create_topic(topic, PARTITIONS)
    values = fill(admin, topic)
    member = join(kind)
    shared_out([member], PARTITIONS, topic)
    received([member], values)


@with_assignors()
def test_two_members_share_and_one_takes_over(
    kind: type[GroupConsumer], assignor: str, join: Join, admin: Client, topic: str
) -> None:
    admin.create_topic(topic, PARTITIONS)
    first = join(kind, assignor=assignor)
    shared_out([first], PARTITIONS, topic)
    second = join(kind, assignor=assignor)
    shared_out([first, second], PARTITIONS, topic)
    assert len(first.owned) == len(second.owned) == 2
    received([first, second], fill(admin, topic))
    first.do(lambda consumer: consumer.commit())
    first.stop()
    shared_out([second], PARTITIONS, topic)


@with_members()
def test_more_members_than_partitions(
    kind: type[GroupConsumer], join: Join, admin: Client, topic: str
) -> None:
    admin.create_topic(topic, 2)
    members = [join(kind) for _ in range(3)]
    eventually(lambda: sorted(len(member.owned) for member in members) == [0, 1, 1], "one idle member")
    received(members, fill(admin, topic, 2), may_repeat=True)


@with_members()
def test_a_member_that_left_comes_back(
    kind: type[GroupConsumer], join: Join, admin: Client, topic: str
) -> None:
    admin.create_topic(topic, PARTITIONS)
    first, second = join(kind), join(kind)
    shared_out([first, second], PARTITIONS, topic)
    second.stop()
    shared_out([first], PARTITIONS, topic)
    again = join(kind)
    shared_out([first, again], PARTITIONS, topic)


@with_members(*CLASSIC_KINDS)
def test_clients_of_three_libraries_in_one_group(
    kind: type[GroupConsumer], join: Join, admin: Client, topic: str
) -> None:
    """With range, which all of them have. Each in turn is the first, and so the leader that computes the assignment."""
    admin.create_topic(topic, 3)
    first = join(kind, assignor="range")
    shared_out([first], 3, topic)
    members = [first, *(join(other, assignor="range") for other in CLASSIC_KINDS if other is not kind)]
    shared_out(members, 3, topic)
    received(members, fill(admin, topic, 3))


def test_a_group_moves_from_the_classic_to_the_consumer_protocol_and_back(
    join: Join, admin: Client, topic: str
) -> None:
    admin.create_topic(topic, PARTITIONS)
    old = join(ConfluentConsumer)
    shared_out([old], PARTITIONS, topic)
    new = join(ConfluentNewConsumer)
    shared_out([old, new], PARTITIONS, topic)
    received([old, new], fill(admin, topic))
    old.do(lambda consumer: consumer.commit())
    old.stop()
    shared_out([new], PARTITIONS, topic)
    back = join(ConfluentConsumer)
    shared_out([new, back], PARTITIONS, topic)


@with_members()
def test_two_groups_each_see_everything(
    kind: type[GroupConsumer], join: Join, admin: Client, topic: str, group: str
) -> None:
    admin.create_topic(topic, 2)
    one, other = join(kind, group=f"{group}-1"), join(kind, group=f"{group}-2")
    values = fill(admin, topic, 2)
    received([one], values)
    received([other], values)


# Static members


@with_members()
def test_a_static_member_restarts_without_a_rebalance(
    kind: type[GroupConsumer], join: Join, admin: Client, topic: str
) -> None:
    admin.create_topic(topic, PARTITIONS)
    staying, restarting = join(kind, instance_id="a"), join(kind, instance_id="b")
    shared_out([staying, restarting], PARTITIONS, topic)
    rebalances, share = staying.rebalances, set(restarting.owned)
    restarting.stop()
    restarted = join(kind, instance_id="b")
    eventually(lambda: restarted.owned == share, "the same share as before")
    received([staying, restarted], fill(admin, topic))
    assert staying.rebalances == rebalances


# aiokafka's heartbeats do not carry the instance id; it gets UNKNOWN_MEMBER_ID, joins again, and so on for ever.
@with_members(
    *CLASSIC_KINDS,
    without={AiokafkaConsumer: "its heartbeats do not name the instance, so it is never fenced"},
)
def test_a_second_member_of_the_same_instance_fences_the_first(
    kind: type[GroupConsumer], join: Join, admin: Client, topic: str
) -> None:
    admin.create_topic(topic, PARTITIONS)
    first = join(kind, instance_id="same")
    shared_out([first], PARTITIONS, topic)
    second = join(kind, instance_id="same")
    eventually(lambda: _is_fenced(first), "the first one is fenced")
    eventually(lambda: len(second.owned) == PARTITIONS, "the second one owns everything")
    received([second], fill(admin, topic))


def _is_fenced(member: Member) -> bool:
    """librdkafka reports it with the next poll, kafka-python with the next commit."""
    errors = list(member.errors)
    try:
        member.do(lambda consumer: consumer.commit({place: Position(0) for place in consumer.assignment()}))
    except ClientError as refused:
        errors.append(refused)
    return any("fenced" in str(error).lower() for error in errors)


@with_members(ConfluentNewConsumer)
def test_in_the_consumer_protocol_the_second_of_an_instance_is_refused(
    kind: type[GroupConsumer], join: Join, admin: Client, topic: str
) -> None:
    admin.create_topic(topic, PARTITIONS)
    first = join(kind, instance_id="same")
    shared_out([first], PARTITIONS, topic)
    second = join(kind, instance_id="same")
    eventually(lambda: second.errors, "the second one gets an error")
    assert "instance id is still used" in str(second.errors[0]).lower()
    received([first], fill(admin, topic))


# Members that stall


@with_members()
def test_a_member_that_stops_polling_is_replaced_and_may_return(
    kind: type[GroupConsumer], join: Join, admin: Client, topic: str
) -> None:
    admin.create_topic(topic, PARTITIONS)
    limits = {"session_timeout_ms": 1000, "max_poll_interval_ms": 1500}
    slow = join(kind, **limits)
    steady = join(kind)
    shared_out([slow, steady], PARTITIONS, topic)
    slow.pause()
    eventually(lambda: len(steady.owned) == PARTITIONS, "the steady member takes over")
    values = fill(admin, topic)
    received([steady], values)
    steady.do(lambda consumer: consumer.commit())
    # It does not know yet, or knows and is no member: either way it may not commit.
    with pytest.raises(ClientError):
        slow.do(lambda consumer: consumer.commit({TopicPartition(topic, 0): Position(1)}))
    slow.resume()
    shared_out([slow, steady], PARTITIONS, topic)


# Topics that change


@with_members()
def test_a_topic_grows_while_it_is_consumed(
    kind: type[GroupConsumer], join: Join, admin: Client, topic: str
) -> None:
    admin.create_topic(topic, 1)
    members = [join(kind, metadata_max_age_ms=300) for _ in range(2)]
    eventually(lambda: sorted(len(member.owned) for member in members) == [0, 1], "one partition, one owner")
    admin.create_partitions(topic, PARTITIONS)
    shared_out(members, PARTITIONS, topic)
    received(members, fill(admin, topic), may_repeat=True)


@with_members()
def test_a_topic_is_deleted_while_it_is_consumed(
    kind: type[GroupConsumer], join: Join, admin: Client, topic: str, group: str
) -> None:
    kept, dropped = f"{topic}-kept", f"{topic}-dropped"
    admin.create_topic(kept, 2)
    admin.create_topic(dropped, 2)
    member = join(kind, topics=(kept, dropped), metadata_max_age_ms=300)
    eventually(lambda: len(member.owned) == 4, "all partitions of both topics")
    admin.delete_topic(dropped)
    eventually(lambda: dropped not in admin.list_topics(), "the topic is gone")
    # A client may see the deletion, and rebalance, after that.
    received([member], fill(admin, kept, 2, count=20), may_repeat=True)
    # By name: aiokafka retries a commit without end that holds a partition which is gone.
    read = {TopicPartition(kept, index): Position(20) for index in range(2)}

    def commits() -> bool:
        try:
            member.do(lambda consumer: consumer.commit(read))
        except ClientError:  # the group rebalances at this moment
            return False
        return True

    eventually(commits, "a commit")
    second = join(kind, topics=(kept,), metadata_max_age_ms=300)
    shared_out([member, second], 2, kept)
    assert admin.describe_group(group).member_count == 2


@with_members()
def test_a_regular_expression_finds_its_topics(
    kind: type[GroupConsumer], join: Join, admin: Client, topic: str
) -> None:
    for name in (f"{topic}-1", f"{topic}-22", f"{topic}-x", f"other-{topic}-1"):
        admin.create_topic(name, 1)
    member = join(kind, pattern=f"^{topic}-[0-9]+$", metadata_max_age_ms=300)
    found = {f"{topic}-1", f"{topic}-22"}
    eventually(lambda: {place.topic for place in member.owned} == found, "the topics that match")
    admin.produce(f"{topic}-22", [Message(b"new")])
    received([member], [b"new"])


# kafka-python computes all the time while its metadata is so short-lived.
@with_members(
    without={ConfluentNewConsumer: "the broker resolves expressions anew after ten seconds"},
    long=(KafkaPythonConsumer,),
)
def test_a_regular_expression_finds_a_new_topic(
    kind: type[GroupConsumer], join: Join, admin: Client, topic: str
) -> None:
    admin.create_topic(f"{topic}-1", 1)
    member = join(kind, pattern=f"^{topic}-[0-9]+$", metadata_max_age_ms=300)
    eventually(lambda: {place.topic for place in member.owned} == {f"{topic}-1"}, "the topic that exists")
    admin.create_topic(f"{topic}-2", 1)
    eventually(lambda: {place.topic for place in member.owned} == {f"{topic}-1", f"{topic}-2"}, "the new one")
    admin.produce(f"{topic}-2", [Message(b"new")])
    received([member], [b"new"])


def test_each_kind_speaks_the_protocol_that_it_names(
    join: Join, admin: Client, topic: str, group: str
) -> None:
    admin.create_topic(topic, 1)
    for kind in (ConfluentConsumer, ConfluentNewConsumer):
        member = join(kind, group=f"{group}-{kind.protocol}")
        shared_out([member], 1, topic)
        member.stop()
    types = {
        listed.group_id: listed.type.name.lower()
        for listed in admin._admin.list_consumer_groups().result(30).valid  # type: ignore[attr-defined]
    }
    assert types[f"{group}-classic"] == "classic"
    assert types[f"{group}-{CONSUMER}"] == CONSUMER
