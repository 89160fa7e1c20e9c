"""Tasks of the sink as processes that can be killed, without a JVM: forks of one that has everything imported.

`python -m tests.spark.task_process` reads pickled `Order`s, one after the other, and answers each with a line, the number
of the process that carries it out: it reads the records of its work, makes their values upper case, and writes them as a
task of a streaming query does. How that went is in the order's outcome file when the process is over: `Written`; a text
when something failed that should not; no file when the task was killed, or failed as tasks do when they are fenced or when
brokers are gone.

The tasks are forked here because here is one thread. Those that are left when the orders end are killed, stopped ones too,
so that nobody outlives the test, however that ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

# What a task imports when it runs; the forks have it then.
import tidemill.spark.arrow.decode  # noqa: F401
from tidemill.errors import TidemillError
from tidemill.spark.sink import writers as sink
from tidemill.spark.sink.options import SinkOptions
from tidemill.spark.sink.writers import Task, Written, write_rows
from tidemill.spark.source.work import Work

# A slow query, whose rows are sent as they come: its tasks spend most of their time in transactions that hold records.
ROWS = 25
PAUSE_S = 0.02


class Order(NamedTuple):
    work: Work
    task: Task
    options: SinkOptions
    outcome_path: Path


def transformed(work: Work) -> Iterator[pa.RecordBatch]:
    for batch in work.read(("key", "value")):
        values = pc.utf8_upper(batch.column(1).cast(pa.string())).cast(pa.binary())
        rows = pa.record_batch([batch.column(0), values], names=["key", "value"])
        for start in range(0, rows.num_rows, ROWS):
            yield rows.slice(start, ROWS)
            time.sleep(PAUSE_S)


def tell(order: Order, outcome: Written | str) -> None:
    part = order.outcome_path.with_suffix(".part")
    part.write_bytes(pickle.dumps(outcome))
    part.rename(order.outcome_path)


def carry_out(order: Order) -> None:
    try:
        tell(order, write_rows(order.options, order.task, transformed(order.work)))
    except TidemillError as failure:
        print(f"{order.task}: {type(failure).__name__}: {failure}", file=sys.stderr, flush=True)
    except BaseException:
        tell(order, traceback.format_exc())


def orders() -> Iterator[Order]:
    while True:
        try:
            order: Order = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        yield order


def main() -> None:
    sink.CHUNK_BYTES = 1
    children: list[int] = []
    try:
        for order in orders():
            # One that is over keeps its number until here: another process is not mistaken for it meanwhile.
            children = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
            child = os.fork()
            if not child:
                carry_out(order)
                os._exit(0)
            children.append(child)
            print(child, flush=True)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
