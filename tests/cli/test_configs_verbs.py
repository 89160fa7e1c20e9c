"""`tidemill configs` and `tidemill cluster`."""

from __future__ import annotations

from tests.brokers import RunningBroker
from tests.cli.conftest import Run


def settings(cli: Run, *words: str) -> dict[str, tuple[str, str]]:
    """Without what is set for all brokers: as in Kafka 4, KIP-966 keeps min.insync.replicas there."""
    described = cli("configs", "describe", *words, "--json").json
    return {
        each["name"]: (each["value"], each["source"]) for each in described if each["source"] != "all brokers"
    }


def test_set_and_unset(cli: Run, orders: str) -> None:
    assert settings(cli, "topic", orders) == {}
    changed = cli("configs", "set", "topic", orders, "retention.ms=60000", "cleanup.policy=compact,delete")
    assert changed.ok.splitlines()[0] == f"set retention.ms=60000 of topic {orders}"
    expected = {"retention.ms": ("60000", "topic"), "cleanup.policy": ("compact,delete", "topic")}
    assert settings(cli, "topic", orders) == expected
    cli("configs", "set", "topic", orders, "retention.ms=70000")
    assert cli("configs", "unset", "topic", orders, "cleanup.policy").code == 0
    assert settings(cli, "topic", orders) == {"retention.ms": ("70000", "topic")}


def test_describe_all_lists_changed_settings_first(cli: Run, orders: str) -> None:
    cli("configs", "set", "topic", orders, "segment.ms=600000")
    lines = cli("configs", "describe", "topic", orders, "--all").ok.splitlines()
    assert lines[0].split() == ["KEY", "VALUE", "SET", "BY", "READ-ONLY"]
    rows = [line.split() for line in lines[1:]]
    are_defaults = ["default" in row for row in rows]
    assert are_defaults == sorted(are_defaults)
    assert ["segment.ms", "600000", "topic"] in rows[: are_defaults.index(True)]
    rest = [row[0] for row in rows[are_defaults.index(True) :]]
    assert rest == sorted(rest)
    assert "cleanup.policy" in rest


def test_a_bad_value_changes_nothing(cli: Run, orders: str) -> None:
    error = cli("configs", "set", "topic", orders, "segment.ms=600000", "retention.ms=soon").error
    assert error.startswith("tidemill configs set: ")
    assert "retention.ms" in error
    assert "soon" in error
    assert settings(cli, "topic", orders) == {}


def test_nothing_but_defaults(cli: Run) -> None:
    described = cli("configs", "describe", "group", "nobody")
    assert described.ok == ""
    assert "--all shows them" in described.err


def test_configs_reject_wrong_arguments(cli: Run, orders: str) -> None:
    assert "no.such.key" in cli("configs", "set", "topic", orders, "no.such.key=1").error
    assert (
        f"there is no topic {orders}-no"
        in cli("configs", "set", "topic", f"{orders}-no", "retention.ms=1").error
    )
    assert f"there is no topic {orders}-no" in cli("configs", "describe", "topic", f"{orders}-no").error
    assert "there is no broker 77" in cli("configs", "describe", "broker", "77").error


def test_cluster_and_broker(cli: Run, target: RunningBroker, orders: str) -> None:
    document = cli("cluster", "describe", "--json").json
    (broker,) = document["brokers"]
    assert broker["address"] == target.bootstrap
    assert broker["partitions_led"] == document["partitions"] >= 1
    assert document["topics"] >= 1
    table = cli("cluster", "describe").ok
    assert document["cluster_id"] in table
    assert target.bootstrap in table
    of_broker = settings(cli, "broker", str(broker["id"]))
    assert of_broker["node.id"] == (str(broker["id"]), "server.properties")


def test_the_level_of_a_logger_is_changed_at_run_time(cli: Run) -> None:
    name = "tidemill.broker.requests.dispatch"
    before = settings(cli, "logger", "1", "--all")[name]
    assert cli("configs", "set", "logger", "1", f"{name}=ERROR").ok == f"set {name}=ERROR of logger 1\n"
    assert settings(cli, "logger", "1", "--all")[name] == ("ERROR", "logger")
    assert cli("configs", "unset", "logger", "1", name).code == 0
    assert settings(cli, "logger", "1", "--all")[name] == before
    refused = cli("configs", "describe", "logger", "default")
    assert (refused.code, "named by its id" in refused.err) == (2, True)
    assert "no.such.logger" in cli("configs", "set", "logger", "1", "no.such.logger=DEBUG").error


def test_subscriptions_to_client_metrics(cli: Run) -> None:
    cli(
        "configs",
        "set",
        "client-metrics",
        "cli-test",
        "metrics=org.apache.kafka.producer.",
        "interval.ms=60000",
    )
    assert settings(cli, "client-metrics", "cli-test") == {
        "metrics": ("org.apache.kafka.producer.", "client metrics"),
        "interval.ms": ("60000", "client metrics"),
    }
    assert "interval" in cli("configs", "set", "client-metrics", "cli-test", "interval.ms=1").error
    assert cli("configs", "unset", "client-metrics", "cli-test", "metrics", "interval.ms").code == 0
