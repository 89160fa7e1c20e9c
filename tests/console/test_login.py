"""The log-in of the console, in a real browser and over TLS: a restricted view, a change, the end of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.console.conftest import ConsolePage
from tests.gateway.conftest import Gateway
from tests.gateway.secured_cluster import PASSWORD, SecuredCluster, secured_cluster
from tidemill.client.admin.views import ViewAdmin
from tidemill.client.producing.producer import Producer
from tidemill.protocol.records import Header
from tidemill.security.acls import Operation, ResourceType


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as started:
        for name in ("alice", "bob"):
            started.add_user(name)
            started.create_topic(f"{name}s", f"a secret of {name}")
            started.allow_all(name, f"{name}s")
        ViewAdmin(started.admin).create("some-of-bob", "bobs", "secret = 'rule'")
        started.admin.create_topic("later", partition_count=1, configs={"tidemill.delays.enable": "true"})
        producer = Producer(started.admin.cluster)
        producer.add("later", b"a secret until then", headers=[Header("tidemill-delay", b"1h")])
        producer.flush()
        started.add_user("reader")
        for operation in (Operation.READ, Operation.DESCRIBE_CONFIGS):
            started.allow("reader", operation, ResourceType.TOPIC, "later")
        yield started


@pytest.fixture(scope="module")
def gateway(cluster: SecuredCluster) -> Iterator[Gateway]:
    with cluster.gateway(has_tls=True) as started:
        yield started


def _log_in(console: ConsolePage, name: str, password: str) -> None:
    console.page.get_by_label("User").fill(name)
    console.page.get_by_label("Password").fill(password)
    console.button("Log in").click()


def test_user_logs_in_sees_its_own_topics_changes_them_and_logs_out(
    open_console: Callable[..., ConsolePage], cluster: SecuredCluster
) -> None:
    console = open_console(ignore_https_errors=True)
    page = console.page
    console.expected_messages.append("401")
    console.go("topics")
    expect(console.heading).to_have_text("Log in")
    _log_in(console, "alice", "wrong")
    expect(page.get_by_role("alert").filter(has_text="does not know this user")).to_be_visible()
    assert page.get_by_label("Password").input_value() == ""
    _log_in(console, "alice", PASSWORD)
    expect(console.heading).to_have_text("Topics")
    assert console.place == "topics"
    expect(console.row("Topics", "alices")).to_be_visible()
    expect(console.rows("Topics")).to_have_count(1)
    expect(page.locator("#user")).to_contain_text("alice")

    console.go("topics/alices/messages")
    expect(page.get_by_text("a secret of alice")).to_be_visible()
    page.keyboard.press("p")
    console.dialog.get_by_role("textbox", name="Value").fill('"written in the console"')
    console.dialog.get_by_role("button", name="Produce", exact=True).click()
    expect(console.dialog).to_have_count(0)
    expect(page.get_by_text("written in the console").first).to_be_visible()

    # Another tab of the same browser has the session, too, and what is not alice's is not there.
    console.expected_messages.append("403")
    console.go("topics/bobs/messages")
    expect(page.get_by_text("Not authorized").first).to_be_visible()
    assert "a secret of bob" not in page.content()

    cookies = {cookie.get("name", ""): cookie for cookie in page.context.cookies()}
    ((name, cookie),) = cookies.items()
    assert name.startswith("__Host-tidemill_session_")
    assert cookie.get("httpOnly")
    assert cookie.get("secure")
    assert cookie.get("sameSite") == "Strict"
    assert PASSWORD not in str(cookie)

    console.button("Log out").click()
    expect(console.heading).to_have_text("Log in")
    assert page.context.cookies() == []
    assert "a secret of alice" not in page.content()
    page.reload()
    expect(console.heading).to_have_text("Log in")


def test_session_that_ends_elsewhere_brings_back_the_login(
    open_console: Callable[..., ConsolePage], cluster: SecuredCluster
) -> None:
    console = open_console(ignore_https_errors=True)
    console.expected_messages += ["401", "ERR_"]
    console.go("overview")
    _log_in(console, "bob", PASSWORD)
    expect(console.page.locator("#user")).to_contain_text("bob")
    other = console.page.context.new_page()
    other.goto(f"{console.url}/#/topics")
    other.get_by_role("button", name="Log out", exact=True).click()
    expect(other.get_by_role("heading", level=1)).to_have_text("Log in")
    console.page.bring_to_front()
    expect(console.heading).to_have_text("Log in")


def test_reader_sees_neither_what_waits_nor_views_of_others(open_console: Callable[..., ConsolePage]) -> None:
    console = open_console(ignore_https_errors=True)
    console.expected_messages += ["401", "403"]
    console.go("topics/later/waiting")
    _log_in(console, "reader", PASSWORD)
    expect(console.page.locator("main .problem")).to_contain_text("ot authorized")
    assert "a secret" not in console.page.content()
    console.go("views")
    expect(console.page.get_by_text("No views yet.")).to_be_visible()
    assert "some-of-bob" not in console.page.content()
