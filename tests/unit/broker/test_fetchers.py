"""Copying from leaders in odd circumstances: logs that begin late, disks that fail, racks, many partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.broker.replica_world import (
    TOPIC,
    TOPIC_ID,
    World,
    consume,
    produce,
    produced,
    read,
    write,
)
from tidemill.broker.disk.syncer import Syncer
from tidemill.broker.partitions.fetchers import _FetchLoop
from tidemill.broker.requests.fetching.replica_fetch import ReplicaFetch
from tidemill.config import load_broker_config
from tidemill.errors import ErrorCode
from tidemill.log.log import Log
from tidemill.protocol.api.data import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.protocol.records import Record, build_batch
from tidemill.replication.follower import FetchState
from tidemill.sim.platform.disk import SimulatedDisk
from tidemill.types import TopicPartition

MakeWorld = Callable[..., World]
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    world = make_world(replica_lag_time_max_ms="10000")
    world.start()
    world.create_topic(segment_bytes=str(1 << 20))
    world.settle()
    return world


def big(number: int) -> bytes:
    """A few of these fill a segment."""
    return b"%d" % number + bytes(300_000)


def in_sync(world: World, *broker_ids: int) -> None:
    world.until(lambda: set(world.partition_image().isr) == set(broker_ids), f"an ISR of {broker_ids}")


def delete_before(world: World, offset: int, timeout_ms: int = 30_000) -> Any:
    topic = DeleteRecordsTopic(
        name=TOPIC, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
    )
    answer = world.ask(1, DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms))
    world.until(lambda: answer.is_there, "an answer to DeleteRecords")
    return answer.response.topics[0].partitions[0]


# -- leaders that start again --------------------------------------------------------------------------------


def test_followers_fetch_at_once_from_a_leader_that_lost_power_without_a_word(world: World) -> None:
    """Their last request is never answered, and its timeout of half a minute is not waited for."""
    write(world, 1, b"before")
    world.lose_power(1, is_silent=True)
    world.start(1)
    world.change(leader=1, isr=[1, 2, 3])
    restarted_s = world.scheduler.now_s
    write(world, 1, b"after")
    world.until(
        lambda: all(world[other].values()[-1:] == [b"after"] for other in (2, 3)), "copies of what is new"
    )
    assert world.scheduler.now_s - restarted_s < 10, "of virtual time"


# -- where a log begins --------------------------------------------------------------------------------------


def test_deleted_records_go_everywhere_before_the_answer(world: World) -> None:
    for number in range(10):
        write(world, 1, big(number))
    result = delete_before(world, 6)
    assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 6)
    assert [world[broker_id].log.log_start_offset for broker_id in (1, 2, 3)] == [6, 6, 6]
    assert [len(world[broker_id].log.segments) for broker_id in (1, 2, 3)] == [2, 2, 2]


def test_deleting_waits_for_a_replica_that_is_away(world: World) -> None:
    write(world, 1, b"a", b"b")
    world.cut_off(3)
    result = delete_before(world, 1, timeout_ms=2_000)
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    world.heal()
    world.until(lambda: world[3].log.log_start_offset == 1, "it follows in the end")


@pytest.mark.parametrize("start", [19, 20])
def test_a_replica_behind_the_leaders_log_start_begins_there(world: World, start: int) -> None:
    """Also when the leader's log starts within a batch, which is copied whole."""
    write(world, 1, b"first")
    world.stop(3)
    world.fence(3)
    world.change(isr=[1, 2])
    for number in range(9):
        write(world, 1, b"x", big(number), b"z")
    write(world, 1, b"p", b"q", b"r")
    delete_before(world, start, timeout_ms=1_000)
    world.start(3)
    in_sync(world, 1, 2, 3)
    log = world[3].log
    assert (log.log_start_offset, log.log_end_offset) == (start, 31)
    assert read(world, 3, start)[-3:] == [b"p", b"q", b"r"]
    log.check_invariants()


@pytest.mark.parametrize("batches", [[(b"x", b"y", b"z"), (b"more",)], [(b"x", b"y", b"z", b"more")]])
def test_a_log_that_diverged_below_the_leaders_log_start_keeps_no_producer_of_its_own(
    world: World, batches: list[tuple[bytes, ...]]
) -> None:
    """The new leader has deleted the records that stand in the place of those which the old one alone had."""
    write(world, 1, b"a", b"b")
    world.cut_off(1)
    world.change(leader=2, isr=[2, 3], to=(2, 3))
    records = [Record(number, 0, None, b"%d" % number) for number in range(3)]
    batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=0)
    data = PartitionProduceData(index=0, records=memoryview(batch))
    topic = TopicProduceData(topic_id=TOPIC_ID, name=TOPIC, partition_data=[data])
    world.ask(1, ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[topic]))
    write(world, 1, b"c", b"d", acks=1)
    assert world[1].log.producers.get(7) is not None
    offsets = [write(world, 2, *values) for values in batches]
    assert offsets[0] == 2
    world._run_in(world[2], lambda: world[2].replicas.move_start(world[2].partition(), 5))
    world.heal()
    world.change(leader=2, isr=[2, 3])
    in_sync(world, 1, 2, 3)
    log = world[1].log
    assert (log.log_start_offset, log.log_end_offset, read(world, 1, 5)[-1:]) == (5, 6, [b"more"])
    assert world[1].values() == list(batches[-1])
    assert log.producers.get(7) is None


def test_a_restarted_log_opens_after_a_crash(world: World) -> None:
    write(world, 1, b"first")
    world.stop(3)
    world.fence(3)
    world.change(isr=[1, 2])
    for number in range(5):
        write(world, 1, b"x", big(number), b"z")
    delete_before(world, 8, timeout_ms=1_000)
    world.start(3)
    in_sync(world, 1, 2, 3)
    world.lose_power(3)
    world.change(isr=[1, 2])
    world.start(3)
    in_sync(world, 1, 2, 3)
    assert world[3].values()[-1] == b"z"
    assert not world[3].fatal


# -- cutting -------------------------------------------------------------------------------------------------


def test_before_a_synced_tail_is_cut_the_disk_promises_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a crash in between would make what was cut off look like damage."""
    write(world, 1, b"a")
    world.cut_off(1)
    produce(world, 1, b"lost", acks=1)
    host = world[1]
    syncing = world.run(host, host.replicas.syncer.sync_now(host.log))
    world.until(syncing.done, "a sync")
    checkpointing = world.run(host, host.replicas.checkpoint())
    world.until(checkpointing.done, "a checkpoint")
    path = "/data/recovery-point-offset-checkpoint"
    assert b"t 0 2\n" in host.disk.read(path)
    host.broker.data_dir.set_first_dirty_offset(TopicPartition(TOPIC, 0), 2)
    seen = []
    truncate_to = Log.truncate_to

    def noting(log: Log, end_offset: int) -> None:
        seen.append((host.disk.read(path), host.disk.read("/data/cleaner-offset-checkpoint")))
        truncate_to(log, end_offset)

    monkeypatch.setattr(Log, "truncate_to", noting)
    world.change(leader=2, isr=[2, 3])
    world.heal()
    in_sync(world, 1, 2, 3)
    assert host.values() == [b"a"]
    assert [b"t 0 1\n" in points and b"t 0 1\n" in dirty for points, dirty in seen] == [True]


# -- fsync before the ack ------------------------------------------------------------------------------------


def test_with_flush_messages_1_every_replica_has_synced_what_is_acknowledged(make_world: MakeWorld) -> None:
    world = make_world()
    world.start()
    world.create_topic(flush_messages="1")
    world.settle()
    for number in range(5):
        write(world, 1, b"%d" % number)
        for broker_id in (1, 2, 3):
            assert world[broker_id].log.recovery_point == number + 1
    for broker_id in (1, 2, 3):
        world.lose_power(broker_id)
    world.start()
    assert world[2].values() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_new_leader_gets_no_fetch_before_the_followers_log_is_synced(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch vouches that everything before its offset is on disk, whichever leader it was copied from."""
    world = make_world()
    world.start()
    world.create_topic(flush_messages="1")
    world.settle()
    write(world, 1, b"a")
    held: list[Callable[[], None]] = []
    slow, sync = world[3].replicas.syncer, Syncer.sync

    def hold(syncer: Syncer, log: Any, done: Any) -> None:
        if syncer is slow:
            held.append(lambda: sync(syncer, log, done))
        else:
            sync(syncer, log, done)

    monkeypatch.setattr(Syncer, "sync", hold)
    produce(world, 1, b"b", acks=1)
    world.until(lambda: world[3].log.log_end_offset == 2 == world[2].log.recovery_point, "copies of b")
    world.change(leader=2, isr=[2, 3])
    world.settle(2)
    assert world[3].log.recovery_point == 1
    assert world[2].partition().high_watermark == 1
    monkeypatch.undo()
    for go_on in held:
        world._run_in(world[3], go_on)
    world.until(lambda: world[2].partition().high_watermark == 2, "b is committed")


# -- sessions ------------------------------------------------------------------------------------------------


def test_a_fetch_costs_what_changed_and_not_what_is_followed(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(2)
    world.start()
    world.create_topic(replicas=(1, 2), partitions=100)
    world.settle(5)
    looked_at: list[Any] = []
    read_one = ReplicaFetch._read_one

    def noting(fetch: ReplicaFetch, key: Any, *args: Any, **kwargs: Any) -> Any:
        looked_at.append(key)
        return read_one(fetch, key, *args, **kwargs)

    monkeypatch.setattr(ReplicaFetch, "_read_one", noting)
    answer = produce(world, 1, b"a", index=42)
    world.until(lambda: answer.is_there, "the ack")
    world.settle(5)
    assert set(looked_at) == {(TOPIC_ID, 42)}
    assert len(looked_at) < 10
    assert world[2].partition(42).high_watermark == 1


def test_a_cut_in_the_middle_of_an_answer_does_not_disturb_the_session(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(2)
    world.start()
    world.create_topic(replicas=(1, 2), partitions=6)
    world.settle()
    world.cut_off(1)
    for index in range(6):
        produce(world, 1, b"lost", acks=1, index=index)
    for index in range(6):
        world.change(index, leader=2, isr=[2])
    refused: list[ErrorCode] = []
    monkeypatch.setattr(_FetchLoop, "_refused", lambda _loop, code: refused.append(code))
    world.heal()
    world.until(
        lambda: all(len(world.partition_image(index).isr) == 2 for index in range(6)), "all in sync again"
    )
    assert [world[1].partition(index).log.log_end_offset for index in range(6)] == [0] * 6  # type: ignore[union-attr]
    assert not refused


def test_a_leader_that_forgot_the_session_gets_a_new_one(world: World) -> None:
    write(world, 1, b"a")
    world[1].broker.fetch_sessions._replica_sessions.clear()
    write(world, 1, b"b")


def test_a_leader_that_restarts_is_followed_again(world: World) -> None:
    write(world, 1, b"a")
    world.stop(1)
    world.start(1)
    write(world, 1, b"b")
    assert world[2].values() == [b"a", b"b"]


# -- reassignment --------------------------------------------------------------------------------------------


def test_a_partition_moves_to_another_broker(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.start()
    world.create_topic()
    world.settle()
    write(world, 1, b"a")
    world.change(replicas=[1, 2, 3, 4], adding_replicas=[4])
    in_sync(world, 1, 2, 3, 4)
    assert world[4].values() == [b"a"]
    write(world, 1, b"b")
    world.change(replicas=[2, 3, 4], isr=[2, 3, 4], leader=2, adding_replicas=[])
    world.until(
        lambda: not [name for name in world[1].disk.list("/data") if name.startswith(TOPIC)],
        "the old replica is removed",
    )
    write(world, 2, b"c")
    assert world[4].values() == [b"a", b"b", b"c"]
    assert produced(produce(world, 1, b"d")).current_leader.leader_id == 2


def test_replica_added_to_a_sole_replica(make_world: MakeWorld) -> None:
    """What was written while it was alone counts for the high watermark from then on."""
    world = make_world(2)
    world.start()
    world.create_topic(replicas=(1,))
    world.settle()
    assert produced(produce(world, 1, b"a")).error_code == ErrorCode.NONE
    world.change(replicas=[1, 2], adding_replicas=[2])
    in_sync(world, 1, 2)
    write(world, 1, b"b")
    assert world[2].values() == [b"a", b"b"]
    assert read(world, 1) == [b"a", b"b"]


def test_a_folder_of_an_older_topic_is_set_aside(world: World) -> None:
    write(world, 1, b"old")
    world.stop(3)
    world.delete_topic()
    other_id = bytes(reversed(TOPIC_ID))
    world.create_topic(topic_id=other_id, isr=(1, 2))
    world.start(3)
    world.settle()
    assert world[3].values() == []
    assert f"{TOPIC}-0.{TOPIC_ID.hex()}-stray" in world[3].disk.list("/data")


# -- disks ---------------------------------------------------------------------------------------------------


def test_failure_05_a_disk_that_fails_stops_the_broker_when_others_have_the_partition(world: World) -> None:
    world[1].disk.fail("write")
    answer = produce(world, 1, b"a")
    assert produced(answer).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(world[1].fatal) == 1


def test_the_disk_of_a_follower_fails(world: World) -> None:
    world[3].disk.fail("write")
    answer = produce(world, 1, b"a", timeout_ms=60_000)
    world.until(lambda: bool(world[3].fatal), "it stops")
    world.kill(3)
    world.fence(3)
    world.change(isr=[1, 2])
    world.until(lambda: answer.is_there, "the others go on")
    assert produced(answer).error_code == ErrorCode.NONE


def test_a_sole_replica_takes_down_nothing_but_itself(make_world: MakeWorld) -> None:
    world = make_world(1)
    world.start()
    world.create_topic(replicas=(1,))
    world.settle()
    world[1].disk.fail("write")
    answer = produce(world, 1, b"a")
    assert produced(answer).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not world[1].fatal


def test_follower_with_a_full_disk_continues_when_there_is_space(world: World) -> None:
    world[3].disk.free_bytes = 0
    answer = produce(world, 1, b"a", timeout_ms=60_000)
    world.settle(3)
    assert not answer.is_there
    world[3].disk.heal()
    world.until(lambda: answer.is_there, "the ack")
    assert not world[3].fatal


def test_failure_15_damage_is_repaired_from_a_replica(world: World) -> None:
    for number in range(12):
        write(world, 1, big(number))
    host = world[2]
    damaged = host.log.segments[-1]
    path, position = damaged.path_of("log"), [position for position, _, _ in damaged.batches()][-1]
    world.stop(2)
    host.disk.flip_bit(path, position + 16, 3)  # the magic byte of the last batch
    world.start(2)
    assert host.partition().log is None
    assert host.fatal, "it is counted on and cannot serve"
    # It stops; its next registration reports an unclean stop to the controller.
    world.kill(2)
    world.change(isr=[1, 3])
    world.start(2)
    in_sync(world, 1, 2, 3)
    assert host.values() == [big(number) for number in range(12)]


def test_failure_15_a_missing_segment_is_fetched_from_a_replica(world: World) -> None:
    for number in range(12):
        write(world, 1, big(number))
    host = world[2]
    assert len(host.log.segments) > 2
    path = host.log.segments[1].path_of("log")
    world.stop(2)
    host.disk.remove(path)
    world.start(2)
    assert host.partition().log is None
    assert host.fatal, "it is counted on and cannot serve"
    world.kill(2)
    world.change(isr=[1, 3])
    world.start(2)
    in_sync(world, 1, 2, 3)
    assert host.values() == [big(number) for number in range(12)]


def test_failure_15_a_sole_replica_without_a_segment_is_offline(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(1)
    world.start()
    world.create_topic([1], segment_bytes=str(1 << 20))
    world.settle()
    for number in range(12):
        write(world, 1, big(number))
    path = world[1].log.segments[1].path_of("log")
    world.stop(1)
    world[1].disk.remove(path)
    world.start(1)
    fetched = consume(world, 1, 0).responses[0].partitions[0]
    assert fetched.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert produced(produce(world, 1, b"x")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not world[1].fatal, "no other replica could take over"
    assert any("a segment is missing" in message for message in caplog.messages)


def test_failure_15_damage_is_reported_of_a_topic_that_was_created_again(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(1)
    world.start()
    for count, topic_id in enumerate((TOPIC_ID, bytes(range(16))), 1):
        world.create_topic([1], topic_id=topic_id, segment_bytes=str(1 << 20))
        world.settle()
        for number in range(12):
            write(world, 1, big(number))
        path = sorted(name for name in world[1].disk.list(f"/data/{TOPIC}-0") if name.endswith(".log"))[1]
        world[1].disk.flip_bit(f"/data/{TOPIC}-0/{path}", 16, 3)
        fetched = consume(world, 1, int(path.partition(".")[0])).responses[0].partitions[0]
        assert fetched.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert sum("is damaged" in message for message in caplog.messages) == count
        world.delete_topic(topic_id)
        world.settle()


def test_failure_15_a_leader_whose_log_is_damaged_gives_way(world: World) -> None:
    for number in range(12):
        write(world, 1, big(number))
    host = world[1]
    first = sorted(name for name in host.disk.list(f"/data/{TOPIC}-0") if name.endswith(".log"))[1]
    host.disk.flip_bit(f"/data/{TOPIC}-0/{first}", 16, 3)
    offset = int(first.partition(".")[0])
    fetched = consume(world, 1, offset).responses[0].partitions[0]
    assert fetched.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert host.fatal
    world.kill(1)
    world.change(leader=2, isr=[2, 3])
    world.start(1)
    in_sync(world, 1, 2, 3)
    assert host.values() == [big(number) for number in range(12)]


def test_failure_15_a_leader_finds_out_that_a_follower_cannot_use_what_it_sends(world: World) -> None:
    for number in range(6):
        write(world, 1, big(number))
    world.stop(3)
    world.fence(3)
    world[3].disk = SimulatedDisk()
    world.change(isr=[1, 2])
    world.settle()
    world[1].disk.flip_bit(world[1].log.segments[0].path_of("log"), 1_000, 5)  # in a record's value
    world.start(3)
    world.until(lambda: bool(world[1].fatal), "the leader gives way")
    world.kill(1)
    world.change(leader=2, isr=[2])
    world.start(1)
    in_sync(world, 1, 2, 3)
    for broker_id in (1, 3):
        assert world[broker_id].values() == [big(number) for number in range(6)]


# -- racks ---------------------------------------------------------------------------------------------------


def test_a_consumer_is_sent_to_the_replica_in_its_rack(make_world: MakeWorld) -> None:
    world = make_world(replica_selector_class=SELECTOR)
    for broker_id, rack in ((1, "a"), (2, "b"), (3, "c")):
        world[broker_id].rack = rack
    world.start()
    world.create_topic()
    world.settle()
    write(world, 1, b"x")

    def preferred(rack: str) -> int:
        return int(consume(world, 1, rack=rack).responses[0].partitions[0].preferred_read_replica)

    assert preferred("b") == 2
    assert preferred("c") == 3
    assert preferred("a") == -1
    assert preferred("elsewhere") == -1
    started_s = world.scheduler.now_s
    world.until(lambda: read(world, 2) == [b"x"], "the replica serves it")
    assert world.scheduler.now_s - started_s < 0.4, "the high watermark does not wait for the next record"
    world.alter_partition = lambda _request: ErrorCode.INELIGIBLE_REPLICA
    world.change(isr=[1, 3])
    world.settle(0.1)
    assert preferred("b") == -1


# -- throttles -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_new_replica_is_filled_no_faster_than_the_throttle_allows(make_world: MakeWorld, side: str) -> None:
    world = make_world(3, **{f"{side}_replication_throttled_rate": "1000000"})
    world.start()
    listed: Any = {f"{side}_replication_throttled_replicas": "0:1,0:3"}
    world.create_topic(replicas=(1, 2), **listed)
    world.settle()
    for number in range(20):
        write(world, 1, big(number))
    started_s = world.scheduler.now_s
    world.change(replicas=[1, 2, 3], adding_replicas=[3])
    in_sync(world, 1, 2, 3)
    taken_s = world.scheduler.now_s - started_s
    assert 4 < taken_s < 10, "6 MB at 1 MB/s"
    started_s = world.scheduler.now_s
    for number in range(20):
        write(world, 1, big(number))
    assert world.scheduler.now_s - started_s < 2, "replicas in sync are not throttled"


# -- another number of fetchers ------------------------------------------------------------------------------


def set_fetchers(world: World, broker_id: int, number: int) -> None:
    config, _ = load_broker_config({"log.dirs": "data", "num.replica.fetchers": str(number)})
    fetchers = world[broker_id].replicas._fetchers
    world._run_in(world[broker_id], lambda: fetchers.reconfigure(config))


def loops_in_use(world: World, broker_id: int) -> set[tuple[int, int]]:
    """Leader and number of each loop that follows a partition."""
    return {slot for slot, loop in world[broker_id].replicas._fetchers._loops.items() if not loop.is_empty}


@pytest.mark.parametrize("flush_messages", ["1", "9223372036854775807"])
def test_partitions_move_to_another_number_of_fetchers_and_are_copied_on(
    make_world: MakeWorld, flush_messages: str
) -> None:
    world = make_world()
    world.start()
    world.create_topic(partitions=4, flush_messages=flush_messages)
    world.settle()
    assert loops_in_use(world, 2) == {(1, 0)}
    for number, expected in ((2, {(1, 0), (1, 1)}), (3, {(1, 0), (1, 1), (1, 2)}), (1, {(1, 0)})):
        write(world, 1, b"before %d" % number)
        set_fetchers(world, 2, number)
        world.until(lambda expected=expected: loops_in_use(world, 2) == expected, f"{number} loops")  # type: ignore[misc]
        write(world, 1, b"after %d" % number)
    world.until(lambda: world[2].values() == world[1].values(), "copies of everything")
    assert set(world[2].replicas._fetchers._loops) == {(1, 0)}, "the others are closed"
    assert set(world.partition_image().isr) == {1, 2, 3}


def test_log_that_is_being_cut_stays_with_its_fetcher_until_that_is_done(world: World) -> None:
    fetchers = world[2].replicas._fetchers
    (loop,) = fetchers._loops.values()
    (followed,) = loop._followed.values()
    followed.machine.state = FetchState.TRUNCATING
    set_fetchers(world, 2, 7)
    write(world, 1, b"unseen", acks=1)
    world.settle()
    assert loops_in_use(world, 2) == {(1, 0)}

    def cut() -> None:
        followed.machine.truncated()
        loop._due[followed.key] = None
        loop.go_on()

    world._run_in(world[2], cut)
    world.until(lambda: world[2].values() == [b"unseen"], "a copy")
