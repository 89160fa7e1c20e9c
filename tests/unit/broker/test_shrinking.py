"""Brokers of a topic that gets fewer partitions, and more again: old logs, and metadata that arrives late."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tests.unit.broker.replica_world import TOPIC, TOPIC_ID, Answer, World, produce, produced
from tidemill.broker.partitions.replicas import Replicas
from tidemill.config import (
    PARTITIONS_ACTIVE,
    PARTITIONS_DIVISORS,
    PARTITIONS_ENDS,
    PARTITIONS_EPOCHS,
    PARTITIONS_FORMER,
    PARTITIONS_KEPT_MS,
    PARTITIONS_TOTAL,
    VIEW_FILTER,
    VIEW_SOURCE,
)
from tidemill.controller.difference import difference
from tidemill.controller.image import MetadataImage
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import PartitionProduceData, ProduceRequest, TopicProduceData
from tidemill.protocol.api.metadata import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from tidemill.protocol.records import Record, build_batch
from tidemill.types import NO_BROKER

MakeWorld = Callable[..., World]
FIRST_EPOCH = 6
# Where the log of the second partition ends when it is removed.
FORMER_END = 40


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """Two partitions on three brokers, led by broker 1. The second one has a record."""
    world = make_world()
    prepare(world)
    return world


def prepare(world: World) -> None:
    world.start()
    world.create_topic(partitions=2)
    world.settle()
    answer = produce(world, 1, b"old", index=1)
    world.until(lambda: answer.is_there, "the ack")
    world.until(lambda: ends(world, 1) == [1, 1, 1], "copies on all brokers")


def ends(world: World, index: int) -> list[int]:
    return [end(world, broker_id, index) for broker_id in (1, 2, 3) if world[broker_id].is_up]


def end(world: World, broker_id: int, index: int) -> int:
    log = world[broker_id].partition(index).log
    assert log is not None
    return log.log_end_offset


def setting(name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=2, resource_name=TOPIC, name=name, value=value)


def shrink(world: World, to: Iterable[int] | None = None) -> None:
    world.publish(
        setting(PARTITIONS_ACTIVE, "1"),
        setting(PARTITIONS_DIVISORS, "1"),
        PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, leader=1),
        to=to,
    )


def replace_second_partition(world: World, leader: int, to: Iterable[int] = ()) -> None:
    """Remove the second partition, and add one under its number."""
    world.publish(
        setting(PARTITIONS_TOTAL, "1"),
        setting(PARTITIONS_ENDS, f"1:{FORMER_END}"),
        setting(PARTITIONS_EPOCHS, f"1:{FIRST_EPOCH - 1}"),
        setting(PARTITIONS_FORMER, "2"),
        setting(PARTITIONS_TOTAL, None),
        to=to,
    )
    world.publish(
        PartitionRecord(
            partition_id=1,
            topic_id=TOPIC_ID,
            replicas=[1, 2, 3],
            isr=[1, 2, 3],
            leader=leader,
            leader_epoch=FIRST_EPOCH,
        ),
        to=to,
    )


def follow_snapshot(world: World, before: MetadataImage) -> None:
    """Let all brokers that are up go from an image to the present one without the records between them."""
    for broker_id in world.hosts:
        world.deliver(broker_id, difference(before, world.image))


def check_is_new_everywhere(world: World) -> None:
    """Its log begins where that of the partition before it ended, so positions in that one stay right."""
    world.until(lambda: ends(world, 1) == [FORMER_END] * 3, "empty logs")
    answer = produce(world, 3, b"new", index=1)
    world.until(lambda: answer.is_there, "the ack")
    assert produced(answer).base_offset == FORMER_END
    world.until(lambda: ends(world, 1) == [FORMER_END + 1] * 3, "copies on all brokers")


def test_broker_that_skipped_a_removal_by_a_snapshot_leads_an_empty_partition(
    world: World,
) -> None:
    before = world.image
    replace_second_partition(world, leader=3)
    follow_snapshot(world, before)
    check_is_new_everywhere(world)


@pytest.mark.parametrize("is_clean", [True, False])
def test_broker_that_was_down_during_a_removal_leads_an_empty_partition(
    world: World, caplog: pytest.LogCaptureFixture, *, is_clean: bool
) -> None:
    (world.stop if is_clean else world.kill)(3)
    before = world.image
    replace_second_partition(world, leader=3)
    follow_snapshot(world, before)
    world.start(3)
    check_is_new_everywhere(world)
    assert "is of a partition that was removed; it is set aside" in caplog.text


def test_partition_that_was_added_again_keeps_its_records_across_a_restart(world: World) -> None:
    before = world.image
    replace_second_partition(world, leader=3)
    follow_snapshot(world, before)
    check_is_new_everywhere(world)
    world.kill(2)
    world.settle()
    world.start(2)
    world.settle()
    assert ends(world, 1) == [FORMER_END + 1] * 3


def test_partition_that_was_added_again_begins_at_its_offset_although_a_crash_took_its_files(
    world: World,
) -> None:
    before = world.image
    replace_second_partition(world, leader=3)
    follow_snapshot(world, before)
    world.lose_power(2)
    world.settle()
    world.start(2)
    check_is_new_everywhere(world)
    starts = [world[each].partition(1).log for each in world.hosts]
    assert [log and log.log_start_offset for log in starts] == [FORMER_END] * 3


def test_leader_that_does_not_know_of_the_shrink_stores_nothing_for_another_partition(world: World) -> None:
    """Without the partition that the producer named, its retry would not be found."""
    world.change(leader=2)
    world.settle()
    before = world.image
    shrink(world, to=(1, 3))
    world.settle()
    answer = produce(world, 1, b"new", index=1)
    world.until(lambda: answer.is_there, "the answer")
    assert produced(answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ends(world, 0) == [0, 0, 0]
    world.deliver(2, difference(before, world.image))
    world.settle()
    answer = produce(world, 1, b"new", index=1)
    world.until(lambda: answer.is_there, "the answer")
    assert (produced(answer).error_code, produced(answer).base_offset) == (ErrorCode.NONE, -1)
    assert ends(world, 0) == [1, 1, 1]
    assert ends(world, 1) == [1, 1, 1]


def test_stored_batches_of_another_partition_are_final_before_they_are_returned(world: World) -> None:
    shrink(world)
    world.settle()

    def stored(metadata_end: int) -> object:
        replicas: Replicas = world[1].replicas
        return replicas.stored_finally(world[1].partition(0), 1, metadata_end)

    # It still stores more.
    assert stored(world.image.end_offset) is None
    world.publish(
        setting(PARTITIONS_ACTIVE, None),
        PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, leader=1),
    )
    world.settle()
    assert stored(world.image.end_offset) == []
    # It does not know all that the broker knows which asks.
    assert stored(world.image.end_offset + 1) is None


# -- retries, sequences and order ----------------------------------------------------------------------------


PRODUCER_ID = 7


def ask(world: World, broker_id: int, sequence: int, *, index: int = 1, acks: int = -1) -> Answer:
    record = Record(0, 0, None, b"%d" % sequence)
    batch = build_batch([record], producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence)
    data = PartitionProduceData(index=index, records=memoryview(batch))
    topic = TopicProduceData(topic_id=TOPIC_ID, name=TOPIC, partition_data=[data])
    return world.ask(broker_id, ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=[topic]))


def send(world: World, broker_id: int, sequence: int, *, index: int = 1) -> tuple[ErrorCode, int]:
    """Send a batch until its partition knows what others store for it; the error and the offset."""
    while True:
        answer = ask(world, broker_id, sequence, index=index)
        world.until(lambda answer=answer: answer.is_there, "the answer")  # type: ignore[misc]
        result = produced(answer)
        if "did not answer yet" not in (result.error_message or ""):
            return ErrorCode(result.error_code), result.base_offset
        world.settle(0.1)


def take_back(world: World, to: Iterable[int] | None = None) -> None:
    world.publish(
        setting(PARTITIONS_ACTIVE, None),
        PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, leader=1),
        to=to,
    )


STORED = (ErrorCode.NONE, -1)


def test_a_sequence_goes_on_from_the_decommissioned_log_and_back(world: World) -> None:
    assert send(world, 1, 0) == (ErrorCode.NONE, 1)
    assert send(world, 1, 0, index=0) == (ErrorCode.NONE, 0)
    shrink(world)
    world.settle()
    assert send(world, 1, 2)[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [send(world, 1, sequence) for sequence in (0, 1, 2)] == [(ErrorCode.NONE, 1), STORED, STORED]
    # The partition that stores them has a sequence of its own.
    assert send(world, 1, 1, index=0) == (ErrorCode.NONE, 3)
    take_back(world)
    world.settle()
    assert [send(world, 1, sequence) for sequence in (2, 1, 2)] == [STORED, STORED, STORED]
    assert send(world, 1, 4)[0] is not ErrorCode.NONE
    assert send(world, 1, 3) == (ErrorCode.NONE, 2)
    assert (ends(world, 0), ends(world, 1)) == ([4, 4, 4], [3, 3, 3])


def test_a_leader_knows_what_others_store_before_its_first_batch_comes(world: World) -> None:
    """Otherwise it would refuse that batch for now, and some clients cannot repeat one in order."""
    shrink(world)
    world.settle()
    assert send(world, 1, 0) == STORED
    take_back(world)
    world.settle()
    answers = [ask(world, 1, sequence) for sequence in (0, 1)]
    world.until(lambda: all(answer.is_there for answer in answers), "the answers")
    assert [(produced(each).error_code, produced(each).base_offset) for each in answers] == [STORED, (0, 1)]


def test_a_retry_is_found_by_a_new_leader_of_the_partition_that_stores(world: World) -> None:
    """Followers know the partition that the producer named."""
    assert send(world, 1, 0) == (ErrorCode.NONE, 1)
    shrink(world)
    world.settle()
    assert send(world, 1, 1) == STORED
    world.until(lambda: ends(world, 0) == [1, 1, 1], "copies on all brokers")
    world.change(leader=2)
    world.settle()
    assert send(world, 1, 1) == STORED
    assert send(world, 1, 2) == STORED
    world.until(lambda: ends(world, 0) == [2, 2, 2], "copies on all brokers")


def test_batches_under_way_while_their_partition_is_removed_are_stored_in_order(world: World) -> None:
    """A client could not repeat them: its metadata has no such partition any more."""
    shrink(world)
    world.settle()
    assert send(world, 1, 0) == STORED
    answers = [ask(world, 1, sequence) for sequence in (1, 2, 3)]
    passing_on = world[1].partition(1).appender.passing_on
    assert passing_on is not None
    world.until(lambda: len(passing_on._waiting) == 3, "batches that wait")
    world.publish(
        setting(PARTITIONS_TOTAL, "1"),
        setting(PARTITIONS_EPOCHS, f"1:{FIRST_EPOCH - 1}"),
        setting(PARTITIONS_FORMER, "2"),
        setting(PARTITIONS_ACTIVE, None),
        setting(PARTITIONS_TOTAL, None),
    )
    answers.append(ask(world, 1, 4))
    world.until(lambda: all(answer.is_there for answer in answers), "the answers")
    assert [(produced(each).error_code, produced(each).base_offset) for each in answers] == [STORED] * 4
    world.until(lambda: ends(world, 0) == [5, 5, 5], "copies on all brokers")


def test_a_batch_does_not_overtake_one_that_was_refused(world: World) -> None:
    """The producer is new, so that any sequence could be its first."""
    world.change(leader=2)
    shrink(world, to=(1, 3))
    world.settle()
    before = world.image
    answers = [ask(world, 1, sequence) for sequence in (0, 1)]
    world.until(lambda: answers[0].is_there, "a refusal")
    assert produced(answers[0]).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.deliver(2, difference(MetadataImage(""), before))
    world.until(lambda: answers[1].is_there, "an answer")
    late = ask(world, 1, 1)
    world.until(lambda: late.is_there, "an answer")
    assert produced(answers[1]).error_code == produced(late).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [send(world, 1, sequence) for sequence in (0, 1)] == [STORED, STORED]


def test_a_batch_waits_until_those_that_it_follows_are_committed(world: World) -> None:
    """A new leader of the decommissioned partition could lack them, with a later one stored elsewhere."""
    world.cut_off(1)
    first = ask(world, 1, 0, acks=1)
    world.until(lambda: first.is_there, "the append")
    shrink(world)
    world.settle(0.5)
    assert send(world, 1, 1)[0] is ErrorCode.NOT_ENOUGH_REPLICAS
    world.heal()
    world.settle()
    assert send(world, 1, 1) == STORED


def test_a_batch_that_arrives_after_the_shrink_was_taken_back_is_not_stored(world: World) -> None:
    world.change(leader=2)
    shrink(world)
    world.settle()
    # The leader of the decommissioned partition does not know yet that it takes records again.
    take_back(world, to=(2, 3))
    world.settle()
    assert send(world, 1, 0)[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ends(world, 0) == [0, 0, 0]


def test_a_batch_from_before_the_shrink_was_taken_back_is_not_stored_when_it_has_begun_again(
    world: World,
) -> None:
    """The producer may have repeated it, and the partition that it named may have stored it meanwhile."""
    world.change(leader=2)
    shrink(world)
    world.settle()
    before = world.image
    take_back(world, to=(2, 3))
    world.settle()
    shrink(world, to=(2, 3))
    world.settle()
    # The leader of the decommissioned partition knows of neither.
    assert send(world, 1, 0)[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ends(world, 0) == [0, 0, 0]
    world.deliver(1, difference(before, world.image))
    world.settle()
    assert send(world, 1, 0) == STORED
    assert ends(world, 0) == [1, 1, 1]


# -- a partition that is gone --------------------------------------------------------------------------------


GONE = 5


def shrunk_to(world: World, *divisors: int) -> None:
    """The topic has had six partitions, and was shrunk to these numbers one after the other."""
    world.publish(
        setting(PARTITIONS_FORMER, str(GONE + 1)),
        setting(PARTITIONS_DIVISORS, ",".join(map(str, divisors))),
    )
    world.settle()


def send_to_gone(world: World, *sequences: int) -> list[tuple[ErrorCode, int]]:
    return [send(world, 1, sequence, index=GONE) for sequence in sequences]


def test_a_producer_of_a_partition_that_is_gone_goes_on_through_shrinks_to_different_numbers(
    world: World,
) -> None:
    """Each of two partitions stores a part of its sequence. An old part must not be taken for the end of it."""
    shrunk_to(world, 1)
    assert send_to_gone(world, 0, 1) == [STORED] * 2
    shrunk_to(world, 1, 2)
    # The first one is a retry.
    assert send_to_gone(world, 1, 2) == [STORED] * 2
    # Another broker may know of sequence 3.
    assert send_to_gone(world, 4)[0][0] is ErrorCode.NOT_ENOUGH_REPLICAS
    shrunk_to(world, 2, 1)
    assert send_to_gone(world, 1, 2, 3, 4) == [STORED] * 4
    world.until(lambda: ends(world, 0) == [4, 4, 4], "copies on all brokers")
    # One was there before the topic got fewer partitions.
    assert ends(world, 1) == [2, 2, 2]


def test_a_producer_of_a_partition_that_is_gone_goes_on_behind_a_log_that_is_gone(world: World) -> None:
    shrunk_to(world, 1)
    assert send_to_gone(world, 0) == [STORED]
    shrunk_to(world, 1, 3)
    # Its third partition took sequences 1 to 6, and is gone.
    shrunk_to(world, 3, 1)
    assert send_to_gone(world, 7) == [STORED]
    assert [code for code, _ in send_to_gone(world, 9, 6)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    assert send_to_gone(world, 8, 7) == [STORED] * 2
    assert ends(world, 0) == [3, 3, 3]


def test_a_producer_goes_on_in_a_new_partition_behind_a_log_that_is_gone(world: World) -> None:
    """Another partition had its number before, and some sequences that were sent to that one are gone."""
    shrunk_to(world, 1)
    shrink(world)
    world.settle()
    assert send(world, 1, 0) == STORED
    take_back(world)
    world.settle()
    assert send(world, 1, 7) == (ErrorCode.NONE, 1)
    assert all(send(world, 1, each)[0] is not ErrorCode.NONE for each in (9, 6))
    assert send(world, 1, 8) == (ErrorCode.NONE, 2)


def test_a_batch_for_a_partition_that_is_gone_does_not_overtake_one_that_was_refused(world: World) -> None:
    """The first batch of a producer may leave a gap there, so the broker itself must keep the order."""
    shrunk_to(world, 1)
    assert send_to_gone(world, 0) == [STORED]
    shrunk_to(world, 1, 2)
    # Refused until the other partition has answered; the second one comes after that answer.
    first = ask(world, 1, 1, index=GONE)
    world.until(lambda: first.is_there, "a refusal")
    world.settle(0.1)
    second = ask(world, 1, 2, index=GONE)
    world.until(lambda: second.is_there, "an answer")
    codes = [produced(answer).error_code for answer in (first, second)]
    assert codes == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    assert send_to_gone(world, 1, 2) == [STORED] * 2


def test_a_replaced_leader_does_not_end_the_sequence_of_a_partition_that_is_gone(world: World) -> None:
    """A client that changes the broker may come to one that does not know of the new leader, nor of its records."""
    shrunk_to(world, 1)
    assert send_to_gone(world, 0) == [STORED]
    world.change(leader=2, isr=[2, 3], to=(2, 3))
    world.settle()
    assert send(world, 2, 1, index=GONE) == STORED
    assert send_to_gone(world, 2)[0][0] is ErrorCode.NOT_ENOUGH_REPLICAS
    assert send(world, 2, 2, index=GONE) == STORED


@pytest.mark.parametrize("is_taken_back", [True, False])
def test_a_replica_that_restarted_behind_deleted_records_takes_the_next_sequence(
    world: World, *, is_taken_back: bool
) -> None:
    """Another partition stores an early part of the sequence, which must not be taken for the end of it."""
    shrink(world)
    world.settle()
    assert send(world, 1, 0) == STORED
    take_back(world)
    world.settle()
    world.kill(3)
    world.fence(3)
    world.change(1, isr=[1, 2])
    assert [send(world, 1, sequence) for sequence in (1, 2)] == [(ErrorCode.NONE, 1), (ErrorCode.NONE, 2)]
    world[1].replicas.move_start(world[1].partition(1), 3)
    world.start(3)
    world.until(lambda: ends(world, 1) == [3] * 3, "copies on all brokers")
    world.unfence(3)
    if not is_taken_back:
        world.publish(setting(PARTITIONS_ACTIVE, "1"))
    world.change(1, leader=3, isr=[1, 2, 3])
    world.settle()
    assert send(world, 3, 3) == ((ErrorCode.NONE, 3) if is_taken_back else STORED)


def test_a_replica_that_restarted_behind_deleted_records_stores_the_next_sequence_of_another_partition(
    world: World,
) -> None:
    """The decommissioned partition knows an early part of the sequence. The rest was in the log that the replica lacks."""
    assert send(world, 1, 0) == (ErrorCode.NONE, 1)
    shrink(world)
    world.settle()
    world.kill(3)
    world.fence(3)
    world.change(0, isr=[1, 2])
    world.change(1, isr=[1, 2])
    assert [send(world, 1, sequence) for sequence in (1, 2)] == [STORED] * 2
    world[1].replicas.move_start(world[1].partition(0), 2)
    world.start(3)
    world.until(lambda: ends(world, 0) == [2] * 3, "copies on all brokers")
    world.unfence(3)
    world.change(0, leader=3, isr=[1, 2, 3])
    world.change(1, leader=2)
    world.settle()
    assert send(world, 2, 3) == STORED
    assert send(world, 2, 5)[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_first_batch_behind_deleted_records_does_not_overtake_one_that_was_refused(world: World) -> None:
    """It may leave a gap there. The log knows the producer's epoch by batches that were sent to another partition."""
    # Partition 3 is gone, and stored in partition 1.
    world.publish(setting(PARTITIONS_FORMER, "4"), setting(PARTITIONS_DIVISORS, "2"))
    world.settle()
    assert send(world, 1, 0, index=3) == STORED
    world[1].replicas.move_start(world[1].partition(1), 2)
    world.publish(
        setting(PARTITIONS_ACTIVE, "1"),
        setting(PARTITIONS_DIVISORS, "2,1"),
        PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, leader=1),
    )
    world.settle()
    assert send(world, 1, 0) == STORED
    take_back(world)
    # Refused until the other partition has answered; the second one comes after that answer.
    first = ask(world, 1, 1)
    world.until(lambda: first.is_there, "a refusal")
    world.settle(0.1)
    second = ask(world, 1, 2)
    world.until(lambda: second.is_there, "an answer")
    codes = [produced(answer).error_code for answer in (first, second)]
    assert codes == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    assert [send(world, 1, sequence) for sequence in (1, 2)] == [(ErrorCode.NONE, 2), (ErrorCode.NONE, 3)]


# -- disappearing --------------------------------------------------------------------------------------------


def removals(world: World) -> int:
    return sum(
        [each.broker_id for each in partition.new_isr_with_epochs] == [NO_BROKER]
        for request in world.alterations
        for topic in request.topics
        for partition in topic.partitions
    )


@pytest.fixture
def held(world: World) -> World:
    """The controller refuses to change the partitions."""
    hold(world)
    return world


def hold(world: World) -> None:
    world.alter_partition = lambda _request: ErrorCode.INELIGIBLE_REPLICA


def test_only_an_empty_decommissioned_partition_asks_for_its_removal(held: World) -> None:
    held.settle(20)
    shrink(held)
    held.settle(20)
    assert removals(held) == 0
    held[1].replicas.move_start(held[1].partition(1), 1)
    held.until(lambda: removals(held) > 0, "the request to remove it")


def test_a_partition_that_idempotent_producers_wrote_to_stays_for_their_retries(held: World) -> None:
    held.publish(setting(PARTITIONS_KEPT_MS, "100000"))
    assert send(held, 1, 0) == (ErrorCode.NONE, 1)
    shrink(held)
    held.settle(1)
    held[1].replicas.move_start(held[1].partition(1), 2)
    held.settle(90)
    assert removals(held) == 0
    held.until(lambda: removals(held) > 0, "the request to remove it")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (PARTITIONS_ACTIVE, "two"),
        (PARTITIONS_DIVISORS, "0"),
        (PARTITIONS_DIVISORS, "x"),
        (PARTITIONS_EPOCHS, "abc"),
        (PARTITIONS_TOTAL, "x"),
        ("leader.replication.throttled.replicas", f"{'9' * 5000}:1"),
        ("retention.ms", "long"),
    ],
)
def test_a_setting_in_the_log_that_cannot_be_parsed_ends_no_broker(
    world: World, name: str, value: str
) -> None:
    world.publish(setting(name, value), setting(PARTITIONS_FORMER, "9"))
    world.settle()
    world.stop(1)
    world.start(1)
    world.settle()
    assert [host.fatal for host in world.hosts.values()] == [[], [], []]
    answer = produce(world, 1, b"new", index=1)
    world.until(lambda: answer.is_there, "the ack")
    assert produced(answer).error_code == ErrorCode.NONE


def test_a_view_in_the_log_with_a_filter_that_cannot_be_parsed_ends_no_broker(world: World) -> None:
    view = ConfigRecord(resource_type=2, resource_name="view", name=VIEW_SOURCE, value=TOPIC)
    world.publish(
        TopicRecord(name="view", topic_id=bytes(15) + b"v"),
        view,
        ConfigRecord(resource_type=2, resource_name="view", name=VIEW_FILTER, value="= ="),
    )
    world.settle()
    assert "view" not in world[1].replicas.views


def test_a_setting_that_has_no_effect_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.publish(setting(PARTITIONS_EPOCHS, "abc"), to=[1])
    world.settle()
    (line,) = [each.message for each in caplog.records if "has no effect" in each.message]
    assert "Invalid value abc for configuration tidemill.partitions.epochs" in line
