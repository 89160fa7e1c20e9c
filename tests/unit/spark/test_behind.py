"""Lag of a query, from Spark's report of its progress."""

from __future__ import annotations

import json
from types import SimpleNamespace

from tidemill.spark.behind import offsets_behind_latest


def test_offsets_behind_latest_are_least_average_and_most_of_the_partitions() -> None:
    kafka = {
        "endOffset": json.dumps({"a": {"0": 5, "1": 7}}),
        "latestOffset": json.dumps({"a": {"0": 15, "1": 7, "2": 2}}),
    }
    progress = {"sources": [kafka, {"endOffset": 4, "latestOffset": "9"}]}
    assert offsets_behind_latest(SimpleNamespace(json=json.dumps(progress))) == [
        {"minOffsetsBehindLatest": 0, "avgOffsetsBehindLatest": 4.0, "maxOffsetsBehindLatest": 10},
        {},
    ]
