"""A node: makes the parts, hands them to each other, starts and stops them in order. It decides nothing.

Start: lock the data directory, replay the metadata, bind the ports, register this broker, open its partitions, and only
then accept: a client that dials early waits in the kernel's backlog. Stop: the reverse, and the mark of a clean shutdown
is written last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tidemill.broker import handlers
from tidemill.broker.cleaning_process import clean_in_process
from tidemill.broker.clock import Clock, SystemClock
from tidemill.broker.compaction import Compactor
from tidemill.broker.context import Broker
from tidemill.broker.coordinators import GroupCoordinators
from tidemill.broker.dispatch import Dispatcher
from tidemill.broker.driver import METADATA_FOLDER, ControllerDriver
from tidemill.broker.producer_ids import ProducerIds
from tidemill.broker.replicas import Replicas
from tidemill.broker.server import Server, ServerLimits
from tidemill.broker.sessions import FetchSessions
from tidemill.broker.syncer import Syncer
from tidemill.config import BrokerConfig, Listener
from tidemill.controller.controller import Controller
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage
from tidemill.errors import ConfigError, StorageError
from tidemill.log.datadir import DataDir, Identity
from tidemill.log.files import DiskFiles, Files
from tidemill.protocol.api import brokers as registration
from tidemill.types import TopicPartition, uuid_text

logger = logging.getLogger(__name__)

_BLOCKING_THREADS = 8
_SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
_METADATA_PARTITION = TopicPartition("__cluster_metadata", 0)

assert handlers  # importing them fills the dispatch table


class Node:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.config = config
        self._files = files or DiskFiles()
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._pool = ThreadPoolExecutor(_BLOCKING_THREADS, thread_name_prefix="tidemill-disk")
        self._stopped = asyncio.Event()
        self.failure: str | None = None
        self.addresses: list[tuple[Listener, int]] = []

    # -- starting --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        config = self.config
        data_dir = self._data_dir = self._open_data_dir()
        identity = self._identity(data_dir)
        syncer = Syncer(self._run_blocking, self._clock.now_ms)
        replicas = self._replicas = Replicas(
            config, self._files, data_dir, self._clock, syncer, self._run_blocking
        )
        driver = self._driver = ControllerDriver(
            Controller(identity.cluster_id, config),
            self._files,
            f"{data_dir.path}/{METADATA_FOLDER}",
            syncer,
            self._clock,
            is_clean=data_dir.was_clean,
            recovery_point=data_dir.recovery_points.get(_METADATA_PARTITION, 0),
            on_change=self._follow,
            on_fatal=self._fail,
        )
        self._groups = GroupCoordinators(
            config, self._clock, replicas, driver, syncer, self._new_uuid, uuid_text
        )
        broker = self.broker = Broker(
            config=config,
            loop=loop,
            clock=self._clock,
            controller=driver,
            replicas=replicas,
            fetch_sessions=FetchSessions(
                config.fetch.max_incremental_fetch_session_cache_slots,
                lambda: self._rng.randrange(1, 1 << 31),
            ),
            syncer=syncer,
            producer_ids=ProducerIds(self._allocate_producer_ids),
            groups=self._groups,
            data_dir=data_dir,
            new_uuid=self._new_uuid,
        )
        self._dispatcher = Dispatcher(broker)
        self._server = Server(loop, self._dispatcher.dispatch, _limits(config))
        self.addresses = [
            (listener, self._server.bind(listener.name, listener.host, listener.port))
            for listener in config.network.listeners
        ]
        data_dir.mark_in_use()
        await self._register(identity)
        driver.write_snapshot_if_due()
        replicas.load(driver.image)
        replicas.start()
        self._compactor = Compactor(
            config,
            self._files,
            data_dir,
            self._clock,
            replicas.partitions,
            self._run_blocking,
            clean_in_process if isinstance(self._files, DiskFiles) else None,
        )
        self._compactor.start()
        self._groups.load(driver.image)
        self._server.start_accepting()

    def _follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Each committed change of the metadata, once the partitions are open."""
        if self._replicas.image is not None:
            self._replicas.apply(delta, image)
            self._groups.apply(delta, image)

    def _open_data_dir(self) -> DataDir:
        folders = self.config.storage.log_dirs
        if len(folders) != 1:
            raise ConfigError(f"log.dirs names {len(folders)} directories ({', '.join(folders)}); use one")
        return DataDir(self._files, folders[0], os.getpid())

    def _identity(self, data_dir: DataDir) -> Identity:
        found = data_dir.identity()
        identity = Identity(
            found.cluster_id if found else uuid_text(self._new_uuid()),
            self.config.node_id,
            found.directory_id if found else uuid_text(self._new_uuid()),
        )
        try:
            data_dir.claim(identity)
        except OSError as error:
            raise StorageError(f"cannot write to {data_dir.path}: {error.strerror or error}") from error
        return identity

    def _new_uuid(self) -> bytes:
        return uuid.UUID(int=self._rng.getrandbits(128), version=4).bytes

    async def _register(self, identity: Identity) -> None:
        request = registration.BrokerRegistrationRequest(
            broker_id=self.config.node_id,
            cluster_id=identity.cluster_id,
            incarnation_id=self._new_uuid(),
            listeners=self._advertised(),
            rack=self.config.rack,
        )
        now_ms = self._clock.now_ms()
        reply = await self._driver.submit(lambda controller: controller.register_broker(request, now_ms))
        heartbeat = registration.BrokerHeartbeatRequest(
            broker_id=self.config.node_id,
            broker_epoch=reply.broker_epoch,
            current_metadata_offset=reply.broker_epoch,
        )
        await self._driver.submit(lambda controller: controller.heartbeat(heartbeat, now_ms))

    def _advertised(self) -> list[registration.Listener]:
        """What other nodes and clients are told; the bound address where nothing is advertised."""
        advertised = {listener.name: listener for listener in self.config.network.advertised_listeners}
        endpoints = []
        for bound, port in self.addresses:
            shown = advertised.get(bound.name)
            endpoints.append(
                registration.Listener(
                    name=bound.name,
                    host=shown.host if shown else bound.host or "localhost",
                    port=shown.port if shown and shown.port else port,
                    security_protocol=_SECURITY_PROTOCOLS[bound.security_protocol],
                )
            )
        return endpoints

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        broker = self._driver.image.brokers[self.config.node_id]
        request = registration.AllocateProducerIdsRequest(broker_id=broker.id, broker_epoch=broker.epoch)
        reply = await self._driver.submit(lambda controller: controller.allocate_producer_ids(request))
        return reply.producer_id_start, reply.producer_id_len

    def _run_blocking(self, function: Callable[[], Any]) -> Awaitable[Any]:
        return asyncio.get_running_loop().run_in_executor(self._pool, function)

    # -- stopping --------------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        self._stopped.set()

    def _fail(self, reason: str) -> None:
        logger.critical("stopping: %s", reason)
        self.failure = reason
        self._stopped.set()

    async def wait_until_stopped(self) -> None:
        await self._stopped.wait()

    async def stop(self) -> None:
        """Answer what is under way, close everything, and mark the directory clean."""
        self._server.stop_listening()
        await self._dispatcher.drain()
        self._server.close()
        self._groups.close()
        await self._compactor.stop()
        is_clean = await self._replicas.close()
        self._driver.close()
        if is_clean and self.failure is None:
            self._data_dir.mark_clean()
        self._data_dir.unlock()
        self._pool.shutdown()


def _limits(config: BrokerConfig) -> ServerLimits:
    network = config.network
    return ServerLimits(
        frame_bytes_max=network.socket_request_max_bytes,
        connections_max=network.max_connections,
        connections_per_ip_max=network.max_connections_per_ip,
        idle_ms_max=network.connections_max_idle_ms,
        send_buffer_bytes=network.socket_send_buffer_bytes,
        receive_buffer_bytes=network.socket_receive_buffer_bytes,
        backlog=network.socket_listen_backlog_size,
    )
