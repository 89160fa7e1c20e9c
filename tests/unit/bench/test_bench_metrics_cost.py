"""What is taken out to measure the cost of counting is what counts, and nothing else."""

from __future__ import annotations

import importlib
from random import Random

from bench.uncounted import STRIPPED_MIN, copies


def test_it_finds_what_counts_on_the_way_of_a_request() -> None:
    importlib.import_module("tidemill.broker.node")
    made = copies(Random(0))
    assert len(made.stripped) >= STRIPPED_MIN
    assert any(statement.endswith("counts.bytes_in += size") for statement in made.stripped)
    names = {function.__qualname__ for function in made.uncounted}
    assert {"Call.finish", "Dispatcher.dispatch", "Appender.append"} <= names
    assert made.counting.keys() == made.control.keys() == made.uncounted.keys()
    for function, without in made.uncounted.items():
        counting, control, code = made.counting[function], made.control[function], function.__code__
        # Two copies that say the same, and a shorter one; nothing is exchanged yet, and the arguments are those of all.
        assert counting.co_code == control.co_code
        assert len(without.co_code) < len(counting.co_code)
        assert len({id(each) for each in (counting, control, without, code)}) == 4
        for each in (counting, without):
            assert each.co_varnames[: each.co_argcount] == code.co_varnames[: code.co_argcount]
