"""Requests to a machine's runtime: each gets its own answer, at once or later."""

from __future__ import annotations

import asyncio

import pytest

from tidemill.broker.machine_host import Requests


async def test_answer_of_a_request_that_failed_is_not_given_to_the_next_one() -> None:
    requests = Requests()
    tokens: list[int] = []

    def respond_and_fail(token: int) -> None:
        requests.respond(token, "the first answer")
        raise RuntimeError("after the answer")

    with pytest.raises(RuntimeError, match="after the answer"):
        requests.ask(respond_and_fail)
    held_back = requests.ask(tokens.append)
    assert isinstance(held_back, asyncio.Future)
    requests.respond(tokens[0], "the second answer")
    assert await held_back == "the second answer"
