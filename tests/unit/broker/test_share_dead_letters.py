"""Records that a share group gives up are in its dead-letter topic once, whatever fails on the way."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from tests.poisoned import poisoned
from tests.unit.broker.replica_world import TOPIC_ID, World, produced
from tests.unit.broker.share_world import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    WAIT_MS,
    Member,
    StoredStates,
    configure,
    share_with,
)
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import PartitionProduceData, ProduceRequest, TopicProduceData
from tidemill.protocol.records import Header, Record, build_batch, iterate_records
from tidemill.protocol.share_state import SharePartitionKey

MakeWorld = Callable[..., World]
LETTERS, LETTERS_ID = "letters", bytes(range(100, 116))
# The simulated clock begins at 0, and timestamps ahead of it are refused.
POISONED = poisoned(base_ms=1)
ENABLED: dict[str, Any] = {"errors_deadletterqueue_group_enable": "true"}


@pytest.fixture
def states() -> StoredStates:
    return StoredStates()


def start(
    make_world: MakeWorld,
    states: StoredStates,
    brokers: int = 1,
    *,
    source: dict[str, Any] | None = None,
    **letters: Any,
) -> World:
    world = make_world(brokers)
    world.start()
    replicas = tuple(range(1, brokers + 1))
    world.create_topic(replicas, **(source or {}))
    world.create_topic(replicas, name=LETTERS, topic_id=LETTERS_ID, **(letters or ENABLED))
    world.settle()
    share_with(world, states)
    configure(world, share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name=LETTERS)
    world.settle()
    return world


def write(world: World, *records: Record, broker_id: int = 1) -> None:
    write_batch(world, bytes(build_batch(records)), broker_id)


def write_batch(world: World, batch: bytes, broker_id: int = 1) -> None:
    data = PartitionProduceData(index=0, records=batch)
    topic = TopicProduceData(topic_id=TOPIC_ID, name="t", partition_data=[data])
    answer = world.ask(broker_id, ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]))
    world.until(lambda: answer.is_there, "an ack")
    assert produced(answer).error_code == 0


def letters(world: World, broker_id: int = 1) -> list[Record]:
    log = world[broker_id].partition(topic=LETTERS).log
    assert log is not None
    return [
        record
        for segment in log.segments
        for _, header, batch in segment.batches()
        for record in iterate_records(batch, header)
    ]


def reject(world: World, member: Member, offset: int = 0) -> None:
    assert member.acknowledge((offset, offset, [REJECT])) is ErrorCode.NONE


def shown(record: Record) -> dict[str, bytes | None]:
    return {header.key: header.value for header in record.headers}


def test_rejected_record_is_copied_with_its_reason(make_world: MakeWorld, states: StoredStates) -> None:
    world = start(make_world, states)
    write(world, Record(0, 1234, b"k", b"v", (Header("h", b"1"),)), Record(1, 1235, None, b"fine"))
    member = Member(world)
    member.fetch(max_wait_ms=WAIT_MS)
    assert member.acknowledge((0, 1, [REJECT, ACCEPT])) is ErrorCode.NONE
    world.until(lambda: states.of().start_offset == 2, "the record is done")
    (letter,) = letters(world)
    assert (letter.key, letter.value, letter.timestamp) == (b"k", b"v", 1234)
    headers = shown(letter)
    assert headers.pop("__dlq.errors.message") == b"A member rejected the record."
    assert headers == {
        "h": b"1",
        "__dlq.errors.topic": b"t",
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"0",
        "__dlq.errors.group": GROUP.encode(),
        "__dlq.errors.delivery.count": b"1",
    }


def test_poison_message_becomes_a_dead_letter_at_the_limit(
    make_world: MakeWorld, states: StoredStates
) -> None:
    world = start(make_world, states)
    write(world, Record(0, 0, None, b"poison"))
    member = Member(world)
    for _ in range(4):
        assert member.fetch(max_wait_ms=WAIT_MS).offsets() == [0]
        assert member.acknowledge((0, 0, [RELEASE])) is ErrorCode.NONE
        assert letters(world) == []
    # The last delivery ends without an acknowledgement, which counts as well.
    assert member.fetch(max_wait_ms=WAIT_MS).acquired() == [(0, 0, 5)]
    world.until(lambda: states.of().start_offset == 1, "the record is done")
    (letter,) = letters(world)
    assert shown(letter)["__dlq.errors.delivery.count"] == b"5"
    assert shown(letter)["__dlq.errors.message"] == b"The delivery limit was reached."


def test_record_that_is_rejected_at_its_last_delivery_says_so(
    make_world: MakeWorld, states: StoredStates
) -> None:
    world = start(make_world, states)
    configure(world, share_delivery_count_limit="2")
    write(world, Record(0, 0, None, b"poison"), Record(1, 0, None, b"released"))
    member = Member(world)
    member.fetch(max_wait_ms=WAIT_MS)
    assert member.acknowledge((0, 1, [RELEASE])) is ErrorCode.NONE
    for offset, kind in enumerate((REJECT, RELEASE)):
        assert member.fetch(max_wait_ms=WAIT_MS, max_records=1).acquired() == [(offset, offset, 2)]
        assert member.acknowledge((offset, offset, [kind])) is ErrorCode.NONE
    world.until(lambda: states.of().start_offset == 2, "the records are done")
    assert [shown(letter)["__dlq.errors.message"] for letter in letters(world)] == [
        b"A member rejected the record.",
        b"The delivery limit was reached.",
    ]


@pytest.mark.parametrize("has_delays", [False, True])
def test_letter_of_a_delayed_record_has_nothing_of_its_delay(
    make_world: MakeWorld, states: StoredStates, has_delays: bool
) -> None:
    """A dead-letter topic with delays would refuse it."""
    delays: dict[str, Any] = {"tidemill_delays_enable": "true"}
    world = start(make_world, states, source=delays, **ENABLED, **(delays if has_delays else {}))
    write(world, Record(0, 0, None, b"later", (Header("h", b"1"), Header("tidemill-delay", b"2s"))))
    member = Member(world)
    (offset,) = member.fetch(max_wait_ms=WAIT_MS).offsets()
    reject(world, member, offset)
    world.until(lambda: states.of().start_offset > offset, "the record is done")
    (letter,) = letters(world)
    assert {key for key in shown(letter) if not key.startswith("__dlq.")} == {"h"}


def test_letters_beside_one_that_is_too_large_are_written(
    make_world: MakeWorld, states: StoredStates
) -> None:
    world = start(make_world, states, **ENABLED, max_message_bytes="500")
    write(world, Record(0, 0, None, b"a" * 600), Record(1, 0, None, b"b"), Record(2, 0, None, b"c"))
    member = Member(world)
    member.fetch(max_wait_ms=WAIT_MS)
    assert member.acknowledge((0, 2, [REJECT])) is ErrorCode.NONE
    world.until(lambda: states.of().start_offset == 3, "the records are done")
    assert [letter.value for letter in letters(world)] == [b"b", b"c"]


def test_failure_33_archiving_is_durable_before_the_letter_is_written(
    make_world: MakeWorld, states: StoredStates
) -> None:
    """A leader that dies before the letter leaves a debt, not a loss."""
    world = start(make_world, states)
    write(world, Record(0, 0, None, b"poison"))
    member = Member(world)
    member.fetch(max_wait_ms=WAIT_MS)
    states.is_held = True
    waiting = member.start_acknowledge((0, 0, [REJECT]))
    world.settle(5)
    assert not waiting.is_there
    assert letters(world) == []
    states.is_held = False
    world.until(lambda: bool(letters(world)), "the letter")


@pytest.mark.parametrize("is_letter_written", [False, True])
def test_failure_33_next_leader_writes_what_is_owed_once(
    make_world: MakeWorld, states: StoredStates, is_letter_written: bool
) -> None:
    """The leader dies between the durable archive and the letter, or between the letter and its mark."""
    world = start(make_world, states, brokers=2)
    write(world, Record(0, 0, None, b"poison"))
    member = Member(world)
    member.fetch(max_wait_ms=WAIT_MS)
    key = SharePartitionKey(GROUP, TOPIC_ID, 0)  # type: ignore[arg-type]
    if is_letter_written:
        reject(world, member)
        world.until(lambda: states.of().start_offset == 1, "the record is done")
        assert len(letters(world)) == 1
    # As the share coordinator has it when the mark of the letter was lost.
    stored = states.stored[key]
    stored.offsets[0], stored.start_offset = (1, 3), 0
    world.change(leader=2)
    world.settle()
    Member(world, "m2", broker_id=2).fetch(max_wait_ms=100)
    world.until(lambda: states.of().start_offset == 1, "the record is done")
    assert [record.value for record in letters(world)] == [b"poison"]


@pytest.mark.parametrize("problem", ["missing", "not enabled", "the source", "too large"])
def test_letter_that_can_never_be_written_does_not_hold_the_group(
    make_world: MakeWorld, states: StoredStates, problem: str, caplog: Any
) -> None:
    too_large = {**ENABLED, "max_message_bytes": "100"}
    configs: dict[str, Any] = {"not enabled": {"retention_ms": "-1"}, "too large": too_large}.get(problem, {})
    world = start(make_world, states, **configs)
    if problem == "missing":
        world.delete_topic(LETTERS_ID)
    if problem == "the source":
        configure(world, errors_deadletterqueue_topic_name="t")
    world.settle()
    write(world, Record(0, 0, None, b"a" * 200), Record(1, 0, None, b"b"))
    member = Member(world)
    member.fetch(max_wait_ms=WAIT_MS)
    assert member.acknowledge((0, 1, [REJECT])) is ErrorCode.NONE
    world.until(lambda: states.of().start_offset == 2, "the records are done")
    reports = [record for record in caplog.records if "without a dead letter" in record.message]
    assert len(reports) == 1
    if problem != "missing":
        assert letters(world) == []


def test_letter_waits_for_the_leader_of_the_dead_letter_topic(
    make_world: MakeWorld, states: StoredStates
) -> None:
    world = make_world(2)
    world.start()
    world.create_topic((1,))
    world.create_topic((2,), name=LETTERS, topic_id=LETTERS_ID, **ENABLED)
    world.settle()
    share_with(world, states, 1)
    configure(world, share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name=LETTERS)
    world.kill(2)
    write(world, Record(0, 0, None, b"poison"))
    member = Member(world)
    member.fetch(max_wait_ms=WAIT_MS)
    reject(world, member)
    world.settle(5)
    assert states.of().start_offset == 0
    world.start(2)
    world.until(lambda: states.of().start_offset == 1, "the record is done")
    assert [record.value for record in letters(world, 2)] == [b"poison"]


def test_letter_waits_while_the_disk_of_the_dead_letter_topic_is_full(
    make_world: MakeWorld, states: StoredStates
) -> None:
    world = start(make_world, states)
    write(world, Record(0, 0, None, b"poison"))
    member = Member(world)
    member.fetch(max_wait_ms=WAIT_MS)
    world[1].disk.fail("write", pattern=f"*/{LETTERS}-0/*.log", error=errno.ENOSPC)
    reject(world, member)
    world.settle(5)
    assert letters(world) == []
    assert states.of().start_offset == 0
    world[1].disk.heal()
    world.until(lambda: states.of().start_offset == 1, "the record is done")
    assert [record.value for record in letters(world)] == [b"poison"]


@pytest.mark.parametrize("last_words", ["reject", "release at the limit", "leave"])
def test_letter_owed_by_the_last_member_is_written_without_members(
    make_world: MakeWorld, states: StoredStates, last_words: str
) -> None:
    world = start(make_world, states)
    write(world, Record(0, 0, None, b"poison"))
    world[1].disk.fail("write", pattern=f"*/{LETTERS}-0/*.log", error=errno.ENOSPC)
    member = Member(world)
    for _ in range(4 if last_words != "reject" else 0):
        member.fetch(max_wait_ms=WAIT_MS)
        assert member.acknowledge((0, 0, [RELEASE])) is ErrorCode.NONE
    member.fetch(max_wait_ms=WAIT_MS)
    if last_words != "leave":
        kind = REJECT if last_words == "reject" else RELEASE
        assert member.acknowledge((0, 0, [kind])) is ErrorCode.NONE
    member.close()
    world.settle(5)
    assert letters(world) == []
    assert states.of().start_offset == 0
    world[1].disk.heal()
    world.until(lambda: states.of().start_offset == 1, "the record is done")
    assert [record.value for record in letters(world)] == [b"poison"]
    world.until(lambda: not world[1].broker.share.led(), "the share partition ends")


def test_share_partition_without_members_ends_when_it_owes_nothing(
    make_world: MakeWorld, states: StoredStates
) -> None:
    world = start(make_world, states)
    write(world, Record(0, 0, None, b"fine"))
    member = Member(world)
    member.fetch(max_wait_ms=WAIT_MS)
    assert world[1].broker.share.led()
    member.close()
    world.until(lambda: not world[1].broker.share.led(), "the share partition ends")
    assert states.of().offsets == {0: (1, 0)}


def test_lock_whose_release_was_not_written_expires_without_members(
    make_world: MakeWorld, states: StoredStates
) -> None:
    """The last delivery ends with its session, and the share coordinator is away at that moment."""
    world = start(make_world, states)
    write(world, Record(0, 0, None, b"poison"))
    member = Member(world)
    for _ in range(4):
        member.fetch(max_wait_ms=WAIT_MS)
        assert member.acknowledge((0, 0, [RELEASE])) is ErrorCode.NONE
    member.fetch(max_wait_ms=WAIT_MS)
    states.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
    member.close()
    world.settle(5)
    states.failure = None
    world.until(lambda: states.of().start_offset == 1, "the record is done")
    assert [record.value for record in letters(world)] == [b"poison"]


@pytest.mark.parametrize("coordinator", [1, 2])
def test_failure_33_letter_of_a_dead_leader_is_written_after_a_reminder(
    make_world: MakeWorld, states: StoredStates, coordinator: int
) -> None:
    """No member comes back. The share coordinator is beside the new leader, or elsewhere."""
    world = start(make_world, states, brokers=2)
    write(world, Record(0, 0, None, b"poison"))
    member = Member(world)
    member.fetch(max_wait_ms=WAIT_MS)
    member.close()
    world.until(lambda: not world[1].broker.share.led(), "the share partition ends")
    states.of().offsets[0] = (1, 3)
    world.change(leader=2)
    world.settle()
    key = SharePartitionKey(GROUP, TOPIC_ID, 0)  # type: ignore[arg-type]
    host = world[coordinator]
    for _ in range(2):
        world._run_in(host, lambda: host.broker.share.remind(key))
    world.until(lambda: states.of().start_offset == 1, "the record is done")
    assert [record.value for record in letters(world)] == [b"poison"]
    world.until(lambda: not world[2].broker.share.led(), "the share partition ends")


def test_group_that_was_deleted_and_created_anew_gets_letters_of_its_own(
    make_world: MakeWorld, states: StoredStates
) -> None:
    """The new group has the epochs of the old one, and gives up the same record."""
    world = start(make_world, states)
    write(world, Record(0, 0, None, b"poison"))
    for name in ("m1", "m2"):
        member = Member(world, name)
        member.fetch(max_wait_ms=WAIT_MS)
        reject(world, member)
        world.until(lambda: states.of().start_offset == 1, "the record is done")
        member.close()
        world.until(lambda: not world[1].broker.share.led(), "the share partition ends")
        states.stored.clear()
    assert [record.value for record in letters(world)] == [b"poison", b"poison"]


@pytest.mark.parametrize("what", POISONED)
def test_batch_that_cannot_be_decoded_keeps_no_letter_back(
    what: str, make_world: MakeWorld, states: StoredStates
) -> None:
    world = start(make_world, states)
    write_batch(world, bytes(POISONED[what]))
    end_offset = world[1].high_watermark
    write(world, Record(0, 0, None, b"sound"))
    member = Member(world)
    member.fetch(max_wait_ms=WAIT_MS)
    rejected = [REJECT] * (end_offset + 1)
    assert member.acknowledge((0, end_offset, rejected)) is ErrorCode.NONE
    world.until(lambda: states.of().start_offset == end_offset + 1, "all are archived")
    assert [letter.value for letter in letters(world)][-1:] == [b"sound"]


def test_group_that_begins_by_time_reads_past_a_batch_that_cannot_be_decoded(
    make_world: MakeWorld, states: StoredStates
) -> None:
    world = start(make_world, states)
    configure(world, share_auto_offset_reset="by_duration:P99999D")
    world.settle()
    write_batch(world, bytes(POISONED["gzip: no codec's bytes"]))
    member = Member(world)
    assert member.fetch(max_wait_ms=WAIT_MS).offsets() == [0, 1, 2]
