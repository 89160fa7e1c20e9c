"""The Celery application of the worker processes: tasks that write down what they did.

The journal is one file of lines, appended by all processes. What the transport logs as durable goes there as well.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from celery.exceptions import Reject
from celery.signals import setup_logging

import tidemill.celery
from celery import Celery, Task

JOURNAL = "TIDEMILL_TEST_JOURNAL"
BROKER = "TIDEMILL_TEST_BROKER"

assert tidemill.celery.Transport.driver_type == "tidemill"
app = Celery("jobs", broker=os.environ.get(BROKER, "tidemill://127.0.0.1:9092//"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=int(os.environ.get("TIDEMILL_TEST_PREFETCH", "1")),
    worker_cancel_long_running_tasks_on_connection_loss=True,
)


def write(*words: object) -> None:
    with Path(os.environ[JOURNAL]).open("ab", buffering=0) as journal:
        journal.write((" ".join(str(word) for word in words) + "\n").encode())


class _Journal(logging.Handler):
    """`orders-0 offset 7, delivery 1: accept is durable`."""

    def emit(self, record: logging.LogRecord) -> None:
        write("log", record.getMessage())


@setup_logging.connect
def log_to_standard_error(**_: Any) -> None:
    logging.basicConfig(level=logging.INFO)
    transport = logging.getLogger("tidemill.celery")
    transport.setLevel(logging.DEBUG)
    transport.addHandler(_Journal())


@app.task(name="note", bind=True, acks_late=True)
def note(self: Task, text: str) -> None:
    del self
    write("note", text, f"{time.time():.3f}")


@app.task(name="retried", bind=True)
def retried(self: Task, text: str, countdown: float) -> None:
    write("retried", text, self.request.retries, f"{time.time():.3f}")
    if self.request.retries < 2:
        raise self.retry(countdown=countdown)


@app.task(name="rejected", bind=True, acks_late=True)
def rejected(self: Task, text: str) -> None:
    del self
    write("rejected", text)
    raise Reject("not wanted", requeue=False)


@app.task(name="held", bind=True, acks_late=True)
def held(self: Task, text: str, gate: str) -> None:
    """Runs until a file is there."""
    del self
    write("held", text, os.getpid())
    while not Path(gate).exists():
        time.sleep(0.02)
    write("finished", text, os.getpid())


@app.task(name="brief", bind=True, acks_late=True)
def brief(self: Task, number: int) -> None:
    """A little work."""
    write("began", number, self.request.delivery_info.get("redelivered"))
    time.sleep(0.02)
    write("done", number)
