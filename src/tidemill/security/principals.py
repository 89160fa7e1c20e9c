"""Principals: the names under which peers are known, and how a certificate's name becomes one.

A principal is a type and a name, `User:alice` in text. A peer that has not proven anything is `User:ANONYMOUS`.

With TLS client authentication the name is the certificate's subject, written as RFC 2253 says and as Java writes it:
the most specific part first, `CN=web,OU=shop,O=Acme`. `ssl.principal.mapping.rules` may rewrite it; the first rule
whose pattern matches the whole name applies. Patterns run in linear time (`tidemill.regex`).
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.errors import ApiError, ConfigError, TidemillError
from tidemill.regex import Regex

USER_TYPE = "User"
# What Python's ssl module returns for a subject: relative names, each with one or more attributes.
Subject = Sequence[Sequence[tuple[str, str]]]


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


# --- distinguished names ---

# The keywords of RFC 2253, by the names that OpenSSL gives to attributes.
_KEYWORDS = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
# Attributes without a keyword are written by their number, and their value as DER in hexadecimal.
_OBJECT_IDS = {
    "businessCategory": "2.5.4.15",
    "description": "2.5.4.13",
    "dnQualifier": "2.5.4.46",
    "emailAddress": "1.2.840.113549.1.9.1",
    "generationQualifier": "2.5.4.44",
    "givenName": "2.5.4.42",
    "initials": "2.5.4.43",
    "jurisdictionCountryName": "1.3.6.1.4.1.311.60.2.1.3",
    "jurisdictionLocalityName": "1.3.6.1.4.1.311.60.2.1.1",
    "jurisdictionStateOrProvinceName": "1.3.6.1.4.1.311.60.2.1.2",
    "name": "2.5.4.41",
    "organizationIdentifier": "2.5.4.97",
    "postalCode": "2.5.4.17",
    "pseudonym": "2.5.4.65",
    "serialNumber": "2.5.4.5",
    "surname": "2.5.4.4",
    "title": "2.5.4.12",
    "unstructuredName": "1.2.840.113549.1.9.2",
}
_UTF8_STRING, _PRINTABLE_STRING, _IA5_STRING = 0x0C, 0x13, 0x16
_IA5_ATTRIBUTES = ("emailAddress", "unstructuredName")
_PRINTABLE = frozenset(string.ascii_letters + string.digits + " '()+,-./:=?")
_ESCAPED = frozenset(',+<>;"\\')


def distinguished_name(subject: Subject) -> str:
    """The `subject` of `ssl.SSLSocket.getpeercert()` as RFC 2253 writes it: certificate order reversed."""
    return ",".join("+".join(_attribute(*attribute) for attribute in relative) for relative in subject[::-1])


def _attribute(name: str, value: str) -> str:
    keyword = _KEYWORDS.get(name)
    if keyword is not None:
        return f"{keyword}={_escape(value)}"
    number = _OBJECT_IDS.get(name, name)
    return f"{number}=#{_der(name, value).hex()}"


def _escape(value: str) -> str:
    escaped = ["\\00" if char == "\0" else f"\\{char}" if char in _ESCAPED else char for char in value]
    if value.startswith((" ", "#")):
        escaped[0] = f"\\{value[0]}"
    if len(value) > 1 and value.endswith(" "):
        escaped[-1] = "\\ "
    return "".join(escaped)


def _der(name: str, value: str) -> bytes:
    """Python does not show the type of the value; this is the one that certificates use."""
    if name in _IA5_ATTRIBUTES and value.isascii():
        tag = _IA5_STRING
    else:
        tag = _PRINTABLE_STRING if set(value) <= _PRINTABLE else _UTF8_STRING
    content = value.encode()
    if len(content) < 128:
        return bytes((tag, len(content))) + content
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(length))) + length + content


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

    def principal(self, subject: Subject) -> Principal:
        return Principal.user(self.name_of(distinguished_name(subject)))


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
