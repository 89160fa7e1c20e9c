"""The text format of `tidemill dump-log`: names and values in the order of Kafka's own tool."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tidemill.cli.positions import time_text
from tidemill.cli.table import plural, printable

_Event = dict[str, Any]


def event_text(event: dict[str, object]) -> str:
    return printable(_TEXTS[str(event["type"])](event))


def _batch(event: _Event) -> str:
    words = [
        f"offsets {event['base_offset']}-{event['last_offset']}",
        f"count {event['record_count']}",
        f"position {event['position']}",
        f"size {event['size_bytes']}",
        f"epoch {event['leader_epoch']}",
        f"time {_time(event['max_timestamp'])}",
        f"compression {event['compression']}",
        "crc ok" if event["is_valid"] else "crc WRONG",
    ]
    if event["producer_id"] >= 0:
        words.append(f"producer {event['producer_id']} epoch {event['producer_epoch']}")
    if event["base_sequence"] >= 0:
        words.append(f"sequence {event['base_sequence']}-{event['last_sequence']}")
    words += [name for name in ("transactional", "control") if event[f"is_{name}"]]
    return "  ".join(words)


def _record(event: _Event) -> str:
    words = [f"offset {event['offset']}", f"time {_time(event['timestamp'])}"]
    for name in ("control", "record_type"):
        if name in event:
            words.append(f"{name.removeprefix('record_')} {event[name]}")
    shown = ("type", "offset", "timestamp", "control", "record_type", "headers")
    words += [f"{name} {_json(value)}" for name, value in event.items() if name not in shown]
    if event["headers"]:
        words.append(f"headers {_json({each['key']: each['value'] for each in event['headers']})}")
    return "  | " + "  ".join(words)


def _summary(event: _Event) -> str:
    what = f"{_batches(event['batches'])}, {plural(event['records'], 'record')}"
    if event["first_offset"] is not None:
        what += f", offsets {event['first_offset']} to {event['end_offset'] - 1}"
    if event["checked"] is None:
        return what
    return f"{event['file']}: {what}; read with {', '.join(event['checked']) or 'no index'}"


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"


def _producer(event: _Event) -> str:
    words = [
        f"producer {event['producer_id']} epoch {event['producer_epoch']}",
        f"time {_time(event['last_timestamp'])}",
    ]
    if event["transaction_first_offset"] is not None:
        words.append(f"transaction open since offset {event['transaction_first_offset']}")
    words += (
        f"sequence {each['base_sequence']}-{each['last_sequence']} at offsets {each['base_offset']}-{each['last_offset']}"
        for each in event["batches"]
    )
    return "  ".join(words)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _time(timestamp_ms: int) -> str:
    return time_text(timestamp_ms) if timestamp_ms >= 0 else "none"


_TEXTS: dict[str, Callable[[_Event], str]] = {
    "file": lambda event: f"{event['file']}: {event['size_bytes']} bytes",
    "gone": lambda event: f"{event['file']}: gone meanwhile",
    "batch": _batch,
    "record": _record,
    "summary": _summary,
    "damage": lambda event: (
        f"DAMAGED {event['file']} at {event['position']}, {event['size_bytes']} bytes: {event['reason']}"
    ),
    "tail": lambda event: (
        f"unfinished end of {event['file']} at {event['position']}, {event['size_bytes']} bytes: {event['reason']}"
    ),
    "mismatch": lambda event: f"MISMATCH {event['file']}: {event['reason']}",
    "index": lambda event: f"offset {event['offset']}  position {event['position']}",
    "timeindex": lambda event: f"time {_time(event['timestamp'])}  offset {event['offset']}",
    "aborted": lambda event: (
        f"producer {event['producer_id']}  offsets {event['first_offset']}-{event['last_offset']}  "
        f"last stable offset {event['last_stable_offset']}"
    ),
    "producer": _producer,
    "checkpoint": lambda event: f"{event['topic']}-{event['partition']}  offset {event['offset']}",
    "epoch": lambda event: f"epoch {event['epoch']}  from offset {event['start_offset']}",
    "text": lambda event: str(event["line"]),
}
