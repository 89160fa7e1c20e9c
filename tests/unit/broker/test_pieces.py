"""Requests over many entries are answered in pieces, whose answers are joined."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tidemill.broker.requests import handlers
from tidemill.broker.requests.api_table import TABLE, Api
from tidemill.broker.requests.pieces import Entries, Inner, PieceTurns, answer_in_pieces
from tidemill.errors import ErrorCode
from tidemill.protocol import api as apis
from tidemill.protocol.api.groups import (
    DescribeGroupsDescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tidemill.protocol.declarations import ArrayOf, StructType, field_specs
from tidemill.protocol.schema import Request, decode_in_steps, encode, encode_in_steps
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


class _Committed:
    """A handler of commits: the partitions of each call, and from which call on they are refused."""

    def __init__(self, refused_from: int = 1_000) -> None:
        self.calls: list[list[tuple[str, int]]] = []
        self._refused_from = refused_from

    def serve(self, request: Request) -> OffsetCommitResponse:
        assert isinstance(request, OffsetCommitRequest)
        code = ErrorCode.NONE if len(self.calls) < self._refused_from else ErrorCode.ILLEGAL_GENERATION
        self.calls.append(
            [(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
        )
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    async def answer(self, counts: dict[str, int]) -> OffsetCommitResponse:
        topics = [
            OffsetCommitRequestTopic(
                name=name,
                partitions=[OffsetCommitRequestPartition(partition_index=index) for index in range(count)],
            )
            for name, count in counts.items()
        ]
        response = await answer_in_pieces(
            PieceTurns(), COMMITTED, OffsetCommitRequest(topics=topics), self.serve, lambda: True
        )
        assert isinstance(response, OffsetCommitResponse)
        return response


COMMITTED = Entries(
    "topics", "topics", lambda topic: topic.name, 10, Inner("partitions", "partitions"), decides_at_once=True
)


async def test_the_partitions_of_a_topic_are_cut_and_joined_again() -> None:
    handler = _Committed()
    response = await handler.answer({"a": 25, "b": 1, "c": 14})
    assert [(topic.name, len(topic.partitions)) for topic in response.topics] == [
        ("a", 25),
        ("b", 1),
        ("c", 14),
    ]
    assert [each.partition_index for each in response.topics[0].partitions] == list(range(25))
    assert [len(each) for each in handler.calls] == [10, 10, 10, 10]


async def test_a_refused_piece_is_refused_partition_by_partition() -> None:
    response = await _Committed(refused_from=2).answer({"a": 40})
    (topic,) = response.topics
    expected = [ErrorCode.NONE] * 20 + [ErrorCode.ILLEGAL_GENERATION] * 20
    assert [each.error_code for each in topic.partitions] == expected


async def test_an_error_about_the_whole_request_stands_alone() -> None:
    calls = 0

    def serve(_: Request) -> OffsetDeleteResponse:
        nonlocal calls
        calls += 1
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND if calls == 3 else 0)

    topics = [
        OffsetDeleteRequestTopic(
            name="a", partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in range(60)]
        )
    ]
    request = OffsetDeleteRequest(topics=topics)
    response = await answer_in_pieces(PieceTurns(), COMMITTED, request, serve, lambda: True)
    assert response == OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)


def test_a_list_of_short_entries_is_no_list_of_many() -> None:
    def has_many(partitions: int) -> bool:
        asked = [OffsetCommitRequestPartition() for _ in range(partitions)]
        topic = OffsetCommitRequestTopic(name="a", partitions=asked)
        return COMMITTED.is_more_than_a_piece(OffsetCommitRequest(topics=[topic]))

    assert not has_many(10)
    assert has_many(11)


@pytest.mark.parametrize("api", [each for each in TABLE.values() if each.entries], ids=lambda each: each.name)
def test_declared_lists_exist(api: Api) -> None:
    assert api.entries is not None
    assert api.entries.asked in {spec.name for spec in field_specs(api.request)}
    asked = {spec.name: spec.kind for spec in field_specs(api.request)}
    answered = {spec.name: spec.kind for spec in field_specs(apis.RESPONSES[api.key])}
    assert api.entries.answered in answered
    if api.entries.inner is not None:
        assert api.entries.inner.asked in _names_of_entries(asked[api.entries.asked])
        assert api.entries.inner.answered in _names_of_entries(answered[api.entries.answered])


def _names_of_entries(kind: object) -> set[str]:
    assert isinstance(kind, ArrayOf)
    assert isinstance(kind.element, StructType)
    return set(kind.element.__struct_defaults__)


def test_a_long_answer_is_encoded_in_many_steps() -> None:
    response = DescribeGroupsResponse(
        groups=[DescribeGroupsDescribedGroup(group_id="g" * 100) for _ in range(10_000)]
    )
    assert sum(1 for _ in encode_in_steps(response, 5)) > 50
    assert run_steps(encode_in_steps(response, 5)) == encode(response, 5)


def test_a_long_request_is_decoded_in_many_steps() -> None:
    request = DescribeGroupsRequest(groups=[f"group-{number}" for number in range(20_000)])
    raw = encode(request, 5)
    assert sum(1 for _ in decode_in_steps(DescribeGroupsRequest, 5, raw)) > 50
    assert run_steps(decode_in_steps(DescribeGroupsRequest, 5, raw)) == request


@pytest.mark.parametrize(
    "name", ["ElectLeaders", "AlterPartitionReassignments", "ListOffsets", "OffsetCommit"]
)
def test_a_topic_with_many_partitions_is_cut(name: str) -> None:
    """Each piece has as many partitions as it may, and together they have all of them."""
    (api,) = [each for each in TABLE.values() if each.name == name]
    assert api.entries is not None
    (topic_type,) = [
        spec.kind.element
        for spec in field_specs(api.request)
        if spec.name == api.entries.asked and isinstance(spec.kind, ArrayOf)
    ]
    (partition_type,) = [
        spec.kind.element
        for spec in field_specs(topic_type)  # type: ignore[arg-type]
        if spec.name == "partitions" and isinstance(spec.kind, ArrayOf)
    ]
    partitions: list[object] = list(range(1_000))
    if isinstance(partition_type, StructType):
        partitions = [partition_type(partition_index=index) for index in range(1_000)]
    topic = topic_type(partitions=partitions)  # type: ignore[operator]
    request = api.request(**{api.entries.asked: [topic]})
    assert api.entries.is_more_than_a_piece(request)
    pieces = [piece for piece in api.entries.pieces_of(request) if piece is not None]
    found = [getattr(piece, api.entries.asked)[0].partitions for piece in pieces]
    assert all(len(each) <= api.entries.piece_size for each in found)
    assert [each for piece in found for each in piece] == partitions
