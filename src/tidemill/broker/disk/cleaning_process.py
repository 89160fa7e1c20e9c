"""A cleaning or an indexing in a process of its own. Both parse records in Python, which in the broker's process takes the
loop's time.

The parent starts `python -m tidemill.broker.disk.cleaning_process`, writes one pickled plan to its stdin and reads one
pickled outcome from its stdout: the result, or the error that ended it. The process lives for one plan, so that an
idle broker pays nothing for it. Both ends are this program, and nothing else can write to the pipes.

The child ends when its stdin does: a broker that was killed leaves no process behind that still writes to its folders.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Sequence

from tidemill.errors import StorageError
from tidemill.log.cleaning.cleaner import Cleaning, CleaningResult, clean
from tidemill.log.files import DiskFiles
from tidemill.log.segments.tag_index_files import Indexing, write_indexes

_NICENESS = 5
# An index only spares work. It waits for everything else.
_INDEXING_NICENESS = 15


async def clean_in_process(cleaning: Cleaning) -> CleaningResult:
    """Raises what the child raised."""
    outcome = await _run_in_process(cleaning, cleaning.folder)
    assert isinstance(outcome, CleaningResult)
    return outcome


async def index_in_process(indexings: Sequence[Indexing]) -> Sequence[Exception | None]:
    """Build indexes one after the other. Returns for each what went wrong."""
    outcome = await _run_in_process(list(indexings), indexings[0].path)
    assert isinstance(outcome, list)
    return outcome


async def _run_in_process(plan: Cleaning | list[Indexing], where: str) -> object:
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
        request = pickle.dumps(plan)
        process.stdin.write(len(request).to_bytes(8, "big") + request)
        with contextlib.suppress(ConnectionError):  # its exit, below, says more
            await process.stdin.drain()
        answer = await process.stdout.read()
    finally:
        # An early end of ours is the child's end as well; after an answer it has nothing left to do.
        process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if not answer:
        raise StorageError(f"{where}: the process that worked on it died with {process.returncode}")
    outcome: object = pickle.loads(answer)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def main() -> None:
    stdin = sys.stdin.buffer
    plan: Cleaning | list[Indexing] = pickle.loads(stdin.read(int.from_bytes(stdin.read(8), "big")))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    outcome: CleaningResult | list[Exception | None] | Exception
    try:
        if isinstance(plan, list):
            os.nice(_INDEXING_NICENESS)
            outcome = write_indexes(DiskFiles(), plan)
        else:
            os.nice(_NICENESS)
            outcome = clean(DiskFiles(), plan)
    except (StorageError, OSError) as error:
        outcome = error
    sys.stdout.buffer.write(pickle.dumps(outcome))
    sys.stdout.buffer.flush()
    # The other thread still reads, which an orderly end of the interpreter would wait for.
    os._exit(0)


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
