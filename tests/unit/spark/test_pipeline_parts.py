"""What every pipeline shares, without Spark: summaries, progress of a scripted query, options, a user's file."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from tidemill.cli.failures import UsageError
from tidemill.cli.main import make_parser
from tidemill.cli.pipelines import pipeline
from tidemill.spark import pipelines
from tidemill.spark.demo import STATUSES, STREAM_MINUTES, order_stream
from tidemill.spark.pipelines import Bytes, PipelineError, Progress, Status, Summary
from tidemill.spark.pipelines.connecting import connection_options, open_cluster, options_of
from tidemill.spark.pipelines.reporting import STARTS_MAX
from tidemill.spark.pipelines.topic_to_topic import interval
from tidemill.spark.user_pipeline import UserPipeline, write_template


def test_a_summary_as_json() -> None:
    summary = Summary()
    summary.add("records written", 7)
    summary.add("size", Bytes(2048))
    summary.add_table("hot partitions", ["topic", "share of all"], [["orders", 0.5]])
    assert json.loads(json.dumps(summary.as_json())) == {
        "records_written": 7,
        "size": 2048,
        "hot_partitions": [{"topic": "orders", "share_of_all": 0.5}],
    }


class Reported:
    """One progress report of Spark, which tells itself as JSON."""

    def __init__(self, batch: int, rows: int, end: int, latest: int, late: int = 0) -> None:
        source = {"endOffset": {"t": {"0": end}}, "latestOffset": json.dumps({"t": {"0": latest}})}
        self.json = json.dumps(
            {
                "batchId": batch,
                "numInputRows": rows,
                "sources": [source],
                "stateOperators": [{"numRowsDroppedByWatermark": late}],
                "observedMetrics": {"results": {"written": rows - late, "name": "x"}},
            }
        )


class ScriptedQuery:
    """Each wait reveals one more report; then the query ends, or the scripted event happens."""

    def __init__(self, reports: list[Reported], at_end: Callable[[], None] = lambda: None) -> None:
        self._reports = reports
        self._at_end = at_end
        self.recentProgress: list[Reported] = []
        self.is_stopped = False

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
        if len(self.recentProgress) == len(self._reports):
            self._at_end()
            return True
        self.recentProgress.append(self._reports[len(self.recentProgress)])
        return False

    def stop(self) -> None:
        self.is_stopped = True

    def as_query(self) -> StreamingQuery:
        return cast(StreamingQuery, self)


def test_a_query_is_followed_to_its_end() -> None:
    shown: list[Status] = []
    now = iter(range(100))
    report = Progress(shown.append, clock=lambda: float(next(now)))
    query = ScriptedQuery([Reported(0, 10, 10, 30), Reported(1, 20, 30, 30, late=3), Reported(2, 0, 30, 30)])
    totals = report.follow(query.as_query, "copying")
    assert (totals.rows, totals.batches, totals.late, totals.observed) == (30, 2, 3, {"written": 27})
    assert [(status.batch, status.rows, status.lag) for status in shown[:2]] == [(0, 10, 20), (1, 30, 0)]
    assert not report.is_interrupted
    assert not query.is_stopped


def late() -> None:
    raise StreamingQueryException("[STREAM_FAILED] …: Python worker failed to connect back. SQLSTATE: XXKST")


def test_a_query_whose_reader_is_late_is_started_again() -> None:
    notes: list[str] = []
    report = Progress(note=notes.append)
    queries = [ScriptedQuery([], late), ScriptedQuery([], late), ScriptedQuery([Reported(0, 10, 10, 10)])]
    starts = iter(queries)
    totals = report.follow(lambda: next(starts).as_query(), "copying")
    assert totals.rows == 10
    assert len(notes) == 2


def test_a_reader_that_is_always_late_ends_the_run() -> None:
    starts: list[ScriptedQuery] = []

    def start() -> StreamingQuery:
        starts.append(ScriptedQuery([], late))
        return starts[-1].as_query()

    with pytest.raises(StreamingQueryException, match="connect back"):
        Progress().follow(start, "copying")
    assert len(starts) == STARTS_MAX


def test_a_query_that_fails_otherwise_is_not_started_again() -> None:
    def failed() -> None:
        raise StreamingQueryException("[STREAM_FAILED] a malformed row")

    starts = iter([ScriptedQuery([Reported(0, 10, 10, 10)], failed)])
    with pytest.raises(StreamingQueryException, match="a malformed row"):
        Progress().follow(lambda: next(starts).as_query(), "copying")


def signalled() -> None:
    signal.raise_signal(signal.SIGINT)


def raised() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("interrupt", [signalled, raised])
def test_ctrl_c_stops_the_query_and_the_totals_stay(interrupt: Callable[[], None]) -> None:
    before = signal.getsignal(signal.SIGINT)
    report = Progress()
    query = ScriptedQuery([Reported(0, 10, 10, 10)], interrupt)
    totals = report.follow(query.as_query, "copying")
    assert query.is_stopped
    assert report.is_interrupted
    assert totals.rows == 10
    assert signal.getsignal(signal.SIGINT) is before


def test_every_pipeline_keeps_to_the_protocol() -> None:
    for name in pipelines.MODULES:
        pipeline = pipelines.load(name)
        assert name == pipeline.NAME
        assert pipeline.SUMMARY
        pipeline.add_arguments(argparse.ArgumentParser())
        assert callable(pipeline.run)
    with pytest.raises(PipelineError, match="no pipeline nonsense; there are archive,"):
        pipelines.load("nonsense")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5m", "5 minutes"), ("500ms", "500 milliseconds"), ("1 hour", "1 hour"), ("2 Days", "2 days")],
)
def test_intervals(text: str, expected: str) -> None:
    assert interval(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "5", "-1m", "5 fortnights"])
def test_intervals_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        interval(text)


def options(name: str, *words: str) -> argparse.Namespace:
    flow = ["--from-topic", "a,b", "--to-topic", "c"]
    return options_of(pipelines.load(name), [*flow, *words], bootstrap="127.0.0.1:1")


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("dedupe", ["--by", "header:"], "header:NAME"),
        ("dedupe", ["--whole", "--continuous"], "--continuous"),
        ("aggregate", ["--window", "1m", "--sum", "x", "--sum", "x"], "two fields x_sum"),
        ("aggregate", ["--window", "1m", "--by", "count"], "two fields count"),
    ],
)
def test_contradicting_options_are_refused_without_a_broker(name: str, words: list[str], told: str) -> None:
    check: Any = cast(Any, pipelines.load(name)).check
    with pytest.raises(PipelineError, match=told):
        check(options(name, *words))


def test_several_topics_are_named_with_commas() -> None:
    assert options("dedupe").from_topic == ["a", "b"]


# --- a user's file ---


def test_the_template_is_a_pipeline_and_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    write_template(path)
    assert UserPipeline(path).NAME == "mine"
    path.write_text("changed")
    with pytest.raises(PipelineError, match="exists"):
        write_template(path)
    assert path.read_text() == "changed"
    with pytest.raises(PipelineError, match=r"should end in \.py"):
        write_template(tmp_path / "mine.txt")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1", r"has no function pipeline\(source\)"),
        ("x = 1\ndef pipeline(:\n", r"bad\.py line 2: SyntaxError"),
    ],
)
def test_error_in_a_pipeline_file_is_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(PipelineError, match=told) as refused:
        UserPipeline(path)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no file"):
        UserPipeline(tmp_path / "none.py")


def test_a_file_may_have_options_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "def add_arguments(parser):\n    parser.add_argument('--limit', type=int)\n\n"
        "def pipeline(source, options):\n    return source\n"
    )
    chosen = options_of(
        UserPipeline(path), ["--from-topic", "a", "--to-topic", "b", "--limit", "3"], bootstrap="x"
    )
    assert chosen.limit == 3


# --- the order stream of the demo ---


def test_the_order_stream_is_the_same_for_a_seed_and_orders_go_their_way() -> None:
    events = order_stream(500, start_ms=1_000_000, seed=7)
    assert events == order_stream(500, start_ms=1_000_000, seed=7)
    assert events != order_stream(500, start_ms=1_000_000, seed=8)
    assert all(0 <= event.timestamp_ms - 1_000_000 < STREAM_MINUTES * 60_000 for event in events)
    times = [event.timestamp_ms for event in events]
    assert times == sorted(times)
    histories: dict[str, list[object]] = {}
    for event in events:
        histories.setdefault(event.order_id, []).append(event.value["status"])
    assert len(histories) == 500
    for history in histories.values():
        assert history == list(STATUSES[: len(history)])
    assert {len(history) for history in histories.values()} == {1, 2, 3, 4}


def _options(*words: str) -> argparse.Namespace:
    command = ["pipeline", "run", "dedupe", "--from-topic", "a", "--to-topic", "b", *words]
    arguments = make_parser(command).parse_args(command)
    return pipeline._options(pipelines.load("dedupe"), arguments)


def test_secrets_of_a_file_are_no_options_of_spark(tmp_path: Path) -> None:
    secured = "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password=open-sesame\n"
    file = tmp_path / "client.properties"
    file.write_text(f"{secured}fetch.max.bytes=1000\n")
    for option in ("--command-config", "--kafka-file"):
        found = connection_options(_options(option, str(file), "--kafka", "client.id=x"))
        assert "open-sesame" not in str(found)
        assert found["commandConfig"] == str(file)
        assert found["kafka.client.id"] == "x"
        # Only --kafka-file is for what tunes the connection, too.
        assert ("kafka.fetch.max.bytes" in found) is (option == "--kafka-file")
        with open_cluster(_options(option, str(file))) as cluster:
            assert cluster._security is not None
            assert cluster._security.password == "open-sesame"
    with pytest.raises(UsageError, match="give one of them"):
        _options("--command-config", str(file), "--kafka-file", str(file))
