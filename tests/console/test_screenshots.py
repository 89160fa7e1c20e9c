"""The pictures of the docs: a shop on three brokers, two minutes into its day. Only with TIDEMILL_SCREENSHOTS=1."""

from __future__ import annotations

import json
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Browser, expect

from tests.brokers import eventually
from tests.cluster.clusters import Cluster
from tests.console.conftest import LIMIT_MS, ConsolePage, Gateway

pytestmark = pytest.mark.skipif(
    os.environ.get("TIDEMILL_SCREENSHOTS") != "1",
    reason="makes the docs' screenshots: TIDEMILL_SCREENSHOTS=1",
)

_DAY_S = 130.0
_TOPICS = {
    "orders": 6,
    "payments": 6,
    "shipments": 3,
    "inventory.levels": 6,
    "customers.changes": 3,
    "emails.outgoing": 3,
}
# Records a second: the mean, and how much it swings.
_RATES = {
    "orders": (110, 60),
    "payments": (70, 35),
    "shipments": (30, 12),
    "inventory.levels": (90, 20),
    "customers.changes": (8, 4),
    "emails.outgoing": (15, 10),
}
_METRICS = re.compile(r"Metrics at (http://\S+)/metrics")
_CITIES = ("Hamburg", "Gdańsk", "Malmö", "Rotterdam", "Antwerp", "Bergen")


Take = Callable[..., None]


class Shop:
    """Writes and reads like the services of a shop, until it is closed."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._begun_s = time.monotonic()
        self._is_open = True
        self._random = random.Random(7)
        self._threads = [threading.Thread(target=self._write, name="shop-writer")]
        # The last reader of billing joins and leaves; while it is away the others are slow.
        readers: list[tuple[str, int, tuple[str, ...]]] = [
            ("billing", 1, ("orders", "payments")),
            ("billing", 2, ("orders", "payments")),
            ("billing", 3, ("orders", "payments")),
        ]
        readers += [
            ("fraud-check", 1, ("payments",)),
            ("warehouse-sync", 1, ("shipments", "inventory.levels")),
            ("warehouse-sync", 2, ("shipments", "inventory.levels")),
        ]
        self._threads += [threading.Thread(target=self._read, args=reader) for reader in readers]

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._begun_s

    def __enter__(self) -> Shop:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        for thread in self._threads:
            thread.join()

    def _order(self, number: int) -> dict[str, object]:
        choose = self._random
        items = [
            {
                "sku": f"TM-{choose.randrange(1000, 9999)}",
                "quantity": choose.randint(1, 4),
                "price": round(choose.uniform(4, 120), 2),
            }
            for _ in range(choose.randint(1, 3))
        ]
        return {
            "order_id": f"o-{184_000 + number}",
            "customer": {
                "id": f"c-{choose.randrange(5000):04}",
                "tier": choose.choice(["gold", "silver", "standard"]),
            },
            "items": items,
            "total": round(sum(float(str(item["price"])) * int(str(item["quantity"])) for item in items), 2),
            "currency": "EUR",
            "ship_to": choose.choice(_CITIES),
            "express": choose.random() < 0.2,
        }

    def _write(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 20, "client.id": "checkout"})
        owed = dict.fromkeys(_RATES, 0.0)
        number, last_s = 0, self.age_s
        while self._is_open:
            now_s = self.age_s
            for topic, (mean, swing) in _RATES.items():
                owed[topic] += (now_s - last_s) * (mean + swing * math.sin(now_s / 13 + len(topic)))
                while owed[topic] >= 1:
                    owed[topic] -= 1
                    number += 1
                    headers: dict[str, str | bytes | None] = {
                        "trace-id": f"{self._random.getrandbits(64):016x}",
                        "source": "checkout",
                    }
                    producer.produce(
                        topic,
                        json.dumps(self._order(number), ensure_ascii=False),
                        key=f"o-{184_000 + number}",
                        headers=headers,
                    )
            producer.poll(0)
            last_s = now_s
            time.sleep(0.05)
        producer.flush(30)

    def _read(self, group: str, number: int, topics: tuple[str, ...]) -> None:
        begins_s, ends_s = (20.0, 55.0) if (group, number) == ("billing", 3) else (0.0, math.inf)
        while self._is_open and self.age_s < begins_s:
            time.sleep(0.1)
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "client.id": f"{group}-{number}",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
            }
        )
        consumer.subscribe(list(topics))
        while self._is_open and self.age_s < ends_s:
            consumer.consume(60, timeout=0.2)
            if group == "billing":
                time.sleep(0.9 if self.age_s < 85 else 0.45)
        consumer.close()


@pytest.fixture(scope="module")
def shop_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Cluster(
        3, tmp_path_factory.mktemp("shop"), settings={"tidemill.status.listener": "127.0.0.1:0"}
    ) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        new = [NewTopic(name, partitions, 3) for name, partitions in _TOPICS.items()]
        for future in admin.create_topics(new).values():
            future.result()

        def status_urls() -> tuple[str, ...]:
            return tuple(url for node in cluster.nodes.values() for url in _METRICS.findall(node.log()))

        eventually(lambda: len(status_urls()) == 3, "three status listeners")
        gateway = Gateway(cluster.bootstrap, status_urls())
        gateway.start()
        with Shop(cluster.bootstrap) as shop:
            eventually(lambda: shop.age_s > _DAY_S, "a day of trade", 2 * _DAY_S)
            yield gateway
        gateway.stop()


@pytest.fixture
def take(chromium: Browser, shop_console: Gateway, pytestconfig: pytest.Config) -> Take:
    folder = Path(pytestconfig.rootpath) / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=LIMIT_MS)

    def take_one(name: str, place: str, arrange: Callable[[ConsolePage], None], height: int = 800) -> None:
        for theme in ("light", "dark"):
            context = chromium.new_context(
                viewport={"width": 1280, "height": height},
                device_scale_factor=2,
                color_scheme=theme,
                timezone_id="UTC",
            )
            console = ConsolePage(context.new_page(), shop_console.url)
            console.go(place)
            arrange(console)
            console.page.screenshot(path=folder / f"console-{name}-{theme}.png", animations="disabled")
            context.close()
            console.check_quiet()

    return take_one


def test_overview(take: Take) -> None:
    def arrange(console: ConsolePage) -> None:
        expect(console.page.get_by_text("All is well.")).to_be_visible()
        expect(console.row("Busiest topics", "orders")).to_be_visible()
        expect(console.row("Groups by lag", "billing")).to_be_visible()
        expect(console.page.locator(".line.b")).to_be_visible()

    take("overview", "overview", arrange, height=1020)


def test_messages(take: Take) -> None:
    def arrange(console: ConsolePage) -> None:
        console.rows("Messages of orders").nth(3).click()
        expect(
            console.page.get_by_role("complementary", name="Record").get_by_label("Value", exact=True)
        ).to_be_visible()

    take("messages", "topics/orders/messages", arrange)


def test_group_lag(take: Take) -> None:
    def arrange(console: ConsolePage) -> None:
        expect(console.rows("Lag of billing by partition")).to_have_count(12)
        chart = console.page.locator(".chart-box")
        expect(chart.locator(".line")).to_be_visible()
        chart.hover(position={"x": 640, "y": 90})

    take("group-lag", "groups/billing", arrange)
