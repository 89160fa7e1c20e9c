"""Exchanges and bindings, as a compacted topic has them: all clients see the same. No I/O.

Each exchange and each binding is a record whose key is JSON; an empty one removes it. An exchange `has_stream` once a
transient queue was bound to it: then what is published there also goes to its stream.
"""

from __future__ import annotations

import json
from typing import NamedTuple

_EXCHANGE, _BINDING = "exchange", "binding"


class Exchange(NamedTuple):
    type: str
    has_stream: bool = False


class Binding(NamedTuple):
    exchange: str
    routing_key: str
    queue: str


Entry = tuple[bytes, bytes | None]


class Routes:
    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {}
        self.bindings: set[Binding] = set()

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        """Entries that are not ours, or of a later version, mean nothing here."""
        try:
            match json.loads(key or b"null"):
                case [kind, str(name)] if kind == _EXCHANGE:
                    self._replay_exchange(name, value)
                case [kind, str(exchange), str(routing_key), str(queue)] if kind == _BINDING:
                    binding = Binding(exchange, routing_key, queue)
                    if value is None:
                        self.bindings.discard(binding)
                    else:
                        self.bindings.add(binding)
        except (ValueError, RecursionError):
            return

    def _replay_exchange(self, name: str, value: bytes | None) -> None:
        if value is None:
            self.exchanges.pop(name, None)
            return
        match json.loads(value):
            case {"type": str(kind), "stream": bool(has_stream)}:
                self.exchanges[name] = Exchange(kind, has_stream)

    def queues(self, exchange: str, routing_key: str) -> list[str]:
        """The durable queues that a message goes to, each once."""
        found = self.exchanges.get(exchange)
        if found is None:
            return []
        return sorted(
            {
                each.queue
                for each in self.bindings
                if each.exchange == exchange and matches(found.type, each.routing_key, routing_key)
            }
        )

    def bindings_of(self, queue: str) -> list[Binding]:
        return sorted(each for each in self.bindings if each.queue == queue)


def exchange_entry(name: str, exchange: Exchange | None) -> Entry:
    key = json.dumps([_EXCHANGE, name]).encode()
    if exchange is None:
        return key, None
    return key, json.dumps({"type": exchange.type, "stream": exchange.has_stream}).encode()


def binding_entry(binding: Binding, *, is_bound: bool) -> Entry:
    return json.dumps([_BINDING, *binding]).encode(), b"{}" if is_bound else None


def matches(exchange_type: str, binding_key: str, routing_key: str) -> bool:
    if exchange_type == "fanout":
        return True
    if exchange_type == "topic":
        return _matches_pattern(binding_key.split("."), routing_key.split("."))
    return binding_key == routing_key


def _matches_pattern(pattern: list[str], words: list[str]) -> bool:
    """As AMQP has it: `*` is one word, `#` any number of words, none too."""
    # For each number of words: whether the pattern so far matches exactly those.
    reached = [True] + [False] * len(words)
    for part in pattern:
        if part == "#":
            first = reached.index(True) if True in reached else len(reached)
            reached = [index >= first for index in range(len(reached))]
        else:
            reached = [False] + [
                before and part in ("*", word) for before, word in zip(reached, words, strict=False)
            ]
    return reached[-1]
