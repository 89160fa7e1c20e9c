"""The simulated network keeps TCP's promises, and no others."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tidemill.broker.net.network import Address, Link, Peer, ServerLimits
from tidemill.sim.platform.loops import Scheduler, SimulatedLoop
from tidemill.sim.platform.network import Wires

LIMITS = ServerLimits(1 << 20, 100, 100, 600_000)
SERVER = Address("server", 9092)


class Pair:
    """A server that echoes, and a client."""

    def __init__(self, seed: int = 0) -> None:
        self.scheduler = Scheduler(Random(f"{seed}/turns"))
        self.wires = Wires(self.scheduler, Random(seed), lambda _: None)
        self.server_loop = self.scheduler.new_loop("server", self._failed)
        self.client_loop = self.scheduler.new_loop("client", self._failed)
        self.received: list[bytes] = []
        self.answers: list[bytes] = []
        self.closed: list[str] = []
        self.peers: list[Peer] = []
        self.holds_replies = False
        self.listening = self.wires.of(self.server_loop, "server").listen(self._dispatch, LIMITS)
        self.listening.bind("PLAINTEXT", "server", 9092)
        self.listening.start_accepting("PLAINTEXT")

    def _failed(self, loop: SimulatedLoop, context: dict[str, Any]) -> None:
        raise AssertionError(f"{loop.name}: {context}")

    def _dispatch(self, peer: Peer, frame: memoryview) -> None:
        data = bytes(frame)
        self.received.append(data)
        self.peers.append(peer)
        reply = peer.expect_reply()
        if not self.holds_replies:
            reply.send((b"\0\0\0\1", data))

    def connect(self, address: Address = SERVER) -> Link:
        return self.wires.of(self.client_loop, "client").connect(
            address,
            lambda frame: self.answers.append(bytes(frame)),
            self.closed.append,
            frame_bytes_max=1 << 20,
        )

    def run(self, seconds: float) -> None:
        self.scheduler.run_until(self.scheduler.now_s + seconds)


def frame(number: int) -> bytes:
    return b"\0\0\0\1" + bytes([number])


@pytest.fixture(params=range(5))
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


def test_frames_and_answers_arrive_in_order_once(pair: Pair) -> None:
    link = pair.connect()
    for number in range(100):
        link.send(frame(number))
    pair.run(10)
    assert pair.received == [bytes([number]) for number in range(100)]
    assert pair.answers == pair.received
    assert pair.closed == []


def test_a_kept_frame_loses_its_bytes() -> None:
    pair = Pair()
    kept: list[memoryview] = []
    wires = pair.wires.of(pair.server_loop, "other")

    def keep(peer: Peer, frame: memoryview) -> None:
        kept.append(frame[:])

    listening = wires.listen(keep, LIMITS)
    listening.bind("PLAINTEXT", "other", 1)
    listening.start_accepting("PLAINTEXT")
    pair.connect(Address("other", 1)).send(frame(7))
    pair.run(10)
    assert bytes(kept[0]) != b"\7"


def test_connecting_without_listener_is_refused(pair: Pair) -> None:
    pair.connect(Address("server", 1)).send(frame(1))
    pair.run(10)
    assert pair.closed == ["connection refused"]


def test_a_cut_stalls_and_healing_delivers_in_order(pair: Pair) -> None:
    link = pair.connect()
    link.send(frame(0))
    pair.run(1)
    pair.wires.cut("client", "server")
    for number in range(1, 10):
        link.send(frame(number))
    pair.run(60)
    assert pair.received == [b"\0"]
    pair.wires.heal("client", "server")
    link.send(frame(10))
    pair.run(10)
    assert pair.received == [bytes([number]) for number in range(11)]


def test_one_way_cut_lets_requests_through_and_stalls_answers(pair: Pair) -> None:
    link = pair.connect()
    link.send(frame(0))
    pair.run(1)
    pair.wires.cut("server", "client")
    link.send(frame(1))
    pair.run(60)
    assert pair.received == [b"\0", b"\1"]
    assert pair.answers == [b"\0"]
    pair.wires.heal_all()
    pair.run(10)
    assert pair.answers == [b"\0", b"\1"]


def test_late_requests_of_a_closed_link_still_arrive(pair: Pair) -> None:
    """How a request is handled twice: its sender gave up on the link and asked again on another."""
    link = pair.connect()
    link.send(frame(0))
    pair.run(1)
    pair.wires.cut("client", "server")
    link.send(frame(1))
    pair.run(5)
    link.close()
    pair.wires.heal_all()
    pair.connect().send(frame(1))
    pair.run(10)
    assert pair.received == [b"\0", b"\1", b"\1"]


def test_a_killed_server_resets_and_nothing_answers(pair: Pair) -> None:
    pair.holds_replies = True
    link = pair.connect()
    link.send(frame(0))
    pair.run(1)
    pair.server_loop.kill()
    pair.wires.process_died(pair.server_loop, is_silent=False)
    pair.run(10)
    assert pair.closed == ["the connection was lost"]
    pair.connect()
    pair.run(10)
    assert pair.closed == ["the connection was lost", "connection refused"]


def test_a_power_failure_is_silent_until_the_host_is_back(pair: Pair) -> None:
    link = pair.connect()
    link.send(frame(0))
    pair.run(1)
    pair.server_loop.kill()
    pair.wires.process_died(pair.server_loop, is_silent=True)
    pair.wires.lose_power("server")
    link.send(frame(1))
    pair.run(100)
    assert pair.closed == []
    pair.wires.regain_power("server")
    pair.run(10)
    assert pair.closed == ["the connection was lost"]


def test_connecting_to_host_without_power_times_out(pair: Pair) -> None:
    pair.wires.lose_power("server")
    pair.connect()
    pair.run(60)
    assert pair.closed == ["connecting timed out"]


def test_a_broken_connection_loses_the_last_frames_or_not() -> None:
    received = []
    for seed in range(40):
        pair = Pair(seed)
        link = pair.connect()
        link.send(frame(0))
        pair.run(1)
        link.send(frame(1))
        assert pair.wires.reset_some() == "client>server"
        pair.run(10)
        assert pair.closed == ["the connection was lost"]
        assert all(peer.is_closed for peer in pair.peers)
        received.append(len(pair.received))
    assert set(received) == {1, 2}


def test_close_callbacks_run_when_the_client_goes(pair: Pair) -> None:
    pair.holds_replies = True
    link = pair.connect()
    link.send(frame(0))
    pair.run(1)
    gone: list[str] = []
    pair.peers[0].close_callbacks.append(lambda: gone.append("gone"))
    link.close()
    pair.run(1)
    assert gone == ["gone"]
    assert pair.closed == []


def test_replies_leave_in_the_order_of_their_requests(pair: Pair) -> None:
    replies = []

    def dispatch(peer: Peer, frame: memoryview) -> None:
        replies.append((bytes(frame), peer.expect_reply()))

    listening = pair.wires.of(pair.server_loop, "late").listen(dispatch, LIMITS)
    listening.bind("PLAINTEXT", "late", 1)
    listening.start_accepting("PLAINTEXT")
    link = pair.connect(Address("late", 1))
    for number in range(3):
        link.send(frame(number))
    pair.run(1)
    for data, reply in reversed(replies):
        reply.send((b"\0\0\0\1", data))
        pair.run(1)
        assert pair.answers == ([b"\0", b"\1", b"\2"] if data == b"\0" else [])
