"""The speed of compaction, the memory per key, and the delay that it causes in the event loop."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tidemill.broker.disk.cleaning_process import clean_in_process
from tidemill.config import TopicConfig
from tidemill.log.cleaning.cleanable import find_dirt, plan_cleaning
from tidemill.log.cleaning.cleaner import Cleaning, clean
from tidemill.log.cleaning.offset_map import OffsetMap
from tidemill.log.files import DiskFiles
from tidemill.log.log import Log
from tidemill.protocol.records import Record, build_batch, split_batches

_BATCH_BYTES = 64 * 1024
_CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
# name, bytes of a value, records for each key, codec
_SHAPES = (
    ("100 B, 10 per key", 100, 10, "none"),
    ("100 B, 1 per key", 100, 1, "none"),
    ("1 KB, 10 per key", 1000, 10, "none"),
    ("1 KB, 10 per key, lz4", 1000, 10, "lz4"),
    ("1 KB, 10 per key, zstd", 1000, 10, "zstd"),
)


def write_log(folder: Path, size: int, value_bytes: int, records_per_key: int, codec: int) -> Log:
    config = TopicConfig(cleanup_policy=("compact",), segment_bytes=max(1 << 20, size // 4))
    log = Log(DiskFiles(), str(folder), config, wall_ms=0)
    batch_records = _BATCH_BYTES // value_bytes
    keys = max(1, size // value_bytes // records_per_key)
    # Hexadecimal digits: a codec halves them, as it does with much real data.
    digits = random.Random(0).randbytes(1 << 19).hex().encode()
    written = number = 0
    while written < size:
        records = []
        for delta in range(batch_records):
            # A step coprime to the number of keys visits them all in an order that no cache likes.
            number += 1
            start = number * 104_729 % (len(digits) - value_bytes)
            value = digits[start : start + value_bytes]
            records.append(Record(delta, number, b"key-%012d" % (number * 7919 % keys), value))
        data = memoryview(build_batch(records, codec=codec))
        log.append(data, split_batches(data), 0, number)
        written += batch_records * value_bytes
    log.roll(0)
    return log


def plan(log: Log) -> Cleaning:
    dirt = find_dirt(log, None, 0, log.log_end_offset)
    return plan_cleaning(log, dirt, 0, map_bytes=128 << 20)


def measure_shape(
    name: str, size: int, value_bytes: int, records_per_key: int, codec: str
) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        log = write_log(Path(folder), size, value_bytes, records_per_key, _CODECS[codec])
        cleaning = plan(log)
        source_bytes = sum(source.size for source in cleaning.sources)
        started = time.perf_counter()
        started_cpu = time.process_time()
        result = clean(DiskFiles(), cleaning)
        taken_s, cpu_s = time.perf_counter() - started, time.process_time() - started_cpu
        log.release()
    return {
        "log": name,
        "MB/s": round(source_bytes / taken_s / 1e6, 1),
        "MB per CPU-s": round(source_bytes / cpu_s / 1e6, 1),
        "records per CPU-s": round(log.log_end_offset / cpu_s),
        "MB before": round(source_bytes / 1e6, 1),
        "MB after": round(result.bytes_after / 1e6, 1),
    }


async def lateness_ms(work: Callable[[], Awaitable[object]]) -> dict[str, float]:
    """The delays of a task that runs each millisecond, while `work` runs."""
    late: list[float] = []

    async def tick() -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append((time.perf_counter() - started) * 1000 - 1)

    ticking = asyncio.create_task(tick())
    await work()
    ticking.cancel()
    late.sort()
    return {"p50 ms": round(late[len(late) // 2], 2), "p99 ms": round(late[int(len(late) * 0.99)], 2)}


def measure_loop(size: int) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        log = write_log(Path(folder), size, 100, 10, 0)
        cleaning = plan(log)
        rows: list[dict[str, object]] = []
        for name, work in (
            ("in a thread", lambda: asyncio.to_thread(clean, DiskFiles(), cleaning)),
            ("in a process", lambda: clean_in_process(cleaning)),
        ):
            rows.append({"loop is late, cleaning": name, **asyncio.run(lateness_ms(work))})
        log.release()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=64)
    size = parser.parse_args().mb << 20
    rows: list[dict[str, object]] = [measure_shape(shape[0], size, *shape[1:]) for shape in _SHAPES]
    full = OffsetMap(128 << 20)
    rows.append(
        {"key map": "128 MB", "keys": full.capacity, "bytes per key": full.memory_bytes / full.capacity}
    )
    rows += measure_loop(min(size, 32 << 20))
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
