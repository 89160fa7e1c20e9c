"""The metadata as this node knows it, and the controller, wherever it is.

Follows the quorum: committed records become the next image, and `on_change` gets the delta. While this node's quorum
replica is the active leader, the controller's machine lives here, built from the committed image and run by `runtime.py`
over the Raft log. A new leadership has a new machine and a new runtime: when it ends, every request that waits gets
NOT_CONTROLLER, and its records may be committed or not.

`ask` is how the rest of the broker reaches the controller: here, or on another node. Requests of clients travel in an
envelope, whose own error tells a controller that is not active from an answer.

Deadlines of the controller run on a clock that cannot jump.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.broker.machine_host import DeadlineTimer, Requests
from tidemill.broker.net.channel import Channels, PeerUnavailable
from tidemill.broker.net.network import Address
from tidemill.broker.platform import Platform
from tidemill.config import BrokerConfig
from tidemill.controller.controller import DECIDES, BeginCluster, Controller, ControllerCall
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.difference import difference
from tidemill.controller.image import MetadataImage
from tidemill.controller.records import Record, decode_record, encode_record, image_records
from tidemill.errors import ApiError, ErrorCode, ProtocolError, StorageError
from tidemill.machine import Writer
from tidemill.protocol import api as apis
from tidemill.protocol.api.brokers import BrokerHeartbeatRequest, EnvelopeRequest, EnvelopeResponse
from tidemill.protocol.frames import LENGTH_BYTES, parse_response, request_frame
from tidemill.protocol.schema import Request, Response
from tidemill.runtime import MachineRuntime
from tidemill.types import uuid_text

if TYPE_CHECKING:
    from tidemill.broker.quorum.quorum import Quorum

logger = logging.getLogger(__name__)

_SNAPSHOT_AFTER_RECORDS = 20_000
_ASK_TIMEOUT_S = 30.0
_ATTEMPT_TIMEOUT_S = 10.0
_RETRY_S = 0.05

OnChange = Callable[[MetadataDelta, MetadataImage], None]


class RaftLog:
    """The metadata log as the controller's runtime appends to it."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum

    def append(self, records: Sequence[bytes], steady_ms: int, writer: Writer | None = None) -> int:  # noqa: ARG002
        """The replica stamps its batches with the wall clock; `steady_ms` is of the steady one."""
        assert writer is None, "the metadata log has no transactions of producers"
        return self._quorum.append(records)


class ControllerDriver:
    """A `QuorumListener`."""

    def __init__(
        self,
        config: BrokerConfig,
        platform: Platform,
        channels: Channels,
        new_uuid: Callable[[], bytes],
        on_change: OnChange,
        on_fatal: Callable[[str], None],
    ) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._clock = platform.clock
        self._channels = channels
        self._new_uuid = new_uuid
        self._on_change = on_change
        self._on_fatal = on_fatal
        self._quorum: Quorum | None = None
        # The active controller, None while another node has it.
        self._controller: MachineRuntime[Record, bytes] | None = None
        self._requests = Requests()
        self._timer = DeadlineTimer(self._clock, self._tick)
        self._first_cluster_id = ""
        self._changed = asyncio.Event()
        self._is_writing_snapshot = False
        self._is_stopping = False
        self.image = MetadataImage("")
        # Everything before this offset is in the image; control records count, though they are nowhere in it.
        self.end_offset = 0

    def drive(self, quorum: Quorum, cluster_id: str | None) -> None:
        """`cluster_id` is what a first controller writes when the metadata has none."""
        self._quorum = quorum
        self._first_cluster_id = cluster_id or ""

    @property
    def quorum(self) -> Quorum:
        assert self._quorum is not None
        return self._quorum

    @property
    def is_active(self) -> bool:
        return self._controller is not None

    # -- following the quorum --------------------------------------------------------------------------------

    def restart_from(self, records: Iterable[bytes], end_offset: int, epoch: int) -> None:  # noqa: ARG002
        """A snapshot takes the place of whatever was known."""
        delta = MetadataDelta(MetadataImage(""))
        for value in records:
            # A snapshot has no offsets of its own: all of it lies before its end.
            self._replay(delta, value, end_offset - 1)
        image = delta.apply()
        change = difference(self.image, image)
        self.image = image
        self._moved(end_offset, change)

    def committed(self, records: Sequence[tuple[int, bytes]], end_offset: int) -> None:
        delta = MetadataDelta(self.image)
        for offset, value in records:
            self._replay(delta, value, offset)
        self.image = delta.apply()
        self._moved(end_offset, delta)
        self._snapshot_if_due()

    def _replay(self, delta: MetadataDelta, value: bytes, offset: int) -> None:
        try:
            delta.replay(decode_record(value), offset)
        except (ProtocolError, ValueError, KeyError, AssertionError) as error:
            raise StorageError(f"the metadata record at offset {offset} is damaged: {error}") from error

    def _moved(self, end_offset: int, delta: MetadataDelta) -> None:
        self.end_offset = end_offset
        if not delta.is_empty:
            self._on_change(delta, self.image)
        self._notify()
        if self._controller is not None:
            self._controller.committed(end_offset)

    def metadata_known_ms(self) -> int:
        """The last time up to which every committed record is known here."""
        return self.quorum.known_ms

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Returns when the condition holds; it is checked whenever the metadata or the controller has changed."""
        while not condition():
            await self._changed.wait()

    def leader_changed(self, epoch: int, leader_id: int | None) -> None:
        if leader_id is None:
            logger.info("no controller is known in epoch %d", epoch)
        else:
            logger.info("node %d is the controller of epoch %d", leader_id, epoch)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def activated(self, epoch: int) -> None:
        logger.info("this node is the active controller in epoch %d", epoch)
        runtime = self._controller = MachineRuntime(
            Controller(self._config, self.image, self._new_uuid),
            RaftLog(self.quorum),
            self._requests.respond,
            until_loaded=ErrorCode.NOT_CONTROLLER,
        )
        runtime.loaded(self.end_offset, self.end_offset, self._clock.steady_ms())
        cluster_id = self._first_cluster_id or uuid_text(self._new_uuid())
        self._requests.tell(lambda token: self._handle(runtime, BeginCluster(cluster_id), token))
        self._notify()

    def resigned(self, epoch: int) -> None:
        logger.info("this node is no longer the controller of epoch %d", epoch)
        self._timer.cancel()
        controller, self._controller = self._controller, None
        if controller is not None:
            controller.fail(ErrorCode.NOT_CONTROLLER)

    # -- deciding --------------------------------------------------------------------------------------------

    async def decide(self, request: Request, version: int) -> Response:
        """Returns the active controller's answer once it is committed; NOT_CONTROLLER when another node has it."""
        controller = self._controller
        if controller is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        call = ControllerCall(request, version, self.quorum.log_end_offset)
        answer = self._requests.ask(lambda token: self._handle(controller, call, token))
        response: Response = await answer if isinstance(answer, asyncio.Future) else answer
        return response

    def _handle(self, controller: MachineRuntime[Record, bytes], request: Any, token: int) -> None:
        controller.handle(request, token, self._clock.steady_ms())
        self._timer.schedule(controller.deadline_ms)

    def _tick(self) -> None:
        if self._controller is not None:
            self._controller.tick(self._clock.steady_ms())
        # The tick may have ended the leadership.
        if self._controller is not None:
            self._timer.schedule(self._controller.deadline_ms)

    # -- asking ----------------------------------------------------------------------------------------------

    async def ask(
        self, request: Request, version: int | None = None, *, timeout_s: float = _ASK_TIMEOUT_S
    ) -> Response:
        """Returns the controller's answer, from this node or another; tries the next controller while there is time."""
        deadline_s = self._loop.time() + timeout_s
        is_decided = type(request) in DECIDES
        while True:
            left_s = deadline_s - self._loop.time()
            if left_s <= 0 or self._is_stopping:
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "no active controller answered in time")
            try:
                if self.quorum.leader_id == self._config.node_id:
                    async with asyncio.timeout(left_s):
                        if not is_decided:
                            return await self.quorum.answer(request)
                        asked = type(request).versions.max if version is None else version
                        return await self.decide(request, asked)
                address = self.quorum.leader_address()
                if address is not None:
                    return await self._send(address, request, version, min(left_s, _ATTEMPT_TIMEOUT_S))
            except (PeerUnavailable, TimeoutError) as error:
                logger.debug("the controller did not answer: %s", error)
            except ApiError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
            await asyncio.sleep(min(_RETRY_S, max(0.0, deadline_s - self._loop.time())))

    async def _send(
        self, address: Address, request: Request, version: int | None, timeout_s: float
    ) -> Response:
        # Answers come in the order of the requests: a session must not end behind a slow one.
        purpose = "heartbeats" if isinstance(request, BrokerHeartbeatRequest) else "controller"
        channel = self._channels.to(address, purpose)
        response_type = apis.RESPONSES[request.api_key]
        if version is None or hasattr(response_type(), "error_code"):
            response: Response = await channel.request(request, response_type, timeout_s=timeout_s)
            if getattr(response, "error_code", 0) == ErrorCode.NOT_CONTROLLER:
                raise ApiError(ErrorCode.NOT_CONTROLLER)
            return response
        frame = request_frame(request, version, 0, "")
        envelope = EnvelopeRequest(request_data=bytes(frame[LENGTH_BYTES:]), request_principal=b"")
        answer = await channel.request(envelope, EnvelopeResponse, timeout_s=timeout_s)
        if answer.error_code or answer.response_data is None:
            raise ApiError(ErrorCode(answer.error_code or ErrorCode.UNKNOWN_SERVER_ERROR))
        return parse_response(response_type, version, memoryview(answer.response_data))[1]

    # -- snapshots -------------------------------------------------------------------------------------------

    def _snapshot_if_due(self) -> None:
        count = self.quorum.records_since_snapshot
        if count < _SNAPSHOT_AFTER_RECORDS or self._is_writing_snapshot:
            return
        image = self.image
        entries = sum(len(topic.partitions) for topic in image.topics_by_id.values())
        if count < 2 * entries:
            return
        self._is_writing_snapshot = True
        task = self._loop.create_task(self._write_snapshot(image, self.end_offset))
        task.add_done_callback(self._snapshot_written)

    async def _write_snapshot(self, image: MetadataImage, end_offset: int) -> None:
        await self.quorum.write_snapshot(
            (encode_record(record) for record in image_records(image)), end_offset
        )

    def _snapshot_written(self, task: asyncio.Task[None]) -> None:
        self._is_writing_snapshot = False
        if not task.cancelled() and task.exception() is not None:
            logger.error(
                "cannot write a snapshot of the metadata; the log is kept until one is written: %s",
                task.exception(),
            )

    def stop_asking(self) -> None:
        """The node stops: requests that wait for a controller fail with REQUEST_TIMED_OUT."""
        self._is_stopping = True

    def close(self) -> None:
        if self._controller is not None:
            self.resigned(self.quorum.epoch)
