"""Patterns of Java's that Python writes otherwise. `tests/spark` compares them with Java itself."""

from __future__ import annotations

import pytest

from tidemill.errors import ConfigError
from tidemill.spark.source.java_regex import finder

# What each finds among these.
NAMES = ("orders", "Orders", "orders-eu", "my.orders", "o_1", "a1", "b2", "--", "12")
PATTERNS = {
    "orders": ("orders", "orders-eu", "my.orders"),
    "^orders$": ("orders",),
    r"^\p{Alpha}+$": ("orders", "Orders"),
    r"^\p{Lower}\p{Digit}$": ("a1", "b2"),
    r"^\P{Alpha}+$": ("--", "12"),
    r"^\p{Punct}+$": ("--",),
    r"^[\p{Alnum}&&[^b]]+$": ("orders", "Orders", "a1", "12"),
    "^[a-c[1-2]]+$": ("a1", "b2", "12"),
    "^[^a-z]+$": ("--", "12"),
    r"^[\w&&[^\d]]+$": ("orders", "Orders"),
    r"\Qy.o\E": ("my.orders",),
    r"^\p{L}+$": ("orders", "Orders"),
    r"^\p{IsAlphabetic}\p{Nd}$": ("a1", "b2"),
    r"^(?<first>-)\k<first>$": ("--",),
    "(?i)^ORDERS$": ("orders", "Orders"),
    "^(?i:o)rders$": ("orders", "Orders"),
    r"^o\x72ders\z": ("orders",),
    r"^\h*12$": ("12",),
    "^.++$": NAMES,
    "^(?>a|ab)1": ("a1",),
    "^[]a-]+": ("a1", "--"),
    r"^[\-x]+$": ("--",),
}


@pytest.mark.parametrize("pattern", list(PATTERNS))
def test_a_pattern_finds_what_java_finds(pattern: str) -> None:
    assert tuple(filter(finder(pattern), NAMES)) == PATTERNS[pattern]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a(", "it is not a regular expression"),
        ("[a", "it is not a regular expression: a class without its ]"),
        ("a\\", "it is not a regular expression: a backslash at the end"),
        (r"\p{Cyrillic}", r"\\p\{Cyrillic\} is not supported"),
        (r"\Gx", r"\\G is not supported"),
        (r"\X", r"\\X is not supported"),
        ("(?x)a b", r"the flag x in \(\?x\) is not supported"),
        ("a(?i)b", r"\(\?i\) other than at the beginning"),
        ("[z-a]", "the range z-a goes backwards"),
    ],
)
def test_construct_that_cannot_be_translated_is_named(pattern: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        finder(pattern)
    assert "\n" not in str(refused.value)
