"""The filter language: what each text means, its canonical form, and what is refused with which words."""

from __future__ import annotations

import pytest

from tidemill.errors import TidemillError
from tidemill.filters.language import DEPTH_MAX, TERMS_MAX, TEXT_BYTES_MAX, FilterError, parse
from tidemill.filters.terms import And, Exists, Field, Filter, HasTag, Not, OneOf, Or, StartsWith

KEY = Field(None)
REGION = Field(b"region")


def _equals(name: str, value: str) -> OneOf:
    return OneOf(Field(name.encode()), (value.encode(),))


# -- tests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("region = 'eu'", OneOf(REGION, (b"eu",))),
        ("region='eu'", OneOf(REGION, (b"eu",))),
        ("region != 'eu'", Not(OneOf(REGION, (b"eu",)))),
        ("region in ('eu', 'us')", OneOf(REGION, (b"eu", b"us"))),
        ("region NOT In ('eu')", Not(OneOf(REGION, (b"eu",)))),
        ("region starts with 'e'", StartsWith(REGION, b"e")),
        ("region not STARTS WITH 'e'", Not(StartsWith(REGION, b"e"))),
        ("region exists", Exists(REGION)),
        ("region not exists", Not(Exists(REGION))),
        ("'eu' in tags", HasTag(b"eu")),
        ("'eu' not in tags", Not(HasTag(b"eu"))),
        ("key = 'k'", OneOf(KEY, (b"k",))),
        ("key exists", Exists(KEY)),
        ("\"key\" = 'k'", _equals("key", "k")),
        ("\"KEY\" = 'k'", _equals("KEY", "k")),
        ("\"in\" = 'k'", _equals("in", "k")),
        ('"a ""b""" = \'k\'', _equals('a "b"', "k")),
        ("\"\" = 'k'", _equals("", "k")),
        ("tags = 'a,b'", _equals("tags", "a,b")),
        ("trace-id.v_2 = ''", _equals("trace-id.v_2", "")),
        ("x = 'it''s'", _equals("x", "it's")),
        ("x = 'größe'", OneOf(Field(b"x"), ("größe".encode(),))),
        ("x = 'a\nb'", _equals("x", "a\nb")),
        ("\n( x exists )\t", Exists(Field(b"x"))),
    ],
)
def test_text_parses_to_condition(text: str, condition: object) -> None:
    assert parse(text).condition == condition


A, B, C = (Exists(Field(name)) for name in (b"a", b"b", b"c"))


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("a exists or b exists and c exists", Or((A, And((B, C))))),
        ("(a exists or b exists) and c exists", And((Or((A, B)), C))),
        ("not a exists and b exists", And((Not(A), B))),
        ("not (a exists and b exists)", Not(And((A, B)))),
        ("not 'test' in tags and a exists", And((Not(HasTag(b"test")), A))),
        ("NOT a exists OR not b exists", Or((Not(A), Not(B)))),
    ],
)
def test_and_binds_tighter_than_or_and_not_tighter_than_and(text: str, condition: object) -> None:
    assert parse(text).condition == condition


# -- the canonical text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("region='eu'and not'test'in tags", "'test' not in tags and region = 'eu'"),
        ("not not not x exists", "x not exists"),
        ("not x != 'a'", "x = 'a'"),
        ("x in ('b', 'a', 'b')", "x in ('a', 'b')"),
        ("x in ('a')", "x = 'a'"),
        ("\"x\" = 'a'", "x = 'a'"),
        ("\"key\" = 'a' and key = 'b'", "\"key\" = 'a' and key = 'b'"),
        ("\"a b\" = 'it''s'", "\"a b\" = 'it''s'"),
        ("b exists and (a exists and c exists)", "a exists and b exists and c exists"),
        ("a exists or a exists", "a exists"),
        ("(b exists or a exists) and c exists", "(a exists or b exists) and c exists"),
        ("not (b exists or a exists)", "not (a exists or b exists)"),
        ("not x starts with 'a'", "x not starts with 'a'"),
    ],
)
def test_canonical_text_is_the_same_for_every_spelling(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical
    assert parse(canonical) == parse(text)
    assert hash(parse(canonical)) == hash(parse(text))


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("x = 'a'", "x = 'A'"),
        ("x = 'a'", "X = 'a'"),
        ("key = 'a'", "\"key\" = 'a'"),
        ("'a' in tags", "tags = 'a'"),
        ("a exists and b exists", "a exists or b exists"),
    ],
)
def test_different_filters_are_not_equal(text: str, other: str) -> None:
    assert parse(text) != parse(other)
    assert str(parse(text)) != str(parse(other))


# -- bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("", 1, "empty"),
        (" \n ", 1, "empty"),
        ("region ~ 'eu'", 8, "expected =, !=, in, starts with or exists after region; found ~"),
        ("region == 'eu'", 8, "found =="),
        ("region <> 'eu'", 8, "found <>"),
        ("region like 'eu'", 8, "found like"),
        ("region not = 'eu'", 12, "expected in, starts with or exists after region; found ="),
        ("region", 7, "found the end of the filter"),
        ("region = eu", 10, "expected a text in single quotes, as in 'eu'; found eu"),
        ('region = "eu"', 10, "expected a text in single quotes"),
        ("region = 'eu", 10, "no closing '"),
        ("region = 'it's'", 14, "expected and, or, or the end of the filter; found s"),
        ("\"region = 'eu'", 1, 'no closing "'),
        ("region = ‘eu’", 10, "straight quote"),
        ("region = 'eu' type = 'a'", 15, "expected and, or, or the end of the filter; found type"),
        ("region = 'eu' && a exists", 15, "found &&"),
        ("region = 'eu' and", 18, "found the end of the filter"),
        ("region in 'eu'", 11, "expected ( and a list of texts after in"),
        ("region in ()", 12, "expected a text in single quotes"),
        ("region in ('eu' 'us')", 17, "expected a comma or )"),
        ("region starts 'eu'", 15, "expected with"),
        ("(region exists", 15, "expected and, or or )"),
        ("region exists)", 14, "found )"),
        ("'eu' = region", 6, "expected in tags"),
        ("'eu' in region", 9, "only the header tags is a set"),
        ("'a,b' in tags", 1, "has no comma"),
        ("' a' in tags", 1, "no blanks"),
        ("'' in tags", 1, "not empty"),
        ("and exists", 1, '"and"'),
        ("KEY = 'a'", 1, '"KEY"'),
        ("a exists \u00a7", 10, "§ has no meaning"),
        ("a exists \u0007", 10, "'\\x07' has no meaning"),
        ("x = 'a\0b'", 7, "NUL"),
        ("x = '\ud800'", 6, "surrogate"),
    ],
)
def test_refusal_names_position_and_what_was_expected(text: str, position: int, words: str) -> None:
    with pytest.raises(FilterError) as refused:
        parse(text)
    assert isinstance(refused.value, TidemillError)
    assert str(refused.value).startswith(f"Position {position}: ")
    assert words in str(refused.value)


def test_filter_of_one_megabyte_is_refused() -> None:
    with pytest.raises(FilterError, match=f"at most {TEXT_BYTES_MAX} bytes"):
        parse("x = '" + "a" * 1_000_000 + "'")


def test_size_is_counted_in_bytes_not_characters() -> None:
    text = "x = '{}'"
    fitting = (TEXT_BYTES_MAX - len(text) + 2) // 2
    parse(text.format("ü" * fitting))
    with pytest.raises(FilterError, match="bytes"):
        parse(text.format("ü" * (fitting + 1)))


def test_filter_of_10_000_terms_is_refused() -> None:
    with pytest.raises(FilterError):
        parse(" or ".join("a='b'" for _ in range(10_000)))


@pytest.mark.parametrize("term", ["a=''", "a exists", "'t'in tags"], ids=["comparison", "presence", "tag"])
def test_one_term_too_many_is_refused(term: str) -> None:
    assert parse("or ".join([f"{term} "] * TERMS_MAX))
    with pytest.raises(FilterError, match=f"at most {TERMS_MAX}"):
        parse("or ".join([f"{term} "] * (TERMS_MAX + 1)))


def test_every_text_of_a_list_is_a_term() -> None:
    assert parse("x in (" + ",".join(["'a'"] * TERMS_MAX) + ")")
    with pytest.raises(FilterError, match=f"at most {TERMS_MAX}"):
        parse("x in (" + ",".join(["'a'"] * (TERMS_MAX + 1)) + ")")


@pytest.mark.parametrize(
    ("opening", "closing"), [("(", ")"), ("not ", ""), ("not (", ")"), ("(x exists or ", ")")]
)
def test_filter_nested_1_000_deep_is_refused(opening: str, closing: str) -> None:
    with pytest.raises(FilterError, match=f"nested {DEPTH_MAX} deep"):
        parse(opening * 1_000 + "x exists" + closing * 1_000)


def test_filter_nested_as_deep_as_allowed_parses_and_so_does_its_canonical_text() -> None:
    text = "x exists"
    for depth in range(DEPTH_MAX):
        text = f"(a{depth} exists {'and' if depth % 2 else 'or'} {text})"
    parsed = parse(text)
    assert parse(str(parsed)) == parsed
    with pytest.raises(FilterError):
        parse(f"({text})")


def test_canonical_text_that_would_be_too_long_is_refused() -> None:
    """The canonical text is what gets stored, so it has to parse."""
    name, tests = "n" * 50, 255
    spare = TEXT_BYTES_MAX - len(f"{name}='000'or ") * tests
    text = "or ".join(f"{name}='{number:03}'" for number in range(tests)) + "or " + f"a='{'b' * (spare - 5)}'"
    assert len(text) <= TEXT_BYTES_MAX
    with pytest.raises(FilterError, match="too long"):
        parse(text)


def test_a_long_name_is_shortened_in_the_message() -> None:
    with pytest.raises(FilterError) as refused:
        parse("n" * 10_000 + " ~ 'a'")
    assert len(str(refused.value)) < 200


def test_filter_is_a_value() -> None:
    assert {parse("x exists"), parse("(x exists)")} == {Filter(Exists(Field(b"x")))}
