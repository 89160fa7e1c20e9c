"""The views of a cluster for the console: which there are, and how much each looked through and showed.

Finding the views takes the configuration of every topic, and the counters are on the brokers' status listeners. So one look
serves all requests for a while: longer where it took longer, so that it costs a fixed share of the time.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable

from tidemill.client.admin.views import View, ViewAdmin
from tidemill.gateway.cluster.backend import Backend
from tidemill.gateway.console_api import traffic
from tidemill.gateway.console_api.cluster_view import ClusterView
from tidemill.gateway.console_api.picture import Row

_KNOWN_S = 2.0
# The share of the time that looking may take.
_SHARE = 0.02
_COUNTERS = {
    "tidemill_view_bytesscanned_total": "bytes_scanned",
    "tidemill_view_recordsscanned_total": "records_scanned",
    "tidemill_view_recordsshown_total": "records_shown",
    "kafka_server_brokertopicmetrics_bytesout_total": "bytes_shown",
}
_SAMPLE = re.compile(r'(\w+)\{topic="([\w.-]+)"\} (\S+)')


class ViewList:
    def __init__(self, backend: Backend, cluster: ClusterView) -> None:
        self._backend = backend
        self._cluster = cluster
        self._rows: list[Row] = []
        self._until_s = float("-inf")
        self._looking = asyncio.Lock()

    def expire(self) -> None:
        self._until_s = float("-inf")

    async def rows(self) -> list[Row]:
        async with self._looking:
            if time.monotonic() >= self._until_s:
                begun_s = time.monotonic()
                self._rows = await self._look()
                cost_s = time.monotonic() - begun_s
                self._until_s = time.monotonic() + max(_KNOWN_S, cost_s / _SHARE)
            return self._rows

    async def _look(self) -> list[Row]:
        found = await self._backend.ask(lambda admins: ViewAdmin(admins.admin).list())
        answers: Iterable[bytes] = ()
        settings = self._backend.settings
        # The status listeners know nothing of users: their numbers are for those who may describe the cluster.
        if found and (settings.user is None or (await self._cluster.look()).quorum is not None):
            answers = (await traffic.get_all(settings, "/metrics")).values()
        return await asyncio.to_thread(rows_of, found, list(answers))


def rows_of(views: list[View], pages: list[bytes]) -> list[Row]:
    """The views with their counts, summed over the metrics pages of the brokers; None where no page has any."""
    names = {view.name for view in views}
    counts: dict[str, dict[str, int]] = {}
    for page in pages:
        for line in page.decode("utf-8", "replace").splitlines():
            sample = (
                _SAMPLE.fullmatch(line) if line.startswith(("tidemill_view_", "kafka_server_b")) else None
            )
            if sample is not None and sample[1] in _COUNTERS and sample[2] in names:
                counted = counts.setdefault(sample[2], {})
                name = _COUNTERS[sample[1]]
                counted[name] = counted.get(name, 0) + int(float(sample[3]))
    unknown = 0 if pages else None
    return [
        {
            **view._asdict(),
            **{name: counts.get(view.name, {}).get(name, unknown) for name in _COUNTERS.values()},
        }
        for view in views
    ]
