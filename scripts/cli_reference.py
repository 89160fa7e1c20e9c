"""Writes docs/cli.md: every command and verb with its options and examples, from the parsers themselves.

A test compares the file with what this would write, so that it is never stale.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tidemill.cli.main import make_parser

TARGET = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
_SHARED = "connection and output"

_INTRODUCTION = """\
# Command line

Written by `make docs` from the commands themselves. `tidemill COMMAND --help` shows the same.

```sh
tidemill topics create orders --partitions 3
tidemill produce orders --key 42 '{"item": "book"}'
tidemill consume orders --format '{key}: {value}\\n'
tidemill topics describe orders
```

Results go to standard output, everything else to standard error. What lists or describes has `--json`:

```sh
tidemill topics list --json | python3 -c 'import json, sys; print([topic["name"] for topic in json.load(sys.stdin)])'
```

| exit code | means |
|---:|---|
| 0 | done |
| 1 | failed; the one line on standard error names what happened and, where there is one, the way out |
| 2 | used wrongly |
| 130 | stopped with Ctrl-C or SIGTERM |
| 141 | the reader of the output has gone |

Colours and progress bars appear only on a terminal, and no colours where `NO_COLOR` is set. What destroys something asks a
person at a terminal, and never a script; `--yes` answers beforehand.

## Which cluster

`--bootstrap HOST:PORT` names a broker, else the environment variable `TIDEMILL_BOOTSTRAP` does, else it is
`127.0.0.1:9092`. Commands speak Kafka's protocol only, so they work with Apache Kafka as well. For a cluster with TLS or
a login, `--command-config FILE` has the properties of Kafka's own tools:

```properties
security.protocol=SASL_SSL
ssl.ca.location=/etc/ssl/certs/kafka-ca.pem
sasl.mechanism=SCRAM-SHA-512
sasl.username=admin
sasl.password=secret
```

## Completion in the shell

`source <(tidemill completion bash)` completes commands, options and the names of topics and groups;
[`tidemill completion`](#tidemill-completion) has the other shells.

## Shared options

Every command that talks to a broker has these.
"""


def render() -> str:
    root = make_parser(None)
    leaves = list(_leaves(root))
    shared = next(group for _, parser in leaves for group in parser._action_groups if group.title == _SHARED)
    lines = [_INTRODUCTION, *_options(shared._group_actions)]
    for path, parser in leaves:
        lines += ["", f"## tidemill {path}", "", f"{parser.description}", ""]
        lines += ["```text", f"tidemill {path}{_usage(parser)}", "```"]
        own = [
            action
            for group in parser._action_groups
            if group.title != _SHARED
            for action in group._group_actions
            if action.dest != "help" and action.help != argparse.SUPPRESS
        ]
        if own:
            lines += ["", *_options(own)]
        if any(group.title == _SHARED for group in parser._action_groups):
            lines += ["", "And the [shared options](#shared-options)."]
        title, *examples = (parser.epilog or "").splitlines()
        assert title == "examples:"
        lines += ["", "```text", *(example.strip() for example in examples), "```"]
    return "\n".join(lines) + "\n"


def _leaves(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    verbs = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not verbs:
        yield path.strip(), parser
    for action in verbs:
        for name, child in action.choices.items():
            yield from _leaves(child, f"{path} {name}")


def _usage(parser: argparse.ArgumentParser) -> str:
    """The required and the positional; the rest is in the table."""
    words = ""
    for action in parser._actions:
        if action.option_strings:
            if action.required:
                words += f" {_option(action)}"
            continue
        name = _metavar(action)
        words += {"+": f" {name}...", "*": f" [{name}...]", "?": f" [{name}]", "...": " ..."}.get(
            str(action.nargs), f" {name}"
        )
    return f"{words} [options]"


def _options(actions: list[argparse.Action]) -> list[str]:
    lines = ["| argument | what it is |", "|---|---|"]
    for action in actions:
        name = _option(action) if action.option_strings else _metavar(action)
        lines.append(f"| `{_cell(name)}` | {_cell(_help(action))} |")
    return lines


def _option(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    takes_value = action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction)
    return f"{names} {_metavar(action)}" if takes_value else names


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "|".join(str(choice) for choice in action.choices)
    return action.dest.upper()


def _help(action: argparse.Action) -> str:
    text = action.help or {"TOPIC": "the topic", "GROUP": "the group", "ID": "the broker"}.get(
        _metavar(action), ""
    )
    text = text.replace("%(default)s", str(action.default)).replace("%%", "%")
    if (
        action.choices is not None
        and action.default not in (None, argparse.SUPPRESS)
        and "default" not in text
    ):
        text = f"{text} (default {action.default})".strip()
    return text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    TARGET.write_text(render())
