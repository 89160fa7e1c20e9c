"""Java's .properties syntax."""

from __future__ import annotations

import pytest

from tidemill.config import parse_properties
from tidemill.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("  a  =  1 ", {"a": "1 "}),
        ("a\t:\t1", {"a": "1"}),
        ("a = b = c", {"a": "b = c"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("# c\n! d\n  # e\na=1", {"a": "1"}),
        ("a=1#2", {"a": "1#2"}),
        ("a=1,\\\n   2,\\\n\t3", {"a": "1,2,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        ("a=x\\", {"a": "x"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a=\\u00e9\\t\\n\\q", {"a": "é\t\nq"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("\n\n", {}),
        ("", {}),
        ("=v", {"": "v"}),
    ],
)
def test_properties_syntax(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_malformed_unicode_escape_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"\\u"):
        parse_properties("a=\\u12")


@pytest.mark.parametrize("text", ["password=hunter\\user", "hunter\\user=1"])
def test_malformed_escape_is_reported_without_the_text_that_may_be_a_password(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_properties(text)
    assert "hunter" not in str(refused.value)
