"""Clients over their quotas are throttled: produced and fetched bytes, request time, and what changes while they work."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.broker.scripted_peer import LOOPS, run_in
from tidemill.broker.net.network import Peer, ServerLimits
from tidemill.broker.net.server import Server
from tidemill.broker.requests import quotas as service
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.mutations import within_quota
from tidemill.broker.requests.quotas import ClientQuotas, ConnectionRates, RequestUsage, limits_clients
from tidemill.controller.image import MetadataImage
from tidemill.errors import ErrorCode
from tidemill.protocol.api.admin import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidemill.security.principals import Principal
from tidemill.security.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
    Quotas,
)

RATE = 1_000
# What the samples hold before the average is over the quota.
WINDOW = 10 * RATE


def entity(**parts: str | None) -> QuotaEntity:
    return QuotaEntity.of((kind.replace("_", "-"), name) for kind, name in parts.items())


def on_clients(kind: str, limit: float = RATE) -> Quotas:
    return {entity(client_id=None): {kind: limit}}


class Clients:
    """Requests of clients at a broker with quotas, by a clock that the test sets."""

    def __init__(self, quotas: Quotas) -> None:
        self.now_s = 100.0
        self.quotas = ClientQuotas(lambda: int(self.now_s * 1000), quotas)
        self.muted_ms: list[int] = []

    def request(self, user: str = "alice", client_id: str = "app") -> RequestUsage:
        peer = SimpleNamespace(principal=Principal("User", user), mute_for=self.muted_ms.append)
        return RequestUsage(self.quotas, cast(Any, peer), client_id)

    def produce(self, size: int, user: str = "alice", client_id: str = "app") -> int:
        usage = self.request(user, client_id)
        usage.produced(size)
        return usage.completed()

    def fetch(self, size: int) -> int:
        return self.request().fetched(size)


def test_produce_over_its_quota_gets_throttle_time_and_is_muted() -> None:
    clients = Clients(on_clients(PRODUCER_BYTE_RATE))
    assert clients.produce(WINDOW) == 0
    assert clients.muted_ms == []
    throttle_ms = clients.produce(WINDOW // 2)
    # Half as much again as ten seconds hold.
    assert throttle_ms == 5_000
    assert clients.muted_ms == [throttle_ms]


def test_client_that_waited_the_throttle_time_is_at_its_quota() -> None:
    clients = Clients(on_clients(PRODUCER_BYTE_RATE))
    sent = 0
    for _ in range(2_000):
        sent += RATE // 5
        clients.now_s += clients.produce(RATE // 5) / 1000
    # A window's worth may be sent at the beginning.
    assert sent == pytest.approx((clients.now_s - 100 + 10) * RATE, rel=0.05)


def test_share_consumer_that_waited_the_throttle_time_is_at_its_quota() -> None:
    clients = Clients(on_clients(CONSUMER_BYTE_RATE))
    sent = 0
    for _ in range(2_000):
        sent += RATE // 5
        clients.now_s += clients.request().shared(RATE // 5) / 1000
    assert sent == pytest.approx((clients.now_s - 100 + 10) * RATE, rel=0.05)


def test_metrics_show_rate_and_average_throttle_time_of_each_entity() -> None:
    clients = Clients(on_clients(PRODUCER_BYTE_RATE))
    clients.produce(WINDOW)
    assert clients.produce(WINDOW // 10) == 1_000
    assert clients.produce(WINDOW // 10) == 2_000
    ((kind, measured, sensor),) = clients.quotas.sensors()
    assert (kind, measured) == (PRODUCER_BYTE_RATE, entity(client_id="app"))
    steady_ms = clients.quotas.steady_ms()
    assert sensor.rate.per_second(steady_ms) == 1.2 * RATE
    assert sensor.average_throttle_ms(steady_ms) == 1_500


def test_other_client_is_not_throttled() -> None:
    clients = Clients(on_clients(PRODUCER_BYTE_RATE))
    assert clients.produce(2 * WINDOW) > 0
    assert clients.produce(WINDOW, client_id="other") == 0


def test_clients_of_a_user_with_a_quota_share_it() -> None:
    clients = Clients({entity(user="alice"): {PRODUCER_BYTE_RATE: RATE}})
    assert clients.produce(WINDOW, client_id="one") == 0
    assert clients.produce(WINDOW, client_id="two") > 0
    assert clients.produce(5 * WINDOW, user="bob", client_id="one") == 0


def test_closest_quota_counts() -> None:
    clients = Clients(
        {
            entity(user="alice"): {PRODUCER_BYTE_RATE: RATE},
            entity(user="alice", client_id="app"): {PRODUCER_BYTE_RATE: 100 * RATE},
        }
    )
    assert clients.produce(5 * WINDOW, client_id="app") == 0
    assert clients.produce(5 * WINDOW, client_id="other") > 0


def test_fetch_over_its_quota_is_not_counted() -> None:
    clients = Clients(on_clients(CONSUMER_BYTE_RATE))
    assert clients.fetch(WINDOW // 2) == 0
    for _ in range(3):
        assert clients.fetch(WINDOW) == 5_000
    assert clients.muted_ms == [5_000] * 3
    assert clients.fetch(WINDOW // 2) == 0


def test_fetch_response_holds_a_window_at_most() -> None:
    clients = Clients(on_clients(CONSUMER_BYTE_RATE))
    assert clients.request().fetch_bytes_max() == WINDOW
    assert Clients(on_clients(PRODUCER_BYTE_RATE)).request().fetch_bytes_max() > 1 << 40


def test_batch_larger_than_a_window_is_sent_when_the_window_is_empty() -> None:
    clients = Clients(on_clients(CONSUMER_BYTE_RATE))
    assert clients.fetch(2 * WINDOW) == 0
    assert clients.fetch(1) > 0
    clients.now_s += 12
    assert clients.fetch(2 * WINDOW) == 0


class Stopwatch:
    """Stands for `perf_counter`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(service, "perf_counter", lambda: self.now_s)


def test_request_time_counts_what_handlers_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Stopwatch(monkeypatch)
    clients = Clients(on_clients(REQUEST_PERCENTAGE, 10))
    usage = clients.request()
    watch.now_s += 1.0
    assert usage.completed() == 0
    usage = clients.request()
    watch.now_s += 0.05
    # 1.05 s of ten seconds are 10.5 percent.
    assert usage.completed() == 500
    assert clients.muted_ms == [500]


def test_throttling_for_request_time_is_bounded_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Stopwatch(monkeypatch)
    clients = Clients(on_clients(REQUEST_PERCENTAGE, 1))
    usage = clients.request()
    watch.now_s += 5.0
    assert usage.completed() == 1_000


def test_time_in_which_a_handler_waits_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Stopwatch(monkeypatch)
    clients = Clients(on_clients(REQUEST_PERCENTAGE, 10))

    async def handle(computes_s: float) -> str:
        watch.now_s += computes_s
        asyncio.get_running_loop().call_soon(lambda: setattr(watch, "now_s", watch.now_s + 100))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "done"

    async def scenario() -> None:
        for computes_s, throttle_ms in ((1.0, 0), (0.05, 500)):
            usage = clients.request()
            usage.pause()
            assert await usage.timed(handle(computes_s)) == "done"
            assert usage.completed() == throttle_ms

    asyncio.run(scenario())


def test_cancelled_handler_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    Stopwatch(monkeypatch)
    usage = Clients(on_clients(REQUEST_PERCENTAGE)).request()
    cleaned: list[bool] = []

    async def handle() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async def wait() -> None:
        await usage.timed(handle())

    async def scenario() -> None:
        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert cleaned == [True]


def test_changed_quota_applies_to_what_was_used() -> None:
    clients = Clients(on_clients(PRODUCER_BYTE_RATE))
    assert clients.produce(WINDOW) == 0
    clients.quotas.follow(on_clients(PRODUCER_BYTE_RATE, RATE / 2))
    assert clients.produce(0) == 10_000
    clients.quotas.follow(on_clients(PRODUCER_BYTE_RATE, 2 * RATE))
    assert clients.produce(WINDOW) == 0


def test_removed_quota_throttles_no_longer() -> None:
    clients = Clients({**on_clients(PRODUCER_BYTE_RATE), entity(user="bob"): {CONSUMER_BYTE_RATE: 1.0}})
    assert clients.produce(5 * WINDOW) > 0
    clients.quotas.follow({entity(user="bob"): {CONSUMER_BYTE_RATE: 1.0}})
    assert clients.produce(5 * WINDOW) == 0


def test_quotas_of_addresses_measure_no_client() -> None:
    assert not limits_clients({})
    assert not limits_clients({entity(ip=None): {CONNECTION_CREATION_RATE: 1.0}})
    assert limits_clients(on_clients(REQUEST_PERCENTAGE))


def test_broker_measures_only_while_there_is_a_quota_for_clients() -> None:
    broker = SimpleNamespace(quotas=None, clock=SimpleNamespace(steady_ms=lambda: 0))

    def follow(quotas: Quotas) -> ClientQuotas | None:
        image = SimpleNamespace(security=SimpleNamespace(client_quotas=quotas))
        Broker._follow_quotas(cast(Any, broker), cast(Any, image))
        return cast("ClientQuotas | None", broker.quotas)

    assert follow({}) is None
    measuring = follow(on_clients(PRODUCER_BYTE_RATE))
    assert measuring is not None
    assert follow(on_clients(CONSUMER_BYTE_RATE)) is measuring
    assert follow({entity(ip=None): {CONNECTION_CREATION_RATE: 1.0}}) is None


def test_sensors_are_bounded_and_idle_ones_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_SENSORS_MAX", 10)
    clients = Clients(on_clients(PRODUCER_BYTE_RATE))
    clients.produce(1, client_id="idle")
    clients.now_s += 3600
    assert clients.produce(2 * WINDOW, client_id="busy") > 0
    for number in range(9):
        clients.produce(1, client_id=f"client-{number}")
    assert len(clients.quotas._sensors) == 10
    assert clients.produce(1, client_id="busy") > 0
    for number in range(100):
        clients.produce(1, client_id=f"flood-{number}")
    assert len(clients.quotas._sensors) <= 10
    assert len(clients.quotas._found) <= 10


# -- mutations -----------------------------------------------------------------------------------------------


def creation(*partitions: int) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(name=f"topic-{number}", num_partitions=count)
            for number, count in enumerate(partitions)
        ]
    )


def created(clients: Clients, request: CreateTopicsRequest, version: int = 7) -> tuple[list[str], int]:
    """The topics that are within the quota, and the throttle time."""
    usage = clients.request()
    admitted, refusal = within_quota(MetadataImage("cluster"), 3, usage, version, request)
    names = [topic.name for topic in cast(CreateTopicsRequest, admitted).topics] if admitted else []
    refused = cast(CreateTopicsResponse, refusal).topics if refusal else []
    assert {topic.name for topic in request.topics} == {*names, *(topic.name for topic in refused)}
    assert {topic.error_code for topic in refused} <= {ErrorCode.THROTTLING_QUOTA_EXCEEDED}
    return names, usage.completed()


def test_topics_behind_the_one_that_overdraws_are_refused() -> None:
    clients = Clients(on_clients(CONTROLLER_MUTATION_RATE, 1))
    # Eleven seconds' worth is there. Ten leave one, so five more are overdrawn by four.
    assert created(clients, creation(10, 5, 1)) == (["topic-0", "topic-1"], 4_000)
    assert clients.muted_ms == [4_000]
    assert created(clients, creation(1)) == ([], 4_000)
    clients.now_s += 4
    assert created(clients, creation(1)) == (["topic-0"], 0)


def test_old_client_is_not_refused_but_throttled() -> None:
    clients = Clients(on_clients(CONTROLLER_MUTATION_RATE, 1))
    assert created(clients, creation(10, 5, 1), version=5) == (["topic-0", "topic-1", "topic-2"], 5_000)


def test_default_number_of_partitions_is_counted() -> None:
    clients = Clients(on_clients(CONTROLLER_MUTATION_RATE, 1))
    assert created(clients, creation(-1, -1, -1, -1, -1))[0] == [f"topic-{number}" for number in range(4)]


@pytest.mark.parametrize("version", [5, 6])
def test_deleted_and_added_partitions_are_counted(version: int) -> None:
    topic = SimpleNamespace(partitions=dict.fromkeys(range(20)))
    image = cast(Any, SimpleNamespace(topics_by_name={"big": topic}, topics_by_id={}))
    delete = DeleteTopicsRequest(
        topics=[DeleteTopicState(name="big"), DeleteTopicState(name="absent")], topic_names=["big", "absent"]
    )
    add = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="big", count=21)])
    clients = Clients(on_clients(CONTROLLER_MUTATION_RATE, 1))
    usage = clients.request()
    assert within_quota(image, 1, usage, 3, add) == (add, None)
    assert within_quota(image, 1, usage, version, delete) == (delete, None)
    admitted, refusal = within_quota(image, 1, usage, version, delete)
    left = cast(DeleteTopicsRequest, admitted)
    assert [*left.topics, *left.topic_names] != []
    assert [each.name for each in cast(DeleteTopicsResponse, refusal).responses] == ["big"]
    assert within_quota(image, 1, usage, 3, add)[0] is None


# -- connections ---------------------------------------------------------------------------------------------


def test_address_over_its_rate_waits_a_sample_at_most() -> None:
    clock = SimpleNamespace(now_s=100.0)
    quotas = {entity(ip="10.0.0.1"): {CONNECTION_CREATION_RATE: 0.5}}
    rates = ConnectionRates(lambda: int(clock.now_s * 1000), lambda: quotas)
    opened = [rates.throttle_ms("10.0.0.1") for _ in range(12)]
    assert opened == [0] * 5 + [1_000] * 7
    assert not any(rates.throttle_ms("10.0.0.2") for _ in range(100))
    clock.now_s += 12
    assert rates.throttle_ms("10.0.0.1") == 0
    quotas = {}
    assert not any(rates.throttle_ms("10.0.0.1") for _ in range(100))


@pytest.mark.parametrize("loop_name", LOOPS)
def test_throttled_connection_is_not_read_and_closed_after_the_wait(loop_name: str) -> None:
    handled: list[bytes] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        limits = dataclasses.replace(LIMITS, throttle_ms=lambda _ip: 20)
        server = Server(loop, lambda _peer, frame: handled.append(bytes(frame)), limits)
        port = server.bind("A", "127.0.0.1", 0)
        server.start_accepting("A")
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(framed(b"request"))
            client.setblocking(False)
            with contextlib.suppress(ConnectionResetError):
                assert await loop.sock_recv(client, 1) == b""
        server.close()

    run_in(loop_name, scenario())
    assert handled == []


LIMITS = ServerLimits(
    frame_bytes_max=1 << 20, connections_max=10, connections_per_ip_max=10, idle_ms_max=600_000
)
AN_HOUR_MS = 3_600_000


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


async def mutes(mute_ms: int, handled: list[bytes]) -> None:
    """A client sends two requests at once; the first one mutes its connection. Another client comes later."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def dispatch(peer: Peer, frame: memoryview) -> None:
        payload = bytes(frame)
        if payload == b"first":
            peer.mute_for(mute_ms)
            peer.mute_for(1)
        peer.expect_reply().send((framed(payload),))
        handled.append(payload)
        if payload in (b"second", b"other"):
            done.set()

    server = Server(loop, dispatch, LIMITS)
    port = server.bind("A", "127.0.0.1", 0)
    server.start_accepting("A")
    with socket.socket() as client, socket.socket() as other:
        for each in (client, other):
            each.setblocking(False)
            await loop.sock_connect(each, ("127.0.0.1", port))
        await loop.sock_sendall(client, framed(b"first") + framed(b"second"))
        assert await loop.sock_recv(client, 9) == framed(b"first")
        if mute_ms == AN_HOUR_MS:
            await loop.sock_sendall(client, framed(b"third"))
            await loop.sock_sendall(other, framed(b"other"))
        await done.wait()
    server.close()


def test_ipv4_peer_of_a_listener_for_both_has_its_own_address() -> None:
    peers: list[str] = []
    measured: list[str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def dispatch(peer: Peer, _frame: memoryview) -> None:
            peers.append(peer.peer)
            done.set()

        def throttle_ms(ip: str) -> int:
            measured.append(ip)
            return 0

        server = Server(loop, dispatch, dataclasses.replace(LIMITS, throttle_ms=throttle_ms))
        port = server.bind("A", "::", 0)
        server.start_accepting("A")
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(framed(b"request"))
            await done.wait()
        server.close()
        assert not server._quotas.total

    run_in("asyncio", scenario())
    assert [peer.rpartition(":")[0] for peer in peers] == measured == ["127.0.0.1"]


@pytest.mark.parametrize("loop_name", LOOPS)
def test_muted_connection_is_answered_and_not_read(loop_name: str) -> None:
    handled: list[bytes] = []
    run_in(loop_name, mutes(AN_HOUR_MS, handled))
    assert handled == [b"first", b"other"]


@pytest.mark.parametrize("loop_name", LOOPS)
def test_muted_connection_goes_on_with_what_was_received(loop_name: str) -> None:
    handled: list[bytes] = []
    run_in(loop_name, mutes(20, handled))
    assert handled == [b"first", b"second"]
