"""Java's regular expressions, as `subscribePattern` has them, in terms of Python's `re`.

The two languages agree on most of a pattern. What differs is translated: named classes such as `\\p{Alpha}`, unions and
intersections of classes, quotations `\\Q…\\E`, names of groups, and a few escapes. Names of topics are ASCII, so a class is
worked out to the ASCII characters in it, also one of Unicode's. What Python cannot express is refused by name.

As in Spark's own connector a pattern need only be found in a name: `orders` also matches `orders-eu`.
"""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Callable

from tidemill.errors import ConfigError

_ASCII = frozenset(map(chr, range(128)))
_LOWER, _UPPER = frozenset(string.ascii_lowercase), frozenset(string.ascii_uppercase)
_ALPHA, _DIGIT = _LOWER | _UPPER, frozenset(string.digits)
_PUNCT, _SPACE = frozenset(string.punctuation), frozenset(" \t\n\x0b\f\r")
_SYMBOL = frozenset("$+<=>^`|~")
_CONTROL = frozenset(map(chr, range(32))) | {"\x7f"}
# Java's names in \p{…}: POSIX, then Unicode's categories and properties, which may also begin with Is.
_CLASSES = {
    "lower": _LOWER,
    "upper": _UPPER,
    "ascii": _ASCII,
    "alpha": _ALPHA,
    "digit": _DIGIT,
    "alnum": _ALPHA | _DIGIT,
    "punct": _PUNCT,
    "graph": _ALPHA | _DIGIT | _PUNCT,
    "print": _ALPHA | _DIGIT | _PUNCT | {" "},
    "blank": frozenset(" \t"),
    "cntrl": _CONTROL,
    "xdigit": frozenset(string.hexdigits),
    "space": _SPACE,
    "l": _ALPHA,
    "lu": _UPPER,
    "ll": _LOWER,
    "n": _DIGIT,
    "nd": _DIGIT,
    "p": _PUNCT - _SYMBOL,
    "pd": frozenset("-"),
    "pc": frozenset("_"),
    "po": _PUNCT - _SYMBOL - frozenset("-_()[]{}"),
    "s": _SYMBOL,
    "alphabetic": _ALPHA,
    "letter": _ALPHA,
    "lowercase": _LOWER,
    "uppercase": _UPPER,
    "latin": _ALPHA,
    "javalowercase": _LOWER,
    "javauppercase": _UPPER,
}
_SHORT = {
    "d": _DIGIT,
    "w": _ALPHA | _DIGIT | {"_"},
    "s": _SPACE,
    "h": frozenset(" \t"),
    "v": frozenset("\n\x0b\f\r"),
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_ANCHORS = {"b": r"\b", "B": r"\B", "A": r"\A", "z": r"\Z", "Z": r"\Z"}
_GROUP_NAME = re.compile(r"<([A-Za-z][A-Za-z0-9]*)>")
_FLAGS = re.compile(r"\(\?([A-Za-z]*)(?:-([A-Za-z]+))?([:)])")
_PYTHON_FLAGS = frozenset("ims")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]+)\}|u([0-9A-Fa-f]{4})")


@functools.lru_cache(maxsize=64)
def finder(pattern: str) -> Callable[[str], bool]:
    """Whether a name of a topic matches; `ConfigError` says what of the pattern is not understood."""
    try:
        compiled = re.compile(_Translator(pattern).translate(), re.ASCII)
    except re.error as error:
        raise ConfigError(f"it is not a regular expression: {error}") from None
    return lambda name: compiled.search(name) is not None


class _Translator:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def translate(self) -> str:
        parts = []
        while self._at < len(self._pattern):
            parts.append(self._next())
        return "".join(parts)

    def _next(self) -> str:
        char = self._pattern[self._at]
        if char == "[":
            self._at += 1
            return self._class()
        if char == "(" and self._pattern.startswith("(?", self._at):
            return self._special_group()
        self._at += 1
        return self._escape() if char == "\\" else char

    # --- groups ---

    def _special_group(self) -> str:
        """`(?…`, up to what stands in the group."""
        found = _GROUP_NAME.match(self._pattern, self._at + 2)
        if found:
            self._at = found.end()
            return f"(?P<{found[1]}>"
        flags = _FLAGS.match(self._pattern, self._at)
        if flags is None:
            # (?= (?! (?<= (?<! (?> are the same.
            self._at += 2
            return "(?"
        unknown = (set(flags[1]) | set(flags[2] or "")) - _PYTHON_FLAGS
        if unknown:
            raise _unsupported(f"the flag {sorted(unknown)[0]} in {flags[0]}")
        if flags[3] == ")" and (self._at or flags[2]):
            raise _unsupported(f"{flags[0]} other than at the beginning; (?i:…) sets a flag for a part")
        self._at = flags.end()
        return flags[0]

    # --- escapes ---

    def _escape(self) -> str:
        """Translates the escape after a backslash, outside of a class."""
        char = self._take("a backslash at the end")
        if char == "Q":
            return "".join(map(re.escape, self._quoted()))
        if char == "k":
            found = _GROUP_NAME.match(self._pattern, self._at)
            if found is None:
                raise ConfigError(r"\k is not followed by <name>")
            self._at = found.end()
            return f"(?P={found[1]})"
        if char in _ANCHORS:
            return _ANCHORS[char]
        if char.isdigit() and char != "0":
            return f"\\{char}"
        characters = self._characters(char)
        return re.escape(*characters) if len(characters) == 1 else _shown(characters, is_negated=False)

    def _characters(self, char: str) -> frozenset[str]:
        """Returns the characters that an escape stands for, within a class or not. The position is behind `char`."""
        if char in "pP":
            named = self._property()
            return named if char == "p" else _ASCII - named
        if char.lower() in _SHORT:
            short = _SHORT[char.lower()]
            return short if char.islower() else _ASCII - short
        if char in _CONTROLS:
            return frozenset(_CONTROLS[char])
        if found := _HEX.match(self._pattern, self._at - 1):
            self._at = found.end()
            return frozenset(chr(int(found[1] or found[2] or found[3], 16)))
        if char.isalnum():
            raise _unsupported(f"\\{char}")
        return frozenset(char)

    def _property(self) -> frozenset[str]:
        name = self._take("\\p at the end")
        if name == "{":
            end = self._pattern.find("}", self._at)
            if end < 0:
                raise ConfigError(r"\p{ has no end")
            name, self._at = self._pattern[self._at : end], end + 1
        found = _CLASSES.get(name.lower()) or _CLASSES.get(name.lower().removeprefix("is"))
        if found is None:
            raise _unsupported(rf"\p{{{name}}}")
        return found

    def _quoted(self) -> str:
        end = self._pattern.find("\\E", self._at)
        text = self._pattern[self._at :] if end < 0 else self._pattern[self._at : end]
        self._at += len(text) + (0 if end < 0 else 2)
        return text

    # --- classes ---

    def _class(self) -> str:
        is_negated, members = self._members()
        return _shown(members, is_negated)

    def _members(self) -> tuple[bool, frozenset[str]]:
        """A class after its bracket: whether it is negated, and what it has before that. `&&` binds least."""
        is_negated = self._pattern.startswith("^", self._at)
        self._at += is_negated
        common: frozenset[str] | None = None
        members: frozenset[str] = frozenset()
        first = self._at
        while True:
            if self._pattern.startswith("&&", self._at):
                self._at += 2
                common = members if common is None else common & members
                members = frozenset()
                continue
            char = self._take("a class without its ]")
            if char == "]" and self._at - 1 > first:
                return is_negated, members if common is None else common & members
            members |= self._member(char)

    def _member(self, char: str) -> frozenset[str]:
        if char == "[":
            is_negated, nested = self._members()
            return _ASCII - nested if is_negated else nested
        if char == "\\":
            char = self._take("a backslash at the end")
            if char == "Q":
                return frozenset(self._quoted())
            characters = self._characters(char)
            if len(characters) > 1:
                return characters
            (char,) = characters
        if self._pattern.startswith("-", self._at) and self._pattern[self._at + 1 : self._at + 2] not in "[]":
            self._at += 1
            last = self._take("a range without its end")
            if last == "\\":
                (last,) = self._characters(self._take("a backslash at the end"))
            if last < char:
                raise ConfigError(f"the range {char}-{last} goes backwards")
            return frozenset(map(chr, range(ord(char), ord(last) + 1)))
        return frozenset(char)

    def _take(self, problem: str) -> str:
        if self._at >= len(self._pattern):
            raise ConfigError(f"it is not a regular expression: {problem}")
        self._at += 1
        return self._pattern[self._at - 1]


def _shown(members: frozenset[str], is_negated: bool) -> str:
    if not members:
        return "[\\s\\S]" if is_negated else "(?!)"
    return f"[{'^' if is_negated else ''}{''.join(map(re.escape, sorted(members)))}]"


def _unsupported(what: str) -> ConfigError:
    return ConfigError(f"{what} is not supported; Java has it, and there is nothing like it here")
