"""Views: topics that show the records of another topic that match a filter.

To the protocol a view is a topic with two keys in its configuration. These calls never touch a topic that is no view.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.config import VIEW_FILTER, VIEW_SOURCE
from tidemill.errors import ApiError, ErrorCode


class View(NamedTuple):
    name: str
    source: str
    filter: str
    partitions: int


class ViewAdmin:
    """Lists, creates, changes and deletes views."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def list(self) -> list[View]:
        counts = {topic.name or "": len(topic.partitions) for topic in self._admin.topics()}
        sources = self._admin.topic_values(list(counts), VIEW_SOURCE)
        filters = self._admin.topic_values(list(sources), VIEW_FILTER) if sources else {}
        return [
            View(name, source or "", filters[name] or "", counts[name])
            for name, source in sorted(sources.items())
            if name in filters
        ]

    def describe(self, name: str) -> View:
        """`ApiError` unless there is a view of this name."""
        configs = self._admin.describe_configs(ResourceType.TOPIC, name)
        values = {each.name: each.value for each in configs}
        source, where = values.get(VIEW_SOURCE), values.get(VIEW_FILTER)
        if source is None or where is None:
            raise _unknown(name)
        return View(name, source, where, len(self._admin.topic(name).partitions))

    def create(self, name: str, source: str, where: str) -> View:
        result = self._admin.create_topic(name, configs={VIEW_SOURCE: source, VIEW_FILTER: where})
        return View(name, source, where, result.num_partitions)

    def alter(self, name: str, where: str) -> None:
        """Show what matches another filter, from now on."""
        self.check_exists(name)
        self._admin.alter_configs(ResourceType.TOPIC, name, changes={VIEW_FILTER: where})

    def delete(self, name: str) -> None:
        self.check_exists(name)
        self._admin.delete_topic(name)

    def check_exists(self, name: str) -> None:
        """Raise `ApiError` unless there is a view of this name."""
        if name not in self._admin.topic_values([name], VIEW_SOURCE):
            raise _unknown(name)


def _unknown(name: str) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no view {name}")
