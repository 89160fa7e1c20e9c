"""A cleaning or an indexing in a process of its own. Both parse records in Python, which in the broker's process takes the
loop's time.

The parent starts `python -m tidemill.broker.disk.cleaning_process`, writes one pickled plan to its stdin and reads
pickled outcomes from its stdout. There is one of a cleaning, and one of each index as soon as it is there. The process
lives for one plan, so that an idle broker pays nothing for it. Both ends are this program, and nothing else can write
to the pipes.

The child ends when its stdin does: a broker that was killed leaves no process behind that still writes to its folders.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from tidemill.errors import StorageError
from tidemill.log.cleaning.cleaner import Cleaning, CleaningResult, clean
from tidemill.log.files import DiskFiles
from tidemill.log.segments.tag_index_files import Indexing, write_indexes

# Lower than the broker's, but not the lowest: on a busy machine that would not run at all. Until segments are indexed,
# each reader of a view costs the broker as much as an index does.
_NICENESS = 5
_LENGTH_BYTES = 8


async def clean_in_process(cleaning: Cleaning) -> CleaningResult:
    """Raises what the child raised."""
    async with _process_for(cleaning, cleaning.folder) as next_outcome:
        outcome = await next_outcome()
    if isinstance(outcome, Exception):
        raise outcome
    assert isinstance(outcome, CleaningResult)
    return outcome


async def index_in_process(
    indexings: Sequence[Indexing], finished: Callable[[Exception | None], None]
) -> None:
    """Build indexes one after the other. `finished` gets what went wrong with each, as soon as it has ended."""
    async with _process_for(list(indexings), indexings[0].path) as next_outcome:
        for _ in indexings:
            outcome = await next_outcome()
            assert outcome is None or isinstance(outcome, Exception)
            finished(outcome)


@asynccontextmanager
async def _process_for(
    plan: Cleaning | list[Indexing], where: str
) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """A process that works on a plan. The function waits for its next outcome; `StorageError` when the process dies."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(_framed(plan))
        with contextlib.suppress(ConnectionError):  # its exit, below, says more
            await process.stdin.drain()
        yield partial(_next_outcome, process, process.stdout, where)
    finally:
        # An early end of ours is the child's end as well; after the last outcome it has nothing left to do.
        process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _next_outcome(
    process: asyncio.subprocess.Process, stdout: asyncio.StreamReader, where: str
) -> object:
    try:
        length = int.from_bytes(await stdout.readexactly(_LENGTH_BYTES), "big")
        outcome: object = pickle.loads(await stdout.readexactly(length))
    except asyncio.IncompleteReadError:
        status = await process.wait()
        raise StorageError(f"{where}: the process that worked on it died with {status}") from None
    return outcome


def _framed(message: object) -> bytes:
    pickled = pickle.dumps(message)
    return len(pickled).to_bytes(_LENGTH_BYTES, "big") + pickled


def main() -> None:
    stdin = sys.stdin.buffer
    plan: Cleaning | list[Indexing] = pickle.loads(
        stdin.read(int.from_bytes(stdin.read(_LENGTH_BYTES), "big"))
    )
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(_NICENESS)
    if isinstance(plan, list):
        for indexing in plan:
            _answer(*write_indexes(DiskFiles(), [indexing]))
    else:
        try:
            _answer(clean(DiskFiles(), plan))
        except (StorageError, OSError) as error:
            _answer(error)
    # The other thread still reads, which an orderly end of the interpreter would wait for.
    os._exit(0)


def _answer(outcome: CleaningResult | Exception | None) -> None:
    sys.stdout.buffer.write(_framed(outcome))
    sys.stdout.buffer.flush()


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
