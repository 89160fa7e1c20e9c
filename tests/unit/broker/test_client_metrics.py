"""Client metrics (KIP-714): subscriptions, refused pushes, and limits."""

from __future__ import annotations

import asyncio

import pytest

from tidemill.broker.requests import client_metrics
from tidemill.broker.requests.client_metrics import ClientInstance, ClientMetrics
from tidemill.controller.image import ConfigResource, MetadataImage, ResourceType
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.otlp import Point

ID = b"a" * 16
FACTS = {
    "client_instance_id": "a",
    "client_id": "web-1",
    "client_software_name": "librdkafka",
    "client_software_version": "2",
    "client_source_address": "127.0.0.1",
    "client_source_port": "1",
}
ZSTD = 4


class World:
    def __init__(self) -> None:
        self.steady_ms = 5
        self.image = MetadataImage()
        self.metrics = ClientMetrics(lambda: self.image, lambda: self.steady_ms, 1_000)

    def subscribe(self, **subscriptions: dict[str, str]) -> None:
        configs = {
            ConfigResource(ResourceType.CLIENT_METRICS, name): values
            for name, values in subscriptions.items()
        }
        self.image = MetadataImage(configs=configs)

    def client(self, instance_id: bytes = ID) -> ClientInstance:
        return self.metrics.instance(instance_id, FACTS)

    def get(self) -> ErrorCode:
        try:
            self.metrics.check_get(self.client())
        except ApiError as error:
            return error.code
        return ErrorCode.NONE

    def push(
        self, number: int | None = None, *, last: bool = False, codec: int = ZSTD, size: int = 10
    ) -> ErrorCode:
        client = self.client()
        try:
            self.metrics.check_push(
                client, client.subscription_id if number is None else number, last, codec, size
            )
        except ApiError as error:
            return error.code
        return ErrorCode.NONE


@pytest.fixture
def world() -> World:
    world = World()
    world.subscribe(one={"metrics": "a.,b.", "interval.ms": "1000"})
    return world


def test_limits_of_client_are_queries() -> None:
    client = World().client()
    assert [client.may_get(5), client.may_get(5)] == [True, True]
    assert [client.may_push(5), client.may_push(5)] == [True, True]


def test_a_client_gets_the_metrics_of_all_that_match_at_the_shortest_interval(world: World) -> None:
    world.subscribe(
        one={"metrics": "a.", "interval.ms": "1000"},
        two={"metrics": "b.", "interval.ms": "500", "match": "client_id=web-.*"},
        three={"metrics": "c.", "interval.ms": "100", "match": "client_id=batch"},
    )
    assert (world.client().metrics, world.client().interval_ms) == (("a.", "b."), 500)
    world.subscribe(one={"metrics": "a."}, two={"metrics": "*"})
    assert world.client().metrics == ("*",)


def test_client_without_a_subscription_gets_no_metrics() -> None:
    client = World().client()
    assert (client.metrics, client.interval_ms) == ((), 300_000)


def test_early_requests_and_pushes_are_throttled(world: World) -> None:
    assert world.get() is ErrorCode.NONE
    assert world.get() is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    world.steady_ms += 1
    assert world.push() is ErrorCode.NONE
    assert world.push() is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    world.steady_ms += 1_000
    assert world.push() is ErrorCode.NONE
    assert world.push(last=True) is ErrorCode.NONE
    world.steady_ms += 1_000
    assert world.push() is ErrorCode.INVALID_REQUEST


def test_a_changed_subscription_is_seen_at_once(world: World) -> None:
    world.get()
    number = world.client().subscription_id
    world.subscribe(one={"metrics": "c.", "interval.ms": "1000"})
    assert world.push(number) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert world.get() is ErrorCode.NONE
    world.steady_ms += 1_000
    assert world.push() is ErrorCode.NONE


@pytest.mark.parametrize(
    ("codec", "size", "code"),
    [(9, 10, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (ZSTD, 1_001, ErrorCode.TELEMETRY_TOO_LARGE)],
)
def test_invalid_push_is_refused(world: World, codec: int, size: int, code: ErrorCode) -> None:
    world.get()
    world.steady_ms += 1
    assert world.push(codec=codec, size=size) is code


def test_deltas_are_added_and_gauges_replaced(world: World) -> None:
    client = world.client()
    for _ in range(2):
        world.metrics.keep(client, [Point("sum", (("k", "v"),), 2.0, True), Point("gauge", (), 3.0, False)])
    assert [row[1:] for row in world.metrics.rows()] == [("sum", "k=v", 4.0), ("gauge", "", 3.0)]


async def test_pushes_are_expanded_one_at_a_time_and_their_bytes_are_limited_together(world: World) -> None:
    limit = 16 * world.metrics.max_bytes
    order: list[str] = []

    async def expand(name: str, size: int, may_end: asyncio.Event) -> None:
        async with world.metrics.expanding(world.client(name.encode() * 16), size):
            order.append(f"{name} begins")
            await may_end.wait()
            order.append(f"{name} ends")

    may_end = asyncio.Event()
    tasks = [asyncio.create_task(expand(name, limit // 2, may_end)) for name in ("a", "b")]
    await asyncio.sleep(0)
    assert order == ["a begins"]
    refused = asyncio.create_task(expand("c", 1, may_end))
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(*tasks)
    with pytest.raises(ApiError) as error:
        await refused
    assert error.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert order == ["a begins", "a ends", "b begins", "b ends"]
    # What is over is not counted any more, also after a failure.
    with pytest.raises(ZeroDivisionError):
        async with world.metrics.expanding(world.client(), limit):
            raise ZeroDivisionError
    async with world.metrics.expanding(world.client(), limit):
        pass


def test_push_refused_for_the_shared_limit_may_be_repeated_at_once(world: World) -> None:
    assert world.push() == ErrorCode.NONE
    client = world.client()

    async def refused() -> None:
        async with world.metrics.expanding(client, 17 * world.metrics.max_bytes):
            pytest.fail("it is too large")

    with pytest.raises(ApiError):
        asyncio.run(refused())
    assert world.push() == ErrorCode.NONE


@pytest.mark.parametrize(
    ("max_bytes", "expanded"),
    [(1_000, 20_000), (1 << 20, 20 << 20), (2 << 20, 32 << 20), (64 << 20, 64 << 20)],
)
def test_a_push_expands_to_a_bounded_size(max_bytes: int, expanded: int) -> None:
    assert ClientMetrics(MetadataImage, lambda: 0, max_bytes).expanded_bytes_max == expanded


def test_a_silent_client_is_forgotten(world: World) -> None:
    world.metrics.keep(world.client(), [Point("gauge", (), 3.0, False)])
    world.steady_ms += 60_000
    assert world.metrics.rows() == []
    assert not world.metrics._clients


def test_clients_and_series_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "_CLIENTS_MAX", 3)
    monkeypatch.setattr(client_metrics, "SERIES_PER_CLIENT_MAX", 4)
    monkeypatch.setattr(client_metrics, "_SERIES_MAX", 6)
    for number in range(5):
        client = world.client(bytes([number]) * 16)
        world.metrics.keep(client, [Point(f"{each}", (), 1.0, False) for each in range(9)])
        world.metrics.keep(client, [Point("x" * 1_000, (("k", "v" * 1_000),), 1.0, False)])
    assert len(world.metrics._clients) == 3
    assert len(world.metrics.rows()) <= 6
