"""A Spark session for a command: everything that has to be right before it starts, and failures as one line.

It finds Java and the packages of `tidemill[spark]`, or says in a line how to get them. It chooses the Python that Spark's
workers run. It owns the JVM's process, whose whole output goes to a log file, so that the terminal belongs to the
command. It translates what Spark raises (`failure_line`); the trace of a failure is appended to the same log.

Rules: the user's environment and --conf win over every default here. Ctrl-C reaches Python only: the JVM ignores it, and
the caller that runs a query stops it. Nothing of pyspark is imported before a session is asked for.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from tidemill.errors import TidemillError
from tidemill.spark import use_this_python
from tidemill.spark.packaging import package_zip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
# Spark 4.3 runs on 17, 21 and 25.
JAVA_VERSION_MIN = 17
JAVA_VERSION_TESTED_MAX = 25
_JAVA_HOWTO = (
    "install it with `apt install openjdk-17-jre-headless` (Debian, Ubuntu), `brew install openjdk@17` (macOS) or "
    "`conda install -c conda-forge openjdk=17`, and set JAVA_HOME if it is not on PATH"
)
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_JAVA_LIMIT_S = 30.0
_JVM_EXIT_LIMIT_S = 15.0
_LOGS_KEPT = 20
_QUIET_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_PACKAGES = ("pyspark", "pyarrow", "numpy")
_HOME = "SPARK_HOME"
# What Spark's own scripts and its JVM look for there.
_HOME_PARTS = ("bin", "sbin", "jars")
# Spark waits ten seconds for the Python process that reads for a stream, which no setting changes.
_LATE_WORKER = re.compile("Python worker (failed )?to connect back")


class SparkUnavailable(TidemillError):
    """Something that Spark needs is missing here; the text says how to get it."""


class SparkFailed(TidemillError):
    """A job or query failed: the cause as one line, and where the rest is."""


class Java(NamedTuple):
    path: str
    version: int


# --- what has to be there ---


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The Java that Spark's own scripts would take: JAVA_HOME's, else the one on PATH."""
    home = environment.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH"))
    if path is None:
        raise SparkUnavailable(
            f"Spark needs Java {JAVA_VERSION_MIN} and there is none on PATH; {_JAVA_HOWTO}"
        )
    try:
        answer = subprocess.run(
            [path, "-version"], capture_output=True, timeout=_JAVA_LIMIT_S, check=False, text=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        where = f"JAVA_HOME={home}" if home else path
        raise SparkUnavailable(
            f"Spark needs Java {JAVA_VERSION_MIN} and {where} does not run ({error}); {_JAVA_HOWTO}"
        ) from None
    found = _JAVA_VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode or found is None:
        raise SparkUnavailable(f"Spark needs Java {JAVA_VERSION_MIN} and {path} is none; {_JAVA_HOWTO}")
    java = Java(path, int(found[1]))
    if java.version < JAVA_VERSION_MIN:
        raise SparkUnavailable(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer and {path} is Java {java.version}; {_JAVA_HOWTO}"
        )
    return java


def java_warning(java: Java) -> str | None:
    if java.version <= JAVA_VERSION_TESTED_MAX:
        return None
    return (
        f"{java.path} is Java {java.version}, newer than what Spark supports ({JAVA_VERSION_MIN} to "
        f"{JAVA_VERSION_TESTED_MAX}); if the session fails, set JAVA_HOME to one of those"
    )


def check_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkUnavailable(
            f"the Python package {', '.join(missing)} is not installed; `pip install 'tidemill[spark]'` installs "
            "what pipelines need"
        )


# --- the session ---


def state_dir() -> Path:
    """$XDG_STATE_HOME/tidemill, or where that points by default."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "tidemill"


def new_log_path(name: str) -> Path:
    """A file of this run alone; the oldest of those that earlier runs left are deleted."""
    directory = state_dir() / "logs"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        old = sorted(directory.glob("*.log"), key=lambda path: path.stat().st_mtime)
        for path in old[: max(len(old) - _LOGS_KEPT + 1, 0)]:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise SparkUnavailable(
            f"cannot write Spark's log to {directory}: {error}; set XDG_STATE_HOME to a directory that can be written"
        ) from None
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return directory / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name)}-{moment}-{os.getpid()}.log"


@contextmanager
def open_session(
    name: str,
    *,
    log_path: Path,
    master: str = DEFAULT_MASTER,
    conf: Mapping[str, str] | None = None,
    sends_package: bool = False,
) -> Iterator[SparkSession]:
    """The session, until the block is left. What Spark raises in it comes out as `SparkFailed`.

    With `sends_package`, executors get this very Tidemill; its dependencies they must have.
    """
    check_packages()
    find_java()
    use_this_python()
    settings = {**_defaults(name, master), **(conf or {})}
    handler = signal.getsignal(signal.SIGINT)
    # The JVM and executors read what is here for as long as they run.
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-") as directory,
        log_path.open("ab") as log,
        _quiet(log_path),
    ):
        try:
            with lean_spark_home(Path(directory)) if master.startswith("local") else nullcontext():
                spark, gateway = _start(settings, log)
        except Exception as error:
            raise _failed(error, log_path) from None
        try:
            if sends_package:
                spark.sparkContext.addPyFile(str(package_zip(Path(directory))))
            yield spark
        except TidemillError:
            raise
        except Exception as error:
            if not is_of_spark(error):
                raise
            raise _failed(error, log_path) from None
        finally:
            _stop(spark, gateway)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, handler)


def _defaults(name: str, master: str) -> dict[str, str]:
    settings = {
        "spark.app.name": f"tidemill-{name}",
        "spark.master": master,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    }
    if master.startswith("local"):
        # One machine: no page to open a port for, no name to resolve, and no more shuffle tasks than cores.
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.warehouse.dir": str(state_dir() / "warehouse"),
            "spark.sql.shuffle.partitions": str(max(os.cpu_count() or 1, 2)),
        }
    return settings


@contextmanager
def lean_spark_home(folder: Path, environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """A JVM that is started meanwhile has Python workers that start in a third of the time.

    Spark lets a worker look for PySpark in an archive of sources under SPARK_HOME first, and each worker compiles what it
    imports from there. Here SPARK_HOME is a folder of links to the installed Spark without that archive, so that workers
    import the installed PySpark. It stays as Spark has it where another Python runs, or the user says where Spark is.
    """
    found = importlib.util.find_spec("pyspark")
    installed = Path(str(found and found.origin)).parent
    is_ours = environment.get("PYSPARK_PYTHON") == sys.executable and _HOME not in environment
    if not is_ours or not (installed / "jars").is_dir():
        yield
        return
    home = folder / "spark-home"
    home.mkdir()
    for name in _HOME_PARTS:
        (home / name).symlink_to(installed / name)
    environment[_HOME] = str(home)
    try:
        yield
    finally:
        del environment[_HOME]


def _start(settings: Mapping[str, str], log: Any) -> tuple[SparkSession, Any]:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    try:
        context = SparkContext(
            conf=SparkConf(_jvm=gateway.jvm).setAll(list(settings.items())), gateway=gateway
        )
        # PySpark's own handler cancels all jobs, also those of a query that is about to be stopped in good order.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return SparkSession(context), gateway
    except BaseException:
        _end_jvm(gateway)
        raise


@contextmanager
def _quiet(log_path: Path) -> Iterator[None]:
    """Warnings and what is logged go to the log. PySpark's own loggers are silent: the trace has all of it."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in _QUIET_LOGGERS]

    def to_log(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,  # noqa: ARG001
        line: str | None = None,
    ) -> None:
        with log_path.open("a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(warnings.formatwarning(message, category, filename, lineno, line))

    # Without any handler, Py4J's first message would make one that prints.
    handler = logging.FileHandler(log_path, delay=True)
    logging.getLogger().addHandler(handler)
    with warnings.catch_warnings():
        warnings.showwarning = to_log
        for logger in loggers:
            logger.disabled = True
        try:
            yield
        finally:
            for logger in loggers:
                logger.disabled = False
            logging.getLogger().removeHandler(handler)
            handler.close()


def _stop(spark: SparkSession, gateway: Any) -> None:
    try:
        spark.stop()
    finally:
        _end_jvm(gateway)


def _end_jvm(gateway: Any) -> None:
    """The JVM ends when its standard input does; another session of this process then starts its own."""
    from pyspark import SparkContext

    gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    if gateway.proc is not None:
        gateway.proc.stdin.close()
        try:
            gateway.proc.wait(_JVM_EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
            gateway.proc.wait()


# --- failures ---

# The last line of a Python traceback: a class by its module, then what it says.
_RAISED = re.compile(r"^\s*((?:[A-Za-z_]\w*\.)*[A-Z]\w*[a-z]\w*): (.+)$")
_NOT_FOUND = re.compile(r"\[DATA_SOURCE_NOT_FOUND\].* tidemill\b")
_FRAME = re.compile(r'^\s*File "')
_CALLING = re.compile(r"^An error occurred while calling \S+$")
_QUERY = re.compile(r"^.*terminated with exception: ")
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+[;.]?")
_JAVA_EXCEPTION = re.compile(r"^(?:: |Caused by: )?(?:[a-z]\w*\.)+(?P<name>[A-Z][\w$]*): (?P<message>.+)$")


def is_of_spark(error: BaseException) -> bool:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException | Py4JError)


def is_late_worker(error: BaseException) -> bool:
    """Whether a streaming query failed before it began, because its Python process did not start in time."""
    return _LATE_WORKER.search(_text(error)) is not None


def failure_line(error: BaseException) -> str:
    """The cause of a failure in one line: ours first, then the user's own, then Spark's.

    Must be asked for while the session lives: Spark's exceptions get their text from the JVM.
    """
    return line_of(_text(error))


def line_of(text: str) -> str:
    """Returns the line with the cause from Spark's description of a failure."""
    if _NOT_FOUND.search(text):
        python = os.environ.get("PYSPARK_PYTHON", "python3")
        return (
            f"Spark's workers run {python}, and that Python does not have Tidemill; set PYSPARK_PYTHON to one that has, "
            "or import tidemill.spark before the session starts"
        )
    if _LATE_WORKER.search(text):
        return (
            "the Python process that reads for a stream did not start within Spark's ten seconds; this machine is busy: "
            "run it again"
        )
    lines = text.splitlines()
    raised = [
        (found[1], found[2])
        for number, line in enumerate(lines)
        if (found := _RAISED.match(line)) and _ends_traceback(lines, number)
    ]
    for name, message in reversed(raised):
        if name.startswith("tidemill."):
            return message.strip()
    for name, message in reversed(raised):
        if not name.startswith(("pyspark.errors", "org.apache.", "java.")):
            return f"{name.rpartition('.')[2]}: {message.strip()}"
    return _spark_line([line for line in lines if line.strip() and not _CALLING.match(line)])


def _spark_line(lines: list[str]) -> str:
    """Spark's own words if it has a condition for this, else the innermost exception of the JVM."""
    first = lines[0] if lines else "Spark failed and gave no reason"
    found = _JAVA_EXCEPTION.match(first)
    first = _QUERY.sub("", found["message"] if found else first)
    if _CONDITION.match(first):
        return _SQL_STATE.sub("", _CONDITION.sub("", first)).strip()
    causes = [
        found for line in lines if line.startswith("Caused by: ") and (found := _JAVA_EXCEPTION.match(line))
    ]
    return f"{causes[-1]['name']}: {causes[-1]['message'].strip()}" if causes else first.strip()


def _ends_traceback(lines: list[str], number: int) -> bool:
    """Whether a frame stands just above: the frame, its source, and the marks that newer Pythons put under that."""
    return any(_FRAME.match(line) for line in lines[max(number - 4, 0) : number])


def _text(error: BaseException) -> str:
    parts = [str(error)]
    trace = getattr(error, "_stackTrace", None)
    if trace:
        parts.append(str(trace))
    cause = getattr(error, "_cause", None) or error.__cause__
    if cause is not None and cause is not error:
        parts.append(_text(cause))
    return "\n".join(parts)


def _failed(error: Exception, log_path: Path) -> SparkFailed:
    line = failure_line(error)
    with log_path.open("a", encoding="utf-8", errors="backslashreplace") as log:
        log.write("".join(traceback.format_exception(error)) + "\n" + _text(error) + "\n")
    return SparkFailed(f"{line} (the whole trace is in {log_path})")
