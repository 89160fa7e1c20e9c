"""Collects the causes of rebalances from the status listeners in `Settings.status_urls`.

All listeners get the request at the same time, with a short timeout; one that does not answer is left out. The response does
not name the broker: it is read from the listener's `/metrics` once, and cached.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Container
from typing import Any
from urllib.parse import quote

from tidemill.gateway.console_api.picture import Row
from tidemill.gateway.console_api.traffic import get_all
from tidemill.gateway.settings import Settings

_NODE_ID = re.compile(rb'^tidemill_info\{[^}]*node_id="(\d+)"', re.MULTILINE)

_log = logging.getLogger("tidemill.gateway")


class Rebalances:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._broker_ids: dict[str, int] = {}

    async def newest(
        self, group: str | None, limit: int, visible: Container[str] | None = None
    ) -> dict[str, Any]:
        """Returns the rebalances of one group, or of all; with `visible`, of these groups only."""
        path = "/rebalances" + (f"?group={quote(group, safe='')}" if group else "")
        answers = await get_all(self._settings, path)
        unknown = [url for url in answers if url not in self._broker_ids]
        for url, content in (await get_all(self._settings, "/metrics", unknown)).items():
            if match := _NODE_ID.search(content):
                self._broker_ids[url] = int(match[1])
        rows = [
            row
            for url, content in answers.items()
            for row in _rows(url, content, self._broker_ids.get(url))
            if visible is None or row["group_id"] in visible
        ]
        rows.sort(key=lambda row: (row["at_ms"], row["generation"]), reverse=True)
        return {"is_known": bool(answers), "items": rows[:limit]}


def _rows(url: str, content: bytes, broker_id: int | None) -> list[Row]:
    try:
        events = json.loads(content)
        return [
            {
                "at_ms": event["at_ms"],
                "group_id": event["group_id"],
                "generation": event["generation"],
                "members": event["members_after"],
                "members_before": event["members_before"],
                "cause": event["cause"],
                "broker_id": broker_id,
            }
            for event in events
        ]
    except (ValueError, KeyError, TypeError):
        _log.warning("what %s says about rebalances cannot be read", url)
        return []
