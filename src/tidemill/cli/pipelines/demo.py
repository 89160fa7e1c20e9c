"""`tidemill demo`: demonstrates Tidemill in a minute or two on this machine, and leaves nothing behind.

It starts a broker on a free port, writes an order stream, runs two pipelines on Spark, and shows their results. All
files are in a temporary directory. The directory and every process are removed at the end and on Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tidemill.cli.failures import CommandError
from tidemill.cli.options import add_examples, positive
from tidemill.cli.pipelines.pipeline import show_status
from tidemill.cli.progress import Progress as Display
from tidemill.cli.table import BOLD, Quantity, plural, print_table, size_text, styled
from tidemill.client.cluster import Cluster
from tidemill.errors import TidemillError
from tidemill.spark import demo, pipelines, session

_LISTENS = re.compile(r"listens on (\S+:\d+)")
_STOP_LIMIT_S = 20.0
_SEED = 2026


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--orders", metavar="N", type=positive, default=6000, help="how many orders there are (default 6000)"
    )
    parser.set_defaults(program=parser.prog)
    add_examples(parser, "tidemill demo\ntidemill demo --orders 20000")


def run(arguments: argparse.Namespace) -> int:
    session.check_packages()
    warning = session.java_warning(session.find_java())
    if warning:
        print(warning, file=sys.stderr)
    started_at = time.monotonic()
    print("A broker, an order stream and two pipelines on Spark: this takes a minute or two.", flush=True)
    with tempfile.TemporaryDirectory(prefix="tidemill-demo-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        with _broker(home) as bootstrap, Cluster(bootstrap, client_id="tidemill-demo") as cluster:
            _say(1, f"A broker listens on {bootstrap}: any Kafka client can use it while this runs.")
            _write_orders(cluster, arguments.orders)
            _run_pipelines(bootstrap, home)
            _show_results(cluster, home)
    seconds = time.monotonic() - started_at
    print(f"\nDone in {seconds:.0f} s; broker, data and Spark are gone again. To go on:")
    print("  tidemill serve                     a broker that stays")
    print("  tidemill pipeline list             what runs on Spark")
    print("  tidemill pipeline new my.py        a pipeline of your own")
    return 0


def _say(step: int, text: str) -> None:
    print(f"{styled(f'{step}/5', BOLD)}  {text}", flush=True)


# --- the steps ---


@contextmanager
def _broker(home: Path) -> Iterator[str]:
    """Run a broker and yield its address. The process ends with the block."""
    arguments = ["serve", "--data-dir", str(home / "data"), "--listen", "127.0.0.1:0"]
    with (home / "broker.log").open("wb") as log:
        # In a session of its own: Ctrl-C at the terminal goes to this process, which still needs the broker for a
        # clean stop.
        process = subprocess.Popen(
            [sys.executable, "-m", "tidemill", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            found = next(filter(None, map(_LISTENS.search, process.stdout)), None)
            if found is None:
                raise CommandError(f"the broker did not start: {(home / 'broker.log').read_text()}")
            yield found[1]
        finally:
            process.terminate()
            try:
                process.wait(_STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _write_orders(cluster: Cluster, orders: int) -> None:
    minute_ms = 60_000
    start_ms = (int(time.time() * 1000) // minute_ms - demo.STREAM_MINUTES) * minute_ms
    start_ms -= start_ms % (demo.WINDOW_MINUTES * minute_ms)
    events = demo.order_stream(orders, start_ms=start_ms, seed=_SEED)
    demo.produce(cluster, events)
    _say(
        2,
        f"{len(events):,} events of {plural(orders, 'order')} in {demo.PARTITION_COUNT} partitions of topic "
        f"{demo.ORDERS}, the last {demo.STREAM_MINUTES} minutes of a shop. One of them:",
    )
    print(f"     {json.dumps(events[len(events) // 2].value)}")


def _run_pipelines(bootstrap: str, home: Path) -> None:
    log_path = session.new_log_path("demo")
    conf = {"spark.sql.shuffle.partitions": "2", "spark.local.dir": str(home / "spark")}
    _say(
        3,
        f"Spark starts, and aggregate runs on it: {demo.ORDERS} by status and {demo.WINDOW_MINUTES} minutes of event "
        f"time, into topic {demo.STATISTICS}, exactly once.",
    )
    try:
        with ExitStack() as opened:
            with Display() as display:
                display.show(None, "starting Spark")
                spark = opened.enter_context(session.open_session("demo", log_path=log_path, conf=conf))
            with Display() as display:
                report = pipelines.Progress(lambda status: show_status(display, status))
                demo.aggregate(spark, bootstrap, home, report)
            _check_interrupted(report)
            _say(4, f"archive runs in the same session: topic {demo.ORDERS} into Parquet, by date.")
            with Display() as display:
                report = pipelines.Progress(lambda status: show_status(display, status))
                demo.archive(spark, bootstrap, home, report)
            _check_interrupted(report)
    except TidemillError:
        # The error line names the log.
        raise
    except BaseException:
        log_path.unlink(missing_ok=True)
        raise
    log_path.unlink()


def _check_interrupted(report: pipelines.Progress) -> None:
    if report.is_interrupted:
        raise KeyboardInterrupt


def _show_results(cluster: Cluster, home: Path) -> None:
    _say(5, "What is there now")
    windows = demo.windows(cluster)
    print(f"\n     topic {demo.STATISTICS}, as a consumer with isolation.level=read_committed reads it")
    print_table(
        ["WINDOW (UTC)", *(status.upper() for status in demo.STATUSES), "PAID AMOUNT"],
        [
            [
                window.start[:16].replace("T", " "),
                *(window.counts.get(status, 0) for status in demo.STATUSES),
                Quantity(f"{window.paid_amount:,.2f}"),
            ]
            for window in windows
        ],
    )
    print("     (the last windows are still open: they come when later events close them)")
    print("\n     the archive, readable by anything that reads Parquet")
    print_table(["FILE", "SIZE"], [[path, size_text(size)] for path, size in demo.archive_files(home)])
    lags = demo.lags(cluster)
    print(f"\n     consumer group {demo.GROUP}, which shows how far the query is")
    print_table(
        ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG"],
        [[*each.partition, each.committed_offset, each.end_offset, each.lag] for each in lags],
    )
