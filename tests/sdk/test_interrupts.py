"""Ctrl-C, brokers that vanish, and packages that are not there: no call waits without end, and one line says why."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tidemill import Client
from tidemill.sdk.errors import Unreachable
from tidemill.testing import InProcessBroker

LIMIT_S = 60.0

CONSUMING = """
import sys
from tidemill import Client
with Client(sys.argv[1]) as client, client.consume("orders", group="billing") as batches:
    for batch in batches:
        print("read", len(batch), flush=True)
"""
ASYNC_CONSUMING = """
import asyncio, sys
from tidemill import AsyncClient
async def main():
    async with AsyncClient(sys.argv[1]) as client, client.consume("orders", group="billing") as batches:
        async for batch in batches:
            print("read", len(batch), flush=True)
asyncio.run(main())
"""
STOPPING = "import tidemill; tidemill.stop_on_sigterm()"
WITHOUT_CONFLUENT_KAFKA = """
import sys
sys.modules["confluent_kafka"] = None
import tidemill
print(tidemill.__version__)
from tidemill import Client
"""


@pytest.mark.parametrize("program", [CONSUMING, ASYNC_CONSUMING], ids=["sync", "async"])
def test_ctrl_c_ends_a_loop_that_waits(tidemill_broker: InProcessBroker, program: str) -> None:
    tidemill_broker.produce("orders", "paid")
    process = subprocess.Popen(
        [sys.executable, "-c", program, tidemill_broker.bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "read 1\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGINT
    assert errors.strip().endswith("KeyboardInterrupt")
    # It has left the group in order.
    assert tidemill_broker.members("billing") == []


@pytest.mark.parametrize("is_background_job", [False, True])
@pytest.mark.parametrize("program", [CONSUMING, ASYNC_CONSUMING], ids=["sync", "async"])
def test_sigterm_leaves_the_group_where_the_program_asked_for_it(
    tidemill_broker: InProcessBroker, program: str, is_background_job: bool
) -> None:
    tidemill_broker.produce("orders", "paid")
    # A shell starts a background job with SIGINT ignored.
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if is_background_job else ""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{ignore}{STOPPING}{program}", tidemill_broker.bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "read 1\n"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.communicate()
    assert errors.strip().endswith("KeyboardInterrupt")
    assert tidemill_broker.members("billing") == []


@pytest.mark.parametrize("program", [CONSUMING, ASYNC_CONSUMING], ids=["sync", "async"])
def test_ctrl_c_in_the_middle_of_a_commit_leaves_the_group_too(
    tidemill_broker: InProcessBroker, program: str
) -> None:
    tidemill_broker.produce("orders", "paid")
    with tidemill_broker.faults.slow_api("OffsetCommit", 1.0) as fault:
        process = subprocess.Popen(
            [sys.executable, "-c", program, tidemill_broker.bootstrap], stderr=subprocess.PIPE, text=True
        )
        try:
            tidemill_broker.wait_until(lambda: fault.hits, "the commit is there", LIMIT_S)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
            process.communicate()
    assert errors.strip().endswith("KeyboardInterrupt")
    assert tidemill_broker.members("billing") == []


def test_vanished_brokers_raise_an_error_and_the_loop_can_go_on(
    tidemill_broker: InProcessBroker,
) -> None:
    tidemill_broker.produce("orders", "paid")
    with Client(tidemill_broker.bootstrap, timeout_s=4) as client:
        batches = client.consume("orders", group="billing")
        next(batches)
        tidemill_broker.crash()
        with pytest.raises(Unreachable, match=r"commit offsets of group billing: no answer .* within 4 s"):
            next(batches)
        tidemill_broker.start()
        tidemill_broker.produce("orders", "shipped")

        def goes_on() -> bool:
            try:
                return [record.text() for record in next(batches)] == ["shipped"]
            except Unreachable:
                return False

        tidemill_broker.wait_until(goes_on, "the loop goes on", LIMIT_S)
        assert tidemill_broker.committed("billing") == {("orders", 0): 1}
        batches.close()


def test_waiting_loop_raises_when_brokers_are_gone(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.produce("orders", "paid")
    with Client(tidemill_broker.bootstrap, timeout_s=4) as client:
        batches = client.consume("orders", group="billing")
        next(batches)
        batches.commit()
        tidemill_broker.crash()
        with pytest.raises(Unreachable, match="consume orders as billing: no answer"):
            next(batches)
        batches.close()


def test_without_confluent_kafka_one_line_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CONFLUENT_KAFKA], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 1
    assert done.stdout.strip()
    assert done.stderr.splitlines()[-1] == (
        "tidemill.sdk.errors.MissingExtra: tidemill.Client needs confluent-kafka: pip install 'tidemill[client]'"
    )


def test_importing_tidemill_imports_no_client() -> None:
    program = "import sys, tidemill; assert not {'confluent_kafka', 'tidemill.sdk'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LIMIT_S)
