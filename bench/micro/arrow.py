"""The speed of decoding record batches to Arrow and encoding Arrow to records, on one core."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from tidemill.protocol.compression import CompressionType
from tidemill.protocol.records import BatchHeader, Header, Record, build_batch, header_at
from tidemill.spark.arrow.decode import SCHEMA, Decoder
from tidemill.spark.arrow.encode import encode
from tidemill.spark.sink.murmur2 import partitions_of
from tidemill.types import TopicPartition

Row = dict[str, object]
Batches = list[tuple[BatchHeader, memoryview]]

_KB, _MB = 1 << 10, 1 << 20
# name, smallest and largest value in bytes
_VALUES = (
    ("10 B", 10, 10),
    ("5-15 B", 5, 15),
    ("100 B", 100, 100),
    ("50-150 B", 50, 150),
    ("1 KB", 1000, 1000),
    ("0.5-1.5 KB", 500, 1500),
)
_BATCH_BYTES = (("16 KB", 16 * _KB), ("1 MB", _MB))


class _Digits:
    """Values of hexadecimal digits: a codec halves them, as it does with much real data."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self._digits = self.random.randbytes(_MB).hex().encode()

    def value(self, smallest: int, largest: int) -> bytes:
        size = self.random.randint(smallest, largest)
        start = self.random.randrange(len(self._digits) - size)
        return self._digits[start : start + size]

    def key(self) -> bytes:
        return b"key-%012d" % self.random.randrange(10**9)


def batches_of(
    size: int,
    batch_bytes: int,
    smallest: int,
    largest: int,
    *,
    has_keys: bool,
    has_headers: bool = False,
    codec: int = CompressionType.NONE,
) -> tuple[Batches, int]:
    """Batches with about `size` bytes of keys and values, and how many exactly."""
    digits = _Digits()
    headers = [Header("trace", b"0123456789abcdef"), Header("tenant", b"42")] if has_headers else []
    batches: Batches = []
    offset = total = 0
    while total < size:
        records: list[Record] = []
        taken = 0
        while taken < batch_bytes and total < size:
            record = Record(
                offset,
                1_700_000_000_000 + offset // 10,
                digits.key() if has_keys else None,
                digits.value(smallest, largest),
                headers,
            )
            records.append(record)
            offset += 1
            of_record = len(record.value or b"") + len(record.key or b"")
            taken += of_record
            total += of_record
        data = build_batch(records, base_offset=records[0].offset, codec=codec)
        batches.append((header_at(data), memoryview(data)))
    return batches, total


def best_cpu_s(work: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


def measured(case: str, shape: str, rows: int, size: int, cpu_s: float) -> Row:
    return {
        "case": case,
        "shape": shape,
        "M rows per CPU-s": round(rows / cpu_s / 1e6, 2),
        "MB per CPU-s": round(size / cpu_s / 1e6),
    }


def measure_decode(size: int, rounds: int) -> Iterator[Row]:
    columns = [name for name in SCHEMA.names if name != "headers"]

    def one(shape: str, batches: Batches, total: int, wanted: list[str]) -> Row:
        rows = sum(header.record_count for header, _ in batches)
        decoder = Decoder(TopicPartition("orders", 0), 0, 1 << 62, wanted)
        return measured("decode", shape, rows, total, best_cpu_s(lambda: decoder.decode(batches), rounds))

    for value, smallest, largest in _VALUES:
        for batch, batch_bytes in _BATCH_BYTES:
            for has_keys in (False, True):
                batches, total = batches_of(size, batch_bytes, smallest, largest, has_keys=has_keys)
                shape = f"{value}, batches of {batch}, {'keys' if has_keys else 'no keys'}"
                yield one(shape, batches, total, columns)
    for value, smallest, largest in (_VALUES[2], _VALUES[4]):
        batches, total = batches_of(size, 16 * _KB, smallest, largest, has_keys=True, has_headers=True)
        yield one(f"{value}, batches of 16 KB, keys, 2 headers left out", batches, total, columns)
        yield one(f"{value}, batches of 16 KB, keys, 2 headers", batches, total, SCHEMA.names)
        for codec in list(CompressionType)[1:]:
            batches, total = batches_of(size, 64 * _KB, smallest, largest, has_keys=True, codec=codec)
            yield one(f"{value}, batches of 64 KB, keys, {codec.name.lower()}", batches, total, columns)


def measure_encode(size: int, rounds: int) -> Iterator[Row]:
    for value, smallest, largest in _VALUES:
        for has_keys, has_headers in ((False, False), (True, False), (True, True)):
            batches, total = batches_of(
                size, _MB, smallest, largest, has_keys=has_keys, has_headers=has_headers
            )
            wanted = ["key", "value", "headers"] if has_headers else ["key", "value"]
            rows = Decoder(TopicPartition("orders", 0), 0, 1 << 62, wanted).decode(batches)
            shape = f"{value}, {'keys' if has_keys else 'no keys'}{', 2 headers' if has_headers else ''}"

            def work(rows: pa.RecordBatch = rows) -> None:
                for _ in encode(rows, wall_ms=0, batch_bytes_max=_MB):
                    pass

            yield measured("encode", shape, rows.num_rows, total, best_cpu_s(work, rounds))


def measure_murmur2(rounds: int) -> Iterator[Row]:
    digits = _Digits()
    for name, smallest, largest in (("4 B", 4, 4), ("16 B", 16, 16), ("36 B", 36, 36), ("8-40 B", 8, 40)):
        keys = pa.array([digits.value(smallest, largest) for _ in range(100_000)], pa.binary())
        cpu_s = best_cpu_s(partial(partitions_of, keys, 12), rounds)
        yield measured("murmur2", name, len(keys), keys.nbytes, cpu_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=["decode", "encode", "murmur2"])
    options = parser.parse_args()
    size = options.mb << 20
    cases: dict[str, Callable[[], Iterator[Row]]] = {
        "decode": lambda: measure_decode(size, options.rounds),
        "encode": lambda: measure_encode(size, options.rounds),
        "murmur2": lambda: measure_murmur2(options.rounds),
    }
    for name, rows in cases.items():
        if options.only in (None, name):
            for row in rows():
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
