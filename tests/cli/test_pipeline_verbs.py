"""`tidemill pipeline` and `tidemill demo` as a user runs them: each that reaches Spark starts a JVM, so there are few."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.brokers import RunningBroker, command, eventually
from tests.cli.conftest import Result, Run, write
from tidemill.client.cluster import Cluster
from tidemill.errors import TidemillError
from tidemill.spark.session import find_java

NAMES = ["archive", "replay", "dedupe", "aggregate", "dead-letters", "report"]
LIMIT_S = 300.0
SMALL = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2")


@pytest.fixture
def java() -> None:
    try:
        find_java()
    except TidemillError as error:
        pytest.skip(str(error))


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    """The folder in which the commands keep their logs and checkpoints."""
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def on_spark(java: None, target: RunningBroker, state: dict[str, str]) -> Run:
    """Runs a command that starts a session, which takes its time."""

    def run(*words: str) -> Result:
        done = subprocess.run(
            [*command(), *words, "--bootstrap", target.bootstrap, *SMALL],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={**os.environ, **state},
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


def test_list_shows_every_pipeline(cli: Run) -> None:
    assert [each["name"] for each in cli("pipeline", "list", "--json").json] == NAMES
    lines = cli("pipeline", "list").ok.splitlines()
    assert [line.split()[0] for line in lines[1:]] == NAMES


def test_neither_listing_nor_help_needs_spark() -> None:
    """Starting pyspark takes a second; and both work where it is not installed."""
    script = (
        "import sys\nfrom tidemill.cli.main import main\n"
        "for words in (['list'], *(['run', name, '--help'] for name in sys.argv[1:])):\n"
        "    try:\n        main(['pipeline', *words])\n    except SystemExit:\n        pass\n"
        "print('loaded', [each for each in ('pyspark', 'pyarrow', 'numpy') if each in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *NAMES], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"
    for name in NAMES:
        assert f"usage: tidemill pipeline run {name} " in done.stdout


def test_a_template_is_written_once(cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    assert str(path) in cli("pipeline", "new", str(path)).ok
    compile(path.read_text(), str(path), "exec")
    assert "exists" in cli("pipeline", "new", str(path)).error


def test_an_unknown_pipeline(cli: Run) -> None:
    error = cli("pipeline", "run", "nonsense").error
    assert error.startswith("tidemill pipeline run: there is no pipeline nonsense")
    assert all(name in error for name in NAMES)


def test_an_option_that_the_pipeline_does_not_have(cli: Run) -> None:
    result = cli("pipeline", "run", "dedupe", "--from-topic", "a", "--to-topic", "b", "--window", "1m")
    assert result.code == 2
    assert "--window" in result.err


DEDUPE = ("pipeline", "run", "dedupe", "--from-topic")


def test_unreachable_broker_or_missing_topic_is_reported_before_spark_starts(cli: Run, topic: str) -> None:
    error = cli(*DEDUPE, topic, "--to-topic", "x", "--bootstrap", "127.0.0.1:1").error
    assert "127.0.0.1:1" in error
    assert f"there is no topic {topic}" in cli(*DEDUPE, topic, "--to-topic", "x").error


def test_without_java_it_says_how_to_get_it(cli: Run, orders: str, tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    error = cli(*DEDUPE, orders, "--to-topic", f"{orders}-once", environment=environment).error
    assert "Java 17" in error
    assert "apt install openjdk-17" in error
    assert "Java 17" in cli("demo", environment=environment).error


@pytest.mark.long
def test_a_run_shows_progress_and_a_summary(
    on_spark: Run, cli: Run, cluster: Cluster, orders: str, state: dict[str, str]
) -> None:
    write(cluster, orders, 0, "a", "b", "a")
    words = (*DEDUPE, orders, "--to-topic", f"{orders}-once", "--by", "value", "--json")
    result = on_spark(*words, "--package")
    summary = result.json
    assert (summary["records_read"], summary["records_written"]) == (3, 2)
    assert f"created topic {orders}-once" in result.err
    assert f"checkpoint {summary['checkpoint']}\n" in result.err
    assert Path(summary["checkpoint"]).is_relative_to(state["XDG_STATE_HOME"])
    assert "dedupe" in result.err
    assert " WARN " not in result.err
    assert summary["consumer_group"] in cli("groups", "list").ok


@pytest.mark.long
def test_a_failure_within_spark_is_one_line_and_the_trace_is_in_the_log(
    on_spark: Run, cluster: Cluster, orders: str, state: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "failing.py"
    path.write_text(
        "from pyspark.sql import functions as f\n\n"
        "def convert(text):\n    raise ValueError(f'{text} is no number')\n\n"
        "def pipeline(source):\n"
        "    number = f.udf(convert, 'int', useArrow=False)(f.col('value').cast('string'))\n"
        "    return source.select(number.alias('number'))\n"
    )
    write(cluster, orders, 0, "seven")
    words = ("pipeline", "run", str(path), "--from-topic", orders, "--to-topic", f"{orders}-out")
    result = on_spark(*words)
    assert result.code == 1
    assert result.out == ""
    line = result.err.splitlines()[-1]
    assert line.startswith("tidemill pipeline run: ValueError: seven is no number (the whole trace is in ")
    log = Path(line.rpartition(" in ")[2].rstrip(")"))
    assert log.is_relative_to(state["XDG_STATE_HOME"])
    assert "org.apache.spark" in log.read_text()
    assert "Traceback" not in result.err
    assert "org.apache" not in result.err


@pytest.mark.long
def test_ctrl_c_stops_a_continuous_run_and_its_summary_comes(
    java: None,
    spawn: Callable[..., subprocess.Popen[bytes]],
    cluster: Cluster,
    orders: str,
    state: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", state["XDG_STATE_HOME"])
    write(cluster, orders, 1, "a", "b")
    process = spawn(
        *DEDUPE, orders, "--to-topic", f"{orders}-once", "--by", "value", "--continuous", "--json",
        *SMALL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    shown = b""
    # Two records read and none left: the first batch is done.
    while b"2 records" not in shown:
        shown = process.stderr.readline()
        assert shown, "the command ended before it read the records"
    # As a terminal does it: to all processes of the group, Spark's as well.
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    assert json.loads(out)["records_written"] == 2
    eventually(lambda: not _group_exists(process.pid), "every process of the run to end", LIMIT_S)


def _group_exists(group_id: int) -> bool:
    try:
        os.killpg(group_id, 0)
    except ProcessLookupError:
        return False
    return True
