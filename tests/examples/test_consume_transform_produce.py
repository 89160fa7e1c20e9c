"""The loops of `examples/`, as their README tells a reader to run them. `tests/cluster/test_exactly_once.py` kills them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.brokers import RunningBroker, command, eventually
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CLIENTS = ("confluent", "kafka_python", "aiokafka")
LIMIT_S = 60.0
RECORDS = 300

Start = Callable[[str, str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(target: RunningBroker, topic: str) -> Iterator[Start]:
    """Starts an example by client and name; what still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def run(client: str, name: str) -> subprocess.Popen[bytes]:
        options = ["--input", topic, "--output", f"{topic}-out", "--group", f"{topic}-g", "--name", name]
        program = EXAMPLES / f"consume_transform_produce_{client}.py"
        arguments = [sys.executable, str(program), "--bootstrap", target.bootstrap, *options]
        started.append(subprocess.Popen(arguments, stdout=subprocess.DEVNULL))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(LIMIT_S)


def _cli(target: RunningBroker, *words: str, stdin: str = "") -> str:
    done = subprocess.run(
        [*command(), *words, "--bootstrap", target.bootstrap],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.parametrize(
    "client",
    [pytest.param(each, marks=[] if each == "confluent" else pytest.mark.long) for each in CLIENTS],
)
def test_it_transforms_stops_and_goes_on(
    client: str, target: RunningBroker, topic: str, start: Start
) -> None:
    with Cluster(target.bootstrap) as cluster:
        for each in (topic, f"{topic}-out"):
            Admin(cluster).create_topic(each, partition_count=3)

        def await_used_up(count: int) -> None:
            def is_used_up() -> bool:
                return sum(GroupAdmin(cluster).committed(f"{topic}-g").values()) == count

            eventually(is_used_up, f"{count} records transformed", LIMIT_S)

        def fill(first: int) -> None:
            lines = "".join(f"{number % 7}:order {number}\n" for number in range(first, first + RECORDS))
            _cli(target, "produce", topic, "--key-separator", ":", stdin=lines)

        fill(0)
        process = start(client, "one")
        await_used_up(RECORDS)
        process.terminate()
        assert process.wait(LIMIT_S) == 0
        fill(RECORDS)
        process = start(client, "one")
        await_used_up(2 * RECORDS)
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    shown = _cli(target, "consume", f"{topic}-out", "--format", "{key}:{value}\\n").splitlines()
    assert sorted(shown) == sorted(f"{number % 7}:ORDER {number}" for number in range(2 * RECORDS))
