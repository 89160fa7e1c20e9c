"""The subject of a certificate as Java writes it, which is Kafka's name of a client with TLS (`X500Principal.getName`).

It is RFC 2253: the most specific part first, `CN=web,OU=shop,O=Acme`. An attribute without a keyword is a number with
the DER of its value in hexadecimal. So is a value that is no string. Strings are read as UTF-8 whatever their type is, as
Java does. The DER is read here because Python's ssl module shows neither the types of values nor all numbers of attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.errors import TidemillError

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
# UTF8, Printable, T61, IA5, General, Universal and BMPString.
_STRINGS = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E))
_ESCAPED = frozenset(',=+<>#;"\\')
_BLANKS = " \r"
_EXPLICIT_VERSION = 0xA0


class MalformedCertificate(TidemillError):
    """A certificate's bytes are no DER."""


class _Element(NamedTuple):
    tag: int
    content: bytes
    # With tag and length.
    whole: bytes


def subject_name(certificate: bytes) -> str:
    """The subject of a certificate in DER. Raises MalformedCertificate."""
    try:
        (signed, *_) = _elements(_only(certificate).content)
        fields = [each for each in _elements(signed.content) if each.tag != _EXPLICIT_VERSION]
        # Serial number, algorithm, issuer, validity, subject.
        relative_names = [list(_elements(each.content)) for each in _elements(fields[4].content)]
        return ",".join("+".join(map(_attribute, relative)) for relative in reversed(relative_names))
    except (IndexError, ValueError):
        raise MalformedCertificate("a certificate cannot be read") from None


def _attribute(attribute: _Element) -> str:
    number, value = _elements(attribute.content)
    name = _object_id(number.content)
    keyword = _KEYWORDS.get(name)
    if keyword is None or value.tag not in _STRINGS:
        return f"{keyword or name}=#{value.whole.hex()}"
    return f"{keyword}={_escape(value.content.decode(errors='replace'))}"


def _escape(value: str) -> str:
    first = len(value) - len(value.lstrip(_BLANKS))
    end = len(value.rstrip(_BLANKS))
    written = []
    for position, char in enumerate(value):
        if char == "\0":
            written.append("\\00")
        else:
            is_escaped = char in _ESCAPED or not first <= position < end
            written.append(f"\\{char}" if is_escaped else char)
    return "".join(written)


# --- DER ---


def _only(data: bytes) -> _Element:
    (found,) = _elements(data)
    return found


def _elements(data: bytes) -> Iterator[_Element]:
    """What stands one after the other. `IndexError` or `ValueError` when the bytes end early."""
    start = 0
    while start < len(data):
        tag, size, position = data[start], data[start + 1], start + 2
        if size >= 0x80:
            position += size & 0x7F
            size = int.from_bytes(data[start + 2 : position])
        end = position + size
        if end > len(data):
            raise ValueError("an element is longer than what it is in")
        yield _Element(tag, data[position:end], data[start:end])
        start = end


def _object_id(content: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    # The first number holds two: 40 times the first, which is at most 2, and the second.
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
