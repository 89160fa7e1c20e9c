"""The examples with the SDK, as processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.testing import InProcessBroker

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LIMIT_S = 60.0
RECORDS = 200


class Example:
    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        words = [sys.executable, str(EXAMPLES / name), *arguments]
        self._started.append(
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return self._started[-1]

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def example() -> Iterator[Example]:
    example = Example()
    yield example
    example.end()


def test_exactly_once_through_a_kill(shared: InProcessBroker, example: Example, name: str) -> None:
    topic = shared.create_topic(name, partitions=2)
    output = shared.create_topic(f"{name}-out")
    options = ("--bootstrap", shared.bootstrap, "--input", topic, "--output", output, "--group", name)

    def fill(first: int) -> None:
        for number in range(first, first + RECORDS):
            shared.produce(topic, f"order {number}", key=str(number), partition=number % 2)

    fill(0)
    process = example.start("sdk_exactly_once.py", *options)
    shared.records(output, count=1, isolation="read_uncommitted", timeout_s=LIMIT_S)
    process.kill()
    process.wait(LIMIT_S)
    shared.clock.advance(minutes=1)
    fill(RECORDS)
    process = example.start("sdk_exactly_once.py", *options)
    found = shared.records(output, count=2 * RECORDS, timeout_s=LIMIT_S)
    process.terminate()
    assert process.wait(LIMIT_S) == 0
    assert sorted((record.key, record.value) for record in found) == sorted(
        (str(number).encode(), f"ORDER {number}".encode()) for number in range(2 * RECORDS)
    )


def test_the_asynchronous_service(shared: InProcessBroker, example: Example, name: str) -> None:
    topic, output = shared.create_topic(name), shared.create_topic(f"{name}-out")
    for number in range(RECORDS):
        shared.produce(topic, str(number))
    options = ("--bootstrap", shared.bootstrap, "--input", topic, "--output", output, "--group", name)
    process = example.start("sdk_async_service.py", *options, "--report-s", "0.2")
    found = shared.records(output, count=RECORDS, timeout_s=LIMIT_S)
    assert {record.value for record in found} == {f"billed {number}".encode() for number in range(RECORDS)}
    shared.wait_until(lambda: shared.committed(name) == {(topic, 0): RECORDS}, "all is committed", LIMIT_S)
    assert process.stdout is not None
    while process.stdout.readline() != "lag 0\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, errors) == (0, "")
