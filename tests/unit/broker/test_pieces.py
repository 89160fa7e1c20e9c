"""Requests over many entries are answered in pieces, whose answers are joined."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tidemill.broker.requests import handlers
from tidemill.broker.requests.api_table import TABLE, Api
from tidemill.broker.requests.pieces import Entries, PieceTurns, answer_in_pieces
from tidemill.protocol import api as apis
from tidemill.protocol.api.groups import (
    DescribeGroupsDescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidemill.protocol.declarations import field_specs
from tidemill.protocol.schema import Request, encode, encode_in_steps
from tidemill.protocol.steps import run_steps

assert handlers  # importing them fills the table

ENTRIES = Entries("groups", "groups", piece_size=10)


class _Described:
    """A handler, and how many entries each of its calls had."""

    def __init__(self, turns: PieceTurns) -> None:
        self.turns = turns
        self.calls: list[Sequence[str]] = []
        self.is_wanted = True

    def _serve(self, request: Request) -> DescribeGroupsResponse:
        assert isinstance(request, DescribeGroupsRequest)
        self.calls.append(request.groups)
        return DescribeGroupsResponse(
            groups=[DescribeGroupsDescribedGroup(group_id=each) for each in dict.fromkeys(request.groups)]
        )

    async def answer(self, names: list[str]) -> list[str]:
        request = DescribeGroupsRequest(groups=names)
        response = await answer_in_pieces(self.turns, ENTRIES, request, self._serve, lambda: self.is_wanted)
        assert isinstance(response, DescribeGroupsResponse)
        return [each.group_id for each in response.groups]


async def test_answers_are_joined_in_order() -> None:
    names = [f"g{number}" for number in range(95)]
    handler = _Described(PieceTurns())
    assert await handler.answer(names) == names
    assert [len(each) for each in handler.calls] == [10] * 9 + [5]


async def test_entries_about_the_same_are_in_one_piece() -> None:
    names = [f"g{number}" for number in range(30)]
    handler = _Described(PieceTurns())
    assert await handler.answer([*names, *names]) == names
    assert all(
        set(first).isdisjoint(second) for first, second in zip(handler.calls, handler.calls[1:], strict=False)
    )


async def test_a_short_list_does_not_wait_for_the_end_of_a_long_one() -> None:
    turns = PieceTurns()
    long, short = _Described(turns), _Described(turns)
    other = asyncio.ensure_future(long.answer([f"g{number}" for number in range(10_000)]))
    await asyncio.sleep(0)
    await short.answer([f"g{number}" for number in range(30)])
    assert not other.done()
    assert len(long.calls) <= len(short.calls) + 2
    other.cancel()


async def test_the_rest_is_given_up_when_the_client_is_gone() -> None:
    handler = _Described(PieceTurns())
    handler.is_wanted = False
    await handler.answer([f"g{number}" for number in range(1_000)])
    assert len(handler.calls) == 1


@pytest.mark.parametrize("api", [each for each in TABLE.values() if each.entries], ids=lambda each: each.name)
def test_declared_lists_exist(api: Api) -> None:
    assert api.entries is not None
    assert api.entries.asked in {spec.name for spec in field_specs(api.request)}
    assert api.entries.answered in {spec.name for spec in field_specs(apis.RESPONSES[api.key])}


def test_a_long_answer_is_encoded_in_many_steps() -> None:
    response = DescribeGroupsResponse(
        groups=[DescribeGroupsDescribedGroup(group_id="g" * 100) for _ in range(10_000)]
    )
    assert sum(1 for _ in encode_in_steps(response, 5)) > 50
    assert run_steps(encode_in_steps(response, 5)) == encode(response, 5)
