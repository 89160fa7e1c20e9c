"""Decisions about views: topics that show some records of another topic and have none of their own.

A view is a topic with the keys `tidemill.view.source` and `tidemill.view.filter`. It has an id, configuration and ACLs of
its own, and the partitions and offsets of its source. The source cannot be deleted while it has views. The source of a view
never changes; its filter may.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tidemill.config import VIEW_FILTER, VIEW_SOURCE
from tidemill.controller.image import MetadataImage, PartitionImage
from tidemill.errors import ApiError, ErrorCode
from tidemill.filters.language import FilterError, parse
from tidemill.internal_topics import INTERNAL_TOPICS
from tidemill.protocol.api.admin import CreatableTopic


def is_view(configs: Mapping[str, str]) -> bool:
    return VIEW_SOURCE in configs or VIEW_FILTER in configs


def check_view(image: MetadataImage, name: str, configs: Mapping[str, str]) -> None:
    """Raise `ApiError` unless a view with this name can have this configuration."""
    for key in (VIEW_SOURCE, VIEW_FILTER):
        if not configs.get(key):
            raise _refused(f"View '{name}' needs {VIEW_SOURCE} and {VIEW_FILTER}: {key} is missing")
    others = sorted(configs.keys() - {VIEW_SOURCE, VIEW_FILTER})
    if others:
        raise _refused(
            f"View '{name}' has no records of its own, so {others[0]} would have no effect: set it on the source"
        )
    source = configs[VIEW_SOURCE]
    if source == name:
        raise _refused(f"View '{name}' cannot show itself")
    if source not in image.topics_by_name:
        raise _refused(f"View '{name}' cannot show '{source}': there is no such topic")
    if source in INTERNAL_TOPICS:
        raise _refused(f"View '{name}' cannot show '{source}': it is an internal topic")
    if image.source_of(source) is not None:
        raise _refused(f"View '{name}' cannot show '{source}', which is a view: name the topic that it shows")
    try:
        parse(configs[VIEW_FILTER])
    except FilterError as error:
        raise _refused(f"View '{name}' cannot have this filter: {error}") from None


def check_shape(topic: CreatableTopic, partitions: Sequence[PartitionImage]) -> None:
    """Raise `ApiError` when a request wants partitions or replicas that the source does not have."""
    if topic.assignments:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"View '{topic.name}' has the replicas of its source: none can be assigned",
        )
    if topic.num_partitions not in (-1, len(partitions)):
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"View '{topic.name}' has the {len(partitions)} partition(s) of its source, not {topic.num_partitions}: "
            "leave the number to the cluster (-1)",
        )
    if topic.replication_factor not in (-1, len(partitions[0].replicas)):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"View '{topic.name}' has the {len(partitions[0].replicas)} replica(s) of its source, not "
            f"{topic.replication_factor}: leave the number to the cluster (-1)",
        )


def check_changed(
    image: MetadataImage, name: str, before: Mapping[str, str], after: Mapping[str, str]
) -> None:
    """Raise `ApiError` when a change would make a view of a topic, a topic of a view, or show another source."""
    if not is_view(before) and not is_view(after):
        return
    if before.get(VIEW_SOURCE) != after.get(VIEW_SOURCE):
        what = "a view cannot get another source" if is_view(before) else "a topic cannot become a view"
        raise _refused(f"{VIEW_SOURCE} of '{name}' cannot be changed: {what}; create another topic")
    check_view(image, name, after)


def check_unviewed(image: MetadataImage, name: str, doomed: Collection[str | None]) -> None:
    """Raise `ApiError` when a topic has views that are not deleted together with it."""
    views = [view for view in image.views_of(name) if view not in doomed]
    if views:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"Topic '{name}' is shown by {', '.join(repr(view) for view in views[:5])}: delete its views first, or "
            "together with it",
        )


def _refused(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_CONFIG, message)
