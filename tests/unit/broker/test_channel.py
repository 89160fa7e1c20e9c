"""Requests to another node: order, versions, timeouts, lost links. Over real sockets, with a scripted peer."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from tests.brokers import RunningBroker
from tests.unit.broker.scripted_peer import LOOPS, ScriptedPeer, run_in
from tidemill.broker.net import channel as channel_module
from tidemill.broker.net.channel import Channel, Channels, PeerUnavailable
from tidemill.broker.net.network import Address
from tidemill.broker.net.sockets import SocketNetwork
from tidemill.protocol.api.cluster import MetadataRequest, MetadataResponse, MetadataResponseTopic
from tidemill.protocol.api.data import FetchRequest, FetchResponse
from tidemill.protocol.api.transactions import InitProducerIdRequest
from tidemill.protocol.frames import response_frame
from tidemill.protocol.schema import decode

LONG_S = 60.0
METADATA_KEY = 3
PEER_VERSIONS = {METADATA_KEY: (0, 12), 1: (4, 17)}

pytestmark = pytest.mark.parametrize("loop_name", LOOPS)


def channel_to(address: Address, frame_bytes_max: int = 64 << 20) -> Channel:
    loop = asyncio.get_running_loop()
    return Channel(SocketNetwork(loop), loop, address, client_id="node-1", frame_bytes_max=frame_bytes_max)


def answer_named(name: str) -> MetadataResponse:
    return MetadataResponse(cluster_id=name)


class Outcomes:
    """What `call` led to, in the order in which it came."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.seen: list[tuple[int, str]] = []
        self._changed = asyncio.Event()

    def call(self, number: int, timeout_s: float = LONG_S) -> None:
        def on_body(version: int, body: memoryview) -> None:
            self._add(number, decode(MetadataResponse, version, body).cluster_id or "")

        self._channel.call(
            MetadataRequest(),
            on_body,
            lambda reason: self._add(number, f"failed: {reason}"),
            timeout_s=timeout_s,
        )

    def _add(self, number: int, what: str) -> None:
        self.seen.append((number, what))
        self._changed.set()

    async def count(self, wanted: int) -> list[tuple[int, str]]:
        while len(self.seen) < wanted:
            self._changed.clear()
            await self._changed.wait()
        return self.seen


def unexpected(version: int, body: memoryview) -> None:
    pytest.fail("an answer where none can be")


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_requests_are_pipelined_and_answered_in_order(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedPeer(PEER_VERSIONS) as peer:
            channel = channel_to(peer.address)
            outcomes = Outcomes(channel)
            for number in range(50):
                outcomes.call(number)
            asked = [await peer.asked.get() for _ in range(50)]
            # All have arrived although none is answered; the handshake came once, before them.
            assert outcomes.seen == []
            assert peer.connections == len(peer.handshakes) == 1
            for number, each in enumerate(asked):
                each.answer(answer_named(f"answer {number}"))
            assert await outcomes.count(50) == [(number, f"answer {number}") for number in range(50)]
            channel.close()

    run_in(loop_name, scenario())


def test_version_is_highest_common_one(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedPeer({METADATA_KEY: (2, 5)}) as peer:
            channel = channel_to(peer.address)
            answer = asyncio.create_task(
                channel.request(MetadataRequest(), MetadataResponse, timeout_s=LONG_S)
            )
            asked = await peer.asked.get()
            assert asked.header.api_version == 5
            assert asked.header.client_id == "node-1"
            asked.answer(answer_named("five"))
            assert (await answer).cluster_id == "five"
            channel.close()

    run_in(loop_name, scenario())


def test_request_of_unlisted_api_uses_highest_stable_version(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedPeer({}) as peer:
            channel = channel_to(peer.address)
            for message in (MetadataRequest(), FetchRequest()):
                channel.call(message, lambda *_: None, lambda _: None, timeout_s=LONG_S)
                highest = message.versions.max - (1 if message.latest_version_unstable else 0)
                assert (await peer.asked.get()).header.api_version == highest
            channel.close()

    run_in(loop_name, scenario())


def test_unstable_version_is_used_only_when_named(loop_name: str) -> None:
    async def scenario() -> None:
        unstable = InitProducerIdRequest.versions.max
        assert InitProducerIdRequest.latest_version_unstable
        async with ScriptedPeer({InitProducerIdRequest.api_key: (0, unstable)}) as peer:
            channel = channel_to(peer.address)
            for named, spoken in (
                (None, unstable - 1),
                (unstable, unstable),
                (unstable + 1, unstable),
                (2, 2),
            ):
                channel.call(
                    InitProducerIdRequest(),
                    lambda *_: None,
                    lambda _: None,
                    timeout_s=LONG_S,
                    version_max=named,
                )
                assert (await peer.asked.get()).header.api_version == spoken
            channel.close()

    run_in(loop_name, scenario())


def test_request_without_common_version_fails_alone(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedPeer({METADATA_KEY: (90, 99)}) as peer:
            channel = channel_to(peer.address)
            with pytest.raises(PeerUnavailable, match="no common version of MetadataRequest"):
                await channel.request(MetadataRequest(), MetadataResponse, timeout_s=LONG_S)
            fetch = asyncio.create_task(channel.request(FetchRequest(), FetchResponse, timeout_s=LONG_S))
            (await peer.asked.get()).answer(FetchResponse(session_id=7))
            assert (await fetch).session_id == 7
            assert peer.connections == 1
            channel.close()

    run_in(loop_name, scenario())


def test_answer_in_tiny_pieces_is_received(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedPeer(PEER_VERSIONS) as peer:
            channel = channel_to(peer.address)
            answer = asyncio.create_task(
                channel.request(MetadataRequest(), MetadataResponse, timeout_s=LONG_S)
            )
            asked = await peer.asked.get()
            header = asked.header
            for byte in response_frame(answer_named("pieces"), header.api_version, header.correlation_id):
                asked.send(bytes([byte]))
                await asked.writer.drain()
                await asyncio.sleep(0)
            assert (await answer).cluster_id == "pieces"
            channel.close()

    run_in(loop_name, scenario())


def test_huge_answer_is_received(loop_name: str) -> None:
    names = [f"topic-{number:06}" for number in range(100_000)]

    async def scenario() -> None:
        async with ScriptedPeer(PEER_VERSIONS) as peer:
            channel = channel_to(peer.address)
            answer = asyncio.create_task(
                channel.request(MetadataRequest(), MetadataResponse, timeout_s=LONG_S)
            )
            topics = [MetadataResponseTopic(name=name) for name in names]
            (await peer.asked.get()).answer(MetadataResponse(topics=topics))
            assert [topic.name for topic in (await answer).topics] == names
            channel.close()

    run_in(loop_name, scenario())


def test_close_in_the_middle_of_an_answer_fails_outstanding_requests(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedPeer(PEER_VERSIONS) as peer:
            channel = channel_to(peer.address)
            outcomes = Outcomes(channel)
            for number in range(3):
                outcomes.call(number)
            first, second, _third = [await peer.asked.get() for _ in range(3)]
            first.answer(answer_named("first"))
            header = second.header
            whole = response_frame(answer_named("second"), header.api_version, header.correlation_id)
            second.send(whole[:-1])
            second.hang_up()
            failed = "failed: the other side closed the connection"
            assert await outcomes.count(3) == [(0, "first"), (1, failed), (2, failed)]
            # The next one finds a new link.
            outcomes.call(3)
            (await peer.asked.get()).answer(answer_named("new link"))
            assert (await outcomes.count(4))[3] == (3, "new link")
            assert peer.connections == 2
            channel.close()

    run_in(loop_name, scenario())


@pytest.mark.parametrize("wrong", ["unknown id", "out of order", "no header", "malformed"])
def test_answer_out_of_order_closes_the_link(loop_name: str, wrong: str) -> None:
    async def scenario() -> None:
        async with ScriptedPeer(PEER_VERSIONS) as peer:
            channel = channel_to(peer.address)
            asking = [
                asyncio.create_task(channel.request(MetadataRequest(), MetadataResponse, timeout_s=LONG_S))
                for _ in range(2)
            ]
            first, second = [await peer.asked.get() for _ in range(2)]
            header = first.header
            match wrong:
                case "unknown id":
                    first.send(response_frame(MetadataResponse(), header.api_version, 1_000_000))
                case "out of order":
                    second.answer(answer_named("second"))
                case "no header":
                    first.send(b"\0\0\0\2ab")
                case "malformed":
                    first.send(b"\0\0\0\6" + header.correlation_id.to_bytes(4, "big") + b"\0\0")
            for result in await asyncio.gather(*asking, return_exceptions=True):
                assert isinstance(result, PeerUnavailable)
                assert str(peer.address) in str(result)
            channel.close()

    run_in(loop_name, scenario())


def test_answer_without_a_request_closes_the_link_only(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedPeer(PEER_VERSIONS) as peer:
            channel = channel_to(peer.address)
            outcomes = Outcomes(channel)
            outcomes.call(0)
            asked = await peer.asked.get()
            asked.answer(answer_named("wanted"))
            asked.answer(answer_named("unwanted"))
            await asked.writer.wait_closed()
            outcomes.call(1)
            (await peer.asked.get()).answer(answer_named("second link"))
            assert await outcomes.count(2) == [(0, "wanted"), (1, "second link")]
            channel.close()

    run_in(loop_name, scenario())


def test_a_request_that_times_out_closes_the_link(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedPeer(PEER_VERSIONS) as peer:
            channel = channel_to(peer.address)
            outcomes = Outcomes(channel)
            outcomes.call(0)
            outcomes.call(1, timeout_s=0.05)
            asked = [await peer.asked.get() for _ in range(2)]
            assert await outcomes.count(2) == [
                (0, "failed: no answer in time"),
                (1, "failed: no answer in time"),
            ]
            # What the peer sends now has no receiver.
            asked[0].answer(answer_named("late"))
            outcomes.call(2)
            (await peer.asked.get()).answer(answer_named("new"))
            assert (await outcomes.count(3))[2] == (2, "new")
            channel.close()

    run_in(loop_name, scenario())


def test_deadline_of_an_answered_request_has_no_effect(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedPeer(PEER_VERSIONS) as peer:
            channel = channel_to(peer.address)
            outcomes = Outcomes(channel)
            outcomes.call(0, timeout_s=LONG_S)
            (await peer.asked.get()).answer(answer_named("in time"))
            await outcomes.count(1)
            outcomes.call(1, timeout_s=1.0)
            outcomes.call(2, timeout_s=LONG_S)
            (await peer.asked.get()).answer(answer_named("in time"))
            await outcomes.count(2)
            waiting = await peer.asked.get()
            deadline_passed = asyncio.Event()
            asyncio.get_running_loop().call_later(1.1, deadline_passed.set)
            await deadline_passed.wait()
            waiting.answer(answer_named("still there"))
            assert (await outcomes.count(3))[2] == (2, "still there")
            assert peer.connections == 1
            channel.close()

    run_in(loop_name, scenario())


def test_request_to_a_silent_peer_times_out(loop_name: str) -> None:
    """A stopped process: its kernel still accepts."""

    async def scenario() -> None:
        async with ScriptedPeer(PEER_VERSIONS, is_silent=True) as peer:
            channel = channel_to(peer.address)
            with pytest.raises(PeerUnavailable, match="no connection in time"):
                await channel.request(MetadataRequest(), MetadataResponse, timeout_s=0.05)
            peer.is_silent = False
            answer = asyncio.create_task(
                channel.request(MetadataRequest(), MetadataResponse, timeout_s=LONG_S)
            )
            (await peer.asked.get()).answer(answer_named("awake"))
            assert (await answer).cluster_id == "awake"
            channel.close()

    run_in(loop_name, scenario())


def test_a_refused_connection_fails_fast_and_the_next_request_waits_for_the_pause(loop_name: str) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        port = unused_port()
        channel = channel_to(Address("127.0.0.1", port))
        pauses_s = []
        for _ in range(4):
            began_s = loop.time()
            with pytest.raises(PeerUnavailable, match=f"127.0.0.1:{port}: Connection refused"):
                await channel.request(MetadataRequest(), MetadataResponse, timeout_s=LONG_S)
            pauses_s.append(loop.time() - began_s)
        # Lower bounds only: the machine may be slow.
        assert pauses_s[1] >= 0.04
        assert pauses_s[2] >= 0.09
        assert pauses_s[3] >= 0.19
        # A request with less time than the pause is not held longer than it asked.
        with pytest.raises(PeerUnavailable, match="no connection in time"):
            await channel.request(MetadataRequest(), MetadataResponse, timeout_s=0.01)
        peer = ScriptedPeer(PEER_VERSIONS)
        await peer.listen(port)
        answer = asyncio.create_task(channel.request(MetadataRequest(), MetadataResponse, timeout_s=LONG_S))
        (await peer.asked.get()).answer(answer_named("up at last"))
        assert (await answer).cluster_id == "up at last"
        channel.close()
        await peer.stop()

    run_in(loop_name, scenario())


def test_the_pause_stops_growing_and_is_forgotten_on_success(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "_BACKOFF_S_MIN", 0.001)
    monkeypatch.setattr(channel_module, "_BACKOFF_S_MAX", 0.004)

    async def scenario() -> None:
        port = unused_port()
        channel = channel_to(Address("127.0.0.1", port))
        pauses_s = []
        for _ in range(5):
            with pytest.raises(PeerUnavailable):
                await channel.request(MetadataRequest(), MetadataResponse, timeout_s=LONG_S)
            pauses_s.append(channel._backoff_s)
        assert pauses_s == [0.001, 0.002, 0.004, 0.004, 0.004]
        peer = ScriptedPeer(PEER_VERSIONS)
        await peer.listen(port)
        channel.call(MetadataRequest(), lambda *_: None, lambda _: None, timeout_s=LONG_S)
        await peer.asked.get()
        assert channel._backoff_s == 0.0
        channel.close()
        await peer.stop()

    run_in(loop_name, scenario())


def test_close_fails_everything_once_and_at_once(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedPeer(PEER_VERSIONS) as peer:
            channel, unconnected = channel_to(peer.address), channel_to(peer.address)
            outcomes, unsent = Outcomes(channel), Outcomes(unconnected)
            outcomes.call(0)
            await peer.asked.get()
            outcomes.call(1)
            unsent.call(0)
            channel.close()
            unconnected.close()
            closed = "failed: the channel is closed"
            assert outcomes.seen == [(0, closed), (1, closed)]
            assert unsent.seen == [(0, closed)]
            channel.close()
            outcomes.call(2)
            assert len(outcomes.seen) == 2
            assert (await outcomes.count(3))[2] == (2, closed)

    run_in(loop_name, scenario())


def test_callback_that_raises_closes_the_link_but_not_the_channel(
    loop_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with ScriptedPeer(PEER_VERSIONS) as peer:
            channel = channel_to(peer.address)
            outcomes = Outcomes(channel)

            def broken(*_: object) -> None:
                raise RuntimeError("a bug")

            channel.call(MetadataRequest(), broken, pytest.fail, timeout_s=LONG_S)
            channel.call(MetadataRequest(), unexpected, broken, timeout_s=LONG_S)
            outcomes.call(2)
            first, _second, _third = [await peer.asked.get() for _ in range(3)]
            first.answer(answer_named("first"))
            assert "could not be taken" in (await outcomes.count(1))[0][1]
            outcomes.call(3)
            (await peer.asked.get()).answer(answer_named("goes on"))
            assert (await outcomes.count(2))[1] == (3, "goes on")
            channel.close()

    with caplog.at_level(logging.ERROR):
        run_in(loop_name, scenario())
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
    assert "a bug" in caplog.text


def test_failed_request_may_be_repeated_from_its_callback(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedPeer(PEER_VERSIONS) as peer:
            channel = channel_to(peer.address)
            outcomes = Outcomes(channel)
            channel.call(MetadataRequest(), unexpected, lambda _: outcomes.call(1), timeout_s=LONG_S)
            (await peer.asked.get()).hang_up()
            (await peer.asked.get()).answer(answer_named("again"))
            assert await outcomes.count(1) == [(1, "again")]
            channel.close()

    run_in(loop_name, scenario())


def test_a_cancelled_request_does_not_disturb_the_next(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedPeer(PEER_VERSIONS) as peer:
            channel = channel_to(peer.address)
            asking = [
                asyncio.create_task(channel.request(MetadataRequest(), MetadataResponse, timeout_s=LONG_S))
                for _ in range(2)
            ]
            asked = [await peer.asked.get() for _ in range(2)]
            asking[0].cancel()
            for each in asked:
                each.answer(answer_named("answer"))
            assert (await asking[1]).cluster_id == "answer"
            assert asking[0].cancelled()
            channel.close()

    run_in(loop_name, scenario())


def test_channels_are_one_for_each_peer_and_purpose(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedPeer(PEER_VERSIONS) as peer:
            loop = asyncio.get_running_loop()
            channels = Channels(SocketNetwork(loop), loop, client_id="node-1", frame_bytes_max=1000)
            channel = channels.to(peer.address)
            assert channels.to(Address("127.0.0.1", peer.address.port)) is channel
            assert channels.to(peer.address, "fetch") is not channel
            assert channels.to(Address("127.0.0.2", peer.address.port)) is not channel
            answer = asyncio.create_task(
                channel.request(MetadataRequest(), MetadataResponse, timeout_s=LONG_S)
            )
            await peer.asked.get()
            channels.close()
            with pytest.raises(PeerUnavailable, match="closed"):
                await answer
            with pytest.raises(PeerUnavailable, match="closed"):
                await channels.to(peer.address, "later").request(
                    MetadataRequest(), MetadataResponse, timeout_s=LONG_S
                )

    run_in(loop_name, scenario())


def test_a_real_broker_answers(loop_name: str, target: RunningBroker) -> None:
    async def scenario() -> None:
        channel = channel_to(Address(target.host, target.port))
        answers = await asyncio.gather(
            *(channel.request(MetadataRequest(), MetadataResponse, timeout_s=LONG_S) for _ in range(20))
        )
        ports = {broker.port for answer in answers for broker in answer.brokers}
        assert ports == {target.port}
        channel.close()

    run_in(loop_name, scenario())
