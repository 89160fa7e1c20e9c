"""`tidemill produce`: writes records from arguments or from the lines of standard input.

Input that is available without waiting is collected into batches; when the input pauses, all of it is written. So a
large file is written in large batches, and a line of a slow program at once. Keys and values are bytes of any
encoding. Standard output stays empty, except with --json.

With --json, records have the format of `tidemill consume --json`, and the report is JSON. An invalid record ends the
command with its line number; all records before it have been written, and none after it.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Callable, Iterator

from tidemill.cli.failures import CommandError, UsageError
from tidemill.cli.options import complete, connect, key_values, natural, print_json
from tidemill.cli.positions import parse_time
from tidemill.cli.records.payloads import add_store, add_threshold, large_payloads_of, stored
from tidemill.cli.records.record_format import BadRecord, NewRecord, read_json
from tidemill.cli.table import plural
from tidemill.client.cluster import Cluster
from tidemill.client.producing.producer import ACKS_ALL, Appended, Producer
from tidemill.client.retry import UnknownTopic
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.records import Header

_ACKS = {"all": ACKS_ALL, "1": 1, "0": 0}
_CODECS = {codec.name.lower(): codec for codec in CompressionType}
_CHUNK_BYTES = 256 * 1024
_PROGRESS_INTERVAL_S = 0.5
_STDIN = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "values", metavar="VALUE", nargs="*", help="one record each; none or - reads lines of standard input"
    )
    parser.add_argument("--key", metavar="KEY", help="the key of every record")
    parser.add_argument(
        "--key-separator", metavar="SEP", help="each value is KEY SEP VALUE, such as 42:hello"
    )
    parser.add_argument(
        "--tombstone", action="store_true", help="one record without a value, to delete --key"
    )
    parser.add_argument(
        "--header",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a header of every record; repeatable",
    )
    parser.add_argument("--partition", metavar="N", type=natural, help="default: by key, or spread evenly")
    parser.add_argument(
        "--repartition",
        action="store_true",
        help="with --json: place records by key or evenly, whatever partition they name",
    )
    parser.add_argument("--compression", choices=tuple(_CODECS), default="none")
    parser.add_argument(
        "--acks",
        choices=tuple(_ACKS),
        default="all",
        help="which replicas must have the record: 0, 1 or all (default all)",
    )
    parser.add_argument(
        "--timestamp", metavar="TIME", help="of every record: ISO, milliseconds, or an age as 15m"
    )
    add_store(parser, "values above --threshold go there, and records refer to them")
    add_threshold(parser)
    complete(
        parser,
        _produce,
        "tidemill produce orders hello world\n"
        'tidemill produce orders --key 42 \'{"item": "book"}\'\n'
        "tidemill produce orders --key-separator : < lines.txt\n"
        "tail -F app.log | tidemill produce logs --compression zstd\n"
        "tidemill produce users --key 42 --tombstone\n"
        "tidemill produce orders --json --bootstrap broker-2:9092 < orders.jsonl",
        json_help="records as `tidemill consume --json` prints them, and the report as JSON",
    )


def run(arguments: argparse.Namespace) -> int:
    return _produce(arguments)


def _produce(arguments: argparse.Namespace) -> int:
    _check(arguments)
    read_plain = _json_reader(arguments) if arguments.json else _plain_reader(arguments)
    large_payloads = large_payloads_of(arguments)

    def read(line: bytes) -> NewRecord:
        return stored(large_payloads, arguments.topic, read_plain(line))

    with connect(arguments) as cluster:
        partition_count = _partition_count(cluster, arguments.topic)
        producer = Producer(cluster, acks=_ACKS[arguments.acks], codec=_CODECS[arguments.compression])
        progress = _Progress()
        try:
            for records, is_pause in _input(arguments, read, partition_count):
                for record in records:
                    producer.add(
                        arguments.topic,
                        record.value,
                        key=record.key,
                        headers=record.headers,
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                if is_pause:
                    producer.flush()
                progress.show(producer.appended)
            producer.flush()
        finally:
            progress.clear()
            _report(arguments, producer.appended)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.json:
        plain_only = {
            "--key": arguments.key,
            "--key-separator": arguments.key_separator,
            "--tombstone": arguments.tombstone or None,
            "--header": arguments.header or None,
            "--timestamp": arguments.timestamp,
        }
        for option, value in plain_only.items():
            if value is not None:
                raise UsageError(f"with --json each record says for itself what {option} would; leave it out")
    elif arguments.repartition:
        raise UsageError("--repartition is for --json: other records name no partition")
    if arguments.repartition and arguments.partition is not None:
        raise UsageError("either --partition for all records or --repartition, not both")
    if arguments.tombstone and (arguments.key is None or arguments.values or arguments.key_separator):
        raise UsageError("--tombstone takes a --key and no values")
    if arguments.key is not None and arguments.key_separator is not None:
        raise UsageError("either --key for all records or --key-separator, not both")
    if arguments.key_separator == "":
        raise UsageError("--key-separator must not be empty")
    if _STDIN in arguments.values and arguments.values != [_STDIN]:
        raise UsageError("- (standard input) cannot be mixed with values")


def _partition_count(cluster: Cluster, topic: str) -> int:
    try:
        return len(cluster.partitions_of(topic))
    except UnknownTopic:
        raise CommandError(
            f"there is no topic {topic}; create it with `tidemill topics create {topic}`"
        ) from None


_Reader = Callable[[bytes], NewRecord]
_Read = tuple[list[NewRecord], bool]


def _plain_reader(arguments: argparse.Namespace) -> _Reader:
    """A reader of plain values, with the key, headers and time that the options set for all of them."""
    separator = None if arguments.key_separator is None else os.fsencode(arguments.key_separator)
    headers = [Header(key, value.encode()) for key, value in key_values(arguments.header, "--header").items()]
    model = NewRecord(
        None if arguments.key is None else os.fsencode(arguments.key),
        None,
        headers,
        arguments.partition,
        None if arguments.timestamp is None else parse_time(arguments.timestamp),
    )

    def read(value: bytes) -> NewRecord:
        if separator is None:
            return model._replace(value=value)
        key, found, rest = value.partition(separator)
        if not found:
            raise BadRecord(f"it has no {separator.decode(errors='replace')!r} between key and value")
        return model._replace(key=key, value=rest)

    return read


def _json_reader(arguments: argparse.Namespace) -> _Reader:
    def read(line: bytes) -> NewRecord:
        record = read_json(line)
        if arguments.partition is not None or arguments.repartition:
            return record._replace(partition=arguments.partition)
        return record

    return read


def _input(arguments: argparse.Namespace, read: _Reader, partition_count: int) -> Iterator[_Read]:
    """Returns the records that are available without waiting, and whether the input has paused."""
    if arguments.tombstone:
        yield [read(b"")._replace(value=None)], True
        return
    number = 0
    if arguments.values and arguments.values != [_STDIN]:
        what, chunks = "value", iter([([os.fsencode(value) for value in arguments.values], True)])
    else:
        what, chunks = "line", _stdin_lines()
    for lines, is_pause in chunks:
        records: list[NewRecord] = []
        for line in lines:
            number += 1
            try:
                record = read(line)
                _check_partition(arguments, record.partition, partition_count)
            except BadRecord as error:
                # The records before it are written first, so that the line number says where to continue.
                yield records, True
                raise CommandError(f"{what} {number}: {error}; what comes before it is written") from None
            records.append(record)
        yield records, is_pause


def _check_partition(arguments: argparse.Namespace, index: int | None, count: int) -> None:
    if index is not None and index >= count:
        advice = "; --repartition places records by key" if arguments.partition is None else ""
        raise BadRecord(f"topic {arguments.topic} has no partition {index}, only 0 to {count - 1}{advice}")


def _stdin_lines() -> Iterator[tuple[list[bytes], bool]]:
    descriptor = sys.stdin.fileno()
    if sys.stdin.isatty():
        print("One record a line; Ctrl-D ends.", file=sys.stderr)
    rest = b""
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines, not select.select([descriptor], [], [], 0)[0]
    if rest:
        yield [rest], True


class _Progress:
    """A counter for long input, on a terminal only."""

    def __init__(self) -> None:
        self._is_shown = False
        self._next_s = time.monotonic() + _PROGRESS_INTERVAL_S

    def show(self, appended: list[Appended]) -> None:
        if sys.stdin.isatty() or not sys.stderr.isatty() or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _PROGRESS_INTERVAL_S
        self._is_shown = True
        count = sum(each.record_count for each in appended)
        print(f"\r{count:,} records", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _report(arguments: argparse.Namespace, appended: list[Appended]) -> None:
    """Report how many records each partition got, also after a failure."""
    counts: dict[int, int] = {}
    offsets: dict[int, list[int]] = {}
    for each in appended:
        index = each.partition.partition
        counts[index] = counts.get(index, 0) + each.record_count
        if each.base_offset >= 0:
            offsets.setdefault(index, []).extend((each.base_offset, each.base_offset + each.record_count - 1))
    total = sum(counts.values())
    if arguments.json:
        partitions = [
            {
                "partition": index,
                "records": counts[index],
                "first_offset": min(offsets[index]) if index in offsets else None,
                "last_offset": max(offsets[index]) if index in offsets else None,
            }
            for index in sorted(counts)
        ]
        print_json({"topic": arguments.topic, "records": total, "partitions": partitions})
        return
    places = ", ".join(
        f"partition {index} " + _range_text(min(offsets[index]), max(offsets[index]))
        for index in sorted(offsets)
    )
    text = f"{plural(total, 'record')} written to {arguments.topic}"
    print(f"{text}: {places}" if places else text, file=sys.stderr)


def _range_text(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"
