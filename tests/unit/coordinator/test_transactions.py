"""The transactions machine, where a transcript is no good form: numbered failures, tables, formats, limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.scenarios.transactions_world import MemoryLog, World
from tidemill.config import TransactionsConfig, load_broker_config
from tidemill.coordinator.shard import RawRecord, Writer
from tidemill.coordinator.transactions.machine import MarkersWritten, WriteMarkers
from tidemill.coordinator.transactions.records import TransactionRecord, decode, encode
from tidemill.coordinator.transactions.rules import Ending, bumping_ending
from tidemill.coordinator.transactions.transaction import (
    EPOCH_BUMP_SINCE,
    Producer,
    Transaction,
    TransactionState,
)
from tidemill.errors import ApiError, ErrorCode, ProtocolError
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from tidemill.protocol.coordinator_responses import error_response
from tidemill.protocol.schema import Request
from tidemill.types import ProducerEpoch, TopicPartition

ORDERS = TopicPartition("orders", 0)


def init(world: World, transactional_id: str = "tx", **fields: Any) -> Any:
    fields.setdefault("transaction_timeout_ms", 60_000)
    return world.answer(InitProducerIdRequest(transactional_id=transactional_id, **fields), 5)


def add(world: World, epoch: int, *partitions: TopicPartition) -> ErrorCode:
    topics = [AddPartitionsToTxnTopic(name=topic, partitions=[index]) for topic, index in partitions]
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="tx", producer_id=1000, producer_epoch=epoch, topics=topics
    )
    response = world.answer(AddPartitionsToTxnRequest(transactions=[transaction]))
    (code,) = {
        each.partition_error_code
        for topic in response.results_by_transaction[0].topic_results
        for each in topic.results_by_partition
    }
    return ErrorCode(code)


def end(world: World, epoch: int, *, commit: bool, version: int = 5) -> Any:
    request = EndTxnRequest(transactional_id="tx", producer_id=1000, producer_epoch=epoch, committed=commit)
    return world.answer(request, version)


def state(world: World) -> TransactionState:
    return world.machine.transactions["tx"].state


def test_failure_07_a_delayed_end_never_decides_a_later_transaction() -> None:
    world = World()
    init(world)
    add(world, 0, ORDERS)
    assert end(world, 0, commit=True).error_code == ErrorCode.NONE
    world.write_markers()
    add(world, 1, ORDERS)
    for commit in (True, False):
        assert end(world, 0, commit=commit).error_code == ErrorCode.PRODUCER_FENCED
    assert state(world) is TransactionState.ONGOING
    world.move_coordinator()
    assert end(world, 0, commit=True).error_code == ErrorCode.PRODUCER_FENCED
    assert end(world, 1, commit=False).error_code == ErrorCode.NONE
    world.write_markers()
    assert end(world, 0, commit=True).error_code == ErrorCode.PRODUCER_FENCED
    assert state(world) is TransactionState.COMPLETE_ABORT


def test_failure_12_a_confirmed_partition_is_known_to_the_next_coordinator() -> None:
    world = World()
    init(world)
    assert add(world, 0, ORDERS) is ErrorCode.NONE
    world.move_coordinator(loses_uncommitted=True)
    assert world.machine.transactions["tx"].partitions == {ORDERS: None}
    world.advance(80_000)
    (wanted,) = world.markers.values()
    assert wanted.partitions == (ORDERS,)
    assert not wanted.end.is_commit


def test_failure_28_a_transaction_that_a_clock_ahead_began_times_out_under_one_that_is_right() -> None:
    world = World(steady_ms=3_600_000)
    init(world)
    add(world, 0, ORDERS)
    world.steady_ms = 0
    world.move_coordinator()
    world.advance(59_000)
    assert state(world) is TransactionState.ONGOING
    world.advance(12_000)
    assert state(world) is TransactionState.PREPARE_ABORT


def test_a_partition_is_not_confirmed_before_its_record_is_committed() -> None:
    world = World(holds_commits=False)
    init(world)
    world.holds_commits = True
    topics = [AddPartitionsToTxnTopic(name="orders", partitions=[0])]
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="tx", producer_id=1000, producer_epoch=0, topics=topics
    )
    token = world.ask("c", AddPartitionsToTxnRequest(transactions=[transaction]))
    assert token in world.asked
    world.release_commits()
    assert token not in world.asked


def verification(transactional_id: str, producer_id: int, epoch: int) -> AddPartitionsToTxnRequest:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        verify_only=True,
        topics=[AddPartitionsToTxnTopic(name="orders", partitions=[0])],
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


@pytest.mark.parametrize(
    "refused",
    [
        verification("unknown", 1001, 0),
        verification("tx", 1001, 0),
        verification("tx", 1000, 1),
        EndTxnRequest(transactional_id="unknown", producer_id=1001, producer_epoch=0, committed=True),
        EndTxnRequest(transactional_id="tx", producer_id=1000, producer_epoch=5, committed=True),
        EndTxnRequest(transactional_id="tx", producer_id=1000, producer_epoch=0, committed=True),
        AddOffsetsToTxnRequest(transactional_id="unknown", producer_id=1001, producer_epoch=0, group_id="g"),
        InitProducerIdRequest(
            transactional_id="tx", transaction_timeout_ms=60_000, producer_id=7, producer_epoch=3
        ),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_coordinator_that_was_replaced_gives_out_no_final_refusal(refused: Request) -> None:
    """The successor may know the producer. Only a commit proves that there is no successor."""
    world = World()
    init(world)
    known = dict(world.machine.transactions)
    world.holds_commits = True
    token = world.ask("c", refused)
    assert token in world.asked
    assert world.machine.transactions == known
    world.release_commits()
    assert token not in world.asked


def test_markers_are_wanted_only_when_the_decision_is_committed() -> None:
    world = World()
    init(world)
    add(world, 0, ORDERS)
    world.holds_commits = True
    world.ask("c", EndTxnRequest(transactional_id="tx", producer_id=1000, producer_epoch=0, committed=True))
    assert not world.markers
    world.release_commits()
    assert world.markers == {
        "tx": WriteMarkers("tx", TransactionEnd(1000, 1, world.coordinator_epoch, True, 2), (ORDERS,))
    }
    assert world.markers["tx"].written == MarkersWritten("tx", 1000, ProducerEpoch(1))


def test_decision_not_committed_at_load_gets_its_markers_when_it_is_committed() -> None:
    world = World()
    init(world)
    add(world, 0, ORDERS)
    end(world, 0, commit=True)
    world.shard.fail(ErrorCode.NOT_COORDINATOR)
    world.markers.clear()
    records = list(world.log.records)
    world.shard = world.load(committed_offset=len(records) - 1)
    world.shard.tick(world.steady_ms)
    assert not world.markers
    world.shard.committed(len(records))
    assert world.markers["tx"].end.is_commit


# State of the transaction at 7:3, previous producer id, what EndTxn 5 of each kind gives.
_S = TransactionState
ENDS = [
    (_S.EMPTY, (7, 3), False, Ending.END),
    (_S.EMPTY, (7, 3), True, ErrorCode.INVALID_TXN_STATE),
    (_S.EMPTY, (7, 2), False, ErrorCode.PRODUCER_FENCED),
    (_S.EMPTY, (7, 2), True, ErrorCode.PRODUCER_FENCED),
    (_S.ONGOING, (7, 3), False, Ending.END),
    (_S.ONGOING, (7, 3), True, Ending.END),
    (_S.ONGOING, (7, 2), True, ErrorCode.PRODUCER_FENCED),
    (_S.ONGOING, (7, 4), False, ErrorCode.PRODUCER_FENCED),
    (_S.ONGOING, (8, 3), False, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    (_S.PREPARE_COMMIT, (7, 2), True, ErrorCode.CONCURRENT_TRANSACTIONS),
    (_S.PREPARE_ABORT, (8, 9), True, ErrorCode.CONCURRENT_TRANSACTIONS),
    (_S.COMPLETE_COMMIT, (7, 2), True, Ending.RETRY),
    (_S.COMPLETE_COMMIT, (7, 2), False, ErrorCode.INVALID_TXN_STATE),
    (_S.COMPLETE_COMMIT, (7, 3), True, ErrorCode.INVALID_TXN_STATE),
    (_S.COMPLETE_COMMIT, (7, 3), False, Ending.END),
    (_S.COMPLETE_COMMIT, (7, 1), True, ErrorCode.PRODUCER_FENCED),
    (_S.COMPLETE_ABORT, (7, 2), False, Ending.RETRY),
    (_S.COMPLETE_ABORT, (7, 2), True, ErrorCode.INVALID_TXN_STATE),
    (_S.COMPLETE_ABORT, (7, 3), True, ErrorCode.INVALID_TXN_STATE),
    (_S.COMPLETE_ABORT, (7, 3), False, Ending.END),
    (_S.COMPLETE_ABORT, (8, 2), False, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
]


@pytest.mark.parametrize(("before", "producer", "is_commit", "expected"), ENDS)
def test_ends_that_bump_the_epoch(
    before: TransactionState, producer: tuple[int, int], is_commit: bool, expected: Ending | ErrorCode
) -> None:
    transaction = Transaction(
        "tx", 7, ProducerEpoch(3), 60_000, 0, state=before, start_ms=0, client_version=EPOCH_BUMP_SINCE
    )
    if isinstance(expected, Ending):
        assert (
            bumping_ending(
                transaction, Producer(producer[0], ProducerEpoch(producer[1])), is_commit=is_commit
            )
            is expected
        )
        return
    with pytest.raises(ApiError) as raised:
        bumping_ending(transaction, Producer(producer[0], ProducerEpoch(producer[1])), is_commit=is_commit)
    assert raised.value.code is expected


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_under_the_epoch_before_is_no_retry_when_the_last_end_did_not_bump(is_commit: bool) -> None:
    """The last transaction was an old client's. A producer with the epoch before was fenced when it began."""
    state = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
    transaction = Transaction("tx", 7, ProducerEpoch(3), 60_000, 0, state=state, start_ms=0, client_version=0)
    with pytest.raises(ApiError) as raised:
        bumping_ending(transaction, Producer(7, ProducerEpoch(2)), is_commit=is_commit)
    assert raised.value.code is ErrorCode.PRODUCER_FENCED


def test_records_are_kafkas() -> None:
    """The bytes are those of the schema of Kafka 4.3."""
    partitions = {TopicPartition("orders", 1): None, TopicPartition("orders", 3): None}
    transaction = Transaction(
        "t",
        producer_id=5,
        producer_epoch=ProducerEpoch(2),
        timeout_ms=60_000,
        last_update_ms=258,
        state=TransactionState.ONGOING,
        partitions=partitions,
        start_ms=257,
        previous_producer_id=5,
        client_version=2,
    )
    key, value = encode(TransactionRecord("t", transaction), 2)
    assert key == bytes.fromhex("0000000174")
    assert value == bytes.fromhex(
        "0001" "0000000000000005" "0002" "0000ea60" "01"
        "02" "07" "6f7264657273" "03" "00000001" "00000003" "00"
        "0000000000000102" "0000000000000101"
        "02" "00" "08" "0000000000000005" "02" "02" "0002"
    )  # fmt: skip
    assert decode(key, value) == TransactionRecord("t", transaction)


def test_a_record_of_version_0_has_no_room_for_ids_and_an_empty_one_no_partitions() -> None:
    transaction = Transaction("t", 5, ProducerEpoch(2), 60_000, 258, previous_producer_id=4, client_version=0)
    key, value = encode(TransactionRecord("t", transaction), 0)
    assert value == bytes.fromhex(
        "0000000000000000000500020000ea6000ffffffff0000000000000102ffffffffffffffff"
    )
    decoded = decode(key, value)
    assert decoded is not None
    assert decoded.transaction is not None
    assert decoded.transaction.previous_producer_id == -1


def test_tombstones_and_records_of_other_kinds() -> None:
    key, value = encode(TransactionRecord("t", None), 2)
    assert value is None
    assert decode(key, None) == TransactionRecord("t", None)
    assert decode(b"\x00\x07abc", b"") is None
    with pytest.raises(ProtocolError):
        decode(b"\x00", b"")


def test_many_expired_ids_are_removed_in_batches_of_a_bounded_size() -> None:
    world = World(config=TransactionsConfig(transactional_id_expiration_ms=1))
    for number in range(40):
        assert init(world, f"{number}-" + "x" * 1_000).error_code == ErrorCode.NONE
    batches: list[int] = []

    class CountingLog(MemoryLog):
        def append(self, records: Sequence[RawRecord], steady_ms: int, writer: Writer | None = None) -> int:
            batches.append(len(records))
            return super().append(records, steady_ms, writer)

    log = CountingLog()
    log.records = world.log.records
    world.log = log
    world.move_coordinator()
    world.advance(3_600_000)
    assert not world.machine.transactions
    assert sum(batches) == 40
    assert max(batches) <= 17


def test_a_sleeping_machine_has_two_timers_only() -> None:
    world = World()
    for number in range(5):
        init(world, str(number))
    assert world.shard.deadline_ms == 10_000
    world.advance(10_000)
    assert world.shard.deadline_ms == 20_000


REQUESTS: list[tuple[Request, int, int]] = [
    (InitProducerIdRequest(), 4, 3),
    (AddOffsetsToTxnRequest(), 2, 1),
    (EndTxnRequest(), 2, 1),
]


@pytest.mark.parametrize(("request_", "since", "before"), REQUESTS)
def test_older_clients_know_no_fencing(request_: Request, since: int, before: int) -> None:
    fenced = error_response(request_, since, ErrorCode.PRODUCER_FENCED)
    older = error_response(request_, before, ErrorCode.PRODUCER_FENCED)
    assert fenced.error_code == ErrorCode.PRODUCER_FENCED  # type: ignore[attr-defined]
    assert older.error_code == ErrorCode.INVALID_PRODUCER_EPOCH  # type: ignore[attr-defined]


def test_errors_for_the_whole_request() -> None:
    describe = error_response(
        DescribeTransactionsRequest(transactional_ids=["a", "b"]), 0, ErrorCode.NOT_COORDINATOR
    )
    assert [(each.transactional_id, each.error_code) for each in describe.transaction_states] == [  # type: ignore[attr-defined]
        ("a", ErrorCode.NOT_COORDINATOR),
        ("b", ErrorCode.NOT_COORDINATOR),
    ]
    listed = error_response(ListTransactionsRequest(), 1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert listed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # type: ignore[attr-defined]
    init_error = error_response(InitProducerIdRequest(), 5, ErrorCode.NOT_COORDINATOR)
    assert (init_error.producer_id, init_error.producer_epoch) == (-1, -1)  # type: ignore[attr-defined]


def test_configuration() -> None:
    names = {
        "transaction.max.timeout.ms": "111000",
        "transactional.id.expiration.ms": "222000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "333",
        "transaction.two.phase.commit.enable": "true",
        "transaction.state.log.num.partitions": "7",
    }
    config, warnings = load_broker_config(names)
    assert config.transactions.transaction_max_timeout_ms == 111_000
    assert config.transactions.transactional_id_expiration_ms == 222_000
    assert config.transactions.transaction_abort_timed_out_transaction_cleanup_interval_ms == 333
    assert config.transactions.transaction_two_phase_commit_enable
    assert config.transactions.transaction_state_log_num_partitions == 7
    assert not warnings
    assert load_broker_config({})[0].transactions == TransactionsConfig()
