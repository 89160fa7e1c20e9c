"""Celery workers in processes of their own, against a broker."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from celery import Celery
from tests.brokers import eventually
from tests.celery.conftest import url_of
from tests.celery.workers import ROOT, Journal, Worker, application, send
from tidemill.testing import InProcessBroker


@pytest.fixture(scope="module")
def app(shared: InProcessBroker) -> Iterator[Celery]:
    app = application(url_of(shared))
    yield app
    app.close()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture(scope="module")
def common_journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    return Journal(tmp_path_factory.mktemp("common") / "journal")


@pytest.fixture(scope="module")
def worker(shared: InProcessBroker, common_journal: Journal) -> Iterator[Worker]:
    """For tests that do it no harm."""
    with Worker(url_of(shared), common_journal, "common", name="common") as worker:
        worker.wait_until_ready()
        yield worker


def test_task_runs_in_a_pool_of_processes(worker: Worker, app: Celery, common_journal: Journal) -> None:
    send(app, "note", "first", queue="common")
    common_journal.wait("note", "first")


def test_task_with_a_countdown_or_an_eta_runs_then_and_is_not_in_the_worker_before(
    worker: Worker, app: Celery, common_journal: Journal
) -> None:
    due = datetime.now(UTC) + timedelta(seconds=2)
    send(app, "note", "eta", queue="common", eta=due)
    send(app, "note", "countdown", queue="common", countdown=2)
    send(app, "note", "never", queue="common", countdown=100_000)
    send(app, "note", "at-once", queue="common")
    common_journal.wait("note", "at-once")
    assert not common_journal.lines("note", "eta")
    (_, _, at_s), *_ = common_journal.wait("note", "eta")
    assert float(at_s) >= due.timestamp() - 0.01
    common_journal.wait("note", "countdown")
    # What waits was not received: the broker has it.
    assert app.control.inspect([worker.node], timeout=10).scheduled() == {worker.node: []}
    assert not common_journal.lines("note", "never")


def test_retries_of_a_task_come_after_their_countdown(
    worker: Worker, app: Celery, common_journal: Journal
) -> None:
    send(app, "retried", "it", 0.5, queue="common")
    lines = common_journal.wait("retried", "it", count=3)
    assert [line[2] for line in lines] == ["0", "1", "2"]
    times_s = [float(line[3]) for line in lines]
    assert all(after - before >= 0.5 for before, after in pairwise(times_s))


def test_rejected_task_runs_once(worker: Worker, app: Celery, common_journal: Journal) -> None:
    send(app, "rejected", "it", queue="common")
    common_journal.wait("rejected", "it")
    eventually(
        lambda: [line for line in common_journal.lines("log") if line[-3:] == ["reject", "is", "durable"]],
        "the rejection is durable",
    )
    send(app, "note", "after-the-rejected", queue="common")
    common_journal.wait("note", "after-the-rejected")
    assert len(common_journal.lines("rejected", "it")) == 1


def test_inspect_ping_and_stats_from_the_command_line(
    worker: Worker, shared: InProcessBroker, common_journal: Journal
) -> None:
    command = [sys.executable, "-m", "celery", "--app", "tests.celery.jobs", "inspect", "ping"]
    environment = {"TIDEMILL_TEST_BROKER": url_of(shared), "TIDEMILL_TEST_JOURNAL": str(common_journal.path)}
    printed = subprocess.run(
        [*command, "--timeout", "20", "--destination", worker.node],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "pong" in printed.stdout, printed.stderr
    assert "1 node online" in printed.stdout


def test_purge_discards_tasks_and_counts_them(shared: InProcessBroker) -> None:
    with application(url_of(shared)) as app:
        app.conf.task_default_queue = "purged"
        for number in range(3):
            send(app, "note", number, queue="purged", countdown=0 if number else 1000)
        assert app.control.purge() == 3
        assert app.control.purge() == 0


def test_events_reach_a_receiver(shared: InProcessBroker, app: Celery) -> None:
    """As `celery worker -E` sends them and `celery events` reads them."""
    seen: list[str] = []
    with app.connection_for_read() as connection, app.connection_for_write() as other:
        receiver = app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event["type"])})
        capture = threading.Thread(
            target=receiver.capture, kwargs={"limit": 1, "timeout": 30, "wakeup": False}
        )
        capture.start()
        with app.events.Dispatcher(other) as dispatcher:

            def is_seen() -> bool:
                dispatcher.send("worker-online")
                return bool(seen)

            eventually(is_seen, "the event")
        capture.join()
    assert seen[0] == "worker-online"


def test_settings_alone_are_enough_where_nothing_can_be_imported(shared: InProcessBroker) -> None:
    program = (
        "import sys; from celery import Celery; app = Celery(broker=sys.argv[1]); "
        "app.conf.broker_transport = 'tidemill.celery:Transport'; "
        "connection = app.connection_for_write(); connection.connect(); print(connection.transport.driver_type)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program, f"{url_of(shared)};{url_of(shared)}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert printed.stdout.strip() == "tidemill"


def test_tasks_of_higher_priority_run_first(shared: InProcessBroker, app: Celery, journal: Journal) -> None:
    for number, priority in enumerate([0, 0, 3, 9, 6, 9]):
        send(app, "note", f"{priority}-{number}", queue="urgent", priority=priority)
    with Worker(url_of(shared), journal, "urgent", pool="solo", concurrency=1):
        lines = journal.wait("note", count=6)
    assert [line[1].split("-")[0] for line in lines] == ["9", "9", "6", "3", "0", "0"]


def test_task_of_a_killed_worker_is_done_by_another(
    shared: InProcessBroker, app: Celery, journal: Journal, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    send(app, "held", "it", str(gate), queue="killed")
    with Worker(url_of(shared), journal, "killed", name="first") as first:
        journal.wait("held", "it")
        first.kill()
        with Worker(url_of(shared), journal, "killed", name="second", pool="threads"):
            journal.wait("held", "it", count=2)
            gate.touch()
            journal.wait("finished", "it")


def test_worker_that_is_asked_to_stop_finishes_its_task_acknowledges_it_and_releases_the_others(
    shared: InProcessBroker, app: Celery, journal: Journal, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    environment = {"TIDEMILL_TEST_PREFETCH": "4"}
    with Worker(
        url_of(shared), journal, "stopped", name="first", concurrency=1, environment=environment
    ) as first:
        send(app, "held", "it", str(gate), queue="stopped")
        journal.wait("held", "it")
        for number in range(3):
            send(app, "note", number, queue="stopped")
        first.process.terminate()
        eventually(lambda: "Warm shutdown" in first.log(), "the worker stops")
        gate.touch()
        assert first.process.wait(60) == 0
        with Worker(url_of(shared), journal, "stopped", name="second", pool="solo", concurrency=1):
            for number in range(3):
                journal.wait("note", str(number))
    assert len(journal.lines("held")) == len(journal.lines("finished")) == 1


def test_worker_goes_on_after_a_restart_of_the_broker(journal: Journal) -> None:
    with (
        InProcessBroker() as broker,
        application(url_of(broker)) as app,
        Worker(url_of(broker), journal, "restarted", pool="threads") as worker,
    ):
        send(app, "note", "before", queue="restarted")
        journal.wait("note", "before")
        broker.restart()
        send(app, "note", "after", queue="restarted")
        journal.wait("note", "after")
        assert app.control.inspect([worker.node], timeout=20).ping() == {worker.node: {"ok": "pong"}}
        assert worker.process.poll() is None
