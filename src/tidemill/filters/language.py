"""The filter language of views: `region = 'eu' and not 'test' in tags`.

    filter     =  conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation   =  "not" negation | "(" filter ")" | test
    test       =  field ("=" | "!=") text
               |  field ["not"] "in" "(" text { "," text } ")"
               |  field ["not"] "starts" "with" text
               |  field ["not"] "exists"
               |  text ["not"] "in" "tags"
    field      =  "key" | name | '"' any name '"'

A bare name has letters, digits, `_`, `-` and `.` and names a header. Any other header name, `key` and the keywords are
quoted: `"key"` is the header of that name, `key` is the record's key. Keywords are case-insensitive, names are not. A
text stands in single quotes; a quote inside is doubled. Texts are compared as UTF-8 bytes.

What a test means:

- A header that occurs several times passes `=`, `in`, `starts with` and `in tags` when any of its values does.
- A missing header and a null value pass none of them.
- `!=` and every `not` form are the exact negation: `x != 'a'` is `not x = 'a'`. So a missing header passes `!=`, and a
  header with the values `a` and `b` does not pass `!= 'a'`.
- `x exists` is true when the header occurs, even with a null value. `key exists` is true when the key is not null.
- The value of `tags` is a set: items with commas between them, blanks around items ignored, empty items ignored.

There are no regular expressions. Size, number of terms and depth are limited, so that matching a record is cheap and
no filter exhausts the stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tidemill.errors import TidemillError
from tidemill.filters.terms import (
    KEY,
    KEYWORDS,
    TAGS,
    And,
    Condition,
    Exists,
    Field,
    Filter,
    HasTag,
    Or,
    StartsWith,
    joined,
    negated,
    one_of,
)

TEXT_BYTES_MAX = 16 * 1024
# Tests, where each text of an `in (…)` counts as one.
TERMS_MAX = 256
# Parentheses and `not` inside each other.
DEPTH_MAX = 32

_EXCERPT_CHARACTERS_MAX = 40
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<text>'(?:[^']|'')*+')
    | (?P<quoted>"(?:[^"]|"")*+")
    | (?P<word>[A-Za-z0-9_.-]+)
    | (?P<mark>[(),])
    | (?P<sign>[=!<>~&|^*/+%:;@\#$?]+)""",
    re.VERBOSE,
)
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_OPERATORS = "=, !=, in, starts with or exists"
_A_TEST = "a header name, key, a text in single quotes, not or ("


class FilterError(TidemillError):
    """A text that is no filter. The message names the position, from 1, and what was expected there."""


class _Token(NamedTuple):
    kind: str
    text: str
    # From zero.
    position: int

    @property
    def keyword(self) -> str | None:
        """The keyword or mark that this token is."""
        if self.kind == "word":
            lowered = self.text.lower()
            return lowered if lowered in KEYWORDS else None
        return self.text if self.kind in ("mark", "sign") else None


def parse(text: str) -> Filter:
    """The filter that a text describes. Raises `FilterError`."""
    _check_characters(text)
    parser = _Parser(text)
    result = Filter(parser.whole())
    # The canonical text is stored and parsed again, and may have more blanks than this one.
    _check_size(str(result))
    return result


def _check_characters(text: str) -> None:
    _check_size(text)
    if found := _NO_TEXT.search(text):
        what = "a filter must not contain the character NUL"
        if found[0] != "\0":
            what = "half of a surrogate pair is not a character"
        raise FilterError(f"Position {found.start() + 1}: {what}.")
    if not text.strip():
        raise FilterError(f"Position 1: the filter is empty; expected {_A_TEST}.")


def _check_size(text: str) -> None:
    # A character has at least one byte, so a huge text is not encoded.
    if len(text) > TEXT_BYTES_MAX or len(text.encode(errors="surrogatepass")) > TEXT_BYTES_MAX:
        raise FilterError(f"The filter is too long; a filter has at most {TEXT_BYTES_MAX} bytes.")


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise FilterError(f"Position {position + 1}: {_unreadable(text[position])}")
        kind = found.lastgroup or ""
        if kind != "space":
            yield _Token(kind, found[0], position)
        position = found.end()
    yield _Token("end", "", position)


def _unreadable(character: str) -> str:
    if character in "'\"":
        return f"this {character} has no closing {character}; a quote inside is doubled."
    if character in "‘’‚‛“”„‟`´":
        return f"expected a straight quote (' or \"), found {character}."
    return f"the character {character if character.isprintable() else ascii(character)} has no meaning here."


def _excerpt(text: str) -> str:
    """The beginning of a user's text, fit for a message of one line."""
    shown = text if text.isprintable() else ascii(text)
    return shown if len(shown) <= _EXCERPT_CHARACTERS_MAX else shown[:_EXCERPT_CHARACTERS_MAX] + "…"


class _Parser:
    """A recursive descent, one method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self._terms = 0
        self._depth = 0

    def whole(self) -> Condition:
        condition = self._filter()
        if self._next.kind != "end":
            raise self._unexpected("and, or, or the end of the filter")
        return condition

    def _filter(self) -> Condition:
        parts = [self._conjunction()]
        while self._takes("or"):
            parts.append(self._conjunction())
        return joined(Or, parts)

    def _conjunction(self) -> Condition:
        parts = [self._negation()]
        while self._takes("and"):
            parts.append(self._negation())
        return joined(And, parts)

    def _negation(self) -> Condition:
        if self._next.keyword not in ("not", "("):
            return self._test()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise FilterError(
                f"Position {self._next.position + 1}: the filter is nested too deeply; "
                f"parentheses and not may be nested {DEPTH_MAX} deep."
            )
        if self._takes("not"):
            condition = negated(self._negation())
        else:
            self._expect("(", "(")
            condition = self._filter()
            self._expect(")", "and, or or )")
        self._depth -= 1
        return condition

    def _test(self) -> Condition:
        if self._next.kind == "text":
            return self._tag_test()
        field = self._field()
        if self._next.kind == "sign" and self._next.text in ("=", "!="):
            is_negated = self._take().text == "!="
            condition: Condition = one_of(field, [self._text()])
        else:
            is_negated = self._takes("not")
            condition = self._worded_test(field, "in, starts with or exists" if is_negated else _OPERATORS)
        return negated(condition) if is_negated else condition

    def _worded_test(self, field: Field, operators: str) -> Condition:
        if self._takes("in"):
            return one_of(field, self._texts())
        if self._takes("starts"):
            self._expect("with", "with after starts")
            return StartsWith(field, self._text())
        if self._takes("exists"):
            self._count_term()
            return Exists(field)
        raise self._unexpected(f"{operators} after {_excerpt(str(field))}")

    def _tag_test(self) -> Condition:
        position = self._next.position
        tag = self._text()
        is_negated = self._takes("not")
        self._expect("in", "in tags after a text; a comparison begins with its header or key")
        if self._next.kind != "word" or self._next.text.encode() != TAGS:
            raise self._unexpected("tags; only the header tags is a set")
        self._take()
        if not tag or tag != tag.strip() or b"," in tag:
            raise FilterError(
                f"Position {position + 1}: a tag is not empty, has no comma and no blanks around it."
            )
        return negated(HasTag(tag)) if is_negated else HasTag(tag)

    def _field(self) -> Field:
        token = self._next
        if token.kind == "quoted":
            self._take()
            return Field(token.text[1:-1].replace('""', '"').encode())
        if token.kind != "word":
            raise self._unexpected(_A_TEST)
        if token.keyword is not None:
            raise self._unexpected(f'{_A_TEST}; a header of this name is written "{_excerpt(token.text)}"')
        if token.text.lower() == "key":
            if token.text != "key":
                raise self._unexpected(f'key for the record\'s key, or "{token.text}" for a header')
            self._take()
            return KEY
        self._take()
        return Field(token.text.encode())

    def _texts(self) -> list[bytes]:
        self._expect("(", "( and a list of texts after in")
        texts = [self._text()]
        while self._takes(","):
            texts.append(self._text())
        self._expect(")", "a comma or ) in a list of texts")
        return texts

    def _text(self) -> bytes:
        if self._next.kind != "text":
            raise self._unexpected("a text in single quotes, as in 'eu'")
        self._count_term()
        return self._take().text[1:-1].replace("''", "'").encode()

    def _count_term(self) -> None:
        self._terms += 1
        if self._terms > TERMS_MAX:
            raise FilterError(
                f"Position {self._next.position + 1}: the filter has too many terms; "
                f"a filter has at most {TERMS_MAX}."
            )

    def _take(self) -> _Token:
        token = self._next
        # Nothing takes the end: every rule expects something else.
        self._next = next(self._tokens)
        return token

    def _takes(self, keyword: str) -> bool:
        if self._next.keyword != keyword:
            return False
        self._take()
        return True

    def _expect(self, keyword: str, expected: str) -> None:
        if not self._takes(keyword):
            raise self._unexpected(expected)

    def _unexpected(self, expected: str) -> FilterError:
        found = _excerpt(self._next.text) or "the end of the filter"
        return FilterError(f"Position {self._next.position + 1}: expected {expected}; found {found}.")
