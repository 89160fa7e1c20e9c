"""`tidemill views`, verb by verb."""

from __future__ import annotations

from tests.cli.conftest import Run


def test_the_life_of_a_view(cli: Run, orders: str) -> None:
    view = f"{orders}-eu"
    created = cli("views", "create", view, "--from", orders, "--where", "region = 'eu'").ok
    assert created == f"created {view}, a view of {orders} with 3 partitions\n"
    for region in ("eu", "us", "eu"):
        assert cli("produce", orders, "--header", f"region={region}", region).code == 0
    assert cli("consume", view, "--format", "{value}\n").ok.splitlines() == ["eu", "eu"]
    (listed,) = [each for each in cli("views", "list", "--json").json if each["name"] == view]
    assert listed == {"name": view, "source": orders, "filter": "region = 'eu'", "partitions": 3}
    assert f"{view} " in cli("views", "list").ok
    assert cli("views", "alter", view, "--where", "region = 'us'").code == 0
    assert cli("consume", view, "--format", "{value}\n").ok.splitlines() == ["us"]
    refused = cli("topics", "delete", orders).error
    assert f"Topic '{orders}' is shown by '{view}'" in refused
    assert cli("views", "delete", view).ok == f"deleted {view}\n"
    assert cli("topics", "delete", orders).code == 0


def test_a_bad_filter_is_named_with_its_place(cli: Run, orders: str) -> None:
    error = cli("views", "create", f"{orders}-no", "--from", orders, "--where", "region = ").error
    assert error.startswith("tidemill views create: ")
    assert "cannot have this filter" in error


def test_a_topic_is_no_view(cli: Run, orders: str) -> None:
    for command in (("views", "delete", orders), ("views", "alter", orders, "--where", "key exists")):
        assert f"there is no view {orders}" in cli(*command).error
    assert cli("topics", "describe", orders).code == 0


def test_a_view_is_described_like_a_topic(cli: Run, orders: str) -> None:
    view = f"{orders}-described"
    cli("views", "create", view, "--from", orders, "--where", "key exists")
    (described,) = cli("topics", "describe", view, "--json").json
    assert described["configs"] == {"tidemill.view.source": orders, "tidemill.view.filter": "key exists"}
    assert len(described["partitions"]) == 3
    cli("views", "delete", view)
