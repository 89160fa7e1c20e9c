"""A replay of the metadata log gives the live image, after any history.

A random life of a cluster is lived twice: by the controller, record by record as decisions are made, and by an
observer. The observer reads the encoded log in batches of another size. Both must end with the same image, and so must
a snapshot of it.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.thoroughness import examples
from tests.unit.controller.cluster import Cluster, creatable
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage
from tidemill.controller.records import decode_record, encode_record, image_records
from tidemill.protocol.api.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    EntityData,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    OpData,
)
from tidemill.protocol.api.brokers import AllocateProducerIdsRequest
from tidemill.protocol.api.security import (
    AclCreation,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidemill.types import BrokerId

names = st.sampled_from(["a", "b", "c.d", "c_d", "bad name"])
broker_ids = st.integers(1, 4)
configs = st.sampled_from(
    [("retention.ms", "5"), ("cleanup.policy", "compact"), ("retention.ms", "x"), ("n", "1")]
)


def rebuilt(cluster: Cluster, batch_size: int) -> MetadataImage:
    image = MetadataImage()
    encoded = [encode_record(record) for record in cluster.log]
    for start in range(0, len(encoded), batch_size):
        delta = MetadataDelta(image)
        for value in encoded[start : start + batch_size]:
            delta.replay(decode_record(value))
        image = delta.apply()
    return image


class ClusterLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(brokers=0)

    @initialize()
    def first_broker(self) -> None:
        self.cluster.join(1)

    @rule(broker_id=broker_ids, rack=st.sampled_from([None, "r1", "r2"]))
    def restart_broker(self, broker_id: int, rack: str | None) -> None:
        self.cluster.pass_time(10_000)
        self.cluster.register(broker_id, rack=rack)

    @rule(broker_id=broker_ids, want_fence=st.booleans(), want_shut_down=st.booleans())
    def heartbeat(self, broker_id: int, want_fence: bool, want_shut_down: bool) -> None:
        if BrokerId(broker_id) in self.cluster.image.brokers:
            self.cluster.beat(broker_id, want_fence=want_fence, want_shut_down=want_shut_down)

    @rule(elapsed_ms=st.integers(0, 9_000))
    def time_passes(self, elapsed_ms: int) -> None:
        self.cluster.pass_time(elapsed_ms)

    @rule(name=names, partitions=st.integers(-1, 5), factor=st.integers(-1, 3), config=st.none() | configs)
    def create_topic(self, name: str, partitions: int, factor: int, config: tuple[str, str] | None) -> None:
        self.cluster.create(creatable(name, partitions, factor, configs=dict([config] if config else [])))

    @rule(name=names)
    def delete_topic(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])
        self.cluster.ask(request)

    @rule(name=names, total=st.integers(0, 8))
    def create_partitions(self, name: str, total: int) -> None:
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=total, assignments=None)]
        )
        self.cluster.ask(request)

    @rule(
        kind=st.sampled_from([2, 4]),
        name=names | st.sampled_from(["", "1", "2"]),
        operation=st.integers(0, 4),
        config=configs | st.just(("log.retention.ms", "7")),
    )
    def alter_config(self, kind: int, name: str, operation: int, config: tuple[str, str]) -> None:
        change = IncrementalAlterConfigsAlterableConfig(
            name=config[0], config_operation=operation, value=config[1]
        )
        resource = IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        self.cluster.ask(request)

    @rule(broker_id=broker_ids, epoch_error=st.integers(0, 1))
    def allocate_producer_ids(self, broker_id: int, epoch_error: int) -> None:
        broker = self.cluster.image.brokers.get(BrokerId(broker_id))
        epoch = (broker.epoch if broker else 0) + epoch_error
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
        self.cluster.ask(request)

    @rule(name=names, permission=st.integers(2, 3), operation=st.integers(2, 4))
    def create_acl(self, name: str, permission: int, operation: int) -> None:
        creation = AclCreation(
            resource_type=2,
            resource_name=name,
            principal="User:a",
            host="*",
            operation=operation,
            permission_type=permission,
        )
        self.cluster.ask(CreateAclsRequest(creations=[creation, creation]))

    @rule(name=names | st.none(), pattern=st.integers(1, 4))
    def delete_acls(self, name: str | None, pattern: int) -> None:
        wanted = DeleteAclsFilter(
            resource_type_filter=2,
            resource_name_filter=name,
            pattern_type_filter=pattern,
            operation=1,
            permission_type=1,
        )
        self.cluster.ask(DeleteAclsRequest(filters=[wanted, wanted]))

    @rule(user=st.sampled_from(["a", "b"]), mechanism=st.integers(0, 2), is_deletion=st.booleans())
    def alter_credential(self, user: str, mechanism: int, is_deletion: bool) -> None:
        request = AlterUserScramCredentialsRequest()
        if is_deletion:
            request.deletions = [ScramCredentialDeletion(name=user, mechanism=mechanism)]
        else:
            request.upsertions = [
                ScramCredentialUpsertion(
                    name=user, mechanism=mechanism, iterations=4096, salt=b"s", salted_password=b"p"
                )
            ]
        self.cluster.ask(request)

    @rule(
        user=st.sampled_from(["a", None]),
        value=st.floats(1, 9),
        remove=st.booleans(),
        key=st.sampled_from(["request_percentage", "producer_byte_rate"]),
    )
    def alter_quota(self, user: str | None, value: float, remove: bool, key: str) -> None:
        entry = AlterClientQuotasRequestEntryData(
            entity=[EntityData(entity_type="user", entity_name=user)],
            ops=[OpData(key=key, value=value, remove=remove)],
        )
        self.cluster.ask(AlterClientQuotasRequest(entries=[entry]))

    @rule(batch_size=st.integers(1, 7))
    def replay_in_batches(self, batch_size: int) -> None:
        assert rebuilt(self.cluster, batch_size) == self.cluster.image

    @rule()
    def replay_from_a_snapshot(self) -> None:
        image = self.cluster.image
        delta = MetadataDelta(MetadataImage())
        for record in image_records(image):
            delta.replay(record)
        from_snapshot = delta.apply()
        assert from_snapshot.topics_by_name == image.topics_by_name
        assert from_snapshot.topics_by_id == image.topics_by_id
        assert from_snapshot.brokers == image.brokers
        assert from_snapshot.configs == image.configs
        assert from_snapshot.next_producer_id == image.next_producer_id
        assert from_snapshot.features == image.features
        assert from_snapshot.security == image.security
        assert from_snapshot.cluster_id == image.cluster_id

    @invariant()
    def the_image_is_sound(self) -> None:
        self.cluster.controller.check_invariants()
        assert self.cluster.image.end_offset == len(self.cluster.log)

    def teardown(self) -> None:
        assert rebuilt(self.cluster, max(1, len(self.cluster.log))) == self.cluster.image


ClusterLife.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
TestClusterLife = ClusterLife.TestCase
