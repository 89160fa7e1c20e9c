"""The parts of the broker that a handler may use, each behind its own name.

Wired once by `node.py`. Handlers take what they need from here and own no state of their own.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidemill.broker.clock import Clock
from tidemill.broker.coordinators.groups import GroupCoordinators
from tidemill.broker.coordinators.latest_offsets import LatestOffsets
from tidemill.broker.coordinators.marker_writer import MarkerWriter
from tidemill.broker.coordinators.producer_ids import ProducerIds
from tidemill.broker.coordinators.share_state import ShareCoordinators
from tidemill.broker.coordinators.share_state_client import ShareStateClient
from tidemill.broker.coordinators.transactions import TransactionCoordinators
from tidemill.broker.coordinators.verification import Verification
from tidemill.broker.disk.syncer import Syncer
from tidemill.broker.metrics.registry import Metrics
from tidemill.broker.net.network import Peer
from tidemill.broker.partitions.replicas import Replicas
from tidemill.broker.quorum.driver import ControllerDriver
from tidemill.broker.quorum.quorum import Quorum
from tidemill.broker.requests.client_metrics import ClientMetrics
from tidemill.broker.requests.fetch_sessions import FetchSessions
from tidemill.broker.requests.node_proof import NodeLanes, ReplicaProofs
from tidemill.broker.requests.quotas import ClientQuotas, ConnectionRates, limits_clients
from tidemill.broker.requests.topic_creation import TopicCreation
from tidemill.broker.share.partitions import SharePartitions
from tidemill.config import BrokerConfig
from tidemill.controller.image import BrokerImage, MetadataImage
from tidemill.log.datadir import DataDir
from tidemill.raft.voters import KRAFT_VERSION_MAX
from tidemill.security.acls import AclBinding
from tidemill.security.authorizer import Authorizer, parse_super_users
from tidemill.security.principals import Principal


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
    share_coordinators: ShareCoordinators
    share_state: ShareStateClient
    verification: Verification
    marker_writer: MarkerWriter
    latest_offsets: LatestOffsets
    data_dir: DataDir
    topic_creation: TopicCreation
    client_metrics: ClientMetrics
    share: SharePartitions
    new_uuid: Callable[[], bytes]
    metrics: Metrics
    quorum: Quorum = field(init=False)
    # (address, API) of connections that were refused for not being a node's, as far as they were logged.
    refused_as_nodes: set[tuple[str, int]] = field(default_factory=set)
    lanes: NodeLanes = field(init=False)
    replica_proofs: ReplicaProofs = field(init=False)
    # None without `authorizer.class.name`: everything is allowed then.
    authorizer: Authorizer | None = field(init=False, default=None)
    # None while the metadata has no quota for clients.
    quotas: ClientQuotas | None = field(init=False, default=None)
    connection_rates: ConnectionRates = field(init=False)
    _super_users: frozenset[Principal] = field(init=False, default=frozenset())
    # The rules from which the authorizer was made.
    _acls: Mapping[bytes, AclBinding] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.lanes = NodeLanes(self.loop, self.config.security, self.is_controller_listener)
        self.replica_proofs = ReplicaProofs(self.loop)
        self._super_users = parse_super_users(self.config.authorization.super_users)
        self.connection_rates = ConnectionRates(
            self.clock.steady_ms, lambda: self.image.security.client_quotas
        )
        self.follow_security(self.image)

    def follow_security(self, image: MetadataImage) -> None:
        """Take over the ACLs and the quotas of an image."""
        self._follow_acls(image)
        self._follow_quotas(image)

    def _follow_quotas(self, image: MetadataImage) -> None:
        quotas = image.security.client_quotas
        if self.quotas is not None and self.quotas.version is quotas:
            return
        if not limits_clients(quotas):
            self.quotas = None
        elif self.quotas is None:
            self.quotas = ClientQuotas(self.clock.steady_ms, quotas)
        else:
            self.quotas.follow(quotas)

    def _follow_acls(self, image: MetadataImage) -> None:
        """Another set of ACLs makes another authorizer. Before the metadata is there, only super users are served."""
        settings, before, acls = self.config.authorization, self._acls, image.security.acls
        is_known = bool(image.cluster_id)
        if not settings.is_enabled or (before is acls and is_known):
            return
        if before is None or self.authorizer is None:
            self.authorizer = Authorizer(
                acls.values(),
                super_users=self._super_users,
                allows_without_acl=settings.allows_without_acl and is_known,
            )
        else:
            self.authorizer = self.authorizer.changed(
                removed=[binding for acl_id, binding in before.items() if acl_id not in acls],
                added=[binding for acl_id, binding in acls.items() if acl_id not in before],
            )
        self._acls = acls if is_known else None

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    @property
    def kraft_version(self) -> int:
        """0 while the voters are fixed by the configuration, or not known yet; level 0 of a feature is not shown."""
        quorum = self.find_quorum()
        is_dynamic = quorum is not None and len(quorum.voters) > 0 and quorum.voters.is_dynamic
        return KRAFT_VERSION_MAX if is_dynamic else 0

    def find_quorum(self) -> Quorum | None:
        """None while the node starts: controllers are served before there is a quorum."""
        quorum: Quorum | None = getattr(self, "quorum", None)
        return quorum if quorum is not None and quorum.is_open else None

    def is_controller_listener(self, name: str) -> bool:
        return any(listener.name == name for listener in self.config.network.controller_listeners)

    def address_of(self, broker: BrokerImage, connection: Peer) -> tuple[str, int]:
        """Returns the address at which this client should connect to a broker.

        Without `advertised.listeners` this broker answers with the address that the client dialled: that one
        is known to work, whatever lies between them.
        """
        if broker.id == self.config.node_id and not self.config.network.advertised_listeners:
            return connection.local_address
        endpoint = broker.endpoints.get(connection.listener_name) or next(iter(broker.endpoints.values()))
        return endpoint.host, endpoint.port
