"""Why groups rebalanced: what the coordinators remember, from the status listeners that the gateway was told of.

The listeners are asked at the same time and each for a short while; one that does not answer is left out. Which broker
a listener belongs to is not in its answer: it is asked of its `/metrics` once, and remembered.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from tidemill.gateway.console_api.picture import Row
from tidemill.gateway.console_api.traffic import get_all

_NODE_ID = re.compile(rb'^tidemill_info\{[^}]*node_id="(\d+)"', re.MULTILINE)

_log = logging.getLogger("tidemill.gateway")


class Rebalances:
    def __init__(self, status_urls: Sequence[str]) -> None:
        self._urls = tuple(status_urls)
        self._broker_ids: dict[str, int] = {}

    async def newest(self, group: str | None, limit: int) -> dict[str, Any]:
        path = "/rebalances" + (f"?group={quote(group, safe='')}" if group else "")
        answers = await get_all(self._urls, path)
        unknown = [url for url in answers if url not in self._broker_ids]
        for url, content in (await get_all(unknown, "/metrics")).items():
            if match := _NODE_ID.search(content):
                self._broker_ids[url] = int(match[1])
        rows = [
            row for url, content in answers.items() for row in _rows(url, content, self._broker_ids.get(url))
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
