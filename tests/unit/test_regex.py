"""Regular expressions of subscriptions: the same names as Python's engine finds, and no expression that takes for ever."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from tidemill.errors import ApiError, ErrorCode
from tidemill.regex import REGEX_LENGTH_MAX, Regex

names = st.text("abAB.1-", max_size=8)

atoms = st.sampled_from(
    ["a", "b", "A", "1", ".", "\\.", "-", "[ab]", "[^a]", "[a-b1]", "\\d", "\\w", "\\W", "[]b]"]
)
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{1,}", "*?", "{0}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
        inner.map(lambda each: f"(?i:{each})"),
        inner.map(lambda each: f"^{each}$"),
    ),
    max_leaves=6,
)


@settings(max_examples=examples(400), deadline=None)
@given(expressions, names)
def test_finds_what_python_finds(expression: str, name: str) -> None:
    assert Regex(expression).matches(name) == bool(re.fullmatch(expression, name))


@pytest.mark.parametrize(
    ("expression", "matching", "other"),
    [
        ("orders.*", "orders-eu", "my-orders"),
        ("foo|bar", "bar", "foobar"),
        ("(?i)Orders", "ORDERS", "order"),
        (r"\Qa.b\E\d", "a.b1", "aXb1"),
        ("[[:upper:]]+", "ABC", "abc"),
        (r"\Aa\z", "a", "aa"),
        (r"\x61\x{62}", "ab", "ba"),
        ("(?P<name>a)(?<other>b)", "ab", "a"),
        ("", "", "a"),
        ("(^$){2}", "", "a"),
    ],
)
def test_syntax(expression: str, matching: str, other: str) -> None:
    compiled = Regex(expression)
    assert compiled.matches(matching)
    assert not compiled.matches(other)


UNBALANCED = ["(", "a)", "[a", "\\", "(?P<1>a)", r"\xZZ", "[[:nope:]]", "[z-a]"]
QUANTIFIERS = ["*", "a**", "a++", "a{2,1}", "a{1001}"]
NOT_IN_RE2 = [
    "(?=a)",
    "(?!a)",
    "(?<=a)b",
    "(?<!a)b",
    r"(a)\1",
    "(?P=x)",
    "(?>a)",
    "(?(1)a)",
    r"\bfoo",
    r"a\B",
]
TOO_LARGE = ["((a{100}){100}){100}", "(" * 200 + ")" * 200, "a" * (REGEX_LENGTH_MAX + 1)]


@pytest.mark.parametrize("expression", [*UNBALANCED, *QUANTIFIERS, *NOT_IN_RE2, *TOO_LARGE])
def test_refused(expression: str) -> None:
    with pytest.raises(ApiError) as error:
        Regex(expression)
    assert error.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("expression", ["(a+)+b", "(a|a)*b", "(a*)*b", "a*a*a*a*a*a*a*b", "(a?){200}a{200}b"])
def test_takes_no_longer_when_it_is_malicious(expression: str) -> None:
    """Each of these keeps a backtracking engine busy for longer than anybody waits."""
    assert not Regex(expression).matches("a" * 249)


def test_memory_is_bounded() -> None:
    """(.*a.{12}) has 2^12 states, of which only some are remembered."""
    compiled = Regex(".*a.{12}")
    for number in range(6_000):
        name = format(number, "b").replace("0", "b").replace("1", "a") + "a" + "b" * 12
        assert compiled.matches(name)
    assert len(compiled._automaton) <= 2_000


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("(a)(b)?c", "ac"),
        ("(a*)(a*)", "aaa"),
        ("(a*?)(a*)", "aaa"),
        ("(a|ab)(c|bcd)(d*)", "abcd"),
        ("((a)|b)*", "aba"),
        ("(?:x)(?P<n>y)(z{2,3}?)(.*)", "xyzzz"),
        ("^(.*?)-(.*)$", "a-b-c"),
        ("(a?){3}", "a"),
    ],
)
def test_groups_capture_what_a_backtracking_matcher_captures(expression: str, name: str) -> None:
    expected = re.fullmatch(expression, name)
    assert expected is not None
    spans = [expected.span(group) for group in range(len(expected.groups()) + 1)]
    found = Regex(expression).groups(name)
    assert found == [None if span == (-1, -1) else span for span in spans]


def test_groups_of_a_name_that_does_not_match_are_none() -> None:
    assert Regex("(a)b").groups("ac") is None
