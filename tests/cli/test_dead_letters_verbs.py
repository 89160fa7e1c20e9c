"""`tidemill dead-letters`: letters are listed, shown, replayed once and purged."""

from __future__ import annotations

from tests.cli.conftest import Run

FAILED = ("--header", "__dlq.errors.message=ValueError: no amount", "--header", "__dlq.errors.group=billing")


def put(cli: Run, letters: str, source: str, value: str, *more: str) -> None:
    cli("produce", letters, *FAILED, "--header", f"__dlq.errors.topic={source}", *more, "--key", "k", value)


def values(cli: Run, topic: str) -> list[str]:
    return cli("consume", topic, "--format", "{value}\n").ok.split()


def test_letters_are_listed_shown_replayed_once_and_purged(cli: Run, topic: str) -> None:
    letters = f"{topic}-dlq"
    for name in (topic, letters):
        cli("topics", "create", name)
    for value in ("a", "b", "c"):
        put(cli, letters, topic, value, "--header", "trace=7", "--header", "__dlq.errors.delivery.count=3")
    listed = cli("dead-letters", "list", letters, "--json").json
    assert [(each["offset"], each["value"], each["group"], each["attempts"]) for each in listed] == [
        (0, "a", "billing", 3),
        (1, "b", "billing", 3),
        (2, "c", "billing", 3),
    ]
    assert cli("dead-letters", "list", letters).ok.startswith("PARTITION")
    shown = cli("dead-letters", "show", letters, "--offset", "1").ok
    assert "message: ValueError: no amount" in shown
    assert "header trace: 7" in shown

    assert cli("dead-letters", "replay", letters, "--offset", "1").ok.startswith("replayed 1,")
    assert values(cli, topic) == ["b"]
    assert cli("dead-letters", "replay", letters).ok == "replayed 2, replayed before 1, exhausted 0\n"
    assert cli("dead-letters", "replay", letters).ok == "replayed 0, replayed before 3, exhausted 0\n"
    assert values(cli, topic) == ["b", "a", "c"]
    headers = cli("consume", topic, "--max", "1", "--format", "{headers}\n").ok
    assert "trace" in headers
    assert "__dlq" not in headers
    assert cli("dead-letters", "list", letters, "--waiting", "--json").json == []

    put(cli, letters, topic, "d")
    assert cli("dead-letters", "purge", letters, "--replayed", "--yes").code == 0
    assert values(cli, letters) == ["d"]
    assert cli("dead-letters", "purge", letters, "--yes").code == 0
    assert values(cli, letters) == []


def test_all_four_conventions_are_replayed_to_their_topics(cli: Run, topic: str) -> None:
    letters = f"{topic}-dlq"
    for name in (topic, letters):
        cli("topics", "create", name)
    for header in (
        "kafka_dlt-original-topic",
        "__connect.errors.topic",
        "__streams.errors.topic",
        "__dlq.errors.topic",
    ):
        cli("produce", letters, "--header", f"{header}={topic}", header)
    assert cli("dead-letters", "replay", letters).ok.startswith("replayed 4,")
    assert len(values(cli, topic)) == 4


def test_letters_of_delayed_records_and_retries_are_replayed(cli: Run, topic: str) -> None:
    letters = f"{topic}-dlq"
    cli("topics", "create", topic, "--config", "tidemill.delays.enable=true")
    cli("topics", "create", letters)
    of_delay = ("--header", "tidemill-original-offset=0", "--header", "tidemill-due=1700000000000")
    put(cli, letters, topic, "a", *of_delay, "--header", "tidemill.retry.attempt=3", "--header", "trace=7")
    put(cli, letters, topic, "b")
    assert cli("dead-letters", "replay", letters).ok.startswith("replayed 2,")
    assert values(cli, topic) == ["a", "b"]
    headers = cli("consume", topic, "--max", "1", "--format", "{headers}\n").ok
    assert "trace" in headers
    assert "tidemill-" not in headers
    assert "tidemill.retry" not in headers


def test_only_letters_with_the_reason_are_replayed(cli: Run, topic: str) -> None:
    letters = f"{topic}-dlq"
    for name in (topic, letters):
        cli("topics", "create", name)
    put(cli, letters, topic, "a")
    cli(
        "produce",
        letters,
        "--header",
        f"__dlq.errors.topic={topic}",
        "--header",
        "__dlq.errors.message=late",
        "b",
    )
    assert cli("dead-letters", "replay", letters, "--reason", "late").ok.startswith("replayed 1,")
    assert values(cli, topic) == ["b"]
    assert cli("dead-letters", "replay", letters).ok.startswith("replayed 1, replayed before 1")
    assert values(cli, topic) == ["b", "a"]


def test_letter_without_an_origin_stays_and_is_named(cli: Run, topic: str) -> None:
    letters = f"{topic}-dlq"
    cli("topics", "create", letters)
    cli("produce", letters, "what is this")
    assert "1 letters were left" in cli("dead-letters", "replay", letters).error
    assert "no letter at offset 9" in cli("dead-letters", "show", letters, "--offset", "9").error
    assert "it would go back" in cli("dead-letters", "replay", letters, "--to-topic", letters).error
    assert cli("dead-letters", "list", letters, "--waiting", "--json").json[0]["value"] == "what is this"


def test_a_letter_that_keeps_coming_back_is_exhausted(cli: Run, topic: str) -> None:
    letters = f"{topic}-dlq"
    for name in (topic, letters):
        cli("topics", "create", name)
    put(cli, letters, topic, "a", "--header", "tidemill.republished=3")
    assert cli("dead-letters", "replay", letters).ok == "replayed 0, replayed before 0, exhausted 1\n"
    assert cli("dead-letters", "replay", letters, "--max-attempts", "4").ok.startswith("replayed 1,")
