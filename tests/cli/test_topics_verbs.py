"""`tidemill topics`, verb by verb."""

from __future__ import annotations

from tests.cli.conftest import Run, write
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster


def test_the_life_of_a_topic(cli: Run, topic: str) -> None:
    assert cli("topics", "create", topic, "--partitions", "3", "--config", "retention.ms=5000").ok == (
        f"created {topic} with 3 partitions\n"
    )
    assert f"{topic} " in cli("topics", "list").ok
    (described,) = cli("topics", "describe", topic, "--json").json
    assert described["configs"] == {"retention.ms": "5000"}
    assert [
        (each["partition"], each["start_offset"], each["end_offset"]) for each in described["partitions"]
    ] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
    ]
    assert cli("topics", "add-partitions", topic, "--to", "5").ok == f"{topic} grew from 3 to 5 partitions\n"
    (listed,) = [each for each in cli("topics", "list", "--json").json if each["name"] == topic]
    assert (listed["partitions"], listed["is_internal"]) == (5, False)
    assert cli("topics", "delete", topic).ok == f"deleted {topic}\n"
    assert topic not in cli("topics", "list").out


def test_describe_prints_a_table(cli: Run, cluster: Cluster, orders: str) -> None:
    write(cluster, orders, 1, "a", "b")
    lines = cli("topics", "describe", orders).ok.splitlines()
    assert lines[0].split() == ["topic:", orders]
    header = next(line for line in lines if line.startswith("PARTITION"))
    rows = [line for line in lines if line.split()[0] in ("0", "1", "2")]
    ends = [row[: header.index(" END") + 4].split()[-1] for row in rows]
    assert ends == ["0", "2", "0"]
    assert "\x1b" not in "\n".join(lines)


def test_a_topic_that_exists(cli: Run, orders: str) -> None:
    assert cli("topics", "create", orders).error.startswith(
        f"tidemill topics create: topic {orders} exists already; "
    )
    assert cli("topics", "create", orders, "--if-not-exists").code == 0


def test_a_topic_that_does_not_exist(cli: Run, topic: str) -> None:
    expected = f"there is no topic {topic}; `tidemill topics list` shows what there is"
    assert cli("topics", "describe", topic).error == f"tidemill topics describe: {expected}"
    assert cli("topics", "delete", topic).error == f"tidemill topics delete: {expected}"
    assert cli("topics", "add-partitions", topic, "--to", "3").error.endswith(expected)
    assert cli("topics", "delete", topic, "--if-exists", "--json").json == []


def test_bad_requests_name_their_reason(cli: Run, orders: str, topic: str) -> None:
    assert "has 3 partitions already" in cli("topics", "add-partitions", orders, "--to", "3").error
    assert "INVALID_TOPIC_EXCEPTION" in cli("topics", "create", "no/slashes").error
    bad_value = cli("topics", "create", f"{topic}-no", "--config", "retention.ms=soon").error
    assert "retention.ms" in bad_value
    assert "soon" in bad_value
    assert (
        "INVALID_REPLICATION_FACTOR"
        in cli("topics", "create", f"{topic}-no", "--replication-factor", "9").error
    )


def test_delete_records(cli: Run, cluster: Cluster, orders: str) -> None:
    write(cluster, orders, 0, "a", "b", "c")
    write(cluster, orders, 1, "d")
    assert cli("topics", "delete-records", orders, "--before", "2", "--partition", "0", "--json").json == [
        {"partition": 0, "start_offset_before": 0, "start_offset": 2}
    ]
    assert sorted(cli("consume", orders).ok.split()) == ["c", "d"]
    assert cli("topics", "delete-records", orders, "--before", "end").ok.splitlines()[1].split() == [
        "0",
        "2",
        "3",
    ]
    assert cli("consume", orders).ok == ""
    assert "OFFSET_OUT_OF_RANGE" in cli("topics", "delete-records", orders, "--before", "50").error


def test_delete_prompts_on_a_terminal_only(cluster: Cluster, terminal: Run, orders: str, topic: str) -> None:
    refused = terminal("topics", "delete", topic, typed=b"n\n")
    assert refused.code == 1
    assert f"Delete {topic} with all records? [y/N]" in refused.out
    assert "nothing was changed" in refused.out
    assert f"deleted {topic}" in terminal("topics", "delete", topic, typed=b"y\n").out
    Admin(cluster).create_topic(topic)
    unasked = terminal("topics", "delete", topic, "--yes")
    assert "[y/N]" not in unasked.out
    assert f"deleted {topic}" in unasked.out


def test_colour_on_a_terminal_unless_unwanted(terminal: Run, orders: str) -> None:
    assert "\x1b[1mTOPIC" in terminal("topics", "list").ok
    assert "\x1b" not in terminal("topics", "list", environment={"NO_COLOR": "1"}).ok


def test_shrink_says_what_is_left_in_decommissioned_partitions(
    cli: Run, cluster: Cluster, topic: str
) -> None:
    cli("topics", "create", topic, "--partitions", "4")
    for partition in range(4):
        assert cli("produce", topic, "--partition", str(partition), "old").code == 0
    assert (
        cli("topics", "shrink", topic).out == f"{topic} has 4 partitions, and all of them take new records\n"
    )
    out = cli("topics", "shrink", topic, "--partitions", "2").out
    assert f"{topic} has 4 partitions; 2 take new records" in out
    assert "partition 3: 1 record left" in out
    again = cli("topics", "shrink", topic, "--json").json
    sizes = again.pop("size_bytes")
    assert again == {
        "name": topic,
        "partitions": 4,
        "active": 2,
        "keeps_records_for_ever": False,
        "records_left": {"2": 1, "3": 1},
        "schedules": [],
    }
    assert {index: size > 0 for index, size in sizes.items()} == {"2": True, "3": True}


def test_shrink_to_a_number_that_cannot_be(cli: Run, topic: str) -> None:
    cli("topics", "create", topic, "--partitions", "4")
    for number, reason in (("4", "are not fewer"), ("8", "are not fewer"), ("3", "does not divide")):
        assert reason in cli("topics", "shrink", topic, "--partitions", number).error
    none = cli("topics", "shrink", topic, "--partitions", "0")
    assert (none.code, "--partitions" in none.err) == (2, True)
    assert cli("topics", "shrink", topic, "--partitions", "3", "--unkeyed").code == 0


def test_shrink_of_a_topic_that_keeps_its_records_for_ever_says_what_that_means(cli: Run, topic: str) -> None:
    cli("topics", "create", topic, "--partitions", "2", "--config", "retention.ms=-1").check()
    out = cli("topics", "shrink", topic, "--partitions", "1").out
    assert f"{topic} keeps its records for ever (retention.ms=-1): these partitions stay" in out
    assert f"tidemill topics delete-records {topic} --partition N --before end" in out


def test_describe_marks_decommissioned_partitions(cli: Run, topic: str) -> None:
    cli("topics", "create", topic, "--partitions", "4")
    assert "STATE" not in cli("topics", "describe", topic).ok
    assert cli("produce", topic, "--partition", "3", "old").code == 0
    assert cli("topics", "shrink", topic, "--partitions", "2").code == 0
    lines = cli("topics", "describe", topic).ok.splitlines()
    assert [line.split()[-1] for line in lines[-4:]] == [
        "active",
        "active",
        "decommissioned",
        "decommissioned",
    ]
    (shrinks,) = [line for line in lines if line.startswith("shrinks:")]
    assert "to 2 partitions, 1 record left in the others" in shrinks
    (described,) = cli("topics", "describe", topic, "--json").json
    assert [each["is_decommissioned"] for each in described["partitions"]] == [False, False, True, True]


def test_shrink_names_the_schedules_that_hold_it_and_they_can_be_cancelled(cli: Run, topic: str) -> None:
    cli("topics", "create", topic, "--partitions", "4", "--config", "tidemill.delays.enable=true").check()
    named = ("--header", "tidemill-schedule=@every 1h", "--header", "tidemill-schedule-id=report")
    for partition in ("1", "3"):
        cli("produce", topic, "--partition", partition, *named, "--key", "a", "tick").check()
    out = cli("topics", "shrink", topic, "--partitions", "2").out
    assert f"  report (@every 1h): `tidemill delays cancel {topic} --partition 3 --offset 0`" in out
    (schedule,) = cli("topics", "shrink", topic, "--json").json["schedules"]
    assert schedule == {"partition": 3, "offset": 0, "schedule_id": "report"}
    cli("delays", "cancel", topic, "--partition", "3", "--offset", "0").check()
    assert cli("topics", "shrink", topic, "--json").json["schedules"] == []
    assert [each["partition"] for each in cli("delays", "list", topic, "--json").json] == [1]
