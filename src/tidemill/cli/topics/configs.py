"""`tidemill configs`: shows and changes the settings of topics, brokers, loggers, groups and client metrics."""

from __future__ import annotations

import argparse
import sys

from tidemill.cli.failures import CommandError, UsageError
from tidemill.cli.options import add_verb, add_verbs, connect, key_values, print_json
from tidemill.cli.table import print_table
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.retry import UnknownTopic
from tidemill.protocol.api.admin import DescribeConfigsResourceResult

_RESOURCES = {
    "topic": ResourceType.TOPIC,
    "broker": ResourceType.BROKER,
    "logger": ResourceType.BROKER_LOGGER,
    "group": ResourceType.GROUP,
    "client-metrics": ResourceType.CLIENT_METRICS,
}
# The name of the cluster-wide default of all brokers.
_ALL_BROKERS = "default"
_DEFAULT_SOURCE = 5
_SOURCES = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "server.properties",
    _DEFAULT_SOURCE: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser)
    describe = add_verb(
        verbs,
        "describe",
        _describe,
        "show settings that differ from their defaults, or all",
        "tidemill configs describe topic orders\n"
        "tidemill configs describe topic orders --all\n"
        "tidemill configs describe broker 1",
    )
    _add_resource(describe)
    describe.add_argument("--all", action="store_true", help="also what is at its default")
    change = add_verb(
        verbs,
        "set",
        _set,
        "change settings; others stay as they are",
        "tidemill configs set topic orders retention.ms=86400000 cleanup.policy=delete\n"
        "tidemill configs set broker default log.retention.ms=604800000\n"
        "tidemill configs set logger 1 tidemill.broker.requests.dispatch=DEBUG\n"
        "tidemill configs set client-metrics all metrics=org.apache.kafka.producer. interval.ms=60000",
    )
    _add_resource(change)
    change.add_argument("settings", metavar="KEY=VALUE", nargs="+")
    unset = add_verb(
        verbs,
        "unset",
        _unset,
        "remove settings, so that the default applies again",
        "tidemill configs unset topic orders retention.ms",
    )
    _add_resource(unset)
    unset.add_argument("keys", metavar="KEY", nargs="+")


def _add_resource(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("resource", choices=tuple(_RESOURCES), metavar="|".join(_RESOURCES))
    parser.add_argument(
        "name",
        metavar="NAME",
        help=f"for a broker and its loggers the broker's id; {_ALL_BROKERS!r} stands for all brokers",
    )


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _resource(arguments: argparse.Namespace) -> tuple[ResourceType, str]:
    resource = _RESOURCES[arguments.resource]
    name: str = arguments.name
    if resource is ResourceType.BROKER:
        if name == _ALL_BROKERS:
            return resource, ""
        if not name.isdecimal():
            raise UsageError(f"a broker is named by its id, a number, or {_ALL_BROKERS!r}, not {name!r}")
    if resource is ResourceType.BROKER_LOGGER and not name.isdecimal():
        raise UsageError(f"loggers are those of one broker, which is named by its id, a number, not {name!r}")
    return resource, name


def _describe(arguments: argparse.Namespace) -> int:
    resource, name = _resource(arguments)
    with connect(arguments) as cluster:
        try:
            configs = Admin(cluster).describe_configs(resource, name)
        except UnknownTopic:
            raise _no_topic(name) from None
    shown = [each for each in configs if arguments.all or each.config_source != _DEFAULT_SOURCE]
    shown.sort(key=lambda each: (each.config_source == _DEFAULT_SOURCE, each.name))
    if arguments.json:
        print_json([_as_json(each) for each in shown])
    elif shown:
        rows = [(each.name, _value(each), _source(each), "yes" if each.read_only else "") for each in shown]
        print_table(("KEY", "VALUE", "SET BY", "READ-ONLY"), rows)
    else:
        subject = f"{arguments.resource} {arguments.name}"
        print(f"every setting of {subject} is at its default; --all shows them", file=sys.stderr)
    return 0


def _no_topic(name: str) -> CommandError:
    return CommandError(f"there is no topic {name}; `tidemill topics list` shows what there is")


def _as_json(config: DescribeConfigsResourceResult) -> dict[str, object]:
    return {
        "name": config.name,
        "value": config.value,
        "source": _source(config),
        "is_read_only": config.read_only,
        "is_sensitive": config.is_sensitive,
    }


def _value(config: DescribeConfigsResourceResult) -> str | None:
    return "(hidden)" if config.is_sensitive else config.value


def _source(config: DescribeConfigsResourceResult) -> str:
    return _SOURCES.get(config.config_source, str(config.config_source))


def _set(arguments: argparse.Namespace) -> int:
    return _alter(arguments, dict(key_values(arguments.settings, "configs set")))


def _unset(arguments: argparse.Namespace) -> int:
    for key in arguments.keys:
        if "=" in key:
            raise UsageError(f"unset takes keys only, not {key!r}")
    return _alter(arguments, dict.fromkeys(arguments.keys))


def _alter(arguments: argparse.Namespace, changes: dict[str, str | None]) -> int:
    resource, name = _resource(arguments)
    with connect(arguments) as cluster:
        try:
            Admin(cluster).alter_configs(resource, name, changes=changes)
        except UnknownTopic:
            raise _no_topic(name) from None
    if arguments.json:
        print_json(changes)
        return 0
    for key, value in changes.items():
        done = f"unset {key}" if value is None else f"set {key}={value}"
        print(f"{done} of {arguments.resource} {arguments.name}")
    return 0
