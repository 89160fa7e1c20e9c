"""Workers are killed with `kill -9` again and again: every job is done, and none that was accepted comes again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.brokers import eventually, start_broker
from tests.celery.workers import Journal, Worker, application, send

JOBS = 3000
KILLS = 20
QUEUE = "kills"


def _deliveries(journal: Journal, kind: str) -> list[tuple[str, int]]:
    """(offset, delivery) of each acknowledgement that the broker has confirmed, in the order of the journal."""
    # `log kills-0 offset 7, delivery 1: accept is durable`
    return [
        (line[3].rstrip(","), int(line[5].rstrip(":")))
        for line in journal.lines("log", f"{QUEUE}-0")
        if line[6:] == [kind, "is", "durable"]
    ]


def _begun_after_acceptance(journal: Journal) -> list[str]:
    """The jobs that were delivered again after the broker had confirmed an acceptance. A job's number is its offset."""
    accepted: set[str] = set()
    found = []
    for line in journal.lines():
        if line[:2] == ["log", f"{QUEUE}-0"] and line[6:] == ["accept", "is", "durable"]:
            accepted.add(line[3].rstrip(","))
        elif line[0] == "began" and line[1] in accepted:
            found.append(line[1])
    return found


@pytest.mark.long
def test_twenty_kills_of_workers_lose_no_job_and_repeat_none_that_was_accepted(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    chance = random.Random(20)
    with start_broker(tmp_path / "data") as broker, application(f"tidemill://{broker.bootstrap}//") as app:
        url = f"tidemill://{broker.bootstrap}//"
        for number in range(JOBS):
            send(app, "brief", number, queue=QUEUE)
        environment = {"TIDEMILL_TEST_PREFETCH": "4"}

        def start(number: int) -> Worker:
            return Worker(url, journal, QUEUE, name=f"w{number}", environment=environment)

        workers = [start(0), start(1)]
        for kill in range(KILLS):
            # At a moment while jobs are in hand: after some more have begun.
            before = len(journal.lines("began"))
            journal.wait("began", count=min(JOBS, before + chance.randrange(5, 60)), limit_s=120)
            victim = workers.pop(chance.randrange(len(workers)))
            victim.kill()
            workers.append(start(kill + 2))
        done = {str(number) for number in range(JOBS)}
        eventually(lambda: done <= {line[1] for line in journal.lines("done")}, "every job is done", 300)
        for worker in workers:
            worker.stop()
    accepted = _deliveries(journal, "accept")
    assert len(accepted) == len(set(accepted)), "a delivery was accepted twice"
    offsets = [offset for offset, _ in accepted]
    assert len(offsets) == len(set(offsets)), "an accepted job was delivered and accepted again"
    assert set(offsets) <= done, "numbers are offsets"
    assert not _begun_after_acceptance(journal)
    # The kills did hit jobs in hand: otherwise they show nothing.
    assert [line for line in journal.lines("began") if line[2] == "True"]
