"""Levels of features: all updates of a request stand or fall together, and one level of each is supported."""

from __future__ import annotations

import pytest

from tidemill.controller.features import FEATURE_LEVELS, update_features
from tidemill.controller.image import MetadataImage
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.admin import FeatureUpdateKey, UpdateFeaturesRequest
from tidemill.protocol.api.metadata import FeatureLevelRecord

IMAGE = MetadataImage(features=dict(FEATURE_LEVELS))


def updates(*wanted: tuple[str, int, int], validate_only: bool = False) -> UpdateFeaturesRequest:
    return UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level, kind in wanted
        ],
        validate_only=validate_only,
    )


def test_the_level_in_force_is_accepted_and_changes_nothing() -> None:
    decision = update_features(IMAGE, 1, updates(("group.version", 1, 1)), 1)
    assert decision.records == []
    assert [each.feature for each in decision.reply.results] == ["group.version"]
    assert update_features(IMAGE, 1, updates(("group.version", 1, 1)), 2).reply.results == []


def test_a_feature_that_a_newer_release_brought_is_raised_unless_it_is_only_validated() -> None:
    image = MetadataImage(features={"metadata.version": 30})
    wanted = ("group.version", 1, 1)
    assert update_features(image, 1, updates(wanted), 2).records == [
        FeatureLevelRecord(name="group.version", feature_level=1)
    ]
    assert update_features(image, 1, updates(wanted, validate_only=True), 2).records == []


@pytest.mark.parametrize(
    "wanted",
    [("no.such.feature", 1, 1), ("group.version", 2, 1), ("group.version", 0, 3), ("group.version", -1, 1)],
)
def test_one_bad_update_refuses_all(wanted: tuple[str, int, int]) -> None:
    image = MetadataImage(features={"group.version": 1})
    with pytest.raises(ApiError, match=wanted[0]) as refused:
        update_features(image, 1, updates(("transaction.version", 2, 1), wanted), 2)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize("kind", [0, 4, 2])
def test_a_raise_must_be_called_one(kind: int) -> None:
    with pytest.raises(ApiError) as refused:
        update_features(MetadataImage(), 1, updates(("group.version", 1, kind)), 1)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
