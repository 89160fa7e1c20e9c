"""A node: makes the parts, hands them to each other, starts and stops them in order. It decides nothing.

Start: lock the data directory, bind the ports, follow the quorum, and as a broker: register, open the partitions that the
metadata names, be unfenced, and only then accept clients. One that dials early waits in the kernel's backlog; other
controllers are served at once, since without them there may be no quorum. Stop: give the leaderships away, then the reverse,
and the mark of a clean shutdown is written last.
"""

from __future__ import annotations

import asyncio
import logging
import uuid

from tidemill.broker.coordinators.groups import GroupCoordinators
from tidemill.broker.coordinators.latest_offsets import LatestOffsets
from tidemill.broker.coordinators.marker_writer import MarkerWriter
from tidemill.broker.coordinators.producer_ids import ProducerIds
from tidemill.broker.coordinators.share_group_states import ShareGroupStates
from tidemill.broker.coordinators.share_state import ShareCoordinators
from tidemill.broker.coordinators.share_state_client import ShareStateClient
from tidemill.broker.coordinators.transactions import TransactionCoordinators
from tidemill.broker.coordinators.verification import Verification
from tidemill.broker.disk.cleaning_process import clean_in_process, index_in_process
from tidemill.broker.disk.syncer import Syncer
from tidemill.broker.dynamic_config import DynamicBrokerConfig
from tidemill.broker.metadata_publisher import MetadataPublisher
from tidemill.broker.net.channel import Channels
from tidemill.broker.net.connection_quotas import server_limits
from tidemill.broker.net.link_security import link_security, tls_contexts
from tidemill.broker.net.network import ServerLimits
from tidemill.broker.partitions.replicas import Replicas
from tidemill.broker.partitions.upkeep.compaction import Compactor
from tidemill.broker.partitions.upkeep.tag_indexing import TagIndexer
from tidemill.broker.platform import Platform, real_platform
from tidemill.broker.quorum.driver import ControllerDriver
from tidemill.broker.quorum.lifecycle import LastRegistration, Lifecycle
from tidemill.broker.quorum.quorum import Quorum
from tidemill.broker.requests import handlers
from tidemill.broker.requests.api_table import Scope
from tidemill.broker.requests.client_metrics import ClientMetrics
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.dispatch import Dispatcher
from tidemill.broker.requests.fetch_sessions import FetchSessions
from tidemill.broker.requests.security.entrances import Entrances
from tidemill.broker.requests.topic_creation import TopicCreation
from tidemill.broker.share.partitions import SharePartitions
from tidemill.config import BrokerConfig, Listener
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage
from tidemill.coordinator.shard import Caller
from tidemill.errors import ApiError, ConfigError, ErrorCode, StorageError
from tidemill.log.datadir import DataDir, Identity
from tidemill.log.files import DiskFiles
from tidemill.protocol.api import brokers as registration
from tidemill.protocol.api.transactions import AddPartitionsToTxnRequest
from tidemill.security.scram import ScramCredential, ScramMechanism
from tidemill.types import uuid_bytes, uuid_text

logger = logging.getLogger(__name__)

# A response of another node: what one fetch may return, and room for its headers.
_PEER_FRAME_BYTES_MAX = 128 << 20
_DRAIN_S_MAX = 5.0
_EVERY_INTERFACE = ("", "0.0.0.0", "::")
_SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}

assert handlers  # importing them fills the dispatch table


class Node:
    def __init__(self, config: BrokerConfig, platform: Platform | None = None) -> None:
        self.config = config
        self._platform = platform or real_platform()
        self._stopped = asyncio.Event()
        self.failure: str | None = None
        # Every listener with the port that it really has.
        self.addresses: list[tuple[Listener, int]] = []

    # -- starting --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when the node serves; before that when it is to stop, since others may keep it waiting."""
        starting = asyncio.ensure_future(self._start())
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            starting.cancel()
        await asyncio.wait((starting,))
        if not starting.cancelled():
            starting.result()

    @property
    def is_stopping(self) -> bool:
        return self._stopped.is_set()

    async def _start(self) -> None:
        self._tls = tls_contexts(self.config)
        self._data_dir = self._open_data_dir()
        identity = self._identity()
        self._make_parts()
        self._make_dynamic_config()
        self._bind()
        self._data_dir.mark_in_use()
        for listener in self.config.network.controller_listeners:
            self._listening.start_accepting(listener.name)
        self._quorum = self._make_quorum(identity)
        self.broker.quorum = self._quorum
        self._driver.drive(self._quorum, identity.cluster_id)
        await self._quorum.start()
        identity = await self._join_cluster(identity)
        if self.config.is_broker:
            await self._join_as_broker(identity)

    def _make_parts(self) -> None:
        config, platform, data_dir = self.config, self._platform, self._data_dir
        network = config.network
        self._channels = self._make_channels(network.inter_broker_listener_name)
        # Without a listener for controllers these are reached as brokers are.
        controller_names = network.controller_listener_names or (network.inter_broker_listener_name,)
        self._controller_channels = self._make_channels(controller_names[0])
        syncer = self._syncer = Syncer(platform.run_blocking, platform.clock.wall_ms)
        driver = self._driver = ControllerDriver(
            config,
            platform,
            self._controller_channels,
            self._new_uuid,
            self._image_changed,
            self._fail,
        )
        self._lifecycle = Lifecycle(config, driver, self._new_uuid, self._fail)
        last_registration = LastRegistration(platform.files, data_dir.path, platform.boot_id)
        self._last_registration = last_registration
        replicas = self._replicas = Replicas(
            config,
            platform,
            data_dir,
            syncer,
            driver.ask,
            self._channels,
            lambda: self._lifecycle.broker_epoch,
            driver.metadata_known_ms,
            self._fail,
            last_registration.forget,
        )
        self._producer_ids = ProducerIds(self._allocate_producer_ids)
        self._make_coordinators()
        self._publisher = MetadataPublisher(replicas, self._coordinator_runtimes)
        self._compactor = Compactor(
            config,
            platform.files,
            data_dir,
            platform.clock,
            replicas.partitions,
            platform.run_blocking,
            clean_in_process if isinstance(platform.files, DiskFiles) else None,
        )
        self._tag_indexer = TagIndexer(
            platform.files,
            replicas.sources_of_views,
            platform.run_blocking,
            index_in_process if isinstance(platform.files, DiskFiles) else None,
        )
        self.broker = Broker(
            config=config,
            loop=asyncio.get_running_loop(),
            clock=platform.clock,
            controller=driver,
            replicas=replicas,
            fetch_sessions=FetchSessions(
                config.fetch.max_incremental_fetch_session_cache_slots,
                lambda: platform.rng.randrange(1, 1 << 31),
            ),
            syncer=syncer,
            producer_ids=self._producer_ids,
            groups=self._groups,
            transactions=self._transactions,
            share_coordinators=self._share_coordinators,
            share_state=self._share_state,
            verification=self._verification,
            marker_writer=self._marker_writer,
            latest_offsets=LatestOffsets(
                config.node_id, self._channels, lambda: driver.image, replicas.address_of, replicas
            ),
            data_dir=data_dir,
            topic_creation=self._topic_creation,
            client_metrics=ClientMetrics(
                lambda: driver.image, replicas.steady_ms, config.network.telemetry_max_bytes
            ),
            share=self._share_partitions,
            new_uuid=self._new_uuid,
            metrics=replicas.metrics,
        )

    def _make_dynamic_config(self) -> None:
        self._dynamic_config = DynamicBrokerConfig(
            self.config,
            (
                lambda current: self._listening.configure(self._limits(current)),
                *self._replicas.reconfigurables,
                self._compactor.reconfigure,
                self._verification.reconfigure,
                self._groups.reconfigure,
            ),
        )

    def _image_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.broker.follow_security(image)
        self._dynamic_config.follow(image)
        self._publisher.publish(delta, image)

    def _make_channels(self, listener_name: str) -> Channels:
        """To other nodes, at their listener of that name."""
        platform = self._platform
        return Channels(
            platform.network,
            asyncio.get_running_loop(),
            client_id=f"node-{self.config.node_id}",
            frame_bytes_max=_PEER_FRAME_BYTES_MAX,
            security=link_security(
                listener_name,
                self.config.security.listeners,
                self._tls,
                platform.run_blocking,
                self._new_nonce,
            ),
        )

    def _make_coordinators(self) -> None:
        config, replicas, driver = self.config, self._replicas, self._driver
        clock = self._platform.clock
        self._share_coordinators = ShareCoordinators(config, clock, replicas, driver)
        self._share_state = ShareStateClient(
            config, self._channels, replicas.address_of, self._share_coordinators
        )
        share_states = ShareGroupStates(self._share_state)
        self._groups = GroupCoordinators(
            config, clock, replicas, driver, self._new_uuid, uuid_text, share_states
        )
        self._marker_writer = MarkerWriter(replicas, self._groups, clock)
        self._transactions = TransactionCoordinators(
            config,
            clock,
            replicas,
            driver,
            self._channels,
            self._producer_ids,
            self._groups.runtime.partition_of,
            self._marker_writer.write,
        )
        self._share_partitions = SharePartitions(
            config, clock, replicas, lambda: driver.image, self._share_state, self._channels
        )
        self._share_coordinators.on_letters_owed = self._share_partitions.remind
        hosts = (self._groups, self._transactions, self._share_coordinators)
        self._coordinator_runtimes = [host.runtime for host in hosts]
        self._topic_creation = TopicCreation(
            driver.ask, {each.topic.name: each.ensure_topic for each in self._coordinator_runtimes}
        )
        own = Caller(f"node-{config.node_id}", "", AddPartitionsToTxnRequest.versions.max)
        self._verification = Verification(
            config,
            self._channels,
            lambda: driver.image,
            replicas.address_of,
            self._transactions.runtime.partition_of,
            lambda request: self._transactions.add_partitions(request, own),
        )

    def _bind(self) -> None:
        network = self.config.network
        scopes = {listener.name: Scope.CONTROLLER for listener in network.controller_listeners}
        # A node that votes and has no listener for it is alone so far: brokers that join it come in by the front door.
        is_merged = self.config.is_controller and not network.controller_listeners
        for listener in network.listeners:
            scopes[listener.name] = Scope.BOTH if is_merged else Scope.BROKER
        self._dispatcher = Dispatcher(self.broker, scopes)
        self._entrances = Entrances(
            self.config,
            self._platform,
            asyncio.get_running_loop(),
            self._tls,
            self._dispatcher.dispatch,
            self._new_nonce,
            self._find_scram,
            self._decoy_key(),
        )
        self._entrances.start()
        self._listening = self._platform.network.listen(self._dispatcher.dispatch, self._limits(self.config))
        self.addresses = [
            (
                listener,
                self._listening.bind(
                    listener.name, listener.host, listener.port, self._entrances.of(listener.name)
                ),
            )
            for listener in (*network.listeners, *network.controller_listeners)
        ]

    def _limits(self, config: BrokerConfig) -> ServerLimits:
        return server_limits(config.network, self.broker.connection_rates.throttle_ms)

    def _make_quorum(self, identity: Identity) -> Quorum:
        listeners = self.config.network.controller_listeners or self.config.network.listeners
        names = {listener.name for listener in listeners}
        return Quorum(
            self.config,
            self._platform,
            self._syncer,
            self._controller_channels,
            self._driver,
            directory_id=uuid_bytes(identity.directory_id),
            cluster_id=identity.cluster_id,
            endpoints=[each for each in self._advertised() if each.name in names],
            on_fatal=self._fail,
        )

    async def _join_cluster(self, identity: Identity) -> Identity:
        """The directory is this cluster's from the moment its id is known, and no other's ever after."""
        await self._driver.wait_for(lambda: bool(self._driver.image.cluster_id))
        identity = Identity(self._driver.image.cluster_id, identity.node_id, identity.directory_id)
        self._claim(identity)
        self._quorum.set_cluster_id(self._driver.image.cluster_id)
        return identity

    async def _join_as_broker(self, identity: Identity) -> None:
        config, driver = self.config, self._driver
        names = {listener.name for listener in config.network.listeners}
        listeners = [each for each in self._advertised() if each.name in names]
        data_dir, last_registration = self._data_dir, self._last_registration
        previous = data_dir.clean_broker_epoch if data_dir.was_clean else last_registration.epoch()
        await self._lifecycle.register(identity, listeners, previous)
        await self._publisher.load(driver.image)
        if self.failure is None:
            last_registration.remember(self._lifecycle.broker_epoch)
        self._replicas.start()
        self._lifecycle.start()
        await self._lifecycle.until_unfenced()
        await driver.wait_for(lambda: not driver.image.brokers[config.node_id].is_fenced)
        self._compactor.start()
        self._tag_indexer.start()
        for listener in config.network.listeners:
            self._listening.start_accepting(listener.name)

    def _open_data_dir(self) -> DataDir:
        folders = self.config.storage.log_dirs
        if len(folders) != 1:
            raise ConfigError(f"log.dirs names {len(folders)} directories ({', '.join(folders)}); use one")
        return DataDir(self._platform.files, folders[0], self._platform.pid)

    def _identity(self) -> Identity:
        found = self._data_dir.identity()
        identity = Identity(
            found.cluster_id if found else None,
            self.config.node_id,
            found.directory_id if found else uuid_text(self._new_uuid()),
        )
        self._claim(identity)
        return identity

    def _claim(self, identity: Identity) -> None:
        try:
            self._data_dir.claim(identity)
        except OSError as error:
            raise StorageError(f"cannot write to {self._data_dir.path}: {error.strerror or error}") from error

    def _new_uuid(self) -> bytes:
        return uuid.UUID(int=self._platform.rng.getrandbits(128), version=4).bytes

    def _new_nonce(self) -> str:
        return f"{self._platform.rng.getrandbits(192):048x}"

    def _decoy_key(self) -> bytes:
        secret = self.config.security.decoy_secret
        return secret.value.encode() if secret is not None else self._new_nonce().encode()

    def _find_scram(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """Find a user of the metadata. The users that nodes log in with themselves are known without it."""
        return self._driver.image.security.scram_credential(mechanism, user)

    def _advertised(self) -> list[registration.Listener]:
        """The addresses for other nodes and clients; the bound address where nothing is advertised."""
        advertised = {listener.name: listener for listener in self.config.network.advertised_listeners}
        endpoints = []
        for bound, port in self.addresses:
            shown = advertised.get(bound.name)
            endpoints.append(
                registration.Listener(
                    name=bound.name,
                    host=shown.host if shown else self._reachable(bound.host),
                    port=shown.port if shown and shown.port else port,
                    security_protocol=_SECURITY_PROTOCOLS[bound.security_protocol],
                )
            )
        return endpoints

    def _reachable(self, bound_host: str) -> str:
        return self._platform.host_name if bound_host in _EVERY_INTERFACE else bound_host

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        request = registration.AllocateProducerIdsRequest(
            broker_id=self.config.node_id, broker_epoch=self._lifecycle.broker_epoch
        )
        reply = await self._driver.ask(request)
        assert isinstance(reply, registration.AllocateProducerIdsResponse)
        if reply.error_code:
            raise ApiError(ErrorCode(reply.error_code))
        return reply.producer_id_start, reply.producer_id_len

    # -- stopping --------------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        self._stopped.set()

    def _fail(self, reason: str) -> None:
        if self.failure is None:
            logger.critical("stopping: %s", reason)
            self.failure = reason
            self._last_registration.forget()
        self._stopped.set()

    async def wait_until_stopped(self) -> None:
        await self._stopped.wait()

    async def stop(self) -> None:
        """Answer what is under way, close everything, and mark the directory clean."""
        if self.failure is None:
            await self._lifecycle.shut_down()
        self._lifecycle.close()
        self._listening.stop_listening()
        self._driver.stop_asking()
        await self._dispatcher.drain(_DRAIN_S_MAX)
        self._listening.close()
        self._topic_creation.close()
        self._publisher.close()
        self._share_partitions.close()
        self._groups.close()
        self._verification.close()
        self._transactions.close()
        self._share_state.close()
        self._share_coordinators.runtime.close()
        self._producer_ids.close()
        await self._compactor.stop()
        await self._tag_indexer.stop()
        # Logs that were never opened are as the last run left them, clean or not.
        is_clean = await self._replicas.close() and self._publisher.is_loaded
        await self._quorum.resign()
        self._driver.close()
        is_clean = await self._quorum.close() and is_clean
        self._channels.close()
        self._controller_channels.close()
        self._entrances.close()
        if is_clean and self.failure is None:
            self._data_dir.mark_clean(self._lifecycle.broker_epoch)
        self._data_dir.unlock()
        self._platform.close()
