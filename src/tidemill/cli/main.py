"""The `tidemill` command. Each subcommand is one module, imported only when it is used, so that startup stays quick.

A command prints its result on standard output and everything else on standard error. Exit codes: 0 done, 1 failed, 2
used wrongly, 130 stopped by Ctrl-C or SIGTERM, 141 when the reader of its output has gone. A failure is one line with
the command, what happened and, if possible, a remedy.
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

# Subcommand: (module with `add_arguments(parser)` and `run(arguments) -> exit code`, summary)
COMMANDS = {
    "serve": ("tidemill.cli.serving.serve", "run a broker"),
    "gateway": ("tidemill.cli.serving.gateway", "run the REST gateway and the web console of a cluster"),
    "topics": ("tidemill.cli.topics.topics", "list, describe, create, grow and delete topics"),
    "views": (
        "tidemill.cli.topics.views",
        "list, create, change and delete views: topics that show some records of another",
    ),
    "delays": ("tidemill.cli.topics.delays", "list and cancel the delayed records of a topic"),
    "claims": (
        "tidemill.cli.topics.claims",
        "list and verify large payloads in an object store, sweep those that no record refers to",
    ),
    "produce": ("tidemill.cli.records.produce", "write records to a topic"),
    "consume": ("tidemill.cli.records.consume", "print the records of a topic"),
    "dead-letters": (
        "tidemill.cli.records.dead_letters",
        "list, show, replay and purge the records that applications gave up on",
    ),
    "groups": ("tidemill.cli.groups.groups", "list, describe, reset and delete consumer groups"),
    "queues": ("tidemill.cli.groups.queues", "list, describe, reset and delete share groups"),
    "transactions": (
        "tidemill.cli.groups.transactions",
        "list and describe transactions, abort hanging ones",
    ),
    "configs": ("tidemill.cli.topics.configs", "show and change settings of topics, brokers and groups"),
    "cluster": ("tidemill.cli.cluster.cluster", "run a local cluster, and show the state of a cluster"),
    "brokers": ("tidemill.cli.cluster.brokers", "list, drain and remove brokers"),
    "reassign": ("tidemill.cli.cluster.reassign", "move partitions between brokers"),
    "security": ("tidemill.cli.security.setup", "make a secured cluster, renew its certificates"),
    "users": ("tidemill.cli.security.users", "list, add and remove SCRAM users"),
    "acls": ("tidemill.cli.security.acls", "list, add, remove and explain access control lists"),
    "quotas": ("tidemill.cli.security.quotas", "list, set and remove client quotas"),
    "pipeline": (
        "tidemill.cli.pipelines.pipeline",
        "run data pipelines on Spark: archive, replay, dedupe, aggregate and your own",
    ),
    "bench": ("tidemill.cli.benchmark.bench", "measure a cluster's throughput and latency from this machine"),
    "dump-log": ("tidemill.cli.dump.dump_log", "print the content of a data directory's files"),
    "doctor": ("tidemill.cli.checks.doctor", "find problems of a broker or cluster, with remedies"),
    "completion": ("tidemill.cli.completion.completion", "print a completion script for a shell"),
    "demo": (
        "tidemill.cli.pipelines.demo",
        "run a demonstration: a broker, an order stream, and Spark over it",
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
        # Without this, Python would report the closed pipe again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return exit_code


def make_parser(words: Sequence[str] | None) -> argparse.ArgumentParser:
    """Build the parser, with the options of the command that `words` name, or of all commands."""
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
    """Assign the values that argparse leaves over: those that follow an option, as in `TOPIC --key K VALUE`."""
    end = rest.index("--") if "--" in rest else len(rest)
    unknown = [word for word in rest[:end] if word.startswith("-") and word != "-"]
    if rest and not hasattr(parsed, "values"):
        unknown = rest
    if unknown:
        raise UsageError(f"unknown argument {unknown[0]}")
    if rest:
        parsed.values += rest[:end] + rest[end + 1 :]


# Remedies for errors that any command may get.
_ADVICE = {
    ErrorCode.NOT_CONTROLLER: "the cluster has no active controller at the moment: a majority of its voters must "
    "be up; `tidemill cluster status` shows which are",
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
