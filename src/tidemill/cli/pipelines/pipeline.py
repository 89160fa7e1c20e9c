"""`tidemill pipeline`: lists pipelines, runs one on Spark, writes a template for a new one, and packs the executors'
files.

`run` takes a name or a file that ends in .py. The words after it go to that pipeline's own parser, which also has the
options that all pipelines share. So `tidemill pipeline run NAME --help` shows exactly the options of NAME. Everything
that can be checked without Spark is checked first, because a session takes seconds to start. Progress is on standard
error, the summary on standard output.

Exit codes are those of every command. A pipeline that Ctrl-C stopped prints its summary and exits with 130.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from pathlib import Path
from typing import Any

from tidemill.cli.failures import CommandError, UsageError
from tidemill.cli.options import (
    add_examples,
    add_verbs,
    complete,
    key_values,
    print_json,
    properties_file,
)
from tidemill.cli.progress import Progress as Display
from tidemill.cli.table import Cell, Quantity, print_fields, print_table, size_text
from tidemill.client.connections.connection import BrokerUnreachable
from tidemill.client.connections.security import PREFIXES
from tidemill.spark import pipelines, session
from tidemill.spark.pipelines import Bytes, Pipeline, Status, Summary
from tidemill.spark.pipelines.connecting import open_cluster, parse_words

EXIT_INTERRUPTED = 130
_FILE_SUFFIX = ".py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    run_parser = verbs.add_parser(
        "run",
        help="run a pipeline on Spark",
        description="Run a pipeline on Spark. Its own options follow its name; NAME --help shows them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_parser.add_argument(
        "name", metavar="NAME|FILE.py", help="as `tidemill pipeline list` shows it, or a file"
    )
    run_parser.add_argument(
        "words", metavar="...", nargs=argparse.REMAINDER, help="the options of that pipeline"
    )
    complete(
        run_parser,
        _run,
        "tidemill pipeline run archive --help\n"
        "tidemill pipeline run dedupe --from-topic orders --to-topic orders-once\n"
        "tidemill pipeline run totals.py --from-topic orders --to-topic totals --master spark://spark:7077",
    )
    listing = _add_plain_verb(
        verbs,
        "list",
        "list the pipelines that come with Tidemill",
        "tidemill pipeline list\ntidemill pipeline list --json",
    )
    listing.add_argument("--json", action="store_true", help="print JSON instead of text")
    listing.set_defaults(run_verb=_list, program=listing.prog)
    new = _add_plain_verb(
        verbs,
        "new",
        "write a template for a new pipeline",
        "tidemill pipeline new totals.py",
    )
    new.add_argument("file", metavar="FILE.py", type=Path, help="must not exist")
    new.set_defaults(run_verb=_new, program=new.prog)
    package = _add_plain_verb(
        verbs,
        "package",
        "write Tidemill and what its tasks need to a zip, for executors that have only Python",
        "tidemill pipeline package tidemill.zip\ntidemill pipeline package tidemill.zip --json",
    )
    package.add_argument("file", metavar="FILE.zip", type=Path, help="is replaced when it exists")
    package.add_argument("--json", action="store_true", help="print JSON instead of text")
    package.set_defaults(run_verb=_package, program=package.prog)


def _add_plain_verb(verbs: Any, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    """Add a subcommand that does not connect to a cluster."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_examples(parser, examples)
    return parser


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _list(arguments: argparse.Namespace) -> int:
    found = [pipelines.load(name) for name in pipelines.MODULES]
    if arguments.json:
        print_json([{"name": each.NAME, "summary": each.SUMMARY} for each in found])
    else:
        print_table(["NAME", "WHAT IT DOES"], [[each.NAME, each.SUMMARY] for each in found])
    return 0


def _new(arguments: argparse.Namespace) -> int:
    from tidemill.spark.user_pipeline import write_template

    write_template(arguments.file)
    print(f"wrote {arguments.file}; change it, then: tidemill pipeline run {arguments.file} --help")
    return 0


def _package(arguments: argparse.Namespace) -> int:
    from tidemill.spark.packaging import archive_zip

    session.check_packages()
    try:
        path = archive_zip(arguments.file)
    except OSError as error:
        raise CommandError(f"cannot write {arguments.file}: {error.strerror or error}") from None
    python, platform = f"{sys.version_info.major}.{sys.version_info.minor}", sysconfig.get_platform()
    size_bytes = path.stat().st_size
    if arguments.json:
        print_json({"path": str(path), "size_bytes": size_bytes, "python": python, "platform": platform})
    else:
        print(
            f"wrote {path}, {size_text(size_bytes)}, for Python {python} on {platform}; then:\n"
            f"spark-submit --archives {path.name}#tidemill --conf spark.executorEnv.PYTHONPATH=tidemill JOB.py"
        )
    return 0


# --- run ---


def _run(arguments: argparse.Namespace) -> int:
    pipeline = _find(arguments.name)
    options = _options(pipeline, arguments)
    _check_reachable(options)
    check = getattr(pipeline, "check", None)
    if check is not None:
        check(options)
    session.check_packages()
    warning = session.java_warning(session.find_java())
    if warning:
        print(warning, file=sys.stderr)
    with Display() as display:
        report = pipelines.Progress(lambda status: show_status(display, status), display.note)
        summary = _run_on_spark(pipeline, options, report)
    _print_summary(summary, is_json=options.json)
    return EXIT_INTERRUPTED if report.is_interrupted else 0


def _check_reachable(options: argparse.Namespace) -> None:
    try:
        with open_cluster(options) as cluster:
            cluster.load_metadata([])
    except BrokerUnreachable as error:
        raise CommandError(
            f"{error}; start a broker with `tidemill serve`, or name a running one with --bootstrap HOST:PORT"
        ) from None


def _find(name: str) -> Pipeline:
    if not name.endswith(_FILE_SUFFIX):
        return pipelines.load(name)
    # A user's file may import pyspark at its top.
    session.check_packages()
    from tidemill.spark.user_pipeline import UserPipeline

    return UserPipeline(Path(name))


def _options(pipeline: Pipeline, arguments: argparse.Namespace) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"{arguments.program} {arguments.name}",
        description=f"{pipeline.SUMMARY[0].upper()}{pipeline.SUMMARY[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    pipeline.add_arguments(parser)
    examples = getattr(pipeline, "EXAMPLES", f"tidemill pipeline run {arguments.name} --help")
    complete(parser, _run, examples)
    _add_common_arguments(parser)
    # --bootstrap and similar options may also precede the name; they are kept as defaults.
    options = parse_words(pipeline, parser, arguments.words, argparse.Namespace(**vars(arguments)))
    if options.command_config is not None and options.kafka_file is not None:
        raise UsageError("--command-config and --kafka-file are the same; give one of them")
    file = options.kafka_file or options.command_config
    given = properties_file(file)
    # What secures the connection stays in the file; --kafka-file may also have what tunes it.
    tuning = {key: value for key, value in given.items() if not key.startswith(PREFIXES)}
    options.security_file = None if file is None else file.absolute()
    options.kafka = {
        **(tuning if options.kafka_file is not None else {}),
        **key_values(options.kafka, "--kafka"),
    }
    options.conf = key_values(options.conf, "--conf")
    return options


def _add_common_arguments(parser: argparse.ArgumentParser) -> None:
    security = parser.add_argument_group("security")
    security.add_argument(
        "--kafka",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of Kafka's clients for the connection, such as security.protocol=SSL; repeatable",
    )
    security.add_argument(
        "--kafka-file",
        metavar="FILE",
        type=Path,
        help="the same from a file of properties: the place for passwords",
    )
    spark = parser.add_argument_group("Spark")
    spark.add_argument(
        "--master",
        metavar="URL",
        default=session.DEFAULT_MASTER,
        help=f"spark://HOST:PORT, yarn, k8s://… or local[N] (default {session.DEFAULT_MASTER})",
    )
    spark.add_argument(
        "--conf", metavar="KEY=VALUE", action="append", default=[], help="a setting of Spark; repeatable"
    )
    spark.add_argument(
        "--package",
        action="store_true",
        help="send this Tidemill to the executors, which then need only what it depends on",
    )


def _run_on_spark(pipeline: Pipeline, options: argparse.Namespace, report: pipelines.Progress) -> Summary:
    log_path = session.new_log_path(pipeline.NAME)
    report.note(f"Spark's log is {log_path}")
    report.show("starting Spark")
    with session.open_session(
        pipeline.NAME,
        log_path=log_path,
        master=options.master,
        conf=options.conf,
        sends_package=options.package,
    ) as spark:
        if options.security_file is not None:
            # For executors on other machines, which have no file of that path.
            spark.sparkContext.addFile(str(options.security_file))
        return pipeline.run(spark, options, report)


# --- what is shown ---


def show_status(display: Display, status: Status) -> None:
    display.show(status.share, status_text(status))


def status_text(status: Status) -> str:
    """Format the status of a query as one line."""
    parts = [status.phase]
    if status.batch is not None:
        parts.append(f"batch {status.batch}")
    if status.rows is not None:
        parts.append(f"{status.rows:,} records")
    if status.rows_per_s is not None:
        parts.append(f"{status.rows_per_s:,.0f}/s")
    if status.lag is not None:
        parts.append(f"lag {status.lag:,}")
    return "  ".join(parts)


def _print_summary(summary: Summary, *, is_json: bool) -> None:
    if is_json:
        print_json(summary.as_json())
        return
    if summary.fields:
        print_fields([(name, _cell(value)) for name, value in summary.fields])
    for table in summary.tables:
        print(f"\n{table.title}" if summary.fields or table is not summary.tables[0] else table.title)
        print_table(
            [column.upper() for column in table.columns],
            [[_cell(value) for value in row] for row in table.rows],
        )


def _cell(value: pipelines.Value) -> Cell:
    if isinstance(value, Bytes):
        return size_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return Quantity(f"{value:,.2f}".rstrip("0").rstrip("."))
    return value
