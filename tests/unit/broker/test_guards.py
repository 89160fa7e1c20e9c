"""A marker voids a verification of its transaction that is still in flight."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemill.broker.partitions.appending.guards import Guards
from tidemill.errors import ErrorCode
from tidemill.log.producer_state.producers import Producers
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.records import (
    TRANSACTIONAL,
    BatchHeader,
    InvalidBatch,
    Record,
    build_batch,
    split_batches,
    with_named_partition,
)

PRODUCER = 7
EPOCH = 5


@pytest.mark.parametrize(
    ("marker_epoch", "transaction_version", "is_void"),
    [
        # Each end bumps the epoch: this is the end of the transaction before, its producer has gone on.
        (EPOCH, 2, False),
        (EPOCH - 1, 2, False),
        (EPOCH + 1, 2, True),
        # An epoch that stays the same tells nothing apart (failure 6).
        (EPOCH, 0, True),
        (EPOCH + 1, 0, True),
    ],
)
def test_failure_06_a_marker_voids_what_was_confirmed_of_its_transaction(
    marker_epoch: int, transaction_version: int, is_void: bool
) -> None:
    guards = Guards(cast(Any, None))
    guard = guards.enter(PRODUCER, EPOCH, sequence=0, adds=transaction_version >= 2)
    guards.ended(
        TransactionEnd(PRODUCER, marker_epoch, 0, is_commit=True, transaction_version=transaction_version)
    )
    assert guards.is_present(PRODUCER, guard) is not is_void
    guards.ended(TransactionEnd(PRODUCER + 1, EPOCH + 9, 0, is_commit=True))
    assert guards.is_present(PRODUCER, guard) is not is_void


def _header(sequence: int, named_partition: int = 0) -> BatchHeader:
    batch = build_batch(
        [Record(0, 0, b"k", b"v")],
        producer_id=PRODUCER,
        producer_epoch=EPOCH,
        base_sequence=sequence,
        attributes=with_named_partition(TRANSACTIONAL, named_partition),
    )
    (header,) = split_batches(memoryview(batch))
    return header


@pytest.mark.parametrize(("refused", "code"), [(1, None), (0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)])
def test_failure_43_passed_on_batch_that_was_refused_says_nothing_of_the_partition_itself(
    refused: int, code: ErrorCode | None
) -> None:
    """Found by seed 100645: a shrink was taken back, and the batch for the other partition was refused."""
    producers = Producers()
    producers.record(_header(17))
    log = SimpleNamespace(producers=producers)
    producers.record_end(TransactionEnd(PRODUCER, EPOCH, 0, is_commit=True), 1, 0)
    guards = Guards(cast(Any, SimpleNamespace(writable_log=log)))
    guards.guard_for(_header(7, named_partition=refused), adds=False)
    own = _header(18)
    guard = guards.guard_for(own, adds=False)
    found: ErrorCode | None = None
    try:
        guards.duplicate_of(producers, own, guard)
    except InvalidBatch as error:
        found = error.code
    assert found == code
