"""Transcripts: commands with the output they gave, in a file that reads like a story.

    # What this is about.
    join c1 group=orders
    ----
    c1 join: MEMBER_ID_REQUIRED, member c1-1

A command is one line; under `----` stands what it printed, up to an empty line. Comments and empty lines between commands
are kept. `run` gives each command to a world and returns the file as it is when every output is real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

SEPARATOR = "----"


class Command(NamedTuple):
    name: str
    words: list[str]
    options: dict[str, str]


def parse_command(line: str) -> Command:
    name, *rest = line.split()
    words = [word for word in rest if "=" not in word]
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return Command(name, words, options)


def run(text: str, execute: Callable[[Command], list[str]]) -> str:
    lines = text.splitlines()
    out: list[str] = []
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        out.append(line)
        if not line.strip() or line.startswith("#"):
            continue
        if position < len(lines) and lines[position] == SEPARATOR:
            while position < len(lines) and lines[position].strip():
                position += 1
        out += [SEPARATOR, *(execute(parse_command(line)) or ["(nothing)"])]
    return "\n".join(out).rstrip("\n") + "\n"
