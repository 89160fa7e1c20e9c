"""Arguments that make no sense are refused before any broker is asked: exit code 2, nothing on standard output."""

from __future__ import annotations

import shlex

import pytest

from tidemill.cli.main import COMMANDS, main

# Nothing listens there: a command that tried to connect would fail with exit code 1.
NOWHERE = "127.0.0.1:1"


def exit_code(line: str) -> int:
    try:
        return main(shlex.split(line))
    except SystemExit as stopped:
        return int(stopped.code or 0)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_BOOTSTRAP", NOWHERE)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "topics",
        "topics list surplus",
        "topics list --surplus",
        "topics create",
        "topics create t --partitions 0",
        "topics create t --config novalue",
        "topics create t --config a=1 --config a=2",
        "topics add-partitions t",
        "topics delete-records t --before whenever",
        "topics list --timeout 0",
        "transactions",
        "transactions describe",
        "transactions list --topic t",
        "transactions list --hanging --state Ongoing",
        "transactions list --min-duration soon",
        "transactions abort --topic t --partition 0",
        "transactions abort --topic t --partition 0 --start-offset 1 --producer-id 2",
        "configs describe planet earth",
        "configs describe broker x",
        "configs set topic t retention.ms",
        "configs unset topic t retention.ms=1",
        "produce",
        "produce t --key k --key-separator : x",
        "produce t --key-separator ''",
        "produce t --tombstone",
        "produce t --key k --tombstone x",
        "produce t - x",
        "produce t x --surplus",
        "produce t x --timestamp soon",
        "produce t x --header novalue",
        "consume t --from whenever",
        "consume t --format '{what}'",
        "consume t --format '{value}' --json",
        "consume t --max 0",
        "consume t --group g --partition 0",
        "consume t --group g --from 5",
        "groups reset g --topic t",
        "groups reset g --to end",
        "groups reset g --topic t --all-topics --to end",
        "groups reset g --topic t --to end --by 1",
        "groups reset g --topic t --to whenever",
        "cluster",
        "cluster start --brokers 0",
        "cluster start --base-port high",
        "brokers drain",
        "brokers drain three",
        "brokers remove 3 --throttle 0",
        "reassign execute",
        "reassign plan --brokers 1,x",
        "reassign plan --brokers 1,1",
        "reassign throttle fast",
        "topics elect --unclean",
        "topics elect a b --partition 0",
    ],
)
def test_wrong_usage_exits_with_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(line) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(("tidemill ", "usage: tidemill"))


@pytest.mark.parametrize(
    "line",
    [
        "produce t --key k value",
        "produce t value --key k another",
        "produce t --key k -- -value",
        "produce t x",
    ],
)
def test_values_may_follow_options(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(line) == 1
    assert NOWHERE in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(f"{command} --help") == 0
    assert f"usage: tidemill {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        *(
            f"topics {verb}"
            for verb in ("list", "describe", "create", "delete", "add-partitions", "delete-records", "elect")
        ),
        *(f"configs {verb}" for verb in ("describe", "set", "unset")),
        *(f"groups {verb}" for verb in ("list", "describe", "reset", "delete", "delete-offsets")),
        *(f"cluster {verb}" for verb in ("describe", "status")),
        *(f"brokers {verb}" for verb in ("list", "drain", "remove")),
        *(f"reassign {verb}" for verb in ("plan", "execute", "status", "cancel", "throttle")),
        "produce",
        "consume",
    ],
)
def test_every_verb_shows_examples(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(f"{line} --help") == 0
    shown = capsys.readouterr().out
    assert "--bootstrap" in shown
    assert f"  tidemill {line}" in shown.split("examples:")[1]


def test_invalid_address_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("topics list --bootstrap nonsense:port") == 1
    assert "HOST:PORT" in capsys.readouterr().err
