"""Principals: the names under which peers are known, and how a certificate's name becomes one.

A principal is a type and a name, `User:alice` in text. A peer that has not proven anything is `User:ANONYMOUS`.

With TLS client authentication the name is the certificate's subject (`distinguished_names.py`).
`ssl.principal.mapping.rules` may rewrite it; the first rule whose pattern matches the whole name applies. Patterns run in
linear time (`tidemill.regex`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.errors import ApiError, ConfigError, TidemillError
from tidemill.regex import Regex
from tidemill.security.distinguished_names import subject_name

USER_TYPE = "User"


class Principal(NamedTuple):
    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    @classmethod
    def user(cls, name: str) -> Principal:
        return cls(USER_TYPE, name)

    @classmethod
    def parse(cls, text: str) -> Principal:
        """`User:alice`; `ValueError` when there is no type or no name. A name may hold colons."""
        kind, colon, name = text.partition(":")
        if not kind or not colon or not name:
            raise ValueError(f"expected a principal as TYPE:NAME, found {text[:100]!r}")
        return cls(kind, name)


ANONYMOUS = Principal(USER_TYPE, "ANONYMOUS")


# --- ssl.principal.mapping.rules ---

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*")
_REFERENCE = re.compile(r"\\(.)|\$(\d)", re.DOTALL)
# Patterns see the letters up to here; every other character counts as one that only `.` and negated classes match.
_STAND_IN = "�"
_ALPHABET = frozenset(map(chr, range(0x20, 0x530))) | {_STAND_IN}


class NoMatchingRule(TidemillError):
    """No rule applies to a certificate's name: the connection is refused."""


@dataclass(frozen=True, slots=True)
class _Rule:
    # None for DEFAULT, which keeps the name.
    pattern: Regex | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        spans = self.pattern.groups("".join(char if char in _ALPHABET else _STAND_IN for char in name))
        if spans is None:
            return None
        result = _REFERENCE.sub(lambda reference: _substitute(reference, name, spans), self.replacement)
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result


def _substitute(reference: re.Match[str], name: str, spans: Sequence[tuple[int, int] | None]) -> str:
    if reference[1] is not None:
        return reference[1]
    group = int(reference[2])
    if group >= len(spans):
        return reference[0]
    span = spans[group]
    return "" if span is None else name[span[0] : span[1]]


class PrincipalMapping:
    """`ssl.principal.mapping.rules`: `RULE:pattern/replacement/[LU]` and `DEFAULT`, separated by commas."""

    def __init__(self, rules: str = "DEFAULT") -> None:
        self._text = rules
        self._rules = tuple(_parse_rules(rules))

    def name_of(self, distinguished: str) -> str:
        """The name of the principal; `NoMatchingRule` when no rule applies."""
        for rule in self._rules:
            mapped = rule.apply(distinguished)
            if mapped is not None:
                return mapped
        raise NoMatchingRule(f"no rule of ssl.principal.mapping.rules applies to {distinguished!r}")

    def principal(self, certificate: bytes) -> Principal:
        """The principal of a certificate in DER. Raises MalformedCertificate or NoMatchingRule."""
        return Principal.user(self.name_of(subject_name(certificate)))


def _parse_rules(text: str) -> list[_Rule]:
    rules = []
    position = 0
    while True:
        found = _RULE.match(text, position)
        if found is None:
            raise ConfigError(
                f"ssl.principal.mapping.rules cannot be read at {text[position : position + 40]!r}; "
                "a rule is RULE:pattern/replacement/, with L or U after it, or DEFAULT"
            )
        rules.append(_rule(found))
        position = found.end()
        if position == len(text):
            return rules
        if text[position] != ",":
            raise ConfigError("the rules of ssl.principal.mapping.rules are separated by commas")
        position += 1


def _rule(found: re.Match[str]) -> _Rule:
    if found[1]:
        return _Rule(None)
    try:
        # Kafka keeps the escape of a slash; in an expression it means the slash itself.
        pattern = Regex(found[2], _ALPHABET)
    except ApiError as error:
        raise ConfigError(f"ssl.principal.mapping.rules: {error.message}") from None
    return _Rule(pattern, found[3], found[4])
