"""Every command and verb: its help has examples, every example can be run as it stands, and results come as JSON too."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Run
from tidemill.cli.main import COMMANDS, make_parser

# They run until they are stopped, ask, or print what is no result.
WITHOUT_JSON = {
    "serve",
    "gateway",
    "demo",
    "completion",
    "cluster start",
    "pipeline new",
}
# An example may stand in a line of the shell: up to a pipe, a redirection or a bracket it is ours.
OURS = re.compile(r"tidemill (?P<words>(?:'[^']*'|\"[^\"]*\"|[^|<>)])*)")


def _leaves(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    verbs = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not verbs:
        yield path.strip(), parser
    for action in verbs:
        for name, child in action.choices.items():
            yield from _leaves(child, f"{path} {name}")


LEAVES = dict(_leaves(make_parser(None)))


def test_every_command_is_walked() -> None:
    assert {path.split()[0] for path in LEAVES} == set(COMMANDS)


def _examples(parser: argparse.ArgumentParser) -> list[str]:
    title, *lines = (parser.epilog or "").splitlines()
    assert title == "examples:"
    return [line.strip() for line in lines]


@pytest.mark.parametrize("path", LEAVES)
def test_help_has_examples_that_parse(path: str) -> None:
    parser = LEAVES[path]
    assert parser.description, "help begins with what it does"
    examples = _examples(parser)
    assert examples
    for example in examples:
        found = OURS.search(example)
        assert found is not None, example
        words = shlex.split(found["words"])
        assert words[: len(path.split())] == path.split(), f"an example of something else: {example}"
        parsed, rest = make_parser(words).parse_known_args(words)
        # Values may follow an option; options must be known.
        assert not [word for word in rest if word.startswith("--")], example
        assert parsed.command == path.split()[0]


@pytest.mark.parametrize("path", LEAVES)
def test_every_option_is_explained(path: str) -> None:
    for action in LEAVES[path]._actions:
        is_clear = action.choices is not None or action.metavar in (
            "TOPIC",
            "GROUP",
            "ID",
            "KEY",
            "KEY=VALUE",
        )
        assert action.help or is_clear, f"{path} {action.option_strings or action.dest}"


@pytest.mark.parametrize("path", sorted(set(LEAVES) - WITHOUT_JSON))
def test_results_come_as_json(path: str) -> None:
    assert "--json" in LEAVES[path]._option_string_actions


def test_help_is_printed_and_ends_well(cli: Run) -> None:
    assert "examples:\n  tidemill doctor" in cli("doctor", "--help").ok
    assert all(name in cli("--help").ok for name in COMMANDS)


def test_colours_only_on_a_terminal_that_wants_them(cli: Run, terminal: Run) -> None:
    words = ("doctor", "--offline")
    assert "\x1b[" in terminal(*words).out
    assert "\x1b[" not in terminal(*words, environment={"NO_COLOR": "1"}).out
    assert "\x1b[" not in cli(*words).out
