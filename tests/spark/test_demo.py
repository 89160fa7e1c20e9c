"""`tidemill demo` from the outside: it shows what it promises, and nothing of it is left."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.brokers import command
from tidemill.errors import TidemillError
from tidemill.spark.demo import STATUSES, order_stream
from tidemill.spark.session import find_java

ORDERS = 400
LIMIT_S = 600.0


@pytest.mark.long
def test_the_demo_shows_windows_files_and_lag_and_leaves_nothing(tmp_path: Path) -> None:
    try:
        find_java()
    except TidemillError as error:
        pytest.skip(str(error))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [*command(), "demo", "--orders", str(ORDERS)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr

    # All but the windows that are still open: no more than there were, and most of them.
    shown = re.findall(
        r"^\d{4}-\d\d-\d\d \d\d:\d\d +(\d+) +(\d+) +(\d+) +(\d+) +[\d,.]+$", done.stdout, re.MULTILINE
    )
    sums = Counter({status: sum(int(row[place]) for row in shown) for place, status in enumerate(STATUSES)})
    wanted = Counter(event.value["status"] for event in order_stream(ORDERS, start_ms=0, seed=2026))
    assert len(shown) >= 6
    for status in STATUSES:
        assert wanted[status] / 2 < sums[status] <= wanted[status]

    files = re.findall(r"^topic=orders/date=\S+\.parquet", done.stdout, re.MULTILINE)
    assert len(files) >= 4
    lags = re.findall(r"^orders +(\d) +(\d+) +(\d+) +(\d+)$", done.stdout, re.MULTILINE)
    assert [(partition, lag) for partition, _, _, lag in lags] == [(str(each), "0") for each in range(4)]
    assert sum(int(committed) for _, committed, _, _ in lags) == sum(wanted.values())

    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == []
