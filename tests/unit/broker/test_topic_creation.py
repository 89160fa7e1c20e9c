"""Topics that Metadata asks for are created behind its answer: once, and as internal topics need it."""

from __future__ import annotations

import asyncio

import pytest

from tidemill.broker.requests import topic_creation
from tidemill.broker.requests.topic_creation import TopicCreation
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.admin import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from tidemill.protocol.schema import Request, Response


class FakeController:
    """Answers when the test allows it."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.allowed = asyncio.Semaphore(0)
        self.error: ApiError | None = None

    async def __call__(self, request: Request) -> Response:
        assert isinstance(request, CreateTopicsRequest)
        names = [topic.name for topic in request.topics]
        self.asked.append(names)
        await self.allowed.acquire()
        if self.error is not None:
            raise self.error
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=name) for name in names])


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_topic_is_created_once_while_its_creation_is_under_way() -> None:
    controller = FakeController()
    creation = TopicCreation(controller, {})
    creation.begin(["a", "b", "a"])
    creation.begin(["b", "c"])
    await _settle()
    assert controller.asked == [["a", "b"], ["c"]]
    controller.allowed.release()
    controller.allowed.release()
    await _settle()
    creation.begin(["a"])
    await _settle()
    assert controller.asked[2:] == [["a"]]
    creation.close()


async def test_a_creation_that_failed_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    controller = FakeController()
    controller.error = ApiError(ErrorCode.REQUEST_TIMED_OUT, "no active controller answered in time")
    creation = TopicCreation(controller, {})
    creation.begin(["a"])
    controller.allowed.release()
    await _settle()
    assert "no active controller" in caplog.text
    creation.begin(["a"])
    await _settle()
    assert controller.asked == [["a"], ["a"]]
    creation.close()


async def test_an_internal_topic_is_created_by_its_coordinator() -> None:
    controller, ensured = FakeController(), []

    async def ensure() -> None:
        ensured.append("__consumer_offsets")

    creation = TopicCreation(controller, {"__consumer_offsets": ensure})
    creation.begin(["__consumer_offsets", "a"])
    await _settle()
    assert ensured == ["__consumer_offsets"]
    assert controller.asked == [["a"]]
    creation.close()


async def test_no_more_creations_are_under_way_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_creation, "_UNDER_WAY_MAX", 3)
    controller = FakeController()
    creation = TopicCreation(controller, {})
    creation.begin(["a", "b"])
    creation.begin(["c", "d"])
    creation.begin(["e"])
    await _settle()
    assert controller.asked == [["a", "b"], ["c"]]
    creation.close()
