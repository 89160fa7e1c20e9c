"""What is taken out to measure the cost of counting is what counts, and nothing else."""

from __future__ import annotations

import importlib

from bench.uncounted import STRIPPED_MIN, pairs


def test_it_finds_what_counts_on_the_way_of_a_request() -> None:
    importlib.import_module("tidemill.broker.node")
    found, stripped = pairs()
    assert len(stripped) >= STRIPPED_MIN
    assert any(statement.endswith("counts.bytes_in += size") for statement in stripped)
    names = {function.__qualname__ for function, _, _ in found}
    assert {"Call.finish", "Dispatcher.dispatch", "WritableReplica.append"} <= names
    for function, counting, without in found:
        # Nothing is exchanged yet, and the arguments are the same.
        assert function.__code__ is counting
        assert len(without.co_code) < len(counting.co_code)
        assert without.co_varnames[: without.co_argcount] == counting.co_varnames[: counting.co_argcount]
