"""The comparison behind `make diff-kafka`: what counts as a difference, and what an accepted entry covers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench.diff.compare import Accepted, Difference, compare, read_accepted
from bench.diff.script import Answer, Key

KEY = Key("create_topics", 7, "good: one")


def differing(kafka: Any, tidemill: Any) -> list[tuple[str, Any, Any]]:
    found = compare({KEY: Answer(None, kafka)}, {KEY: Answer(None, tidemill)})
    return [(d.field, d.kafka, d.tidemill) for d in found]


def test_equal_answers_do_not_differ() -> None:
    tree = {"topics": [{"name": "a", "error_code": "NONE(0)"}]}
    assert differing(tree, {"topics": [{"name": "a", "error_code": "NONE(0)"}]}) == []


def test_a_field_is_named_by_what_names_its_element() -> None:
    kafka = {"topics": [{"name": "a", "count": 1}, {"name": "b", "count": 1}]}
    tidemill = {"topics": [{"name": "a", "count": 1}, {"name": "b", "count": 2}]}
    assert differing(kafka, tidemill) == [("topics[b].count", 1, 2)]


def test_null_is_not_empty_and_false_is_not_zero() -> None:
    assert differing({"a": None, "b": 0}, {"a": [], "b": False}) == [("a", None, []), ("b", 0, False)]


def test_another_order_of_the_same_elements_is_one_difference() -> None:
    kafka = {"topics": [{"name": "a"}, {"name": "b"}]}
    tidemill = {"topics": [{"name": "b"}, {"name": "a"}]}
    assert differing(kafka, tidemill) == [("topics (order)", ["a", "b"], ["b", "a"])]


def test_an_answer_that_only_one_broker_gave_is_a_difference() -> None:
    found = compare({KEY: Answer(None, "no reply")}, {})
    assert [(d.kafka, d.tidemill) for d in found] == [("no reply", "(absent)")]


def test_a_script_that_was_cut_short_is_one_difference() -> None:
    cut = Key("create_topics", 7, "good: cannot go on")
    found = compare({KEY: Answer(None, {})}, {cut: Answer(None, "SetupError")})
    assert [d.case for d in found] == ["good: cannot go on"]


def test_an_entry_covers_by_pattern_with_literal_brackets() -> None:
    entry = Accepted("Create*", "why", cases=("other", "good: *"), field="topics[*].error_code")
    difference = Difference("create_topics", 7, "good: one", "topics[a].error_code", "NONE(0)", "X(1)")
    assert entry.covers(difference)
    assert not entry.covers(Difference("create_topics", 7, "bad: one", "topics[a].error_code", 0, 1))
    assert not entry.covers(Difference("create_topics", 7, "good: one", "topics[a].name", 0, 1))


def test_an_entry_may_be_bound_to_values_and_versions() -> None:
    entry = Accepted("*", "why", kafka="null", tidemill="<text>", versions=(2, 3))
    assert entry.covers(Difference("fetch", 3, "c", "f", None, "<text>"))
    assert not entry.covers(Difference("fetch", 4, "c", "f", None, "<text>"))
    assert not entry.covers(Difference("fetch", 3, "c", "f", "<text>", None))


@pytest.mark.parametrize(
    ("kafka", "tidemill", "is_alike"),
    [
        ("Unknown topic config name: x", "Unknown topic config name: x", True),
        ("Duplicate topic name.", "Duplicate topic name: 'x' is named twice", True),
        ("The topic 'x' does not exist.", "The topic 'x' does not exist", True),
        ("Invalid value 1 for configuration a: not a number", "Invalid value 1 for configuration b", True),
        ("Unknown topic config name: x", "Unknown topic configuration x", False),
        ("Duplicate topic name.", "Duplicate", False),
    ],
)
def test_an_error_text_begins_with_the_same_words(kafka: str, tidemill: str, is_alike: bool) -> None:
    left = {KEY: Answer(None, {"error_message": f"<text> {kafka}"})}
    right = {KEY: Answer(None, {"error_message": f"<text> {tidemill}"})}
    assert (compare(left, right) == []) is is_alike


def test_an_entry_does_not_cover_what_it_excludes() -> None:
    entry = Accepted("*", "why", kafka="<text>*", unless=("<text> Unknown *",))
    assert entry.covers(Difference("fetch", 3, "c", "f", "<text> Bad key", "<text> b"))
    assert not entry.covers(Difference("fetch", 3, "c", "f", "<text> Unknown key", "<text> b"))


def test_every_accepted_difference_gives_its_reason(tmp_path: Path) -> None:
    entries = read_accepted()
    assert entries
    assert all(entry.reason.endswith(".") for entry in entries)
    path = tmp_path / "accepted.toml"
    path.write_text('[[accepted]]\napi = "Fetch"\ncases = ["a", "b"]\nversions = [1, 2]\nreason = "So."\n')
    assert read_accepted(path) == [Accepted("Fetch", "So.", cases=("a", "b"), versions=(1, 2))]
