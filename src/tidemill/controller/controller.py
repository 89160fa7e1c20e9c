"""The controller: the one machine that decides about topics, configurations, brokers and partition leaders.

It is a replicated machine (`machine.py`) over the metadata log. It begins with the committed image. `decide` reads the
present image and turns a request into records and a reply. `expire` makes the decisions that are due by time. Only
`replay` changes the image, so the same records always give the same image.

The sessions of brokers are soft state (sessions.py). They last as long as this controller is active; a new one gives
every broker a fresh session. The controller's own node is one process. A registration with its id, before any heartbeat
of an earlier incarnation, can only come from that node after a restart. So it need not wait for a session to end.

Without a request the controller fences brokers whose sessions have expired, and gives partitions back to their
preferred leaders. It elects leaders for offline partitions of topics that allow unclean elections, and gives internal
topics more replicas when brokers join. As in Kafka's KRaft mode, every partition that is not led by its preferred
leader counts as imbalanced, whatever `leader.imbalance.per.broker.percentage` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tidemill.config import BrokerConfig, BrokerLayers
from tidemill.controller import brokers, configs, features
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage
from tidemill.controller.partitions import alter_partition, elections, reassignments
from tidemill.controller.partitions.replication import ELECTIONS_PER_DECISION, Replication
from tidemill.controller.records import Record, check_record_count, encode_record
from tidemill.controller.security import acls, client_quotas, scram_credentials
from tidemill.controller.sessions import Sessions
from tidemill.controller.topics import topics
from tidemill.errors import ApiError, ErrorCode
from tidemill.machine import Decision, Writer
from tidemill.protocol.api import admin, replicas, security
from tidemill.protocol.api import brokers as broker_api
from tidemill.protocol.api.metadata import BrokerRegistrationChangeRecord, ConfigRecord
from tidemill.protocol.error_responses import error_response
from tidemill.protocol.schema import Request
from tidemill.types import BrokerId

# Brokers that start together join together; internal topics grow once for all of them.
_GROWTH_DELAY_MS = 1_000
_UNCLEAN = "unclean.leader.election.enable"
_UNFENCED = -1
# A decision that could not be written is due again after this time. At once would be an endless loop.
_WRITE_RETRY_MS = 1_000


class ControllerCall(NamedTuple):
    """A request as the runtime passes it to the controller."""

    request: Request
    version: int
    # The offset of the decision's first record. The machine cannot count it, because control records of the log are
    # never replayed.
    next_offset: int


class BeginCluster(NamedTuple):
    """The first request to a controller: write the records that every decision needs, unless the log has them."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The input of a decision beside the request and the image."""

    steady_ms: int
    new_uuid: Callable[[], bytes]
    # The version of the request.
    version: int
    # See `ControllerCall`.
    next_offset: int


class Controller:
    """The active controller (Kafka's QuorumController)."""

    def __init__(self, config: BrokerConfig, image: MetadataImage, new_uuid: Callable[[], bytes]) -> None:
        self._config = config
        self._new_uuid = new_uuid
        self._image = image
        self._delta = MetadataDelta(image)
        self._sessions = Sessions(config.membership.session_timeout_ms)
        # `expire` decides nothing before this time.
        self._quiet_until_ms = 0
        # When the next check is due; None for never.
        self._balance_due_ms: int | None = None
        self._unclean_due_ms: int | None = None
        self._growth_due_ms: int | None = None

    @property
    def image(self) -> MetadataImage:
        """The metadata after all records replayed so far, committed or not.

        Its `end_offset` counts these records, not the control records between them.
        """
        if not self._delta.is_empty:
            self._image = self._delta.apply()
            self._delta = MetadataDelta(self._image)
        return self._image

    # -- as the runtime sees it ------------------------------------------------------------------------------

    def replay(self, record: Record, writer: Writer | None = None, _offset: int = -1) -> None:
        assert writer is None, "the metadata log has no transactions of producers"
        self._delta.replay(record)

    def encode(self, record: Record) -> bytes:
        return encode_record(record)

    def waiting_tokens(self) -> list[int]:
        """Returns no tokens: every request is decided at once."""
        return []

    def on_loaded(self, steady_ms: int) -> None:
        settings = self._config.replication
        self._sessions.restart(self.image.brokers, steady_ms)
        if settings.auto_leader_rebalance_enable:
            self._balance_due_ms = steady_ms + settings.leader_imbalance_check_interval_ms
        self._unclean_due_ms = steady_ms + settings.unclean_leader_election_interval_check_ms
        self._growth_due_ms = steady_ms + _GROWTH_DELAY_MS

    def check_invariants(self) -> None:
        self.image.check_invariants()

    # -- deciding --------------------------------------------------------------------------------------------

    def decide(
        self, call: ControllerCall | BeginCluster, _token: int, steady_ms: int
    ) -> Decision[Record, Any]:
        """Decide a request. The reply is the request's own response, which also carries errors of the whole request."""
        if isinstance(call, BeginCluster):
            return Decision(features.first_records(self.image, call.cluster_id, self._layers()), None)
        request = call.request
        context = RequestContext(steady_ms, self._new_uuid, call.version, call.next_offset)
        try:
            decision = DECIDES[type(request)](self, request, context)
            if type(request) in _LIMITED:
                check_record_count(decision.records)
        except ApiError as error:
            refused = error_response(request, context.version, error.code, error.message)
            if refused is None:
                raise
            return Decision([], refused)
        self._note(decision.records, steady_ms)
        return decision

    def _note(self, records: Sequence[Record], steady_ms: int) -> None:
        """Notes what a decision makes due; its records are not replayed yet."""
        for record in records:
            if isinstance(record, ConfigRecord) and record.name == _UNCLEAN:
                self._unclean_due_ms = steady_ms
            elif isinstance(record, BrokerRegistrationChangeRecord) and record.fenced == _UNFENCED:
                self._growth_due_ms = steady_ms + _GROWTH_DELAY_MS

    def _create_topics(
        self, request: admin.CreateTopicsRequest, context: RequestContext
    ) -> Decision[Record, admin.CreateTopicsResponse]:
        defaults = topics.TopicDefaults(
            num_partitions=self._config.topics.num_partitions,
            replication_factor=self._config.topics.default_replication_factor,
            broker=self._layers(),
        )
        return topics.create_topics(self.image, defaults, request, context.new_uuid)

    def _delete_topics(
        self, request: admin.DeleteTopicsRequest, context: RequestContext
    ) -> Decision[Record, admin.DeleteTopicsResponse]:
        if not self._config.topics.delete_topic_enable:
            return Decision([], topics.refuse_to_delete(request, context.version))
        return topics.delete_topics(self.image, request)

    def _create_partitions(
        self, request: admin.CreatePartitionsRequest, _: RequestContext
    ) -> Decision[Record, admin.CreatePartitionsResponse]:
        return topics.create_partitions(self.image, request)

    def _incremental_alter_configs(
        self, request: admin.IncrementalAlterConfigsRequest, _: RequestContext
    ) -> Decision[Record, admin.IncrementalAlterConfigsResponse]:
        decision = configs.incremental_alter_configs(self.image, self._layers(), request)
        return replace(decision, records=self._with_consequences(decision.records))

    def _alter_configs(
        self, request: admin.AlterConfigsRequest, _: RequestContext
    ) -> Decision[Record, admin.AlterConfigsResponse]:
        decision = configs.alter_configs(self.image, self._layers(), request)
        return replace(decision, records=self._with_consequences(decision.records))

    def _with_consequences(self, records: Sequence[Record]) -> Sequence[Record]:
        """Another min.insync.replicas makes another ELR, in the same batch as the value itself."""
        if not any(isinstance(each, ConfigRecord) and each.name == features.MIN_ISR for each in records):
            return records
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        return [*records, *self._replication(delta.apply()).after_min_isr_changed()]

    def _update_features(
        self, request: admin.UpdateFeaturesRequest, context: RequestContext
    ) -> Decision[Record, admin.UpdateFeaturesResponse]:
        return features.update_features(self.image, self._config.node_id, request, context.version)

    def _register_broker(
        self, request: broker_api.BrokerRegistrationRequest, context: RequestContext
    ) -> Decision[Record, broker_api.BrokerRegistrationResponse]:
        broker_id = BrokerId(request.broker_id)
        decision = brokers.register_broker(
            self._replication(),
            request,
            context.next_offset,
            is_taken=self._is_taken(request, context.steady_ms),
        )
        self._sessions.begin(broker_id, context.steady_ms)
        return decision

    def _is_taken(self, request: broker_api.BrokerRegistrationRequest, steady_ms: int) -> bool:
        """Whether an earlier incarnation must be taken for alive. One that is leaving is not waited for.

        Nor is one whose data directories the new one has. A directory has one owner at a time, so the old process is
        gone, and its session need not end first.
        """
        broker_id = BrokerId(request.broker_id)
        registered = self.image.brokers.get(broker_id)
        if registered is None or registered.is_in_controlled_shutdown:
            return False
        if request.log_dirs and tuple(request.log_dirs) == registered.log_dirs:
            return False
        if broker_id == self._config.node_id and not self._sessions.was_heard(broker_id):
            return False
        return self._sessions.is_live(registered, steady_ms)

    def _heartbeat(
        self, request: broker_api.BrokerHeartbeatRequest, context: RequestContext
    ) -> Decision[Record, broker_api.BrokerHeartbeatResponse]:
        broker = self.image.broker_in_epoch(request.broker_id, request.broker_epoch)
        session = self._sessions.renew(broker.id, context.steady_ms, request.current_metadata_offset)
        return brokers.heartbeat(
            self._replication(), self._sessions, broker, session, request, context.next_offset
        )

    def _unregister_broker(
        self, request: replicas.UnregisterBrokerRequest, _: RequestContext
    ) -> Decision[Record, replicas.UnregisterBrokerResponse]:
        decision = brokers.unregister_broker(self._replication(), request)
        self._sessions.end(BrokerId(request.broker_id))
        return decision

    def _allocate_producer_ids(
        self, request: broker_api.AllocateProducerIdsRequest, _: RequestContext
    ) -> Decision[Record, broker_api.AllocateProducerIdsResponse]:
        return brokers.allocate_producer_ids(self.image, request)

    def _register_controller(
        self, request: broker_api.ControllerRegistrationRequest, _: RequestContext
    ) -> Decision[Record, broker_api.ControllerRegistrationResponse]:
        return brokers.register_controller(self.image, request)

    def _alter_partition(
        self, request: broker_api.AlterPartitionRequest, _: RequestContext
    ) -> Decision[Record, broker_api.AlterPartitionResponse]:
        return alter_partition.alter_partition(self._replication(), request)

    def _elect_leaders(
        self, request: replicas.ElectLeadersRequest, _: RequestContext
    ) -> Decision[Record, replicas.ElectLeadersResponse]:
        return elections.elect_leaders(self._replication(), request)

    def _alter_partition_reassignments(
        self, request: replicas.AlterPartitionReassignmentsRequest, _: RequestContext
    ) -> Decision[Record, replicas.AlterPartitionReassignmentsResponse]:
        return reassignments.alter_partition_reassignments(self._replication(), request)

    def _list_partition_reassignments(
        self, request: replicas.ListPartitionReassignmentsRequest, _: RequestContext
    ) -> Decision[Record, replicas.ListPartitionReassignmentsResponse]:
        return Decision([], reassignments.list_partition_reassignments(self.image, request))

    def _create_acls(
        self, request: security.CreateAclsRequest, context: RequestContext
    ) -> Decision[Record, security.CreateAclsResponse]:
        return acls.create_acls(self.image, request, context.new_uuid)

    def _delete_acls(
        self, request: security.DeleteAclsRequest, _: RequestContext
    ) -> Decision[Record, security.DeleteAclsResponse]:
        return acls.delete_acls(self.image, request)

    def _alter_user_scram_credentials(
        self, request: security.AlterUserScramCredentialsRequest, _: RequestContext
    ) -> Decision[Record, security.AlterUserScramCredentialsResponse]:
        return scram_credentials.alter_user_scram_credentials(self.image, request)

    def _alter_client_quotas(
        self, request: admin.AlterClientQuotasRequest, _: RequestContext
    ) -> Decision[Record, admin.AlterClientQuotasResponse]:
        return client_quotas.alter_client_quotas(self.image, request)

    # -- what is due by itself -------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        due = (
            self._sessions.deadline_ms(self.image),
            self._balance_due_ms,
            self._unclean_due_ms,
            self._growth_due_ms,
        )
        earliest_ms = min((each for each in due if each is not None), default=None)
        return None if earliest_ms is None else max(earliest_ms, self._quiet_until_ms)

    def expire(self, steady_ms: int) -> Decision[Record, Any] | None:
        """Decide one thing that is due. The next one depends on the records of this one, so it is decided afterwards."""
        if steady_ms < self._quiet_until_ms:
            return None

        def pause(_error: ErrorCode) -> None:
            self._quiet_until_ms = steady_ms + _WRITE_RETRY_MS

        for do in (self._fence_one, self._balance, self._elect_unclean, self._grow):
            records = do(steady_ms)
            if records:
                return Decision(records, on_failed=pause)
        return None

    def _fence_one(self, steady_ms: int) -> Sequence[Record]:
        stale = self._sessions.expired(self.image, steady_ms)
        return () if stale is None else brokers.fence_broker(self._replication(), stale)

    def _balance(self, steady_ms: int) -> Sequence[Record]:
        if self._balance_due_ms is None or steady_ms < self._balance_due_ms:
            return ()
        records = self._replication().preferred_elections()
        if len(records) < ELECTIONS_PER_DECISION:
            self._balance_due_ms = steady_ms + self._config.replication.leader_imbalance_check_interval_ms
        return records

    def _elect_unclean(self, steady_ms: int) -> Sequence[Record]:
        if self._unclean_due_ms is None or steady_ms < self._unclean_due_ms:
            return ()
        records = self._replication().unclean_elections()
        if len(records) < ELECTIONS_PER_DECISION:
            interval_ms = self._config.replication.unclean_leader_election_interval_check_ms
            self._unclean_due_ms = steady_ms + interval_ms
        return records

    def _grow(self, steady_ms: int) -> Sequence[Record]:
        if self._growth_due_ms is None or steady_ms < self._growth_due_ms:
            return ()
        replication = self._replication()
        growths = reassignments.grow_internal_topics(self.image, self._config)
        changes = [reassignments.reassign(replication, *growth) for growth in growths]
        if len(growths) < reassignments.GROWTH_PER_DECISION:
            self._growth_due_ms = None
        return [change for change in changes if change is not None]

    # -- views -----------------------------------------------------------------------------------------------

    def _layers(self, image: MetadataImage | None = None) -> BrokerLayers:
        return (image or self.image).broker_layers(self._config.node_id, self._config.properties)

    def _replication(self, image: MetadataImage | None = None) -> Replication:
        seen = image or self.image
        return Replication(seen, self._layers(seen))


# Every request that the controller decides.
DECIDES: dict[type[Request], Callable[[Controller, Any, RequestContext], Decision[Record, Any]]] = {
    admin.CreateTopicsRequest: Controller._create_topics,
    admin.DeleteTopicsRequest: Controller._delete_topics,
    admin.CreatePartitionsRequest: Controller._create_partitions,
    admin.IncrementalAlterConfigsRequest: Controller._incremental_alter_configs,
    admin.AlterConfigsRequest: Controller._alter_configs,
    admin.UpdateFeaturesRequest: Controller._update_features,
    admin.AlterClientQuotasRequest: Controller._alter_client_quotas,
    security.CreateAclsRequest: Controller._create_acls,
    security.DeleteAclsRequest: Controller._delete_acls,
    security.AlterUserScramCredentialsRequest: Controller._alter_user_scram_credentials,
    broker_api.BrokerRegistrationRequest: Controller._register_broker,
    broker_api.BrokerHeartbeatRequest: Controller._heartbeat,
    broker_api.AllocateProducerIdsRequest: Controller._allocate_producer_ids,
    broker_api.AlterPartitionRequest: Controller._alter_partition,
    broker_api.ControllerRegistrationRequest: Controller._register_controller,
    replicas.UnregisterBrokerRequest: Controller._unregister_broker,
    replicas.ElectLeadersRequest: Controller._elect_leaders,
    replicas.AlterPartitionReassignmentsRequest: Controller._alter_partition_reassignments,
    replicas.ListPartitionReassignmentsRequest: Controller._list_partition_reassignments,
}

# The operations whose records are as many as the client wants.
_LIMITED = frozenset(
    (
        admin.CreateTopicsRequest,
        admin.DeleteTopicsRequest,
        admin.CreatePartitionsRequest,
        admin.AlterClientQuotasRequest,
        security.CreateAclsRequest,
        security.DeleteAclsRequest,
        security.AlterUserScramCredentialsRequest,
        replicas.ElectLeadersRequest,
        replicas.AlterPartitionReassignmentsRequest,
    )
)
