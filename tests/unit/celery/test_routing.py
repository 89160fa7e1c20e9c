"""Which queues a message goes to, and the table that says so."""

from __future__ import annotations

import pytest

from tidemill.celery.routing import Binding, Exchange, Routes, binding_entry, exchange_entry, matches


@pytest.mark.parametrize(
    ("pattern", "key", "is_match"),
    [
        ("#", "", True),
        ("#", "a.b", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "b.a", False),
        ("#.c", "a.b.c", True),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.c", False),
        ("a.#.c", "a.c", True),
        ("#.b.#", "a.b.c", True),
        ("#.b.#", "a.c", False),
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a+b", "aab", False),
    ],
)
def test_topic_exchange_matches_as_amqp_has_it(pattern: str, key: str, is_match: bool) -> None:
    assert matches("topic", pattern, key) is is_match


def test_pattern_of_many_wildcards_is_matched_in_little_time() -> None:
    assert not matches("topic", ".".join(["#", "a"] * 200), ".".join(["a"] * 199 + ["b"]))


def test_direct_and_fanout() -> None:
    assert matches("direct", "k", "k")
    assert not matches("direct", "#", "k")
    assert matches("fanout", "anything", "else")


def test_entries_declare_bind_unbind_and_delete() -> None:
    routes = Routes()
    bindings = [Binding("e", "k", "one"), Binding("e", "k", "two"), Binding("e", "other", "three")]
    for entry in [
        exchange_entry("e", Exchange("direct")),
        *(binding_entry(each, is_bound=True) for each in bindings),
    ]:
        routes.replay(*entry)
    assert routes.queues("e", "k") == ["one", "two"]
    assert routes.bindings_of("three") == [bindings[2]]
    routes.replay(*binding_entry(bindings[0], is_bound=False))
    assert routes.queues("e", "k") == ["two"]
    routes.replay(*exchange_entry("e", Exchange("direct", has_stream=True)))
    assert routes.exchanges["e"].has_stream
    routes.replay(*exchange_entry("e", None))
    assert routes.queues("e", "k") == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"", b""),
        (b"not json", b"{}"),
        (b'["exchange", 3]', b"{}"),
        (b'["exchange", "e"]', b"[1]"),
        (b'["exchange", "e"]', b"no"),
        (b'["binding", "e"]', b"{}"),
        (b"[" * 100_000, b"{}"),
        (b"\xff", b"\xff"),
    ],
)
def test_foreign_entries_mean_nothing(key: bytes | None, value: bytes) -> None:
    routes = Routes()
    routes.replay(key, value)
    assert not routes.exchanges
    assert not routes.bindings
