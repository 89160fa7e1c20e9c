"""Compiled filters: which records they keep, and which bytes they say a match contains."""

from __future__ import annotations

from string import ascii_lowercase

import pytest

from tidemill.filters.language import TERMS_MAX, parse
from tidemill.filters.matching import Headers, compile_filter
from tidemill.filters.needles import (
    NEEDLE_BYTES_MAX,
    NEEDLES_A_GROUP_MAX,
    SEARCHES_A_GROUP_MAX,
    needles_of,
    searches_for,
)

EU: Headers = [(b"region", b"eu")]


def _keeps(text: str, key: bytes | None = None, headers: Headers = ()) -> bool:
    return compile_filter(parse(text)).keeps(key, headers)


@pytest.mark.parametrize(
    ("text", "headers", "expected"),
    [
        ("region = 'eu'", EU, True),
        ("region = 'eu'", [(b"region", b"EU")], False),
        ("region = 'eu'", [(b"Region", b"eu")], False),
        ("region = 'eu'", [(b"region", b"eu ")], False),
        ("region = ''", [(b"region", b"")], True),
        ("region = 'größe'", [(b"region", "größe".encode())], True),
        ("region in ('us', 'eu')", EU, True),
        ("region in ('us', 'fr')", EU, False),
        ("region starts with 'e'", EU, True),
        ("region starts with 'eu'", EU, True),
        ("region starts with 'u'", EU, False),
        ("region starts with ''", EU, True),
        ("region exists", EU, True),
        ("zone exists", EU, False),
    ],
)
def test_header_is_compared_by_name_and_bytes(text: str, headers: Headers, expected: bool) -> None:
    assert _keeps(text, headers=headers) is expected
    assert _keeps(f"not {text}", headers=headers) is not expected


@pytest.mark.parametrize("value", ["missing", "null"])
def test_missing_header_and_null_value_pass_no_comparison_and_every_negation(value: str) -> None:
    headers: Headers = [] if value == "missing" else [(b"region", None)]
    for text in ("region = ''", "region in ('a', '')", "region starts with ''"):
        assert not _keeps(text, headers=headers)
    for text in ("region != ''", "region not in ('a', '')", "region not starts with ''"):
        assert _keeps(text, headers=headers)


def test_header_with_null_value_exists() -> None:
    assert _keeps("retry exists", headers=[(b"retry", None)])
    assert not _keeps("retry not exists", headers=[(b"retry", None)])


def test_null_value_of_tags_has_no_tags() -> None:
    assert not _keeps("'a' in tags", headers=[(b"tags", None)])
    assert _keeps("'a' not in tags", headers=[(b"tags", None)])


def test_repeated_header_matches_if_any_value_does() -> None:
    headers: Headers = [(b"x", b"a"), (b"x", None), (b"x", b"b")]
    for text in ("x = 'a'", "x = 'b'", "x in ('c', 'b')", "x starts with 'b'", "x exists"):
        assert _keeps(text, headers=headers)
    assert not _keeps("x = 'c'", headers=headers)


def test_repeated_header_passes_not_equal_only_if_no_value_is_equal() -> None:
    headers: Headers = [(b"x", b"a"), (b"x", b"b")]
    assert not _keeps("x != 'a'", headers=headers)
    assert not _keeps("x not in ('b', 'c')", headers=headers)
    assert _keeps("x != 'c'", headers=headers)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"test", True),
        (b"a,test", True),
        (b" a ,\ttest , b", True),
        (b"test,test", True),
        (b",,test,", True),
        (b"", False),
        (b"testing", False),
        (b"a test", False),
        (b"Test", False),
    ],
)
def test_tags_are_a_set_with_commas_between_items(value: bytes, expected: bool) -> None:
    assert _keeps("'test' in tags", headers=[(b"tags", value)]) is expected
    assert _keeps("'test' in tags", headers=[(b"tags", b"a"), (b"tags", value)]) is expected
    assert _keeps("not 'test' in tags", headers=[(b"tags", value)]) is not expected


def test_key_is_the_record_key_and_quoted_key_is_a_header() -> None:
    assert _keeps("key = 'a'", b"a", [(b"key", b"b")])
    assert _keeps("\"key\" = 'b'", b"a", [(b"key", b"b")])
    assert not _keeps("key = 'b'", b"a", [(b"key", b"b")])
    assert _keeps("key in ('b', 'a')", b"a")
    assert _keeps("key starts with 'a'", b"ab")
    assert _keeps("key exists", b"")
    assert _keeps("key = ''", b"")


def test_null_key_passes_no_comparison_and_does_not_exist() -> None:
    for text in ("key = ''", "key in ('a', '')", "key starts with ''", "key exists"):
        assert not _keeps(text, None)
        assert _keeps(f"not {text}", None)


@pytest.mark.parametrize("a", [False, True])
@pytest.mark.parametrize("b", [False, True])
@pytest.mark.parametrize("c", [False, True])
def test_and_or_not_are_those_of_logic(a: bool, b: bool, c: bool) -> None:
    present = zip((b"a", b"b", b"c"), (a, b, c), strict=True)
    headers: Headers = [(name, b"") for name, is_there in present if is_there]
    for text, expected in {
        "a exists and b exists": a and b,
        "a exists or b exists": a or b,
        "a exists and b exists and c exists": a and b and c,
        "a exists or b exists or c exists": a or b or c,
        "a exists or b exists and not c exists": a or (b and not c),
        "not (a exists or b exists and c exists)": not (a or (b and c)),
        "not (a exists and not (b exists or not c exists))": not (a and not (b or not c)),
    }.items():
        assert _keeps(text, headers=headers) is expected, text


def test_matcher_names_the_headers_that_it_needs() -> None:
    text = "region = 'eu' or not ('a' in tags and key = 'b') or \"x y\" exists or z starts with 'a'"
    assert compile_filter(parse(text)).header_names == {b"region", b"tags", b"x y", b"z"}
    assert compile_filter(parse("key = 'a' and key exists")).header_names == frozenset()


# -- needles ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        # The zigzag varint of a length is its double. The other form is that of a length with needless bytes.
        ("region = 'eu'", [{b"region\x04eu", b"region\x84"}]),
        ("region in ('eu', 'fra')", [{b"region\x04eu", b"region\x84", b"region\x06fra", b"region\x86"}]),
        ("key = 'k42'", [{b"\x06k42", b"\0k42"}]),
        ("region exists", [{b"\x0cregion", b"\0region"}]),
        ("region starts with 'eu'", [{b"eu"}]),
        ("region starts with ''", [{b"\x0cregion", b"\0region"}]),
        ("'test' in tags", [{b"test"}]),
        ("'x' in tags", [{b"\x08tags", b"\0tags"}]),
        ("a='b' and 'test' in tags", [{b"test"}, {b"a\x02b", b"a\x82"}]),
        ("region exists and key = 'abc'", [{b"\x06abc", b"\0abc"}, {b"\x0cregion", b"\0region"}]),
        ("'test' in tags or 'prod' in tags", [{b"test", b"prod"}]),
        ("'test' in tags or key exists", []),
        ("'test' in tags and key exists", [{b"test"}]),
        ("region != 'eu'", []),
        ("not region != 'eu'", [{b"region\x04eu", b"region\x84"}]),
        ("not (region != 'eu' or 'test' in tags)", [{b"region\x04eu", b"region\x84"}]),
        ("not (region = 'eu' and a exists)", []),
        ("key exists", []),
        ("key = ''", []),
        ("key starts with 'a'", []),
    ],
)
def test_needles_are_what_a_match_contains(text: str, groups: list[set[bytes]]) -> None:
    found = needles_of(parse(text))
    assert len(found) == len(groups)
    assert [set(group) for group in found] == groups


def test_length_of_two_bytes_is_part_of_the_needle() -> None:
    value = "v" * 100
    (group,) = needles_of(parse(f"x = '{value}'"))
    whole = b"x\xc8\x01" + value.encode()
    assert set(group) == {whole[:NEEDLE_BYTES_MAX], b"x\xc8\x81"}


def test_too_many_needles_are_none() -> None:
    same = [f"'tag{number}' in tags" for number in range(NEEDLES_A_GROUP_MAX + 1)]
    assert len(needles_of(parse(" or ".join(same[:-1])))[0]) == NEEDLES_A_GROUP_MAX
    assert not needles_of(parse(" or ".join(same)))
    different = [f"'{letter}-tag' in tags" for letter in ascii_lowercase[: SEARCHES_A_GROUP_MAX + 1]]
    assert len(needles_of(parse(" or ".join(different[:-1])))[0]) == SEARCHES_A_GROUP_MAX
    assert not needles_of(parse(" or ".join(different)))


def test_largest_filters_have_few_searches() -> None:
    """They all run in one step."""
    text = " and ".join(f"name{number} = 'value'" for number in range(TERMS_MAX))
    assert len(compile_filter(parse(text)).searches) == 3


@pytest.mark.parametrize(
    ("needles", "others"),
    [
        ([b"abc"], b"ab ac bc"),
        ([b"ab", b"abc"], b"a bc ac"),
        ([b"ab.c", b"abxc", b"zz"], b"abyc ab z"),
        ([b"\n(", b"a|b", b"a|c"], b"\n a b c (a|"),
    ],
)
def test_searches_find_each_needle_and_nothing_else(needles: list[bytes], others: bytes) -> None:
    searches = searches_for(needles)
    for needle in needles:
        hits = [hit for search in searches if (hit := search.search(b"--" + needle + b"--"))]
        assert [hit.start() for hit in hits] == [2]
    assert not any(search.search(others) for search in searches)
