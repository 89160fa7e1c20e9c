"""`tidemill delays`: what waits is listed and cancelled."""

from __future__ import annotations

from tests.cli.conftest import Run


def test_what_waits_is_listed_and_cancelled(cli: Run, topic: str) -> None:
    cli("topics", "create", topic, "--config", "tidemill.delays.enable=true")
    cli("produce", topic, "now")
    cli("produce", topic, "--header", "tidemill-delay=2h", "--key", "a", "later")
    named = ("--header", "tidemill-schedule=@daily", "--header", "tidemill-schedule-id=report")
    cli("produce", topic, *named, "--key", "b", "each day")
    listed = cli("delays", "list", topic, "--json").json
    assert {(each["key"], each["offset"], each["schedule_id"], each["schedule"]) for each in listed} == {
        ("a", 1, None, None),
        ("b", 2, "report", "@daily"),
    }
    assert [each["due_ms"] for each in listed] == sorted(each["due_ms"] for each in listed)
    assert cli("delays", "list", topic).ok.startswith("DUE")
    assert cli("delays", "cancel", topic, "--offset", "1").ok == f"cancelled {topic}-0 at offset 1\n"
    assert [each["offset"] for each in cli("delays", "list", topic, "--json").json] == [2]
    assert "no record waits at offset 1" in cli("delays", "cancel", topic, "--offset", "1").error
    assert cli("consume", topic, "--format", "{value}\n").ok == "now\n"


def test_a_topic_without_delays_says_so(cli: Run, orders: str, topic: str) -> None:
    assert "tidemill.delays.enable is not true" in cli("delays", "list", orders).error
    assert cli("delays", "list", f"{topic}-missing").code == 1
