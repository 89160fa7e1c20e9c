"""What the first active controller of a cluster writes before anything else, and a later one where it is missing.

The cluster's id; the levels of the features that are in force, which clients and brokers read; and
`min.insync.replicas` for all brokers. The last is written because the ELR (KIP-966) is right only if the
controller and every leader count with the same number: from then on the brokers' files have no say in it. Kafka
does the same when it switches the ELR on.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.config import BrokerLayers
from tidemill.controller.image import CLUSTER_DEFAULT, MetadataImage, ResourceType
from tidemill.controller.records import Record
from tidemill.protocol.api.metadata import ClusterIdRecord, ConfigRecord, FeatureLevelRecord

# The levels at which Apache Kafka 4.3 formats a new cluster, of the features that exist here.
FEATURE_LEVELS: Mapping[str, int] = {
    "metadata.version": 30,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "transaction.version": 2,
}
MIN_ISR = "min.insync.replicas"


def first_records(image: MetadataImage, cluster_id: str, layers: BrokerLayers) -> list[Record]:
    """None, once all of it is there."""
    records: list[Record] = []
    if not image.cluster_id:
        records.append(ClusterIdRecord(cluster_id=cluster_id))
    records += [
        FeatureLevelRecord(name=name, feature_level=level)
        for name, level in FEATURE_LEVELS.items()
        if name not in image.features
    ]
    records += [
        ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=MIN_ISR)
        for resource, configs in image.configs.items()
        if resource.type == ResourceType.BROKER and resource != CLUSTER_DEFAULT and MIN_ISR in configs
    ]
    if MIN_ISR not in image.config(CLUSTER_DEFAULT):
        records.append(
            ConfigRecord(
                resource_type=CLUSTER_DEFAULT.type,
                resource_name=CLUSTER_DEFAULT.name,
                name=MIN_ISR,
                value=layers.text(MIN_ISR),
            )
        )
    return records
