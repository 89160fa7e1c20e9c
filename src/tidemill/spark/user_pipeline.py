"""A user's own pipeline: a file with a function `pipeline(source)` that takes one DataFrame and returns another.

The file knows nothing of topics, checkpoints or sessions: those are options of the command. The same function works on
a batch in a notebook, in a test, and in Spark's declarative pipelines. It may also have `add_arguments(parser)` for
options of its own, which the function then takes as its second parameter. What it returns is written as Spark's Kafka
sink would: columns key, value, headers, topic, partition. A result without a column `value` is written as JSON of all
columns that have no such meaning.

The file is run inside the session, since what stands at its top, such as a `@udf`, may need one. Before that it is only
parsed: for its first line, and for whether it has the function. The exception is a file with `add_arguments`, which is
called before a session starts. If the file cannot be run then, its own options are parsed inside the session instead.

What is wrong with a file is one line that names the file and the line; the trace goes to the log.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tidemill.spark.pipelines import PipelineError, Summary
from tidemill.spark.pipelines.connecting import parse_words
from tidemill.spark.pipelines.reporting import Progress
from tidemill.spark.pipelines.topic_to_topic import add_flow_arguments, check_flow, run_flow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FUNCTION = "pipeline"
_OPTIONS_FUNCTION = "add_arguments"
_MODULE_PREFIX = "tidemill_user_pipeline_"
_SINK_COLUMNS = ("key", "value", "headers", "topic", "partition", "timestamp")

TEMPLATE = '''"""{title}

tidemill pipeline run {file} --from-topic orders --to-topic large-orders

Add --continuous to keep going until Ctrl-C. Run again, it goes on where it stopped; results are written exactly once.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

ORDER = "id STRING, customer STRING, amount DOUBLE"


def pipeline(source: DataFrame) -> DataFrame:
    """source has the columns key, value, topic, partition, offset, timestamp, timestampType and headers."""
    orders = source.select(
        "key",
        "timestamp",
        f.from_json(f.col("value").cast("string"), ORDER).alias("order"),
    )
    large = orders.where("order.amount >= 100")
    # Return key and value, or any other columns: those are written as one JSON object, with `key` as the record's key.
    return large.select("key", "order.customer", "order.amount", f.col("timestamp").alias("ordered_at"))
'''


def write_template(path: Path) -> None:
    if path.suffix != ".py":
        raise PipelineError(
            f"{path} should end in .py: that is how `tidemill pipeline run` tells files from names"
        )
    text = TEMPLATE.format(title=f"What {path.name} does, in a line.", file=path)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise PipelineError(f"{path} exists; name another file, or delete it first") from None
    except OSError as error:
        raise PipelineError(f"cannot write {path}: {error.strerror}") from None


class UserPipeline:
    """Fits `Pipeline`."""

    def __init__(self, path: Path) -> None:
        self.NAME = path.stem
        self._path = path
        parsed = _parse(path)
        names = _bound_names(parsed)
        if FUNCTION not in names and "*" not in names:
            raise _no_function(path)
        self._has_own_options = _OPTIONS_FUNCTION in names
        self._module: ModuleType | None = None
        self.SUMMARY = (
            next(iter((ast.get_docstring(parsed) or "").splitlines()), "") or f"the pipeline in {path}"
        )

    @property
    def has_later_options(self) -> bool:
        """Whether unknown arguments may be options of the user's file, which is not loaded yet."""
        return self._has_own_options and self._module is None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_flow_arguments(parser)
        if not self._has_own_options:
            return
        title = f"options of {self._path}"
        try:
            self._module = _load(self._path)
        except PipelineError:
            # Inside the session it may run, and if not, what is wrong is said there.
            parser.add_argument_group(title, "known when the file is run, in a session")
        else:
            self._module.add_arguments(parser.add_argument_group(title))

    def _loaded(self, options: argparse.Namespace) -> Callable[..., Any]:
        """The user's function; the options of the file are among `options` afterwards."""
        if self._module is None:
            self._module = _load(self._path)
            if self._has_own_options:
                parser = argparse.ArgumentParser(prog=str(self._path), exit_on_error=False, add_help=False)
                self._module.add_arguments(parser)
                try:
                    parse_words(None, parser, options.later_words, options)
                except argparse.ArgumentError as error:
                    raise PipelineError(f"{self._path}: {error}") from None
        function = getattr(self._module, FUNCTION, None)
        if not callable(function):
            raise _no_function(self._path)
        found: Callable[..., Any] = function
        return found

    def check(self, options: argparse.Namespace) -> None:
        check_flow(options)

    def run(self, spark: SparkSession, options: argparse.Namespace, report: Progress) -> Summary:
        from pyspark import cloudpickle

        function = self._loaded(options)
        # Executors do not have the file: what its functions refer to travels with them.
        cloudpickle.register_pickle_by_value(self._module)  # type: ignore[no-untyped-call]
        summary, totals = run_flow(
            spark,
            options,
            report,
            name=self.NAME,
            transform=lambda source: as_records(self._call(function, source, options), self._path),
        )
        if totals.late:
            summary.add("late records dropped", totals.late)
        return summary

    def _call(self, function: Callable[..., Any], source: DataFrame, options: argparse.Namespace) -> Any:
        takes_options = len(inspect.signature(function).parameters) > 1
        try:
            return function(source, options) if takes_options else function(source)
        except Exception as error:
            if type(error).__module__.startswith(("pyspark.", "py4j.")):
                raise
            raise PipelineError(_line(self._path, error)) from error


def as_records(result: Any, path: Path) -> DataFrame:
    """Returns a pipeline's result with the columns that the sink takes."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as f

    if not isinstance(result, DataFrame):
        raise PipelineError(f"{FUNCTION}() of {path} returned {type(result).__name__}, not a DataFrame")
    if "value" in result.columns:
        return result.select(*(name for name in _SINK_COLUMNS if name in result.columns))
    packed = [name for name in result.columns if name not in _SINK_COLUMNS]
    if not packed:
        raise PipelineError(f"{FUNCTION}() of {path} returned no column to write: a value, or any others")
    kept = [name for name in _SINK_COLUMNS if name in result.columns]
    return result.select(*kept, f.to_json(f.struct(*(f.col(f"`{name}`") for name in packed))).alias("value"))


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise PipelineError(f"there is no file {path}; `tidemill pipeline new {path}` writes one") from None
    except OSError as error:
        raise PipelineError(f"cannot read {path}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise PipelineError(_line(path, error)) from None


def _bound_names(parsed: ast.AST) -> set[str]:
    """The names that the file may have when it has run; `*` if it imports some that it does not name."""
    names: set[str] = set()
    for node in ast.iter_child_nodes(parsed):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=asname):
                names.add(asname or name.partition(".")[0])
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Lambda():
                pass
            case _:
                names |= _bound_names(node)
    return names


def _no_function(path: Path) -> PipelineError:
    return PipelineError(
        f"{path} has no function {FUNCTION}(source); `tidemill pipeline new FILE.py` writes an example"
    )


def _load(path: Path) -> ModuleType:
    name = _MODULE_PREFIX + "".join(char if char.isalnum() else "_" for char in path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PipelineError(_line(path, error)) from error
    return module


def _line(path: Path, error: Exception) -> str:
    """The error and the last line of the user's own file that led to it."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or path} line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == path.absolute()
    ]
    frames = frames or [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == path.name
    ]
    where = f"{path} line {frames[-1].lineno}" if frames else str(path)
    return f"{where}: {type(error).__name__}: {error}"
