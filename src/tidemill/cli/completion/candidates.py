"""The completion candidates of a command line, from the parsers of the commands.

Verbs, options and choices come from the parsers. Names of topics, groups and brokers come from the cluster, within a
second at most. Files are left to the shell. Errors give no candidates and no message.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tidemill.cli.failures import CommandError
from tidemill.cli.options import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP, security_options
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.errors import TidemillError

_ASK_S_MAX = 1.0


class FromShell(Enum):
    """Candidates that the shell finds itself."""

    FILES = ":files"
    FOLDERS = ":folders"


class Candidate(NamedTuple):
    """One candidate."""

    word: str
    summary: str = ""


Candidates = list[Candidate] | FromShell


def candidates(parser: argparse.ArgumentParser, words: Sequence[str], current: str) -> Candidates:
    """The candidates for the word that starts with `current`, after `words` (without the program's name)."""
    place = _Place(parser)
    for word in words:
        place.pass_over(word)
    option, separator, value = current.partition("=")
    if separator and option.startswith("--") and (action := place.parser._option_string_actions.get(option)):
        found = _values(action, place)
        if isinstance(found, FromShell):
            return found
        return [each._replace(word=f"{option}={each.word}") for each in found if each.word.startswith(value)]
    found = place.expected(current)
    if isinstance(found, FromShell):
        return found
    return [each for each in found if each.word.startswith(current)]


class _Place:
    """The parser state at the cursor."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser
        self.given: dict[str, str] = {}
        self._used: set[argparse.Action] = set()
        self._open: argparse.Action | None = None
        self._positionals = 0
        self._is_literal = False

    def pass_over(self, word: str) -> None:
        if self._open is not None:
            self.given[self._open.dest] = word
            self._open = None
        elif word == "--" and not self._is_literal:
            self._is_literal = True
        elif word.startswith("-") and len(word) > 1 and not self._is_literal:
            self._pass_over_option(word)
        else:
            action = self._positional()
            if isinstance(action, argparse._SubParsersAction):
                self.parser = action.choices.get(word, self.parser)
                self._positionals = 0
            else:
                if action is not None:
                    self.given[action.dest] = word
                self._positionals += 1

    def _pass_over_option(self, word: str) -> None:
        name, separator, value = word.partition("=")
        action = self.parser._option_string_actions.get(name)
        if action is None:
            return
        self._used.add(action)
        if separator:
            self.given[action.dest] = value
        elif _takes_value(action):
            self._open = action

    def _positional(self) -> argparse.Action | None:
        actions = [each for each in self.parser._actions if not each.option_strings]
        if self._positionals < len(actions):
            return actions[self._positionals]
        is_many = bool(actions) and actions[-1].nargs in ("*", "+")
        return actions[-1] if is_many else None

    def expected(self, current: str) -> Candidates:
        if self._open is not None:
            return _values(self._open, self)
        action = self._positional()
        if current.startswith("-") and not self._is_literal:
            return self._options()
        if isinstance(action, argparse._SubParsersAction):
            return [Candidate(each.dest, each.help or "") for each in action._choices_actions]
        if action is not None:
            return _values(action, self)
        return self._options()

    def _options(self) -> list[Candidate]:
        found = []
        for action in self.parser._actions:
            is_repeatable = isinstance(action, argparse._AppendAction)
            if action.help == argparse.SUPPRESS or (action in self._used and not is_repeatable):
                continue
            found += [
                Candidate(option, _summary(action))
                for option in action.option_strings
                if option.startswith("--") or len(action.option_strings) == 1
            ]
        return found


def _takes_value(action: argparse.Action) -> bool:
    return action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction)


def _summary(action: argparse.Action) -> str:
    return (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")


# -- values ----------------------------------------------------------------------------------------------------


def _values(action: argparse.Action, place: _Place) -> Candidates:
    if action.choices is not None:
        return [Candidate(str(choice)) for choice in action.choices]
    name = action.metavar if isinstance(action.metavar, str) else ""
    if name == "DIR":
        return FromShell.FOLDERS
    if name.startswith("FILE") or action.type is Path:
        return FromShell.FILES
    # `configs` has one NAME for three kinds of resources.
    ask = _NAMES.get(place.given.get("resource", "").upper() if name == "NAME" else name)
    return [] if ask is None else _asked(ask, place)


def _topic_names(cluster: Cluster) -> list[Candidate]:
    topics = [topic for topic in Admin(cluster).topics() if not topic.is_internal]
    return [Candidate(topic.name or "", f"{len(topic.partitions)} partitions") for topic in topics]


def _group_names(cluster: Cluster) -> list[Candidate]:
    return [Candidate(group.group_id, group.group_state) for group in GroupAdmin(cluster).groups()]


def _broker_ids(cluster: Cluster) -> list[Candidate]:
    brokers = Admin(cluster).describe_cluster().brokers
    return [Candidate(str(each.broker_id), f"{each.host}:{each.port}") for each in brokers]


_NAMES: dict[str, Callable[[Cluster], list[Candidate]]] = {
    "TOPIC": _topic_names,
    "T[:P,P]": _topic_names,
    "GROUP": _group_names,
    "ID": _broker_ids,
    "BROKER": _broker_ids,
}


def _asked(ask: Callable[[Cluster], list[Candidate]], place: _Place) -> list[Candidate]:
    bootstrap = place.given.get("bootstrap") or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    file = place.given.get("command_config")
    try:
        security = security_options(argparse.Namespace(command_config=Path(file) if file else None))
        with Cluster(
            bootstrap, client_id="tidemill-completion", timeout_s=_ASK_S_MAX, security=security
        ) as cluster:
            return ask(cluster)
    except (CommandError, TidemillError):
        # Without a broker there are no names.
        return []
