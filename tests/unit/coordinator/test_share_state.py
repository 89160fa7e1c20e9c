"""The share state machine: epochs that fence, states that merge, snapshots, and what is pruned."""

from __future__ import annotations

import pytest

from tests.unit.coordinator.share_states import KEY, OTHER, TOPIC, World
from tidemill.coordinator.share_state.machine import (
    Delete,
    Initialize,
    Read,
    ReadSummary,
    TopicsDeleted,
    Write,
)
from tidemill.coordinator.share_state.records import decode
from tidemill.errors import ErrorCode
from tidemill.protocol.api.coordinator_records import ShareSnapshotValue, ShareUpdateValue
from tidemill.protocol.share_state import (
    NO_CREATION_OFFSET,
    NO_START_OFFSET,
    SharePartitionKey,
    ShareState,
    ShareStateChange,
    ShareStateSummary,
    StateBatch,
)
from tidemill.types import TopicId, uuid_text

AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED = 0, 2, 3, 4
MINUTE_MS = 60_000


def write(
    world: World,
    *batches: StateBatch,
    epoch: int = 0,
    start: int = -1,
    state_epoch: int = 1,
    creation_offset: int = NO_CREATION_OFFSET,
) -> object:
    change = ShareStateChange(state_epoch, epoch, start, batches, creation_offset=creation_offset)
    return world.ask(Write(KEY, change))


def read(world: World, epoch: int = 0) -> ShareState:
    state = world.ask(Read(KEY, epoch))
    assert isinstance(state, ShareState), state
    return state


@pytest.fixture
def world() -> World:
    world = World()
    assert world.ask(Initialize(KEY, 1, 0)) is None
    return world


def kinds(world: World) -> list[str]:
    found = []
    for key, value in world.log:
        record = decode(key, value)
        assert record is not None
        match record.value:
            case ShareSnapshotValue():
                found.append("snapshot")
            case ShareUpdateValue():
                found.append("update")
            case None:
                found.append("tombstone")
    return found


def test_written_batches_are_read(world: World) -> None:
    write(world, StateBatch(0, 4, ACKNOWLEDGED, 1), StateBatch(5, 6, AVAILABLE, 1))
    assert read(world) == ShareState(
        1, 0, (StateBatch(0, 4, ACKNOWLEDGED, 1), StateBatch(5, 6, AVAILABLE, 1)), creation_offset=0
    )


def test_larger_delivery_count_wins_over_later_write(world: World) -> None:
    write(world, StateBatch(0, 0, AVAILABLE, 2))
    write(world, StateBatch(0, 0, ACKNOWLEDGED, 1))
    assert read(world).batches == (StateBatch(0, 0, AVAILABLE, 2),)


def test_start_offset_never_moves_back(world: World) -> None:
    write(world, StateBatch(0, 9, ACKNOWLEDGED, 1), start=10)
    write(world, StateBatch(3, 3, AVAILABLE, 1), start=3)
    assert read(world) == ShareState(1, 10, (), creation_offset=0)


def test_read_fences_older_leaders(world: World) -> None:
    read(world, epoch=5)
    assert write(world, StateBatch(0, 0, ACKNOWLEDGED, 1), epoch=4) is ErrorCode.FENCED_LEADER_EPOCH
    assert world.ask(Read(KEY, 4)) is ErrorCode.FENCED_LEADER_EPOCH
    assert write(world, StateBatch(0, 0, ACKNOWLEDGED, 1), epoch=5) is None
    world.fail_over()
    assert write(world, epoch=4) is ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize(
    "batch",
    [
        StateBatch(0, 4, 1, 1),
        StateBatch(0, 4, 126, 1),
        StateBatch(0, 4, -1, 1),
        StateBatch(0, 4, ACKNOWLEDGED, -1),
        StateBatch(4, 3, ACKNOWLEDGED, 1),
        StateBatch(-1, 3, ACKNOWLEDGED, 1),
    ],
)
def test_batch_that_no_leader_could_read_back_is_not_stored(world: World, batch: StateBatch) -> None:
    assert write(world, StateBatch(5, 6, ACKNOWLEDGED, 1), batch) is ErrorCode.INVALID_REQUEST
    assert read(world).batches == ()


def test_fence_of_older_leaders_outlives_an_initialisation_the_pruned_log_and_the_coordinator() -> None:
    world = World(state_topic_prune_interval_ms=MINUTE_MS)
    world.ask(Initialize(KEY, 1, 0))
    read(world, epoch=3)
    assert world.ask(Initialize(KEY, 2, 5)) is None
    initialised = world.end_offset - 1
    # What is left is the initialisation itself, and later a snapshot of a state that was idle.
    for passed_ms in (MINUTE_MS, 10 * MINUTE_MS, MINUTE_MS):
        world.pass_time(passed_ms)
        assert world.start_offset >= initialised, "the log is pruned"
        world.fail_over()
        assert write(world, epoch=2, state_epoch=2) is ErrorCode.FENCED_LEADER_EPOCH
    assert world.start_offset > initialised
    assert write(world, StateBatch(5, 5, ACKNOWLEDGED, 1), epoch=3, state_epoch=2) is None


def test_new_state_epoch_fences_writers_of_the_old_one(world: World) -> None:
    write(world, StateBatch(0, 0, ACKNOWLEDGED, 1))
    assert world.ask(Initialize(KEY, 2, 7)) is None
    assert write(world, StateBatch(1, 1, ACKNOWLEDGED, 1)) is ErrorCode.FENCED_STATE_EPOCH
    assert world.ask(Initialize(KEY, 1, 0)) is ErrorCode.FENCED_STATE_EPOCH
    assert read(world) == ShareState(2, 7, (), creation_offset=0)


def test_state_that_is_deleted_and_created_fences_writers_of_the_old_one() -> None:
    """The epochs of a new group are those of the old one. The fence outlives the pruned log and the coordinator."""
    world = World(state_topic_prune_interval_ms=MINUTE_MS)
    world.ask(Initialize(KEY, 1, 0))
    old = read(world).creation_offset
    assert write(world, StateBatch(0, 0, ACKNOWLEDGED, 1), creation_offset=old) is None
    world.ask(Delete(KEY))
    world.ask(Initialize(KEY, 1, 0))
    new = read(world).creation_offset
    for passed_ms in (0, MINUTE_MS, 10 * MINUTE_MS, MINUTE_MS):
        world.pass_time(passed_ms)
        world.fail_over()
        late = write(world, StateBatch(1, 1, ACKNOWLEDGED, 1), creation_offset=old)
        assert late is ErrorCode.FENCED_STATE_EPOCH
        assert write(world, StateBatch(2, 2, ACKNOWLEDGED, 1), creation_offset=new) is None
        assert world.ask(ReadSummary(KEY)) == ShareStateSummary(1, 0, 0, 0, creation_offset=new)
    assert world.start_offset > new, "the log is pruned"
    assert read(world) == ShareState(1, 0, (StateBatch(2, 2, ACKNOWLEDGED, 1),), creation_offset=new)


def test_repeated_initialisation_keeps_what_was_acknowledged_since(world: World) -> None:
    write(world, StateBatch(0, 0, ACKNOWLEDGED, 1), start=0)
    assert world.ask(Initialize(KEY, 1, 0)) is None
    assert world.ask(Initialize(KEY, 1, NO_START_OFFSET)) is None
    assert read(world).batches == (StateBatch(0, 0, ACKNOWLEDGED, 1),)


def test_initialisation_with_another_start_offset_begins_anew(world: World) -> None:
    write(world, StateBatch(0, 0, ACKNOWLEDGED, 1))
    assert world.ask(Initialize(KEY, 1, 3)) is None
    assert read(world) == ShareState(1, 3, (), creation_offset=0)


def test_answer_waits_for_the_commit(world: World) -> None:
    world.is_holding = True
    assert write(world, StateBatch(0, 0, ACKNOWLEDGED, 1)) == "waits"
    assert world.ask(Read(KEY, 0)) == "waits"


@pytest.mark.parametrize("request_", [Read(KEY, 0), Read(OTHER, 0), Delete(OTHER)])
def test_replaced_coordinator_answers_nothing_final(world: World, request_: object) -> None:
    """Its records are not committed: another coordinator may know more."""
    world.is_holding = True
    assert world.ask(request_) == "waits"


def test_state_that_was_never_initialised(world: World) -> None:
    assert world.ask(Read(OTHER, 0)) is ErrorCode.INVALID_REQUEST
    assert world.ask(Write(OTHER, ShareStateChange(1, 0, 0))) is ErrorCode.INVALID_REQUEST
    assert world.ask(ReadSummary(OTHER)) == ShareStateSummary(0, 0, -1, -1)
    assert world.ask(Delete(OTHER)) is None


@pytest.mark.parametrize(
    ("partition", "error"),
    [(-1, ErrorCode.INVALID_REQUEST), (2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
)
def test_partition_that_does_not_exist(world: World, partition: int, error: ErrorCode) -> None:
    key = KEY._replace(partition=partition)
    assert world.ask(Initialize(key, 1, 0)) is error
    assert world.ask(Delete(key)) is error
    assert world.ask(ReadSummary(key)) is error


def test_deleted_state_is_gone_and_begins_anew(world: World) -> None:
    write(world, StateBatch(0, 0, ACKNOWLEDGED, 1))
    assert world.ask(Delete(KEY)) is None
    assert world.ask(Read(KEY, 0)) is ErrorCode.INVALID_REQUEST
    assert world.ask(Initialize(KEY, 0, 5)) is None
    assert read(world) == ShareState(0, 5, (), creation_offset=world.end_offset - 2)


def test_summary_has_the_count_of_the_largest_start_offset(world: World) -> None:
    world.ask(Write(KEY, ShareStateChange(1, 0, 10, (), 3)))
    world.ask(Write(KEY, ShareStateChange(1, 0, 5, (), 9)))
    read(world, epoch=4)
    assert world.ask(ReadSummary(KEY)) == ShareStateSummary(1, 4, 10, 3, creation_offset=0)


def test_snapshot_follows_the_configured_number_of_updates() -> None:
    world = World(snapshot_update_records_per_snapshot=2)
    world.ask(Initialize(KEY, 1, 0))
    for offset in range(4):
        write(world, StateBatch(offset, offset, ACKNOWLEDGED, 1))
    assert kinds(world) == ["snapshot", "update", "update", "snapshot", "update"]
    world.fail_over()
    assert read(world).batches == (StateBatch(0, 3, ACKNOWLEDGED, 1),)


def test_log_is_pruned_up_to_the_oldest_of_the_latest_snapshots() -> None:
    world = World(snapshot_update_records_per_snapshot=1)
    world.ask(Initialize(KEY, 1, 0))
    world.ask(Initialize(OTHER, 1, 0))
    for offset in range(5):
        write(world, StateBatch(offset, offset, ACKNOWLEDGED, 1))
    world.pass_time(5 * MINUTE_MS)
    # The other one has had no snapshot since: it got one, and everything before the writer's last one is redundant.
    world.pass_time(5 * MINUTE_MS)
    assert world.start_offset > 1
    world.check_replay()
    world.fail_over()
    assert read(world).batches == (StateBatch(0, 4, ACKNOWLEDGED, 1),)


def test_nothing_is_pruned_before_its_snapshot_is_committed() -> None:
    world = World(snapshot_update_records_per_snapshot=0)
    world.ask(Initialize(KEY, 1, 0))
    world.is_holding = True
    write(world, StateBatch(0, 0, ACKNOWLEDGED, 1))
    world.pass_time(5 * MINUTE_MS)
    assert world.start_offset == 0
    world.commit()
    assert world.start_offset > 0


def test_idle_states_get_one_more_snapshot_only(world: World) -> None:
    for _ in range(5):
        world.pass_time(6 * MINUTE_MS)
    assert kinds(world) == ["snapshot"]
    assert world.end_offset == 2


def test_letters_that_stay_owed_are_reported_until_they_are_written(world: World) -> None:
    write(world, StateBatch(0, 3, ACKNOWLEDGED, 1), StateBatch(4, 5, ARCHIVING, 5))
    world.pass_time(10_000)
    assert world.reminders == [], "the leader may be writing them"
    world.pass_time(10_000)
    assert world.reminders == [KEY]
    write(world, StateBatch(4, 4, ARCHIVED, 5))
    world.pass_time(10_000)
    assert world.reminders == [KEY, KEY]
    write(world, StateBatch(5, 5, ARCHIVED, 5))
    world.pass_time(MINUTE_MS)
    assert world.reminders == [KEY, KEY]


def test_next_share_coordinator_reports_letters_that_are_owed(world: World) -> None:
    write(world, StateBatch(0, 0, ARCHIVING, 5))
    world.fail_over()
    world.pass_time(10_000)
    world.pass_time(10_000)
    assert world.reminders == [KEY]
    world.ask(Delete(KEY))
    world.pass_time(MINUTE_MS)
    assert world.reminders == [KEY]


def test_reminders_of_many_share_partitions_take_turns() -> None:
    world = World()
    keys = [SharePartitionKey(f"group-{number}", TOPIC, 0) for number in range(100)]
    for key in keys:
        world.ask(Initialize(key, 1, 0))
        world.ask(Write(key, ShareStateChange(1, 0, -1, (StateBatch(0, 0, ARCHIVING, 5),))))
    for _ in range(3):
        world.pass_time(10_000)
    assert len(world.reminders) == 128
    assert set(world.reminders) == set(keys)


def test_states_of_deleted_topics_go(world: World) -> None:
    world.ask(Initialize(OTHER, 1, 0))
    world.topics.clear()
    world.ask(TopicsDeleted())
    world.pass_time(0)
    assert not world.machine.states
    assert kinds(world)[-2:] == ["tombstone", "tombstone"]


def test_states_of_topics_that_were_deleted_meanwhile_go_at_the_load(world: World) -> None:
    world.topics.clear()
    world.fail_over()
    assert not world.machine.states


def test_sweep_that_cannot_be_written_is_repeated(world: World) -> None:
    world.topics.clear()
    world.failure = ErrorCode.NOT_ENOUGH_REPLICAS
    world.ask(TopicsDeleted())
    world.pass_time(0)
    assert world.machine.states
    world.failure = None
    world.pass_time(1_000)
    assert not world.machine.states


@pytest.mark.parametrize("group_id", ["workers", "a:b", ":"])
def test_key_is_read_as_it_is_written(group_id: str) -> None:
    key = SharePartitionKey(group_id, TOPIC, 7)
    assert SharePartitionKey.parse(str(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "workers",
        f"workers:{uuid_text(TOPIC)}",
        f":{uuid_text(TOPIC)}:0",
        f" :{uuid_text(TOPIC)}:0",
        "workers:topic:0",
        f"workers:{uuid_text(TOPIC)}:",
        f"workers:{uuid_text(TOPIC)}:one",
        f"workers:{uuid_text(TOPIC)}:2147483648",
    ],
)
def test_bad_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        SharePartitionKey.parse(text)


def test_topic_id_of_a_key_is_raw_bytes() -> None:
    assert SharePartitionKey.parse(f"g:{uuid_text(TOPIC)}:0").topic_id == TopicId(TOPIC)


def test_a_refusal_of_a_state_that_does_not_exist_is_proved_by_a_small_record(world: World) -> None:
    """The name of the group may be long, and the request may name many partitions."""
    unknown = SharePartitionKey("g" * 32_000, TOPIC, 0)
    before = len(world.log)
    assert world.ask(Read(unknown, 0)) is ErrorCode.INVALID_REQUEST
    assert world.ask(Write(unknown, ShareStateChange(1, 0, 0))) is ErrorCode.INVALID_REQUEST
    written = world.log[before:]
    assert len(written) == 2, "a commit proves that this coordinator leads"
    assert all(len(key) < 100 and value is None for key, value in written)
    world.fail_over()
    assert isinstance(world.ask(Read(KEY, 0)), ShareState)
