"""The options of every command that connects to a cluster, and the connection itself."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tidemill.cli.failures import CommandError, UsageError
from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import BrokerUnreachable
from tidemill.client.connections.security import PREFIXES, SecurityOptions
from tidemill.types import TopicPartition

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "TIDEMILL_BOOTSTRAP"
DEFAULT_TIMEOUT_S = 15.0

Run = Callable[[argparse.Namespace], int]


def add_verbs(parser: argparse.ArgumentParser) -> Any:
    """Add subcommands to a command such as `topics`."""
    return parser.add_subparsers(dest="verb", metavar="VERB", required=True)


def add_verb(verbs: Any, name: str, run: Run, summary: str, examples: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    complete(parser, run, examples)
    return parser


def complete(
    parser: argparse.ArgumentParser, run: Run, examples: str, json_help: str = "print JSON instead of text"
) -> None:
    """Add the options of a command that connects to a cluster, and the examples in its help."""
    add_examples(parser, examples)
    parser.set_defaults(run_verb=run, program=parser.prog)
    group = parser.add_argument_group("connection and output")
    group.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        default=default_bootstrap(),
        help=f"a broker of the cluster, or several with commas (default ${BOOTSTRAP_VARIABLE} or {DEFAULT_BOOTSTRAP})",
    )
    group.add_argument(
        "--command-config",
        metavar="FILE",
        type=Path,
        help="properties of Kafka's clients for the connection: security.protocol, ssl.*, sasl.*",
    )
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=positive_seconds,
        default=DEFAULT_TIMEOUT_S,
        help=f"how long to wait and retry (default {DEFAULT_TIMEOUT_S:g})",
    )
    group.add_argument("--json", action="store_true", help=json_help)


def add_examples(parser: argparse.ArgumentParser, examples: str) -> None:
    parser.epilog = "examples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines())


def connect(arguments: argparse.Namespace) -> Cluster:
    """Connect to the cluster. A failure names the address and the way to start a broker there."""
    cluster = Cluster(
        arguments.bootstrap,
        client_id="tidemill-cli",
        timeout_s=arguments.timeout,
        security=security_options(arguments),
    )
    try:
        cluster.load_metadata([])
    except BrokerUnreachable as error:
        raise CommandError(
            f"{error}; start a broker with `tidemill serve`, or name a running one with --bootstrap HOST:PORT"
        ) from None
    return cluster


def default_bootstrap() -> str:
    return os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP


def security_options(arguments: argparse.Namespace) -> SecurityOptions:
    return SecurityOptions.parse(security_properties(arguments))


def security_properties(arguments: argparse.Namespace) -> dict[str, str]:
    """The security properties in the --command-config file. Other properties belong to other tools and are ignored."""
    properties = properties_file(arguments.command_config)
    return {key: value for key, value in properties.items() if key.startswith(PREFIXES)}


def properties_file(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    # Imported here because few commands read a file, and the module loads all definitions of settings.
    from tidemill.config import parse_properties

    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {path}: {error}") from None


def print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def positive_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def positive(text: str) -> int:
    number = natural(text)
    if number == 0:
        raise argparse.ArgumentTypeError("it must be at least 1")
    return number


def key_values(pairs: Iterable[str], what: str) -> dict[str, str]:
    """Parse `k=v` words into a dictionary."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise UsageError(f"{what} takes KEY=VALUE, not {pair!r}")
        if key in values:
            raise UsageError(f"{what} names {key} twice")
        values[key] = value
    return values


def chosen_partitions(cluster: Cluster, topic: str, indexes: Iterable[int] | None) -> list[TopicPartition]:
    """The named partitions of a topic, or all of them. A missing topic or partition is an error."""
    existing = cluster.partitions_of(topic)
    if not indexes:
        return existing
    wanted = [TopicPartition(topic, index) for index in sorted(set(indexes))]
    for partition in wanted:
        if partition not in existing:
            raise CommandError(
                f"topic {topic} has no partition {partition.partition}, only 0 to {len(existing) - 1}"
            )
    return wanted


def add_store_alias(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store-alias",
        metavar="URI",
        action="append",
        default=[],
        help="another URI of the same store, such as where another machine mounts it; may be given again",
    )
