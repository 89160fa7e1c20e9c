"""This broker's membership of the cluster: it registers, sends heartbeats, and takes its leave.

A registration begins a broker epoch. The broker requests to be unfenced with its heartbeats, which also say how far it
follows the metadata. The controller lets it lead and be in sync once it knows everything up to its own registration.
From then on a heartbeat every `broker.heartbeat.interval.ms` keeps its session. A broker whose id another process has
registered since, or which was removed from the cluster, stops.

A controlled shutdown repeats its request until the controller has moved every leadership away, or no controller answers.

A registration says whether the logs are whole: it names the broker's last epoch, if that ended with a clean shutdown, or
if only the process died (`LastRegistration`). Otherwise the controller takes the broker out of every ISR and ELR first.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

from tidemill.broker.quorum.driver import ControllerDriver
from tidemill.config import BrokerConfig
from tidemill.errors import ApiError, ConfigError, ErrorCode
from tidemill.log.datadir import Identity
from tidemill.log.files import Files
from tidemill.protocol.api.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Listener,
)
from tidemill.types import uuid_bytes

logger = logging.getLogger(__name__)

_REGISTRATION_RETRY_S = 0.1
_SHUTDOWN_POLL_S = 0.05
_SHUTDOWN_S_MAX = 30.0
# The errors for a broker whose epoch is not, or no longer, the one that the controller knows.
_GONE = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)
_LAST_REGISTRATION = ".tidemill_registration"


class LastRegistration:
    """The broker epoch in which this broker last served, and the boot of its machine at that time.

    What a process has written stays in the page cache when it dies; only the end of the machine takes away what was not
    synced. A broker that comes back in the same boot has therefore lost nothing. A disk that failed proves the
    contrary: then the registration is forgotten.
    """

    def __init__(self, files: Files, folder: str, boot_id: str | None) -> None:
        self._files = files
        self._path = f"{folder}/{_LAST_REGISTRATION}"
        self._boot_id = boot_id

    def epoch(self) -> int:
        """-1 when it is not known, or when the machine was started again since."""
        try:
            fields = json.loads(self._files.read(self._path))
            return int(fields["brokerEpoch"]) if fields["bootId"] == self._boot_id is not None else -1
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    def remember(self, broker_epoch: int) -> None:
        """Before anything is written under this registration. An older epoch left behind proves nothing."""
        fields = {"version": 0, "brokerEpoch": broker_epoch, "bootId": self._boot_id}
        try:
            self._files.replace(self._path, json.dumps(fields).encode())
        except OSError as error:
            logger.warning("cannot write %s: %s", self._path, error.strerror or error)

    def forget(self) -> None:
        try:
            if self._files.exists(self._path):
                self._files.remove(self._path)
        except OSError as error:
            logger.error("cannot remove %s: %s", self._path, error.strerror or error)


class Lifecycle:
    def __init__(
        self,
        config: BrokerConfig,
        driver: ControllerDriver,
        new_uuid: Callable[[], bytes],
        on_fatal: Callable[[str], None],
    ) -> None:
        self._config = config
        self._driver = driver
        self._new_uuid = new_uuid
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._heartbeats: asyncio.Task[None] | None = None
        self._unfenced = asyncio.Event()
        self.broker_epoch = -1

    # -- joining ---------------------------------------------------------------------------------------------

    async def register(self, identity: Identity, listeners: list[Listener], previous_epoch: int) -> None:
        """Returns when the registration is committed and known here. Gives up after the configured time."""
        request = BrokerRegistrationRequest(
            broker_id=self._config.node_id,
            cluster_id=identity.cluster_id or "",
            incarnation_id=self._new_uuid(),
            listeners=listeners,
            rack=self._config.rack,
            log_dirs=[uuid_bytes(identity.directory_id)],
            previous_broker_epoch=previous_epoch,
        )
        deadline_s = self._loop.time() + self._config.membership.registration_timeout_ms / 1000
        reason = "no controller answered"
        while self._loop.time() < deadline_s:
            try:
                response = await self._driver.ask(request, timeout_s=deadline_s - self._loop.time())
            except ApiError as error:
                reason = str(error)
                # The controller may be this node, and refuse at once: its disk is full.
                await asyncio.sleep(_REGISTRATION_RETRY_S)
                continue
            assert isinstance(response, BrokerRegistrationResponse)
            code = ErrorCode(response.error_code)
            if code is ErrorCode.NONE:
                self.broker_epoch = response.broker_epoch
                await self._driver.wait_for(lambda: self._driver.end_offset > self.broker_epoch)
                return
            reason = f"{code.name}: {code.message}"
            if code is ErrorCode.INCONSISTENT_CLUSTER_ID:
                break
            if code is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                reason = f"another broker with node.id {self._config.node_id} is alive"
            await asyncio.sleep(_REGISTRATION_RETRY_S)
        raise ConfigError(f"the controller did not register this broker: {reason}")

    def start(self) -> None:
        self._heartbeats = self._loop.create_task(self._send_heartbeats())
        self._heartbeats.add_done_callback(self._heartbeats_ended)

    def _heartbeats_ended(self, task: asyncio.Task[None]) -> None:
        """A broker without heartbeats is fenced for ever while it looks alive (failure 26)."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("sending heartbeats to the controller failed; this broker stops", exc_info=error)
            self._on_fatal(f"the heartbeats failed: {error!r}")

    async def until_unfenced(self) -> None:
        await self._unfenced.wait()

    async def _send_heartbeats(self) -> None:
        interval_s = self._config.membership.heartbeat_interval_ms / 1000
        while True:
            started_s = self._loop.time()
            answer = await self._heartbeat(interval_s)
            if answer is not None and not answer.is_fenced:
                self._unfenced.set()
                await asyncio.sleep(max(0.0, interval_s - (self._loop.time() - started_s)))
            else:
                # Fenced: the next one goes out as soon as the metadata that is still missing may be here.
                await asyncio.sleep(min(interval_s, _REGISTRATION_RETRY_S))

    async def _heartbeat(
        self, timeout_s: float, *, wants_shut_down: bool = False
    ) -> BrokerHeartbeatResponse | None:
        request = BrokerHeartbeatRequest(
            broker_id=self._config.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._driver.end_offset - 1,
            want_fence=False,
            want_shut_down=wants_shut_down,
        )
        try:
            response = await self._driver.ask(request, timeout_s=timeout_s)
        except ApiError as error:
            logger.debug("no answer to a heartbeat: %s", error)
            return None
        assert isinstance(response, BrokerHeartbeatResponse)
        code = ErrorCode(response.error_code)
        if code in _GONE:
            self._on_fatal(
                f"the controller does not know this broker's registration any more ({code.name}): another broker "
                f"has node.id {self._config.node_id}, or the broker was removed from the cluster"
            )
        return None if code else response

    # -- leaving ---------------------------------------------------------------------------------------------

    async def shut_down(self) -> None:
        """Give every leadership away, as long as there is a replica to take it and a controller to decide it."""
        if self._heartbeats is None:
            return
        self._heartbeats.cancel()
        others = [
            broker
            for broker in self._driver.image.brokers.values()
            if broker.is_active and broker.id != self._config.node_id
        ]
        if not others or not self._config.membership.controlled_shutdown_enable:
            return
        deadline_s = self._loop.time() + _SHUTDOWN_S_MAX
        while self._loop.time() < deadline_s:
            answer = await self._heartbeat(
                self._config.membership.heartbeat_interval_ms / 1000, wants_shut_down=True
            )
            if answer is None or answer.should_shut_down:
                return
            await asyncio.sleep(_SHUTDOWN_POLL_S)

    def close(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
