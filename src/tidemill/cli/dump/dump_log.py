"""`tidemill dump-log`: prints the content of a data directory's files, even while a broker uses them or when damaged.

Files are only read, from start to end in chunks, so a segment of any size needs little memory. Every line is an event:
a batch, a record, an entry or a damage. With --json it is an object. The exit code is 1 when something is damaged or,
with --verify, when files contradict each other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tidemill.cli.dump import decoders, side_files
from tidemill.cli.dump.scan import Batch, Damage, Scan
from tidemill.cli.dump.side_files import Event
from tidemill.cli.dump.text import event_text
from tidemill.cli.dump.verify import Verification
from tidemill.cli.failures import CommandError
from tidemill.cli.options import add_examples, natural, positive
from tidemill.cli.progress import Progress
from tidemill.errors import ProtocolError
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.records import iterate_records

_LOG_SUFFIXES = (".log", ".checkpoint")
_COMPLAINTS = ("damage", "mismatch")


class _Options(NamedTuple):
    """The options of the command."""

    has_records: bool
    is_verified: bool
    decoder: str | None
    from_offset: int
    batches_max: int
    progress: Progress | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        metavar="FILE|DIR",
        nargs="+",
        type=Path,
        help=".log, .index, .timeindex, .txnindex, .snapshot, .checkpoint and the other files of a data directory; "
        "of a directory, all of them",
    )
    parser.add_argument("--records", action="store_true", help="also every record of every batch")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="check that indexes and logs agree; batches are not listed, only what is wrong, and a line for each log",
    )
    parser.add_argument(
        "--decoder",
        choices=tuple(decoders.DECODERS),
        help="how records are read (default: by the name of the folder, so that internal topics are readable)",
    )
    parser.add_argument(
        "--from", dest="from_offset", metavar="OFFSET", type=natural, default=0, help="the first to be shown"
    )
    parser.add_argument(
        "--max", metavar="N", type=positive, default=sys.maxsize, help="so many batches of a file"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(program=parser.prog)
    add_examples(
        parser,
        "tidemill dump-log data/orders-0/00000000000000000000.log\n"
        "tidemill dump-log data/orders-0 --records --from 1200 --max 1\n"
        "tidemill dump-log data/__consumer_offsets-17 --records --json\n"
        "tidemill dump-log data --verify",
    )


def run(arguments: argparse.Namespace) -> int:
    write = _write_json if arguments.json else _write_text
    is_wrong = False
    with Progress() as progress:
        options = _Options(
            arguments.records,
            arguments.verify,
            arguments.decoder,
            arguments.from_offset,
            arguments.max,
            progress if arguments.verify and sys.stderr.isatty() else None,
        )
        for path in _files(arguments.paths):
            for event in _events(path, options):
                is_wrong = is_wrong or event["type"] in _COMPLAINTS
                write(event)
    return 1 if is_wrong else 0


def _write_json(event: Event) -> None:
    sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")


def _write_text(event: Event) -> None:
    sys.stdout.write(event_text(event) + "\n")


# -- which files -----------------------------------------------------------------------------------------------


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from _folder_files(path)
        elif not path.exists():
            raise CommandError(f"there is no file {path}")
        elif not _is_known(path):
            raise CommandError(
                f"{path} is no file of a data directory; it should end in .log, .index, .timeindex, .txnindex, "
                ".snapshot or .checkpoint"
            )
        else:
            yield path


def _folder_files(folder: Path) -> Iterator[Path]:
    entries = sorted(folder.iterdir())
    yield from (each for each in entries if each.is_file() and _is_known(each))
    for each in entries:
        if each.is_dir():
            yield from _folder_files(each)


def _is_known(path: Path) -> bool:
    return (
        path.suffix in (*_LOG_SUFFIXES, ".index", ".timeindex", ".txnindex", ".snapshot")
        or path.name in (*side_files.OFFSET_CHECKPOINTS, *side_files.TEXT_FILES)
        or path.name == side_files.EPOCH_CHECKPOINT
    )


# -- what is in them -------------------------------------------------------------------------------------------


def _events(path: Path, options: _Options) -> Iterator[Event]:
    """The events of one file. A broker may delete or rename it meanwhile."""
    try:
        if path.suffix in _LOG_SUFFIXES:
            yield from _log_events(path, options)
        elif not options.is_verified:
            yield {"type": "file", "file": str(path), "size_bytes": path.stat().st_size}
            yield from side_files.events(path) or ()
        else:
            # The entries of an index are verified with its log; here the file only has to be readable.
            yield from (each for each in side_files.events(path) or () if each["type"] in _COMPLAINTS)
    except FileNotFoundError:
        yield {"type": "gone", "file": str(path)}
    except PermissionError as error:
        raise CommandError(f"cannot read {path}: {str(error.strerror).lower()}") from None


class _Reading:
    """The state of reading one log."""

    def __init__(self, path: Path, options: _Options) -> None:
        self.path = path
        self._options = options
        self._verification = Verification(path) if options.is_verified and path.suffix == ".log" else None
        self._decoder = (
            decoders.DECODERS[options.decoder] if options.decoder else decoders.decoder_of(path.parent.name)
        )
        self._shown = 0
        self.counts: Counter[str] = Counter()
        self.first_offset: int | None = None
        self.end_offset: int | None = None

    @property
    def is_over(self) -> bool:
        return self._shown >= self._options.batches_max

    def batch(self, scan: Scan, found: Batch) -> Iterator[Event]:
        header = found.header
        self.counts["batches"] += 1
        self.counts["records"] += header.record_count
        if self.first_offset is None:
            self.first_offset = header.base_offset
        self.end_offset = header.next_offset
        if self._verification is not None:
            yield from self._verified(self._verification, scan, found)
        elif header.last_offset >= self._options.from_offset:
            self._shown += 1
            yield _batch_event(found)
        if not found.is_valid:
            yield side_files.damage(
                self.path,
                found.position,
                f"the checksum of the batch at offset {header.base_offset} is wrong",
                header.size,
            )
        if self._options.has_records and header.last_offset >= self._options.from_offset:
            yield from self._records(scan, found)

    def _verified(self, verification: Verification, scan: Scan, found: Batch) -> Iterator[Event]:
        for reason in verification.note(found):
            yield {"type": "mismatch", "file": str(self.path), "reason": reason}
        if found.header.is_control and found.is_valid:
            for event in self._records(scan, found):
                if event.get("control") == "abort":
                    verification.note_abort(found.header.last_offset)

    def _records(self, scan: Scan, found: Batch) -> Iterator[Event]:
        decoder = decoders.control if found.header.is_control else self._decoder
        try:
            for record in iterate_records(scan.batch(found), found.header):
                if record.offset < self._options.from_offset:
                    continue
                yield {
                    "type": "record",
                    "offset": record.offset,
                    "timestamp": record.timestamp,
                    **_as_record(decoders.decoded(decoder, record)),
                    "headers": [
                        {"key": key, "value": decoders.data_json(value)} for key, value in record.headers
                    ],
                }
        except ProtocolError as error:
            yield side_files.damage(
                self.path,
                found.position,
                f"the records of the batch cannot be read: {error}",
                found.header.size,
            )

    def mismatches(self) -> Iterator[Event]:
        for reason in self._verification.finish() if self._verification is not None else ():
            yield {"type": "mismatch", "file": str(self.path), "reason": reason}

    @property
    def checked(self) -> list[str] | None:
        return None if self._verification is None else self._verification.checked


def _as_record(decoded: decoders.Decoded) -> dict[str, object]:
    """A decoded record as an event. The key `type` is reserved for the kind of the event."""
    return {"record_type" if name == "type" else name: value for name, value in decoded.items()}


def _log_events(path: Path, options: _Options) -> Iterator[Event]:
    reading = _Reading(path, options)
    with path.open("rb") as file:
        scan = Scan(file)
        if not options.is_verified:
            yield {"type": "file", "file": str(path), "size_bytes": scan.size_bytes}
        is_damaged = False
        for found in scan:
            if isinstance(found, Batch):
                yield from reading.batch(scan, found)
                is_damaged = is_damaged or not found.is_valid
                if options.progress is not None:
                    options.progress.show(found.position / scan.size_bytes, path.name)
                if reading.is_over:
                    return
            else:
                event = _damage_event(path, found)
                is_damaged = is_damaged or event["type"] == "damage"
                yield event
        yield from reading.mismatches() if not is_damaged else ()
        yield {
            "type": "summary",
            "file": str(path),
            "batches": reading.counts["batches"],
            "records": reading.counts["records"],
            "first_offset": reading.first_offset,
            "end_offset": reading.end_offset,
            "checked": reading.checked,
        }


def _damage_event(path: Path, found: Damage) -> Event:
    event = side_files.damage(path, found.position, found.reason, found.size_bytes)
    # The end of the last segment may be a write in progress, or a tail that recovery will truncate. It is no damage.
    return event | {"type": "tail"} if found.is_tail and _is_last_segment(path) else event


def _is_last_segment(path: Path) -> bool:
    if path.suffix != ".log":
        return False
    return all(each.name <= path.name for each in path.parent.glob("*.log") if each.stem.isdecimal())


def _batch_event(found: Batch) -> Event:
    header = found.header
    return {
        "type": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "position": found.position,
        "size_bytes": header.size,
        "leader_epoch": header.leader_epoch,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "compression": _codec_name(header.codec),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "crc": header.crc,
        "is_valid": found.is_valid,
    }


def _codec_name(codec: int) -> str:
    try:
        return CompressionType(codec).name.lower()
    except ValueError:
        return f"unknown ({codec})"
