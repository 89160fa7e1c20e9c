"""The controller in its runtime, over a log whose commits, failures and losses the test controls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.controller.cluster import Cluster, creatable
from tidemill.controller.controller import ControllerCall
from tidemill.controller.records import Record, decode_record
from tidemill.errors import ApiError, ErrorCode
from tidemill.machine import Writer
from tidemill.protocol.api.admin import CreateTopicsRequest
from tidemill.protocol.api.replicas import ListPartitionReassignmentsRequest
from tidemill.protocol.schema import Request
from tidemill.runtime import MachineRuntime
from tidemill.types import BrokerId

SESSION_END_MS = 9_000


class Log:
    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.error: ErrorCode | None = None

    def append(self, records: Sequence[bytes], steady_ms: int, writer: Writer | None = None) -> int:
        if self.error is not None:
            raise ApiError(self.error, "no space")
        self.values += records
        return len(self.values)


class Stage:
    def __init__(self) -> None:
        self.cluster = Cluster(brokers=1)
        self.machine = self.cluster.controller
        self.log = Log()
        self.answers: dict[int, Any] = {}
        self.runtime: MachineRuntime[Record, bytes] = MachineRuntime(
            self.machine, self.log, self.answers.__setitem__, until_loaded=ErrorCode.NOT_CONTROLLER
        )
        self.runtime.loaded(0, 0, steady_ms=0)

    def ask(self, request: Request, token: int, steady_ms: int = 0) -> None:
        call = ControllerCall(request, type(request).versions.max, len(self.log.values))
        self.runtime.handle(call, token, steady_ms)

    def create(self, name: str, token: int) -> None:
        self.ask(CreateTopicsRequest(topics=[creatable(name, 1, 1)]), token)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_create_topics_is_one_batch_answered_when_committed(stage: Stage) -> None:
    stage.create("a", token=1)
    assert [type(decode_record(each)).__name__ for each in stage.log.values] == [
        "TopicRecord",
        "PartitionRecord",
    ]
    assert "a" in stage.machine.image.topics_by_name
    stage.runtime.committed(1)
    assert stage.answers == {}
    stage.runtime.committed(2)
    assert stage.answers[1].topics[0].error_code == 0


def test_read_waits_for_the_write_that_it_has_seen(stage: Stage) -> None:
    stage.create("a", token=1)
    stage.ask(ListPartitionReassignmentsRequest(), token=2)
    assert stage.answers == {}
    stage.runtime.committed(2)
    assert list(stage.answers) == [1, 2]


def test_failed_append_changes_nothing_and_keeps_its_text(stage: Stage) -> None:
    stage.log.error = ErrorCode.KAFKA_STORAGE_ERROR
    stage.create("a", token=1)
    assert (stage.answers[1].code, stage.answers[1].message) == (ErrorCode.KAFKA_STORAGE_ERROR, "no space")
    assert "a" not in stage.machine.image.topics_by_name


def test_lost_leadership_answers_what_waits_and_what_comes(stage: Stage) -> None:
    stage.create("a", token=1)
    stage.runtime.fail(ErrorCode.NOT_CONTROLLER)
    stage.create("b", token=2)
    stage.runtime.committed(2)
    assert [error.code for error in stage.answers.values()] == [ErrorCode.NOT_CONTROLLER] * 2
    assert stage.runtime.deadline_ms is None


def test_fencing_that_cannot_be_written_is_tried_again_after_a_pause(stage: Stage) -> None:
    stage.log.error = ErrorCode.KAFKA_STORAGE_ERROR
    stage.runtime.tick(SESSION_END_MS)
    assert not stage.machine.image.brokers[BrokerId(1)].is_fenced
    assert stage.runtime.deadline_ms == SESSION_END_MS + 1_000
    stage.log.error = None
    stage.runtime.tick(SESSION_END_MS + 999)
    assert stage.log.values == []
    stage.runtime.tick(SESSION_END_MS + 1_000)
    assert stage.machine.image.brokers[BrokerId(1)].is_fenced
