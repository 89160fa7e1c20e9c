"""The cases of transactions: what is compared with what."""

from __future__ import annotations

import pytest
from bench import transactions
from bench.cases import QUICK
from bench.connection import RequestFailedError
from bench.processes import Metrics
from bench.report import COLUMNS
from bench.run import CLUSTER, ONE_BROKER


def test_the_share_is_that_of_the_transactional_one() -> None:
    asked = []

    def stream(transactional_id: str | None) -> Metrics:
        asked.append(transactional_id)
        # A slow moment first.
        mb_per_s = (50.0, 150.0, 200.0)[len(asked) - 1]
        times = (
            {} if transactional_id is None else {"commit_p50_ms": 3.0, "commit_p99_ms": 9.0, "markers": 4.0}
        )
        return {"mb_per_s": mb_per_s, "broker_cpu_s_per_gb": mb_per_s / 100, **times}

    found = transactions.share(stream)
    assert [transactional_id is None for transactional_id in asked] == [True, False, True]
    assert (found["share_percent"], found["mb_per_s"], found["broker_cpu_s_per_gb"]) == (75.0, 150.0, 1.5)
    assert found.keys() <= COLUMNS.keys()


def test_no_two_rounds_share_a_transactional_id() -> None:
    assert len({transactions.transactional_id() for _ in range(100)}) == 100


def test_a_log_that_holds_more_than_was_sent_fails_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = iter([9, 10, 12])
    monkeypatch.setattr(transactions, "log_end_offset_sum", lambda *_: next(ends))
    transactions.check_log_end("a", "t", 10)
    with pytest.raises(RequestFailedError, match="12 in the log"):
        transactions.check_log_end("a", "t", 11)


@pytest.mark.parametrize(
    "make", [ONE_BROKER.families["transactions"], CLUSTER.families["replicated-transactions"]]
)
def test_both_kinds_have_both_sizes_and_single_records(make: object) -> None:
    assert callable(make)
    names = [case.name.split(",")[0] for case in make(QUICK)]
    assert names == ["1 KB messages", "100 B messages", "begin"]
