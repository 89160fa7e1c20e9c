"""`tidemill delays`: what waits is listed and cancelled."""

from __future__ import annotations

from tests.cli.conftest import Run


def test_waiting_messages_are_listed_and_cancelled(cli: Run, topic: str) -> None:
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


def test_waiting_message_is_rescheduled(cli: Run, topic: str) -> None:
    cli("topics", "create", topic, "--config", "tidemill.delays.enable=true")
    cli("produce", topic, "--header", "tidemill-delay=2h", "--header", "trace=7", "--key", "a", "later")
    place = ("delays", "reschedule", topic, "--offset", "0")
    assert cli(*place, "--delay", "3d").ok == f"rescheduled {topic}-0: it waits at offset 1 now\n"
    (moved,) = cli("delays", "list", topic, "--json").json
    assert (moved["offset"], moved["key"], moved["value"]) == (1, "a", "later")
    assert "no record waits at offset 0" in cli(*place, "--delay", "1s").error
    assert "INVALID_RECORD" in cli("delays", "reschedule", topic, "--offset", "1", "--delay", "soon").error
    assert (
        cli("delays", "reschedule", topic, "--offset", "1", "--deliver-at", "2001-01-01T00:00:00Z").code == 0
    )
    shown = cli("consume", topic, "--max", "1", "--follow", "--format", "{key} {value} {headers}\n").ok
    assert shown.startswith("a later")
    assert "trace" in shown
    assert cli("delays", "list", topic, "--json").json == []
