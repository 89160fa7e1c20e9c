"""A reset stays inside of the log and names what it replaces."""

from __future__ import annotations

import pytest

from tidemill.cli.failures import UsageError
from tidemill.cli.groups.reset import Move, parse_topic, plan
from tidemill.types import TopicPartition

P0, P1, P2 = (TopicPartition("orders", index) for index in range(3))


def test_offsets_outside_of_the_log_move_to_its_nearest_end() -> None:
    moves = plan(
        {P2: 50, P0: -3, P1: 10},
        committed={P0: 6, P1: 7},
        starts={P0: 5, P1: 0, P2: 0},
        ends={P0: 9, P1: 20, P2: 40},
    )
    assert moves == [Move(P0, 6, 5), Move(P1, 7, 10), Move(P2, None, 40)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("orders", ("orders", [])), ("orders:0", ("orders", [0])), ("o:1,2", ("o", [1, 2]))],
)
def test_topic_argument_is_parsed(text: str, expected: tuple[str, list[int]]) -> None:
    assert parse_topic(text) == expected


@pytest.mark.parametrize("text", ["", ":1", "orders:", "orders:x", "orders:1,", "orders:-1"])
def test_invalid_topic_argument_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="--topic takes"):
        parse_topic(text)
