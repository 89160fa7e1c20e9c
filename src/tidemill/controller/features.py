"""The records that a controller writes before all others, unless the log has them.

They hold the cluster id, the feature levels, which clients and brokers read, and `min.insync.replicas` for all
brokers. The last one is needed because the ELR (KIP-966) is right only if the controller and every leader use the same
number. From then on it overrides the brokers' files. Kafka does the same when it enables the ELR.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.config import BrokerLayers
from tidemill.controller.image import CLUSTER_DEFAULT, MetadataImage, ResourceType
from tidemill.controller.records import Record
from tidemill.errors import ApiError, ErrorCode
from tidemill.machine import Decision
from tidemill.protocol.api.admin import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tidemill.protocol.api.metadata import ConfigRecord, FeatureLevelRecord, NoOpRecord

# The levels at which Apache Kafka 4.3 formats a new cluster, of the features that exist here.
FEATURE_LEVELS: Mapping[str, int] = {
    "metadata.version": 30,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "share.version": 1,
    "transaction.version": 2,
}
MIN_ISR = "min.insync.replicas"
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
# Versions of UpdateFeatures. The first with upgrade types instead of `allow_downgrade`.
_UPGRADE_TYPES_SINCE = 1
# The first version without results for single features.
_FIRST_WITHOUT_RESULTS = 2


def first_records(image: MetadataImage, cluster_id: str, layers: BrokerLayers) -> list[Record]:
    """Returns the missing records; none when the log has all of them."""
    records: list[Record] = []
    if not image.cluster_id:
        records.append(NoOpRecord(cluster_id=cluster_id))
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


def update_features(
    image: MetadataImage, node_id: int, request: UpdateFeaturesRequest, version: int
) -> Decision[Record, UpdateFeaturesResponse]:
    """Accept all updates or none. A release supports one level of each feature, so only that level is accepted."""
    for update in request.feature_updates:
        problem = _update_problem(image, node_id, update, version)
        if problem is not None:
            told = (
                f"Invalid update version {update.max_version_level} for feature {update.feature}. {problem}"
            )
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"The update failed for all features since the following feature had an error: {told}",
            )
    records: list[Record] = [
        FeatureLevelRecord(name=update.feature, feature_level=update.max_version_level)
        for update in request.feature_updates
        if image.features.get(update.feature) != update.max_version_level
    ]
    response = UpdateFeaturesResponse()
    if version < _FIRST_WITHOUT_RESULTS:
        names = sorted(update.feature for update in request.feature_updates)
        response.results = [UpdatableFeatureResult(feature=name, error_message="NONE") for name in names]
    return Decision([] if request.validate_only else records, response)


def _update_problem(image: MetadataImage, node_id: int, update: FeatureUpdateKey, version: int) -> str | None:
    kind = update.upgrade_type
    if version < _UPGRADE_TYPES_SINCE:
        kind = _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE
    if kind not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    level, current = update.max_version_level, image.features.get(update.feature, 0)
    if level < 0:
        return "A feature version cannot be less than 0."
    supported = FEATURE_LEVELS.get(update.feature)
    if supported is None:
        return f"Local controller {node_id} does not support this feature."
    if level != supported:
        return f"Local controller {node_id} only supports versions {supported}-{supported}"
    if level > current and kind != _UPGRADE:
        return "Can't downgrade to a newer version."
    return None
