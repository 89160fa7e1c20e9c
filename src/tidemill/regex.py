"""Regular expressions from clients, in RE2's syntax and linear time.

A client's expression runs in the broker: over topic names for subscriptions, over transactional ids, and over client
facts. Kafka uses RE2 for subscriptions because it never backtracks. Python's `re` does, and `(a+)+b` would block the
broker. So expressions are compiled to a list of instructions (a character, a split, an anchor), which is stepped with
all threads at once. The sets of threads are cached as the states of an automaton, so most steps are one dictionary
lookup.

An expression must match the whole name. `groups` also returns what each group captured, with the priorities of a
backtracking matcher. It steps the threads with their captures (Pike's machine), has no automaton, and is for names that
are matched once. Look-around, backreferences and possessive quantifiers do not exist in RE2 and are rejected; so are
word boundaries, which RE2 has. Names use few characters, so a class is the set of characters that it admits, and a
character outside the alphabet matches nothing.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import NamedTuple

from tidemill.errors import ApiError, ErrorCode

REGEX_LENGTH_MAX = 1_024
_INSTRUCTIONS_MAX = 5_000
_REPEAT_MAX = 1_000
_DEPTH_MAX = 100
_AUTOMATON_STATES_MAX = 2_000

_DIGITS = frozenset(string.digits)
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_NAME = frozenset(string.ascii_letters + string.digits + "._-")
_SPACE = frozenset(" \t\n\f\r")
_CLASSES = {"d": _DIGITS, "w": _WORD & _NAME, "s": _SPACE}
_POSIX = {
    "alpha": frozenset(string.ascii_letters),
    "digit": _DIGITS,
    "alnum": frozenset(string.ascii_letters + string.digits),
    "lower": frozenset(string.ascii_lowercase),
    "upper": frozenset(string.ascii_uppercase),
    "punct": frozenset(string.punctuation),
    "space": _SPACE | {"\v"},
    "xdigit": frozenset(string.hexdigits),
    "word": _WORD & _NAME,
}
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_BEGIN, _END = "begin", "end"


class _Char(NamedTuple):
    """Matches one character of a class."""

    accepts: frozenset[str]
    next: int


class _Split(NamedTuple):
    """Continues at two instructions."""

    nexts: tuple[int, ...]


class _Anchor(NamedTuple):
    """Matches the start or the end of the name."""

    where: str
    next: int


class _Save(NamedTuple):
    """A group begins (even slots) or ends (odd slots) here."""

    slot: int
    next: int


class _Match(NamedTuple):
    """The expression has matched."""


_Instruction = _Char | _Split | _Anchor | _Save | _Match
# A syntax tree: a class, an anchor, or an operator with its operands.
_Node = tuple[str, object]
# Where the groups of one thread began and ended.
_Slots = tuple[int | None, ...]


class Regex:
    """A compiled expression. Raises `ApiError(INVALID_REGULAR_EXPRESSION)` when it cannot be compiled."""

    def __init__(self, text: str, alphabet: frozenset[str] = _NAME) -> None:
        """`alphabet` is the set of characters in names; the default is that of topic names."""
        if len(text) > REGEX_LENGTH_MAX:
            raise _invalid(text[:40] + "…", f"it is longer than {REGEX_LENGTH_MAX} characters")
        self._text = text
        self._program: list[_Instruction] = [_Match()]
        parser = _Parser(text, alphabet)
        self._begin = self._compile(parser.parse(), 0)
        self.group_count = parser.group_count
        self._start = self._closure([self._begin], at_begin=True)
        self._automaton: dict[frozenset[int], dict[str, frozenset[int]]] = {}
        self._accepting: dict[frozenset[int], bool] = {}

    def matches(self, name: str) -> bool:
        if not name:
            # Only in an empty name may a start anchor follow an end anchor.
            return 0 in self._closure([self._begin], at_begin=True, at_end=True)
        state = self._start
        for char in name:
            steps = self._automaton.get(state)
            if steps is None:
                if len(self._automaton) >= _AUTOMATON_STATES_MAX:
                    self._automaton.clear()
                    self._accepting.clear()
                steps = self._automaton[state] = {}
            following = steps.get(char)
            if following is None:
                following = steps[char] = self._step(state, char)
            if not following:
                return False
            state = following
        accepts = self._accepting.get(state)
        if accepts is None:
            accepts = self._accepting[state] = 0 in self._closure(state, at_end=True)
        return accepts

    def matching(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self.matches(name)]

    def groups(self, name: str) -> list[tuple[int, int] | None] | None:
        """Returns the span of each group, the whole name first; None when the name does not match."""
        slots: _Slots = (None,) * (2 * self.group_count)
        threads = self._threads([(self._begin, slots)], at=0, length=len(name))
        for index, char in enumerate(name):
            moved: list[tuple[int, _Slots]] = []
            for position, slots in threads:
                instruction = self._program[position]
                if isinstance(instruction, _Char) and char in instruction.accepts:
                    moved.append((instruction.next, slots))
            threads = self._threads(moved, at=index + 1, length=len(name))
        for position, slots in threads:
            if position == 0:
                pairs = zip(slots[::2], slots[1::2], strict=True)
                spans = [None if low is None or high is None else (low, high) for low, high in pairs]
                return [(0, len(name)), *spans]
        return None

    def _threads(self, starts: list[tuple[int, _Slots]], *, at: int, length: int) -> list[tuple[int, _Slots]]:
        """Threads that wait for a character or have matched, by priority; the first to reach a place stays there."""
        seen: set[int] = set()
        waiting: list[tuple[int, _Slots]] = []
        todo = starts[::-1]
        while todo:
            position, slots = todo.pop()
            if position in seen:
                continue
            seen.add(position)
            instruction = self._program[position]
            if isinstance(instruction, _Split):
                todo.extend((each, slots) for each in reversed(instruction.nexts))
            elif isinstance(instruction, _Save):
                slot = instruction.slot
                todo.append((instruction.next, (*slots[:slot], at, *slots[slot + 1 :])))
            elif isinstance(instruction, _Anchor):
                if at == (0 if instruction.where == _BEGIN else length):
                    todo.append((instruction.next, slots))
            else:
                waiting.append((position, slots))
        return waiting

    def _step(self, state: frozenset[int], char: str) -> frozenset[int]:
        following = []
        for position in sorted(state):
            instruction = self._program[position]
            if isinstance(instruction, _Char) and char in instruction.accepts:
                following.append(instruction.next)
        return self._closure(following)

    def _closure(
        self, positions: Iterable[int], *, at_begin: bool = False, at_end: bool = False
    ) -> frozenset[int]:
        """All instructions that can be reached without a character. End anchors stay until the end is known."""
        seen: set[int] = set()
        todo = list(positions)
        while todo:
            position = todo.pop()
            if position in seen:
                continue
            seen.add(position)
            instruction = self._program[position]
            if isinstance(instruction, _Split):
                todo.extend(instruction.nexts)
            elif isinstance(instruction, _Save) or (
                isinstance(instruction, _Anchor) and (at_begin if instruction.where == _BEGIN else at_end)
            ):
                todo.append(instruction.next)
        return frozenset(seen)

    # Compiled from the end to the start, so that every instruction knows its successor.

    def _emit(self, instruction: _Instruction) -> int:
        if len(self._program) >= _INSTRUCTIONS_MAX:
            raise _invalid(self._text, "it is too large")
        self._program.append(instruction)
        return len(self._program) - 1

    def _compile(self, node: _Node, after: int) -> int:
        """Compile a node followed by `after`. Returns its first instruction."""
        kind, operand = node
        if kind == "char":
            assert isinstance(operand, frozenset)
            return self._emit(_Char(operand, after))
        if kind == "anchor":
            assert isinstance(operand, str)
            return self._emit(_Anchor(operand, after))
        if kind == "concat":
            assert isinstance(operand, list)
            for each in reversed(operand):
                after = self._compile(each, after)
            return after
        if kind == "either":
            assert isinstance(operand, list)
            return self._emit(_Split(tuple(self._compile(each, after) for each in operand)))
        assert isinstance(operand, tuple)
        if kind == "group":
            index, grouped = operand
            after = self._emit(_Save(2 * index + 1, after))
            return self._emit(_Save(2 * index, self._compile(grouped, after)))
        assert kind == "repeat", kind
        repeated, least, most, is_lazy = operand
        return self._compile_repeat(repeated, least, most, is_lazy, after)

    def _compile_repeat(self, node: _Node, least: int, most: int | None, is_lazy: bool, after: int) -> int:
        def split(body: int, end: int) -> _Split:
            return _Split((end, body) if is_lazy else (body, end))

        if most is None:
            loop = self._emit(_Split((after,)))
            self._program[loop] = split(self._compile(node, loop), after)
            after = loop
        else:
            end = after
            for _ in range(most - least):
                after = self._emit(split(self._compile(node, after), end))
        for _ in range(least):
            after = self._compile(node, after)
        return after


class _Parser:
    """Parses an expression into a syntax tree."""

    def __init__(self, text: str, alphabet: frozenset[str]) -> None:
        self._text = text
        self._alphabet = alphabet
        self._position = 0
        self._ignores_case = False
        self._depth = 0
        self.group_count = 0

    def parse(self) -> _Node:
        node = self._either()
        if self._position < len(self._text):
            raise self._error("a ')' has no '('")
        return node

    def _error(self, why: str) -> ApiError:
        return _invalid(self._text, f"{why}, at {self._position}")

    def _peek(self, length: int = 1) -> str:
        return self._text[self._position : self._position + length]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise self._error("it ends too early")
        self._position += 1
        return char

    def _either(self) -> _Node:
        ignored_case = self._ignores_case
        choices = [self._concat()]
        while self._peek() == "|":
            self._position += 1
            choices.append(self._concat())
        self._ignores_case = ignored_case
        return choices[0] if len(choices) == 1 else ("either", choices)

    def _concat(self) -> _Node:
        parts: list[_Node] = []
        while (char := self._peek()) and char not in "|)":
            parts.append(self._repeat(self._atom()))
        return ("concat", parts)

    def _repeat(self, node: _Node) -> _Node:
        bounds = self._quantifier()
        if bounds is None:
            return node
        # A lazy quantifier matches the same names, and captures less.
        is_lazy = self._peek() == "?"
        self._position += is_lazy
        if self._peek() == "+" or self._quantifier() is not None:
            raise self._error("a quantifier follows a quantifier")
        return ("repeat", (node, *bounds, is_lazy))

    def _quantifier(self) -> tuple[int, int | None] | None:
        char = self._peek()
        if char in ("*", "+", "?"):
            self._position += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        if char != "{":
            return None
        end = self._text.find("}", self._position)
        least, comma, most = self._text[self._position + 1 : max(end, 0)].partition(",")
        is_number = (
            least.isascii() and least.isdecimal() and (not most or (most.isascii() and most.isdecimal()))
        )
        if end < 0 or not is_number:
            return None
        bounds = (int(least), int(most) if most else None if comma else int(least))
        if max(bounds[0], bounds[1] or 0) > _REPEAT_MAX or (bounds[1] is not None and bounds[1] < bounds[0]):
            raise self._error("the repetition is out of bounds")
        self._position = end + 1
        return bounds

    def _atom(self) -> _Node:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return ("char", self._class())
        if char == ".":
            return ("char", self._alphabet)
        if char in "^$":
            return ("anchor", _BEGIN if char == "^" else _END)
        if char in "*+?":
            raise self._error("a quantifier has nothing to repeat")
        if char == "\\":
            return self._escape()
        return ("char", self._letters(char))

    def _letters(self, char: str) -> frozenset[str]:
        return frozenset((char, char.swapcase())) if self._ignores_case else frozenset(char)

    def _escape(self) -> _Node:
        char = self._take()
        if char in "Az":
            return ("anchor", _BEGIN if char == "A" else _END)
        if char == "Q":
            end = self._text.find("\\E", self._position)
            quoted = self._text[self._position : end if end >= 0 else len(self._text)]
            self._position = end + 2 if end >= 0 else len(self._text)
            return ("concat", [("char", self._letters(each)) for each in quoted])
        return ("char", self._escaped(char))

    def _escaped(self, char: str) -> frozenset[str]:
        if char.lower() in _CLASSES:
            members = _CLASSES[char.lower()]
            return self._alphabet - members if char.isupper() else members
        if char in _CONTROL:
            return frozenset(_CONTROL[char])
        if char == "x":
            return self._letters(self._hexadecimal())
        if char.isalnum():
            raise self._error(f"\\{char} is not supported")
        return self._letters(char)

    def _hexadecimal(self) -> str:
        digits = self._peek(2)
        if self._peek() == "{":
            end = self._text.find("}", self._position)
            digits = self._text[self._position + 1 : max(end, 0)]
            self._position = end + 1
        else:
            self._position += 2
        if (
            not digits
            or len(digits) > 6
            or not set(digits) <= set(string.hexdigits)
            or int(digits, 16) > 0x10FFFF
        ):
            raise self._error("this is not a character's number")
        return chr(int(digits, 16))

    def _group(self) -> _Node:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._error("groups are nested too deeply")
        ignored_case = self._ignores_case
        captures = self._peek() != "?" or self._peek(3) == "?P<" or self._peek(2) == "?<"
        index = self.group_count
        self.group_count += captures
        if self._peek() == "?":
            self._position += 1
            if self._group_options():
                self._depth -= 1
                return ("concat", [])
        node = self._either()
        if self._peek() != ")":
            raise self._error("a '(' has no ')'")
        self._position += 1
        self._ignores_case = ignored_case
        self._depth -= 1
        return ("group", (index, node)) if captures else node

    def _group_options(self) -> bool:
        """Parse what follows `(?`. Returns True for flags that apply to the rest of the enclosing group, as in
        `(?i)`."""
        name_begins = "P<" if self._peek(2) == "P<" else "<"
        if self._text.startswith(name_begins, self._position) and self._peek(2) not in ("<=", "<!"):
            end = self._text.find(">", self._position)
            name = self._text[self._position + len(name_begins) : max(end, 0)]
            if end < 0 or not name.isidentifier():
                raise self._error("a group's name is not valid")
            self._position = end + 1
            return False
        value = True
        while (flag := self._take()) not in ":)":
            if flag == "-" and value:
                value = False
            elif flag == "i":
                self._ignores_case = value
            elif flag not in "msU":
                raise self._error("look-around and the like are not supported")
        return flag == ")"

    def _class(self) -> frozenset[str]:
        is_negated = self._peek() == "^"
        self._position += is_negated
        members: set[str] = set()
        is_first = True
        while (char := self._take()) != "]" or is_first:
            is_first = False
            if char == "[" and self._peek() == ":":
                members |= self._posix_class()
                continue
            low = self._class_member(char)
            if self._peek() == "-" and self._peek(2) not in ("-]", "-"):
                self._position += 1
                high = self._class_member(self._take())
                members |= self._span(low, high)
            else:
                members |= low
        if self._ignores_case:
            members |= {each.swapcase() for each in members}
        return self._alphabet - members if is_negated else frozenset(members)

    def _class_member(self, char: str) -> frozenset[str]:
        return self._escaped(self._take()) if char == "\\" else frozenset(char)

    def _span(self, low: frozenset[str], high: frozenset[str]) -> set[str]:
        if len(low) != 1 or len(high) != 1 or min(low) > min(high):
            raise self._error("a range of characters is not valid")
        return {char for char in self._alphabet if min(low) <= char <= min(high)}

    def _posix_class(self) -> frozenset[str]:
        end = self._text.find(":]", self._position)
        name = self._text[self._position + 1 : max(end, 0)]
        is_negated = name.startswith("^")
        members = _POSIX.get(name.lstrip("^"))
        if end < 0 or members is None:
            raise self._error("there is no such class of characters")
        self._position = end + 2
        return self._alphabet - members if is_negated else members


def _invalid(text: str, why: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"`{text}` does not compile: {why}",
    )
