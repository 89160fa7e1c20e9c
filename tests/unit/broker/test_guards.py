"""A marker voids a verification of its transaction that is still in flight."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tidemill.broker.partitions.appending.guards import Guards
from tidemill.log.transactions import TransactionEnd

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
