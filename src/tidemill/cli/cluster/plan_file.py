"""Reassignment plans as files, in the JSON format of Kafka's kafka-reassign-partitions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.cli.failures import CommandError
from tidemill.types import TopicPartition

_VERSION = 1


def plan_text(assignments: Mapping[TopicPartition, Sequence[int]]) -> str:
    """Format a plan with one partition a line, so that plans can be compared and edited."""
    lines = [
        json.dumps({"topic": topic, "partition": index, "replicas": list(replicas)}, ensure_ascii=False)
        for (topic, index), replicas in sorted(assignments.items())
    ]
    listed = ",\n    ".join(lines)
    body = f"\n    {listed}\n  " if lines else ""
    return f'{{\n  "version": {_VERSION},\n  "partitions": [{body}]\n}}\n'


def parse_plan(text: str, source: str) -> dict[TopicPartition, tuple[int, ...]]:
    """Parse the assignments of a plan. Errors name `source`."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise CommandError(f"{source} is not JSON: {error}") from None
    rows = document.get("partitions") if isinstance(document, dict) else None
    if not isinstance(rows, list) or document.get("version", _VERSION) != _VERSION:
        raise CommandError(
            f"{source} is not a reassignment plan; `tidemill reassign plan` writes one: "
            '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}'
        )
    assignments: dict[TopicPartition, tuple[int, ...]] = {}
    for number, row in enumerate(rows, 1):
        partition, replicas = _parse_row(row, f"{source}, partition {number} of the list")
        if partition in assignments:
            raise CommandError(f"{source} names {partition} twice")
        assignments[partition] = replicas
    return assignments


def _parse_row(row: Any, where: str) -> tuple[TopicPartition, tuple[int, ...]]:
    fields: dict[str, Any] = row if isinstance(row, dict) else {}
    topic, index, replicas = (fields.get(name) for name in ("topic", "partition", "replicas"))
    if not isinstance(topic, str) or not isinstance(index, int) or index < 0:
        raise CommandError(f"{where}: topic must be a text and partition a number from 0 on")
    ids = tuple(each for each in replicas if isinstance(each, int)) if isinstance(replicas, list) else ()
    if not ids or list(ids) != replicas or min(ids) < 0 or len(set(ids)) != len(ids):
        raise CommandError(f"{where} ({topic}-{index}): replicas must be a list of different broker ids")
    return TopicPartition(topic, index), ids
