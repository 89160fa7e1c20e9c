"""`client.views`: topics that show the records of another topic that match a filter. They are consumed like any topic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tidemill.config import VIEW_FILTER, VIEW_SOURCE
from tidemill.sdk.errors import ClientError

if TYPE_CHECKING:
    from tidemill.sdk.core import Core

# What one request describes.
_TOPICS_A_REQUEST = 500


class View(NamedTuple):
    name: str
    source: str
    where: str


class Views:
    """Creates, changes, lists and deletes views."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def create(self, name: str, source: str, where: str, *, exist_ok: bool = False) -> None:
        """A view of `source`, such as `where="region = 'eu' and not 'test' in tags"`. It has the source's partitions."""
        self._core.create_topic(name, -1, -1, {VIEW_SOURCE: source, VIEW_FILTER: where}, exist_ok)

    def alter(self, name: str, where: str) -> None:
        """Another filter, for what is read from now on."""
        doing = f"alter view {name}"
        self._existing(name, doing)
        entry = ConfigEntry(VIEW_FILTER, where, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        admin = self._core.admin_client(doing)
        self._core.wait_for(admin.incremental_alter_configs([resource])[resource], doing)

    def delete(self, name: str) -> None:
        """Delete a view. The records of its source stay."""
        self._existing(name, f"delete view {name}")
        self._core.delete_topic(name)

    def list(self) -> Sequence[View]:
        doing = "list views"
        names = self._core.topic_names(doing)
        return [view for view in self._described(names, doing) if view is not None]

    def _existing(self, name: str, doing: str) -> View:
        (view,) = self._described([name], doing)
        if view is None:
            raise ClientError(f"{doing}: {name} is a topic of its own, not a view")
        return view

    def _described(self, names: Sequence[str], doing: str) -> Sequence[View | None]:
        admin = self._core.admin_client(doing)
        found = []
        for start in range(0, len(names), _TOPICS_A_REQUEST):
            resources = [
                ConfigResource(ResourceType.TOPIC, name) for name in names[start : start + _TOPICS_A_REQUEST]
            ]
            for resource, future in admin.describe_configs(resources).items():
                configs = self._core.wait_for(future, doing)
                source, where = configs.get(VIEW_SOURCE), configs.get(VIEW_FILTER)
                view = None
                if source is not None and where is not None:
                    view = View(resource.name, source.value, where.value)
                found.append(view)
        return found


class AsyncViews:
    """As `Views`, for `AsyncClient`."""

    def __init__(self, core: Core) -> None:
        self._views = Views(core)

    async def create(self, name: str, source: str, where: str, *, exist_ok: bool = False) -> None:
        await asyncio.to_thread(self._views.create, name, source, where, exist_ok=exist_ok)

    async def alter(self, name: str, where: str) -> None:
        await asyncio.to_thread(self._views.alter, name, where)

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self._views.delete, name)

    async def list(self) -> Sequence[View]:
        return await asyncio.to_thread(self._views.list)
