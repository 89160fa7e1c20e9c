"""`tidemill produce`: records from arguments or from the lines of standard input.

What can be read without waiting is gathered into batches; as soon as the input pauses, everything is written. So a large
file goes out in large batches, and a line from a slow program goes out at once. Keys and values are bytes: what came in
is what goes out, whatever its encoding. Standard output stays empty, except with --json.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Iterator

from tidemill.cli.failures import CommandError, UsageError
from tidemill.cli.options import complete, connect, key_values, natural, print_json
from tidemill.cli.positions import parse_time
from tidemill.cli.table import plural
from tidemill.client.cluster import Cluster
from tidemill.client.producer import ACKS_ALL, Appended, Producer
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
    parser.add_argument("--compression", choices=tuple(_CODECS), default="none")
    parser.add_argument("--acks", choices=tuple(_ACKS), default="all", help="whose word counts (default all)")
    parser.add_argument(
        "--timestamp", metavar="TIME", help="of every record: ISO, milliseconds, or an age as 15m"
    )
    complete(
        parser,
        _produce,
        "tidemill produce orders hello world\n"
        'tidemill produce orders --key 42 \'{"item": "book"}\'\n'
        "tidemill produce orders --key-separator : < lines.txt\n"
        "tail -F app.log | tidemill produce logs --compression zstd\n"
        "tidemill produce users --key 42 --tombstone",
    )


def run(arguments: argparse.Namespace) -> int:
    return _produce(arguments)


def _produce(arguments: argparse.Namespace) -> int:
    _check(arguments)
    headers = [Header(key, value.encode()) for key, value in key_values(arguments.header, "--header").items()]
    timestamp_ms = None if arguments.timestamp is None else parse_time(arguments.timestamp)
    with connect(arguments) as cluster:
        _check_topic(cluster, arguments.topic)
        producer = Producer(cluster, acks=_ACKS[arguments.acks], codec=_CODECS[arguments.compression])
        progress = _Progress()
        try:
            for records, is_pause in _input(arguments):
                for key, value in records:
                    producer.add(
                        arguments.topic,
                        value,
                        key=key,
                        headers=headers,
                        partition=arguments.partition,
                        timestamp_ms=timestamp_ms,
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
    if arguments.tombstone and (arguments.key is None or arguments.values or arguments.key_separator):
        raise UsageError("--tombstone takes a --key and no values")
    if arguments.key is not None and arguments.key_separator is not None:
        raise UsageError("either --key for all records or --key-separator, not both")
    if arguments.key_separator == "":
        raise UsageError("--key-separator must not be empty")
    if _STDIN in arguments.values and arguments.values != [_STDIN]:
        raise UsageError("- (standard input) cannot be mixed with values")


def _check_topic(cluster: Cluster, topic: str) -> None:
    try:
        cluster.partitions_of(topic)
    except UnknownTopic:
        raise CommandError(
            f"there is no topic {topic}; create it with `tidemill topics create {topic}`"
        ) from None


_Keyed = tuple[bytes | None, bytes | None]


def _input(arguments: argparse.Namespace) -> Iterator[tuple[list[_Keyed], bool]]:
    """Keys and values, as many as there are without waiting, and whether a wait comes next."""
    key = None if arguments.key is None else os.fsencode(arguments.key)
    separator = None if arguments.key_separator is None else os.fsencode(arguments.key_separator)

    def keyed(value: bytes, number: int) -> _Keyed:
        return (key, value) if separator is None else _split(value, separator, number)

    if arguments.tombstone:
        yield [(key, None)], True
    elif arguments.values and arguments.values != [_STDIN]:
        yield [keyed(os.fsencode(value), number) for number, value in enumerate(arguments.values, 1)], True
    else:
        number = 0
        for lines, is_pause in _stdin_lines():
            yield [keyed(line, number + index) for index, line in enumerate(lines, 1)], is_pause
            number += len(lines)


def _split(value: bytes, separator: bytes, number: int) -> _Keyed:
    key, found, rest = value.partition(separator)
    if not found:
        shown = separator.decode(errors="replace")
        raise CommandError(f"record {number} has no {shown!r} between key and value")
    return key, rest


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
    """How many records went where. Also after a failure: these were written before it."""
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
