"""Lines two answers up field by field, and sets the differences against the table of accepted ones."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.diff.messages import api_name
from bench.diff.normalise import TEXT
from bench.diff.render import as_text
from bench.diff.script import ABORTED, Answer, Key

ACCEPTED_PATH = Path(__file__).parent / "accepted.toml"
ABSENT = "(absent)"
ORDER = "(order)"
# As many words of Kafka's error text begin Tidemill's.
FIRST_WORDS = 5
# The fields that identify the elements of a list, the most specific first.
NAMES = (
    "name",
    "topic_id",
    "topic",
    "topic_name",
    "resource_name",
    "group_id",
    "member_id",
    "api_key",
    "partition_index",
    "partition",
    "index",
    "batch_index",
    "node_id",
    "broker_id",
    "base_offset",
    "log_dir",
)


@dataclass(frozen=True)
class Difference:
    api: str
    version: int
    case: str
    field: str
    kafka: Any
    tidemill: Any


@dataclass
class Accepted:
    """One entry of accepted.toml: patterns that a difference must all match. `cases` holds alternatives."""

    api: str
    reason: str
    cases: tuple[str, ...] = ("*",)
    field: str = "*"
    kafka: str = "*"
    tidemill: str = "*"
    versions: tuple[int, int] = (0, 999)
    # Values of Kafka's that the entry does not cover, although its other patterns match.
    unless: tuple[str, ...] = ()
    used: int = 0

    def covers(self, difference: Difference) -> bool:
        return (
            self.versions[0] <= difference.version <= self.versions[1]
            and _matches(api_name(difference.api), self.api)
            and any(_matches(difference.case, pattern) for pattern in self.cases)
            and _matches(difference.field, self.field)
            and _matches(as_text(difference.kafka), self.kafka)
            and _matches(as_text(difference.tidemill), self.tidemill)
            and not any(_matches(as_text(difference.kafka), pattern) for pattern in self.unless)
        )


def read_accepted(path: Path = ACCEPTED_PATH) -> list[Accepted]:
    entries = tomllib.loads(path.read_text()).get("accepted", [])
    return [
        Accepted(
            api=entry["api"],
            reason=entry["reason"],
            cases=tuple(entry.get("cases", ("*",))),
            field=entry.get("field", "*"),
            kafka=entry.get("kafka", "*"),
            tidemill=entry.get("tidemill", "*"),
            versions=tuple(entry.get("versions", (0, 999))),
            unless=tuple(entry.get("unless", ())),
        )
        for entry in entries
    ]


def compare(kafka: dict[Key, Answer], tidemill: dict[Key, Answer]) -> list[Difference]:
    found = []
    aborted = {_script_of(key) for key in [*kafka, *tidemill] if key.case.endswith(ABORTED)}
    for key in [*kafka, *(k for k in tidemill if k not in kafka)]:
        is_cut_off = _script_of(key) in aborted and not key.case.endswith(ABORTED)
        if is_cut_off and (key not in kafka or key not in tidemill):
            continue
        left = kafka[key].tree if key in kafka else ABSENT
        right = tidemill[key].tree if key in tidemill else ABSENT
        for path, ours, theirs in differences_of(left, right):
            found.append(Difference(key.api, key.version, key.case, path or "(answer)", ours, theirs))
    return found


def _script_of(key: Key) -> tuple[str, int, str]:
    return key.api, key.version, key.case.split(":")[0]


def differences_of(kafka: Any, tidemill: Any) -> Iterator[tuple[str, Any, Any]]:
    """(path, Kafka's value, Tidemill's value) of each field in which two trees differ."""
    return _differences("", kafka, tidemill)


def _differences(path: str, kafka: Any, tidemill: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(kafka, dict) and isinstance(tidemill, dict):
        for name in [*kafka, *(n for n in tidemill if n not in kafka)]:
            inner = f"{path}.{name}" if path else name
            yield from _differences(inner, kafka.get(name, ABSENT), tidemill.get(name, ABSENT))
    elif isinstance(kafka, list) and isinstance(tidemill, list):
        yield from _list_differences(path, kafka, tidemill)
    elif (kafka != tidemill or type(kafka) is not type(tidemill)) and not _begins_alike(kafka, tidemill):
        yield path, kafka, tidemill


def _begins_alike(kafka: Any, tidemill: Any) -> bool:
    """Whether two error texts start alike: clients match on Kafka's first words; the rest is for users."""
    if not (isinstance(kafka, str) and isinstance(tidemill, str) and kafka.startswith(f"{TEXT} ")):
        return False
    wanted = _words(kafka)[: FIRST_WORDS + 1]
    return _words(tidemill)[: len(wanted)] == wanted


def _words(text: str) -> list[str]:
    return [word.strip(".,:;!()[]") for word in text.split()]


def _list_differences(path: str, kafka: list[Any], tidemill: list[Any]) -> Iterator[tuple[str, Any, Any]]:
    left, right = _named(kafka), _named(tidemill)
    for name in [*left, *(n for n in right if n not in left)]:
        yield from _differences(f"{path}[{name}]", left.get(name, ABSENT), right.get(name, ABSENT))
    if list(left) != list(right) and set(left) == set(right):
        yield f"{path} {ORDER}", list(left), list(right)


def _named(items: list[Any]) -> dict[str, Any]:
    """The elements by what names them; by position when that is not unique."""
    for candidate in NAMES:
        if all(isinstance(item, dict) and item.get(candidate) is not None for item in items):
            names = [str(item[candidate]) for item in items]
            if len(set(names)) == len(names):
                return dict(zip(names, items, strict=True))
    return {str(i): item for i, item in enumerate(items)}


def _matches(text: str, pattern: str) -> bool:
    """Only `*` is special: the brackets of a field path stand for themselves."""
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))
