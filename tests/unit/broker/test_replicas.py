"""Three brokers copy a partition: acks, the high watermark, the ISR, leader changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random

import pytest

from tests.unit.broker.replica_world import (
    TOPIC,
    TOPIC_ID,
    World,
    consume,
    latest,
    produce,
    produced,
    read,
    write,
)
from tidemill.errors import ErrorCode

MakeWorld = Callable[..., World]
LAG_MS = 10_000


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """Three brokers and a topic with a replica on each, led by broker 1."""
    world = make_world(replica_lag_time_max_ms=str(LAG_MS))
    world.start()
    world.create_topic(min_insync_replicas="2")
    world.settle()
    return world


def follow(world: World, *broker_ids: int, values: list[bytes]) -> None:
    world.until(
        lambda: all(world[broker_id].values() == values for broker_id in broker_ids),
        f"brokers {broker_ids} have {values}",
    )


def in_sync(world: World, *broker_ids: int) -> None:
    world.until(lambda: set(world.partition_image().isr) == set(broker_ids), f"an ISR of {broker_ids}")


# -- acks ----------------------------------------------------------------------------------------------------


def test_acks_all_waits_for_the_isr(world: World) -> None:
    answer = produce(world, 1, b"a", b"b")
    assert not answer.is_there
    world.until(lambda: answer.is_there, "the ack")
    assert (produced(answer).error_code, produced(answer).base_offset) == (ErrorCode.NONE, 0)
    for broker_id in (1, 2, 3):
        assert world[broker_id].values() == [b"a", b"b"]
    assert world[1].high_watermark == 2
    world.until(lambda: all(world[b].high_watermark == 2 for b in (2, 3)), "the followers have it")


def test_acks_1_responds_at_once(world: World) -> None:
    world.cut_off(1)
    answer = produce(world, 1, b"a", acks=1)
    assert produced(answer).error_code == ErrorCode.NONE


def test_acks_all_under_min_isr_is_refused_before_the_write(world: World) -> None:
    world.alter_partition = lambda _request: ErrorCode.INELIGIBLE_REPLICA
    world.change(isr=[1])
    world.settle()
    answer = produce(world, 1, b"a")
    assert produced(answer).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert world[1].log.log_end_offset == 0


def test_acks_all_times_out_while_a_follower_does_not_fetch(world: World) -> None:
    world.cut_off(1)
    answer = produce(world, 1, b"a", timeout_ms=1_000)
    world.until(lambda: answer.is_there, "the answer")
    assert produced(answer).error_code == ErrorCode.REQUEST_TIMED_OUT


def test_retry_of_uncommitted_batch_waits_for_commit(world: World) -> None:
    world.cut_off(1)
    first = produce(world, 1, b"a", timeout_ms=1_000)
    world.until(lambda: first.is_there, "the time-out")
    second = produce(world, 1, b"b", timeout_ms=60_000)
    world.settle(1)
    assert not second.is_there
    world.heal()
    world.until(lambda: second.is_there, "the ack")
    assert produced(second).error_code == ErrorCode.NONE


def test_waiting_ack_fails_when_leadership_is_lost(world: World) -> None:
    world.cut_off(1)
    answer = produce(world, 1, b"a")
    world.change(leader=2, isr=[2, 3])
    world.until(lambda: answer.is_there, "the answer")
    assert produced(answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_produce_to_follower_is_refused_and_names_the_leader(world: World) -> None:
    answer = produce(world, 2, b"a")
    result = produced(answer)
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (result.current_leader.leader_id, result.current_leader.leader_epoch) == (1, 0)
    (endpoint,) = answer.response.node_endpoints
    assert (endpoint.node_id, endpoint.host) == (1, "b1")


def test_request_to_broker_without_replica_names_the_leader(make_world: MakeWorld) -> None:
    world = make_world()
    world.start()
    world.create_topic(replicas=(1, 2))
    world.settle()
    assert produced(produce(world, 3, b"a")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    fetched = consume(world, 3)
    partition = fetched.responses[0].partitions[0]
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.current_leader.leader_id == 1
    assert fetched.node_endpoints[0].host == "b1"


# -- the ISR -------------------------------------------------------------------------------------------------


def test_stopped_follower_leaves_isr_and_returns(world: World) -> None:
    world.cut_off(3)
    answer = produce(world, 1, b"a", timeout_ms=60_000)
    started_s = world.scheduler.now_s
    world.until(lambda: answer.is_there, "the ack without the follower")
    assert produced(answer).error_code == ErrorCode.NONE
    assert world.scheduler.now_s - started_s >= LAG_MS / 1000
    assert world.partition_image().isr == (1, 2)
    world.heal()
    in_sync(world, 1, 2, 3)
    assert world[3].values() == [b"a"]


def test_fenced_broker_joins_isr_when_unfenced(world: World) -> None:
    """Although nothing is written meanwhile: its session has no news."""
    world.change(isr=[1, 2])
    world.fence(3)
    world.settle(2)
    assert world.partition_image().isr == (1, 2)
    world.unfence(3)
    world.until(lambda: set(world.partition_image().isr) == {1, 2, 3}, "it is let in", limit_s=1.0)


def test_refused_isr_change_is_sent_again(world: World) -> None:
    refusals = [ErrorCode.INELIGIBLE_REPLICA, None, ErrorCode.UNKNOWN_SERVER_ERROR]
    world.alter_partition = lambda _request: refusals.pop(0) if refusals else ErrorCode.NONE
    world.change(isr=[1, 2])
    in_sync(world, 1, 2, 3)
    assert not refusals


def test_isr_changes_are_batched_into_one_request(make_world: MakeWorld) -> None:
    world = make_world()
    world.start()
    world.create_topic(partitions=20, isr=(1,))
    world.until(lambda: all(len(world.partition_image(index).isr) == 3 for index in range(20)), "all in sync")
    assert len(world.alterations) <= 10


# -- visibility ----------------------------------------------------------------------------------------------


def test_failure_13_consumer_sees_no_record_of_one_replica(world: World) -> None:
    write(world, 1, b"a")
    world.cut_off(1)
    produce(world, 1, b"lost", acks=1)
    assert read(world, 1) == [b"a"]
    assert latest(world, 1).offset == 1
    assert latest(world, 1, replica_id=2).offset == 2, "a replica sees everything"
    world.change(leader=2, isr=[2, 3])
    world.heal()
    follow(world, 1, values=[b"a"])
    assert read(world, 2) == [b"a"]


def test_failure_11_new_leader_serves_only_after_isr_fetched(world: World) -> None:
    write(world, 1, b"a")
    world.until(lambda: world[2].high_watermark == 1, "the follower knows")
    write(world, 1, b"b")
    assert world[2].high_watermark == 1, "it has b and does not know that b is committed"
    world.cut_off(3)
    world.kill(1)
    world.change(leader=2, isr=[2, 3])
    world.until(lambda: world[2].partition().is_leader, "the new leader")
    assert read(world, 2) == [b"a"]
    assert latest(world, 2).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert latest(world, 2, timestamp=-2).error_code == ErrorCode.NONE
    world.heal()
    world.until(lambda: world[2].high_watermark == 2, "3 confirms")
    assert read(world, 2) == [b"a", b"b"]
    assert latest(world, 2).offset == 2


def test_follower_serves_consumers_below_its_high_watermark(world: World) -> None:
    write(world, 1, b"a")
    world.until(lambda: world[2].high_watermark == 1, "the follower knows")
    write(world, 1, b"b")
    assert world[2].values() == [b"a", b"b"]
    assert read(world, 2) == [b"a"]
    old = consume(world, 2, current_leader_epoch=-1)
    assert old.responses[0].partitions[0].error_code == ErrorCode.NONE
    fenced = consume(world, 2, current_leader_epoch=1)
    assert fenced.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


# -- leader changes ------------------------------------------------------------------------------------------


def test_old_leader_truncates_what_new_leader_lacks(world: World) -> None:
    write(world, 1, b"a")
    world.cut_off(1)
    produce(world, 1, b"lost", b"lost too", acks=1)
    world.change(leader=2, isr=[2, 3])
    world.until(lambda: world[2].partition().is_leader, "the new leader")
    write(world, 2, b"b")
    world.heal()
    follow(world, 1, values=[b"a", b"b"])
    in_sync(world, 1, 2, 3)


def test_failure_01_a_follower_that_restarts_keeps_what_it_may_not_know_to_be_committed(world: World) -> None:
    """Cutting to the own high watermark would lose the record when the other replica is gone next."""
    write(world, 1, b"a")
    world.until(lambda: world[2].high_watermark == 1, "the follower knows")
    write(world, 1, b"b")
    assert world[2].high_watermark == 1
    world.stop(2)
    world.start(2)
    world.kill(1)
    world.cut_off(3)
    world.change(leader=2, isr=[2, 3])
    world.until(lambda: world[2].partition().is_leader, "the new leader")
    world.heal()
    world.until(lambda: world[2].high_watermark == 2, "3 confirms")
    assert read(world, 2) == [b"a", b"b"]


def test_failure_01_logs_agree_after_two_failovers(world: World) -> None:
    write(world, 1, b"a")
    world.cut_off(1)
    produce(world, 1, b"x", acks=1)
    world.change(leader=2, isr=[2, 3])
    world.until(lambda: world[2].partition().is_leader, "the first new leader")
    world.cut_off(2)
    produce(world, 2, b"y", b"z", acks=1)
    world.change(leader=3, isr=[3])
    world.until(lambda: world[3].partition().is_leader, "the second new leader")
    produce(world, 3, b"c", acks=1)
    world.heal()
    follow(world, 1, 2, values=[b"a", b"c"])
    in_sync(world, 1, 2, 3)
    world.until(lambda: read(world, 3) == [b"a", b"c"], "what is committed is shown")
    epochs = [world[broker_id].log.epochs.entries for broker_id in (1, 2, 3)]
    assert epochs[0] == epochs[1] == epochs[2]


def test_a_leader_that_wrote_nothing_yet_knows_what_others_wrote_before_it(world: World) -> None:
    """Its own epoch tells it: what the follower has of an epoch between is of another log."""
    write(world, 1, b"a")
    world.change(leader=2)
    world.until(lambda: world[2].partition().is_leader, "the first new leader")
    world.cut_off(2)
    produce(world, 2, b"lost", acks=1)
    world.change(leader=3, isr=[3, 1])
    world.until(lambda: world[3].partition().is_leader, "the second new leader")
    world.heal()
    follow(world, 2, values=[b"a"])
    in_sync(world, 1, 2, 3)


def test_a_leader_that_wrote_nothing_in_its_epoch_follows_again(world: World) -> None:
    """Its epoch stands at the end of its log without a record: the new leader does not know it."""
    write(world, 1, b"a")
    world.change(leader=2)
    world.until(lambda: world[2].partition().is_leader, "an epoch without records")
    world.change(leader=1)
    world.until(lambda: world[1].partition().is_leader, "the first leader again")
    write(world, 1, b"b")
    follow(world, 2, 3, values=[b"a", b"b"])


def test_a_follower_that_lost_power_copies_again(world: World) -> None:
    for number in range(5):
        write(world, 1, b"%d" % number)
    world.lose_power(2)
    world.change(isr=[1, 3])
    world.start(2)
    follow(world, 2, values=[b"%d" % number for number in range(5)])
    in_sync(world, 1, 2, 3)


def test_high_watermarks_survive_a_restart(world: World) -> None:
    write(world, 1, b"a")
    world.until(lambda: world[2].high_watermark == 1, "the follower knows")
    world.cut_off(2)
    world.stop(2)
    world.start(2)
    assert world[2].high_watermark == 1
    assert b"t 0 1\n" in world[2].disk.read("/data/replication-offset-checkpoint")


def test_the_leader_dies_and_the_same_partition_goes_on_elsewhere(world: World) -> None:
    written = []
    leader = 1
    for number in range(12):
        if number % 4 == 3:
            world.lose_power(leader)
            isr = [b for b in world.partition_image().isr if b != leader]
            world.change(leader=isr[0], isr=isr)
            dead, leader = leader, isr[0]
            led = world[leader].partition()
            world.until(lambda: led.is_leader, "the new leader")  # noqa: B023
            world.start(dead)
            in_sync(world, 1, 2, 3)
        write(world, leader, b"%d" % number)
        written.append(b"%d" % number)
    world.until(lambda: read(world, leader) == written, "everything acknowledged")
    follow(world, 1, 2, 3, values=written)


def test_a_deleted_topic_leaves_nothing(world: World) -> None:
    write(world, 1, b"a")
    world.delete_topic()
    for broker_id in (1, 2, 3):
        host = world[broker_id]
        world.until(
            lambda: not [name for name in host.disk.list("/data") if name.startswith(TOPIC)],  # noqa: B023
            "the folder is gone",
        )


def test_a_replica_that_left_is_not_back_in_part_after_a_power_failure(make_world: MakeWorld) -> None:
    world = make_world()
    world.start()
    world.create_topic(segment_ms="1000", message_timestamp_type="LogAppendTime", flush_messages="1")
    world.settle()
    for number in range(4):
        write(world, 1, b"%d" % number)
        world.settle()
    host = world[3]
    segments = [name for name in host.disk.list("/data/t-0") if name.endswith(".log")]
    assert len(segments) == 4
    world.change(isr=[1, 2], replicas=[1, 2])
    world.until(
        lambda: not any(each.startswith(TOPIC) for each in host.disk.list("/data")), "its folder is gone"
    )
    survived = 0
    for seed in range(50):
        found = host.disk.crash(Random(seed))
        if found.exists("/data/t-0"):
            assert [name for name in found.list("/data/t-0") if name.endswith(".log")] == segments
        survived += any(each.startswith(TOPIC) for each in found.list("/data"))
    assert survived, "the removal itself was not synced, so some disks still have the folder"


def test_a_replica_that_left_in_a_crash_and_returns_after_a_clean_stop_is_checked(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    write(world, 1, b"old")
    world.settle()
    world.stop(3)
    world.start(3)
    world.change(leader=2)
    world.settle()
    write(world, 2, b"new")
    world.settle()
    # Its log has the new epoch, the checkpoint of epochs has not.
    world.kill(3)
    world.change(isr=[1, 2], replicas=[1, 2])
    world.start(3)
    world.settle()
    world.stop(3)
    world.change(replicas=[1, 2, 3], adding_replicas=[3])
    caplog.set_level(logging.INFO)
    world.start(3)
    world.settle()
    assert world[3].values() == [b"old", b"new"]
    assert "is another one" not in caplog.text, "what was committed was cut and copied again"


def test_log_of_a_partition_reassigned_during_absence_is_set_aside(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    aside = f"{TOPIC}-0.{TOPIC_ID.hex()}"
    for name in (f"{aside}-stray", f"{aside}.1-stray"):
        write(world, 1, b"a")
        world.settle()
        world.stop(3)
        world.change(isr=[1, 2], replicas=[1, 2])
        world.start(3)
        world.settle()
        assert (
            f"/data/{TOPIC}-0 is not of this broker any more; it is set aside as /data/{name}" in caplog.text
        )
        assert "00000000000000000000.log" in world[3].disk.list(f"/data/{name}")
        assert f"{TOPIC}-0" not in world[3].disk.list("/data")
        # Nothing of it counts when the partition comes back.
        world.change(replicas=[1, 2, 3], adding_replicas=[3])
        in_sync(world, 1, 2, 3)
    assert world[3].values() == [b"a", b"a"]


def test_a_topic_that_was_deleted_while_it_was_away_is_set_aside(world: World) -> None:
    write(world, 1, b"a")
    world.stop(3)
    world.delete_topic()
    world.start(3)
    world.settle()
    kept = [name for name in world[3].disk.list("/data") if name.startswith(TOPIC)]
    assert kept == [f"{TOPIC}-0.{TOPIC_ID.hex()}-stray"]


def test_only_a_partitions_folder_is_set_aside(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Not folders of another cluster, not those that are being removed, and not those without a topic id."""
    host = world[3]
    world.stop(3)
    folders = ("lost+found-1", "backup-01", "notes-2", "gone-0.00-stray", "damaged-0", "__cluster_metadata-0")
    for folder in folders:
        host.disk.make_folder(f"/data/{folder}")
        if folder != "notes-2":
            host.disk.open(f"/data/{folder}/partition.metadata", create=True).write(
                b"version: 0\nnothing\n", 0
            )
    world.start(3)
    world.settle()
    assert set(folders) <= set(host.disk.list("/data"))
    assert "damaged-0 is not of this broker any more, and stays" in caplog.text


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("bit", [0, 3, 6])
def test_a_damaged_byte_in_the_partition_metadata_does_not_make_it_begin_anew(
    make_world: MakeWorld, bit: int, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(1)
    world.start()
    world.create_topic([1], topic_id=TOPIC_ID)
    world.settle()
    path = f"/data/{TOPIC}-0/partition.metadata"
    right = world[1].disk.read(path)
    for position in range(len(right)):
        assert write(world, 1, b"a") == position
        if is_clean:
            world.stop(1)
        else:
            world.kill(1)
        world[1].disk.flip_bit(path, position, bit)
        caplog.clear()
        world.start(1)
        assert world[1].disk.read(path) == right
        assert world[1].log.log_end_offset == position + 1
    assert [name for name in world[1].disk.list("/data") if name.startswith(TOPIC)] == [f"{TOPIC}-0"]
    assert "partition.metadata was damaged" in caplog.text


def test_a_partition_metadata_that_names_no_topic_keeps_the_partition_offline(make_world: MakeWorld) -> None:
    """Whose the records are cannot be told: nothing is begun in their place."""
    world = make_world(1)
    world.start()
    world.create_topic([1])
    world.settle()
    write(world, 1, b"a")
    world.stop(1)
    world[1].disk.replace(f"/data/{TOPIC}-0/partition.metadata", b"\xff" * 43)
    world.start(1)
    assert world[1].partition().log is None
    assert produced(produce(world, 1, b"b")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "00000000000000000000.log" in world[1].disk.list(f"/data/{TOPIC}-0")
