"""What a handler may use: the broker's parts, each behind its own name.

Wired once by `node.py`. Handlers take what they need from here and own no state of their own.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.broker.clock import Clock
from tidemill.broker.coordinators.groups import GroupCoordinators
from tidemill.broker.coordinators.producer_ids import ProducerIds
from tidemill.broker.coordinators.transactions import TransactionCoordinators
from tidemill.broker.coordinators.verification import Verification
from tidemill.broker.disk.syncer import Syncer
from tidemill.broker.metrics.registry import Metrics
from tidemill.broker.partitions.replicas import Replicas
from tidemill.broker.quorum.driver import ControllerDriver
from tidemill.broker.quorum.quorum import Quorum
from tidemill.broker.requests.dispatch import TABLE, Peer, Scope
from tidemill.broker.requests.fetch_sessions import FetchSessions
from tidemill.config import BrokerConfig
from tidemill.controller.image import BrokerImage, MetadataImage
from tidemill.log.datadir import DataDir
from tidemill.protocol.api.cluster import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)


@dataclass(slots=True)
class Broker:
    config: BrokerConfig
    loop: AbstractEventLoop
    clock: Clock
    controller: ControllerDriver
    replicas: Replicas
    fetch_sessions: FetchSessions
    syncer: Syncer
    producer_ids: ProducerIds
    groups: GroupCoordinators
    transactions: TransactionCoordinators
    verification: Verification
    data_dir: DataDir
    new_uuid: Callable[[], bytes]
    metrics: Metrics
    quorum: Quorum = field(init=False)
    # (address, API) of connections that were refused for not being a node's, as far as the log tells of them.
    refused_as_nodes: set[tuple[str, int]] = field(default_factory=set)

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def is_controller_listener(self, name: str) -> bool:
        return any(listener.name == name for listener in self.config.network.controller_listeners)

    def api_versions(self, listener_name: str) -> ApiVersionsResponse:
        """What a listener is for. One that serves brokers and controllers tells clients the broker's, as they expect."""
        image = self.image
        scope = Scope.CONTROLLER if self.is_controller_listener(listener_name) else Scope.BROKER
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=api.key, min_version=api.advertised.min, max_version=api.advertised.max)
                for _, api in sorted(TABLE.items())
                if api.scope & scope
            ],
            supported_features=[
                SupportedFeatureKey(name=name, min_version=level, max_version=level)
                for name, level in sorted(image.features.items())
            ],
            finalized_features_epoch=image.end_offset,
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in sorted(image.features.items())
            ],
        )

    def address_of(self, broker: BrokerImage, connection: Peer) -> tuple[str, int]:
        """Where this client should dial a broker.

        Without `advertised.listeners` this broker answers with the address that the client dialled: that one
        is known to work, whatever lies between them.
        """
        if broker.id == self.config.node_id and not self.config.network.advertised_listeners:
            return connection.local_address
        endpoint = broker.endpoints.get(connection.listener_name) or next(iter(broker.endpoints.values()))
        return endpoint.host, endpoint.port
