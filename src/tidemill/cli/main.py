"""The `tidemill` command: one module per subcommand, imported only when it is used, so that starting stays quick.

A command prints its result on standard output and everything else on standard error. Exit codes: 0 done, 1 failed, 2 used
wrongly, 130 stopped with Ctrl-C or SIGTERM, 141 when the reader of its output has gone, as the shell would report for any
program. A failure is one line that names the command, what happened and, where there is one, the way out.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import threading
from collections.abc import Sequence

from tidemill import __version__
from tidemill.cli.failures import UsageError
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.sdk.stopping import stop_on_sigterm

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141

# Subcommand: (module with `add_arguments(parser)` and `run(arguments) -> exit code`, what it does)
COMMANDS = {
    "serve": ("tidemill.cli.serving.serve", "run a broker"),
    "gateway": ("tidemill.cli.serving.gateway", "run the REST gateway and the web console of a cluster"),
    "topics": ("tidemill.cli.topics.topics", "list, describe, create, grow and delete topics"),
    "produce": ("tidemill.cli.records.produce", "write records to a topic"),
    "consume": ("tidemill.cli.records.consume", "print the records of a topic"),
    "groups": ("tidemill.cli.groups.groups", "list, describe, reset and delete consumer groups"),
    "transactions": (
        "tidemill.cli.groups.transactions",
        "list and describe transactions, abort hanging ones",
    ),
    "configs": ("tidemill.cli.topics.configs", "show and change settings of topics, brokers and groups"),
    "cluster": ("tidemill.cli.cluster.cluster", "run a local cluster, and show how a cluster is"),
    "brokers": ("tidemill.cli.cluster.brokers", "list, drain and remove brokers"),
    "reassign": ("tidemill.cli.cluster.reassign", "move partitions between brokers"),
    "pipeline": (
        "tidemill.cli.pipelines.pipeline",
        "run data pipelines on Spark: archive, replay, dedupe, aggregate and your own",
    ),
    "bench": ("tidemill.cli.benchmark.bench", "measure how fast a cluster is from here"),
    "dump-log": ("tidemill.cli.dump.dump_log", "show what is in the files of a data directory"),
    "doctor": ("tidemill.cli.checks.doctor", "find out what is wrong, and how to mend it"),
    "completion": ("tidemill.cli.completion.completion", "print what a shell needs to complete this command"),
    "demo": (
        "tidemill.cli.pipelines.demo",
        "show all of it in a minute or two: a broker, an order stream, Spark",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    parsed, rest = make_parser(words).parse_known_args(words)
    program = getattr(parsed, "program", f"tidemill {parsed.command}")
    if threading.current_thread() is threading.main_thread():
        stop_on_sigterm()
    try:
        _take_rest(parsed, rest)
        exit_code: int = importlib.import_module(COMMANDS[parsed.command][0]).run(parsed)
        sys.stdout.flush()
    except UsageError as error:
        _report(program, f"{error} (see {program} --help)")
        return EXIT_USAGE
    except TidemillError as error:
        _report(program, _text(error))
        return EXIT_FAILED
    except BrokenPipeError:
        # Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return exit_code


def make_parser(words: Sequence[str] | None) -> argparse.ArgumentParser:
    """With the options of the command that the words name, or of all commands."""
    parser = argparse.ArgumentParser(
        prog="tidemill", description="A distributed message queue that speaks the Kafka wire protocol."
    )
    parser.add_argument("--version", action="version", version=f"tidemill {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    used = next((word for word in words or () if not word.startswith("-")), None)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if words is None or name == used:
            importlib.import_module(module).add_arguments(command)
    return parser


def _take_rest(parsed: argparse.Namespace, rest: list[str]) -> None:
    """argparse leaves values that follow an option (`TOPIC --key K VALUE`) over: they belong to the others."""
    end = rest.index("--") if "--" in rest else len(rest)
    unknown = [word for word in rest[:end] if word.startswith("-") and word != "-"]
    if rest and not hasattr(parsed, "values"):
        unknown = rest
    if unknown:
        raise UsageError(f"unknown argument {unknown[0]}")
    if rest:
        parsed.values += rest[:end] + rest[end + 1 :]


# What to do about failures that any command may meet.
_ADVICE = {
    ErrorCode.NOT_CONTROLLER: "the cluster has no active controller at the moment: a majority of its voters must "
    "be up, `tidemill cluster status` shows what is",
}


def _text(error: TidemillError) -> str:
    if isinstance(error, ApiError):
        code = error.code.name
        text = error.message if code in error.message else f"{error.message} ({code})"
        return f"{text}; {_ADVICE[error.code]}" if error.code in _ADVICE else text
    return str(error)


def _report(program: str, text: str) -> None:
    print(f"{program}: {' '.join(text.split())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
