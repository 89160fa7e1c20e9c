"""The controller: the one machine that decides about topics, configurations and brokers.

A replicated machine: every method looks at the present image and answers with a `Decision`, the records it
wants in the metadata log and the reply for the caller; state changes only in `replay`. The runtime appends
the records, replays them at once, and gives out the reply when they are committed. Nothing here knows a
clock, a file or a random number: `now_ms` and `new_uuid` come from the caller, and the same records always
give the same image.

When a broker was last heard of is not in the log. It is remembered only as long as this controller is active,
and a new one gives every broker a fresh session.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.config import BrokerConfig, BrokerLayers
from tidemill.controller import brokers, configs, topics
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage
from tidemill.controller.records import Record
from tidemill.errors import ErrorCode
from tidemill.machine import Decision
from tidemill.protocol.api.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidemill.protocol.api.brokers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from tidemill.types import BrokerId


class Controller:
    def __init__(self, cluster_id: str, config: BrokerConfig, session_timeout_ms: int = 9000) -> None:
        self._config = config
        self._session_timeout_ms = session_timeout_ms
        self._image = MetadataImage(cluster_id)
        self._delta = MetadataDelta(self._image)
        self._last_contact_ms: dict[BrokerId, int] = {}

    @property
    def image(self) -> MetadataImage:
        """The metadata after all records replayed so far, committed or not."""
        if not self._delta.is_empty:
            self._image = self._delta.apply()
            self._delta = MetadataDelta(self._image)
        return self._image

    def replay(self, record: Record, offset: int | None = None) -> None:
        self._delta.replay(record, offset)

    def create_topics(
        self, request: CreateTopicsRequest, new_uuid: Callable[[], bytes]
    ) -> Decision[Record, CreateTopicsResponse]:
        defaults = topics.TopicDefaults(
            num_partitions=self._config.topics.num_partitions,
            replication_factor=self._config.topics.default_replication_factor,
            broker=self._layers(),
        )
        return topics.create_topics(self.image, defaults, request, new_uuid)

    def delete_topics(self, request: DeleteTopicsRequest) -> Decision[Record, DeleteTopicsResponse]:
        return topics.delete_topics(self.image, request)

    def create_partitions(
        self, request: CreatePartitionsRequest
    ) -> Decision[Record, CreatePartitionsResponse]:
        return topics.create_partitions(self.image, request)

    def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest
    ) -> Decision[Record, IncrementalAlterConfigsResponse]:
        return configs.incremental_alter_configs(self.image, self._layers(), request)

    def alter_configs(self, request: AlterConfigsRequest) -> Decision[Record, AlterConfigsResponse]:
        return configs.alter_configs(self.image, self._layers(), request)

    def register_broker(
        self, request: BrokerRegistrationRequest, now_ms: int
    ) -> Decision[Record, BrokerRegistrationResponse]:
        broker_id = BrokerId(request.broker_id)
        decision = brokers.register_broker(
            self.image, request, has_live_session=self._has_live_session(broker_id, now_ms)
        )
        if decision.reply.error_code == ErrorCode.NONE:
            self._last_contact_ms[broker_id] = now_ms
        return decision

    def heartbeat(
        self, request: BrokerHeartbeatRequest, now_ms: int
    ) -> Decision[Record, BrokerHeartbeatResponse]:
        decision = brokers.heartbeat(self.image, request)
        if decision.reply.error_code == ErrorCode.NONE:
            self._last_contact_ms[BrokerId(request.broker_id)] = now_ms
        return decision

    def fence_stale_brokers(self, now_ms: int) -> Decision[Record, list[BrokerId]]:
        """Fences one broker whose session has ended, if there is one; the reply names it.

        One at a time, because the leaders that the next one loses depend on what the first has changed.
        """
        for broker in self.image.brokers.values():
            self._last_contact_ms.setdefault(broker.id, now_ms)
            if not broker.is_fenced and not self._has_live_session(broker.id, now_ms):
                return Decision(brokers.fence_broker(self.image, broker.id), [broker.id])
        return Decision([], [])

    def allocate_producer_ids(
        self, request: AllocateProducerIdsRequest
    ) -> Decision[Record, AllocateProducerIdsResponse]:
        return brokers.allocate_producer_ids(self.image, request)

    def check_invariants(self) -> None:
        self.image.check_invariants()

    def _has_live_session(self, broker_id: BrokerId, now_ms: int) -> bool:
        last_contact_ms = self._last_contact_ms.get(broker_id)
        return last_contact_ms is not None and now_ms - last_contact_ms < self._session_timeout_ms

    def _layers(self) -> BrokerLayers:
        return self.image.broker_layers(self._config.node_id, self._config.properties)
