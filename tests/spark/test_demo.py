"""`tidemill demo` from the outside: it shows what it promises, and nothing of it is left."""

from __future__ import annotations

import os
import re
import shutil
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


def test_make_demo_shows_what_it_installs_and_installs_no_more_than_it_needs(tmp_path: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed: apt install make")
    root = Path(__file__).parents[2]
    planned = subprocess.run(
        [make, "-n", "demo", f"VENV={tmp_path / 'environment'}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
    ).stdout
    (spark,) = [line for line in planned.splitlines() if "pip install" in line and "spark" in line]
    assert "--quiet" not in spark
    assert "Installing Spark, once: about 500 MB to download" in planned
    assert "[dev]" not in planned


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
    assert "this takes a minute or two" in done.stdout.splitlines()[0]
    assert "starting Spark" in done.stderr

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
