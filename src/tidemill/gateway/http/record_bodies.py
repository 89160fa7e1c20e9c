"""Bodies that hold many records: `read_records` takes `{"records": [...], ...}` record by record.

Parsing a body at once would hold the event loop for as long as the body is large. So the outer object is walked here:
every element of `records` is parsed and converted on its own, in turns (`turns.py`). More than `request_records_max`
records are refused (413), and so is a record, or another member, whose JSON is larger than `record_text_bytes_max` or has
more arrays and objects than `record_containers_max`.

The text is looked at through a window, so that the parser never sees more than it may take. An element that the window
cuts is parsed again with a larger one; each is twice as large as the one before, so that the whole stays linear.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Any, Generic, NamedTuple, TypeVar

from starlette.requests import Request

from tidemill.gateway.answers import JSON
from tidemill.gateway.http.bodies import (
    STRICT_JSON,
    SURROGATE,
    check_containers,
    check_media_type,
    check_surrogates,
    decode_text,
    kind_of,
    limits_of,
    not_json,
    read_bytes,
    unreadable,
)
from tidemill.gateway.problems import Problem
from tidemill.gateway.settings import Limits
from tidemill.gateway.turns import Turn, turn_of

T = TypeVar("T")

_RECORDS = "records"
_WINDOW_CHARACTERS = 65_536
# Of what the parser takes as a whole, strings aside: `-Infinity`, or an escape with half of a surrogate pair.
_LONGEST_TOKEN = 16
_SPACE = re.compile(r"[ \t\r\n]*")


class RecordBody(NamedTuple, Generic[T]):
    """`records` is None when the body has no such member, or one that is not an array: then `members` has it."""

    members: dict[str, Any]
    records: list[T] | None


async def read_records(
    request: Request, convert: Callable[[Any, int], T], *, media_types: Collection[str] = (JSON,)
) -> RecordBody[T]:
    """`convert` gets each record with its number, and may refuse it. An empty body is a 400."""
    check_media_type(request, media_types)
    text = decode_text(await read_bytes(request))
    walk = _Walk(text, limits_of(request), turn_of(request))
    if walk.at_end():
        raise Problem(400, 400, "the body is empty; it should be JSON")
    if walk.next_mark() != "{":
        document = walk.value()
        walk.expect_end()
        raise Problem(400, 400, f"the body should be a JSON object, not {kind_of(document)}")
    return await _object(walk, convert)


async def _object(walk: _Walk, convert: Callable[[Any, int], T]) -> RecordBody[T]:
    members: dict[str, Any] = {}
    records: list[T] | None = None
    walk.skip("{")
    while not walk.skips("}"):
        if members or records is not None:
            walk.skip(",", "Expecting ',' delimiter")
        if walk.next_mark() != '"':
            raise walk.wrong("Expecting property name enclosed in double quotes")
        name = walk.value()
        walk.skip(":", "Expecting ':' delimiter")
        if name == _RECORDS and walk.next_mark() == "[":
            members.pop(name, None)
            records = await _array(walk, convert)
        else:
            if name == _RECORDS:
                records = None
            members[name] = walk.value()
    walk.expect_end()
    return RecordBody(members, records)


async def _array(walk: _Walk, convert: Callable[[Any, int], T]) -> list[T]:
    records: list[T] = []
    turn = walk.turn
    limit = walk.limits.request_records_max
    walk.skip("[")
    while not walk.skips("]"):
        if records:
            walk.skip(",", "Expecting ',' delimiter")
        if len(records) >= limit:
            raise Problem(413, 413, f"the body has more than {limit} records, which is the limit here")
        records.append(convert(walk.value(), len(records)))
        if turn.is_over:
            await turn.give_way()
    return records


class _Walk:
    """A position in the text, and what can be read from there."""

    def __init__(self, text: str, limits: Limits, turn: Turn) -> None:
        self._text = text
        self.limits = limits
        self.turn = turn
        self._position = 0
        self._has_surrogates = SURROGATE.search(text) is not None
        # The part of the text that the parser sees, and where it begins.
        self._window = text[:_WINDOW_CHARACTERS]
        self._window_start = 0

    def at_end(self) -> bool:
        return self.next_mark() == ""

    def next_mark(self) -> str:
        found = _SPACE.match(self._text, self._position)
        assert found is not None
        self._position = found.end()
        return self._text[self._position : self._position + 1]

    def skips(self, mark: str) -> bool:
        if self.next_mark() != mark:
            return False
        self._position += 1
        return True

    def skip(self, mark: str, complaint: str = "") -> None:
        if not self.skips(mark):
            raise self.wrong(complaint)

    def expect_end(self) -> None:
        if not self.at_end():
            raise self.wrong("Extra data")

    def wrong(self, complaint: str) -> Problem:
        return not_json(json.JSONDecodeError(complaint, self._text, self._position))

    def value(self) -> Any:
        """The value that begins here."""
        self.next_mark()
        while True:
            try:
                document, end = STRICT_JSON.raw_decode(self._window, self._position - self._window_start)
            except json.JSONDecodeError as error:
                if not self._may_be_cut(error):
                    whole = json.JSONDecodeError(error.msg, self._text, self._window_start + error.pos)
                    raise not_json(whole) from None
            except (ValueError, RecursionError) as error:
                raise unreadable(error) from None
            else:
                # A number at the window's end may go on behind it.
                if end < len(self._window) or self._is_last_window:
                    break
            self._widen()
        if self._has_surrogates:
            check_surrogates(document)
        self._position = self._window_start + end
        return document

    @property
    def _is_last_window(self) -> bool:
        return self._window_start + len(self._window) >= len(self._text)

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        """Whether the value may be right if one sees more of it."""
        if self._is_last_window:
            return False
        return error.msg.startswith("Unterminated string") or error.pos >= len(self._window) - _LONGEST_TOKEN

    def _widen(self) -> None:
        if self._window_start < self._position:
            size = _WINDOW_CHARACTERS
        else:
            size = 2 * len(self._window)
            limit = self.limits.record_text_bytes_max
            if len(self._window) > limit:
                raise Problem(413, 413, f"the JSON of a record is larger than {limit} bytes, the limit here")
        self._window = self._text[self._position : self._position + size]
        self._window_start = self._position
        if size > _WINDOW_CHARACTERS:
            check_containers(self._window, self.limits.record_containers_max)
