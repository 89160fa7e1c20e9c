"""A real browser before a real gateway before a real broker.

Chromium is Debian's (`apt install chromium`) or the one that TIDEMILL_CHROMIUM names; without it these tests are skipped.
Broker, gateway and browser are shared by the whole folder, which one worker runs: tests use topics and groups of their own.
`console` is a page in a context of its own; at the end of each test nothing may stand in the browser's console that the test
did not announce, and nothing may have been asked of any other host.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests import interfaces
from tests.brokers import Broker, eventually, start_broker
from tidemill.claims.large_payloads import LargePayloads
from tidemill.gateway.app import create_app, uvicorn_config
from tidemill.gateway.settings import Settings

_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_STATUS = re.compile(r"http://[\d.]+:\d+")
# What a condition in the browser may take on a busy machine.
LIMIT_MS = 20_000


def _chromium() -> str | None:
    named = os.environ.get("TIDEMILL_CHROMIUM")
    return shutil.which(named) if named else shutil.which("chromium")


class Gateway:
    """The gateway in a thread, on one port however often it is started."""

    def __init__(
        self,
        bootstrap: str,
        status_urls: tuple[str, ...] = (),
        large_payloads: LargePayloads | None = None,
    ) -> None:
        self._settings = Settings(
            bootstrap=bootstrap, status_urls=status_urls, drain_s=1, large_payloads=large_payloads
        )
        self._port = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._server = uvicorn.Server(uvicorn_config(create_app(self._settings), self._settings))
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="gateway")
        self._thread.start()
        server, thread = self._server, self._thread
        eventually(lambda: server.started or not thread.is_alive(), "the gateway starts")
        assert server.started

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
        self._server = self._thread = None


@pytest.fixture(scope="package")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data_dir = tmp_path_factory.mktemp("console") / "data"
    settings = {"tidemill.status.listener": "127.0.0.1:0", "group.initial.rebalance.delay.ms": "0"}
    with start_broker(data_dir, settings=settings) as broker:
        yield broker


@pytest.fixture(scope="package")
def gateway(kafka: Broker) -> Iterator[Gateway]:
    gateway = Gateway(kafka.bootstrap, tuple(_STATUS.findall(kafka.printed)[:1]))
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = _chromium()
    if path is None:
        pytest.skip("needs Chromium: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def chromium(browser: Browser) -> Iterator[Browser]:
    """The browser, while no test changes the network interfaces. Such tests have their turn between two modules."""
    with interfaces.kept():
        yield browser


class ConsolePage:
    """A browser page that is at the console, and what a test does there more than once."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        # Parts of messages in the browser's console that the test is about.
        self.expected_messages: list[str] = []
        self.messages: list[str] = []
        self.foreign_requests: list[str] = []
        page.set_default_timeout(LIMIT_MS)
        page.on(
            "console",
            lambda message: self._heard(message.type, f"{message.text} ({message.location.get('url')})"),
        )
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("request", lambda request: self._asked(request.url))

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.messages.append(text)

    def _asked(self, url: str) -> None:
        if not url.startswith(self.url):
            self.foreign_requests.append(url)

    def go(self, place: str) -> None:
        """`place` as in the address: "topics/orders/messages"."""
        self.page.goto(f"{self.url}/#/{place}")
        self.heading.wait_for()

    @property
    def place(self) -> str:
        return self.page.url.partition("#/")[2]

    @property
    def heading(self) -> Locator:
        return self.page.get_by_role("heading", level=1)

    def table(self, name: str) -> Locator:
        return self.page.get_by_role("table", name=name, exact=True)

    def rows(self, name: str) -> Locator:
        return self.table(name).locator("tbody tr:not(.spacer)")

    def row(self, table: str, text: str) -> Locator:
        return self.rows(table).filter(has_text=text)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    @property
    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog")

    def check_quiet(self) -> None:
        unexpected = [
            text for text in self.messages if not any(part in text for part in self.expected_messages)
        ]
        assert unexpected == []
        assert self.foreign_requests == []


@pytest.fixture
def open_console(chromium: Browser, gateway: Gateway) -> Iterator[Callable[..., ConsolePage]]:
    """Opens a console; the arguments are those of a browser context, such as color_scheme."""
    opened: list[ConsolePage] = []
    expect.set_options(timeout=LIMIT_MS)

    def open_one(**options: object) -> ConsolePage:
        chosen = {"viewport": {"width": 1280, "height": 800}, "locale": "en-GB", **options}
        context = chromium.new_context(**chosen)  # type: ignore[arg-type]
        opened.append(ConsolePage(context.new_page(), gateway.url))
        return opened[-1]

    yield open_one
    for console in opened:
        console.page.context.close()
    for console in opened:
        console.check_quiet()


@pytest.fixture
def console(open_console: Callable[..., ConsolePage]) -> ConsolePage:
    return open_console()
