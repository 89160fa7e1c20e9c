"""A Celery worker on three brokers, each of which is killed under it: the worker goes on, and every task runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from celery import Celery
from tests.brokers import eventually
from tests.celery.workers import Journal, Worker, application, send
from tests.cluster.clusters import QUICK_FENCING, Cluster

QUEUE = "tasks"
BROKERS = 3
# After each kill.
PROGRESS = 30
SETTINGS = {
    **QUICK_FENCING,
    "offsets.topic.replication.factor": "3",
    "share.coordinator.state.topic.num.partitions": "3",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}


class Sending:
    """Sends tasks all the time, with Celery's own retries where a broker is away."""

    def __init__(self, app: Celery) -> None:
        self.sent = 0
        self.error: Exception | None = None
        self._app = app
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(0.02):
                policy = {"max_retries": 30, "interval_start": 0, "interval_max": 1}
                send(self._app, "brief", self.sent, queue=QUEUE, retry=True, retry_policy=policy)
                self.sent += 1
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert self.error is None, self.error
        assert not self._thread.is_alive()


def _await_progress(journal: Journal, first: int, what: str) -> None:
    """Some tasks are done that were sent from now on."""
    eventually(lambda: sum(int(line[1]) >= first for line in journal.lines("done")) >= PROGRESS, what, 120)


@pytest.mark.long
def test_worker_goes_on_while_each_broker_is_killed_under_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with Cluster(BROKERS, tmp_path, settings=SETTINGS) as cluster:
        url = ";".join(f"tidemill://{node.bootstrap}//" for node in cluster.nodes.values())
        with (
            application(url) as app,
            Worker(url, journal, QUEUE, environment={"TIDEMILL_TEST_PREFETCH": "4"}) as worker,
        ):
            worker.wait_until_ready()
            sending = Sending(app)
            journal.wait("done", count=PROGRESS)
            for node_id in cluster.nodes:
                cluster.await_in_sync(QUEUE, 1)
                cluster.kill(node_id)
                _await_progress(journal, sending.sent + 1, f"tasks done without broker {node_id}")
                cluster.start(node_id)
                cluster.await_up()
            sending.stop()
            wanted = {str(number) for number in range(sending.sent)}
            eventually(lambda: wanted <= {line[1] for line in journal.lines("done")}, "every task ran", 120)
            assert worker.process.poll() is None
            assert worker.stop() == 0
    # `log tasks-0 offset 7, delivery 1: accept is durable`
    accepted = [
        (line[1], line[3]) for line in journal.lines("log") if line[6:] == ["accept", "is", "durable"]
    ]
    assert len(accepted) == len(set(accepted)), "an accepted task was delivered and accepted again"
