"""Random filters with a meaning of their own, and random records for them.

A drawn filter is its text and a dumb function over a decoded record. So neither the parser nor the matcher is needed to
know what it should keep. Names and values come from small sets, so that filters match now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hypothesis import strategies as st

from tidemill.protocol.records import Header, Record

NAMES = ["tags", "region", "key", "in", "a b", 'quo"te', ""]
VALUES = ["", "a", "eu", "eu-west", "it's", "größe", "region", "v" * 70]
TAGS = ["a", "eu", "test", "größe"]


class DrawnFilter(NamedTuple):
    text: str
    keeps: Callable[[Record], bool]


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name_text(name: str) -> st.SearchStrategy[str]:
    quoted = '"' + name.replace('"', '""') + '"'
    return st.sampled_from([quoted, name]) if name in ("tags", "region") else st.just(quoted)


def values_of(record: Record, name: str | None) -> list[bytes]:
    if name is None:
        return [] if record.key is None else [record.key]
    return [each.value for each in record.headers if each.key == name and each.value is not None]


def _has(record: Record, name: str | None) -> bool:
    if name is None:
        return record.key is not None
    return any(each.key == name for each in record.headers)


@st.composite
def _tests(draw: st.DrawFn) -> DrawnFilter:
    kind = draw(st.sampled_from(["=", "in", "starts with", "exists", "tag"]))
    is_negated = draw(st.booleans())
    word_not = draw(st.sampled_from(["not ", "NOT "])) if is_negated else ""
    if kind == "tag":
        tag = draw(st.sampled_from(TAGS))

        def has_tag(record: Record) -> bool:
            items = [item.strip() for value in values_of(record, "tags") for item in value.split(b",")]
            return (tag.encode() in items) is not is_negated

        return DrawnFilter(f"{_quoted(tag)} {word_not}in tags", has_tag)
    name = draw(st.sampled_from([None, *NAMES]))
    field = "key" if name is None else draw(_name_text(name))
    if kind == "exists":
        return DrawnFilter(f"{field} {word_not}exists", lambda record: _has(record, name) is not is_negated)
    chosen = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3 if kind == "in" else 1))
    wanted = [value.encode() for value in chosen]
    if kind == "starts with":
        return DrawnFilter(
            f"{field} {word_not}starts with {_quoted(chosen[0])}",
            lambda record: any(v.startswith(wanted[0]) for v in values_of(record, name)) is not is_negated,
        )
    text = (
        f"{field} {word_not}in ({', '.join(map(_quoted, chosen))})"
        if kind == "in"
        else f"{field} {'!=' if is_negated else '='} {_quoted(chosen[0])}"
    )
    return DrawnFilter(
        text, lambda record: any(v in wanted for v in values_of(record, name)) is not is_negated
    )


def _combined(inner: st.SearchStrategy[DrawnFilter]) -> st.SearchStrategy[DrawnFilter]:
    def both(a: DrawnFilter, b: DrawnFilter) -> DrawnFilter:
        return DrawnFilter(f"({a.text}) and ({b.text})", lambda record: a.keeps(record) and b.keeps(record))

    def either(a: DrawnFilter, b: DrawnFilter) -> DrawnFilter:
        return DrawnFilter(f"({a.text}) or ({b.text})", lambda record: a.keeps(record) or b.keeps(record))

    def neither(a: DrawnFilter) -> DrawnFilter:
        return DrawnFilter(f"not ({a.text})", lambda record: not a.keeps(record))

    return st.one_of(
        st.builds(both, inner, inner), st.builds(either, inner, inner), st.builds(neither, inner)
    )


FILTERS = st.recursive(_tests(), _combined, max_leaves=6)

_values = st.none() | st.sampled_from([value.encode() for value in VALUES])
_tag_values = st.lists(st.sampled_from([*TAGS, "", " a ", "\ttest"]), max_size=4).map(
    lambda items: ",".join(items).encode()
)
_headers = st.one_of(
    st.builds(Header, st.sampled_from(NAMES), _values),
    st.builds(Header, st.just("tags"), _tag_values),
)


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 8) -> list[Record]:
    """Records of one batch, with the offsets 0, 1, 2 …"""
    bodies = draw(st.lists(st.tuples(_values, _values, st.lists(_headers, max_size=4)), max_size=max_size))
    return [Record(offset, 1_000 + offset, *body) for offset, body in enumerate(bodies)]
