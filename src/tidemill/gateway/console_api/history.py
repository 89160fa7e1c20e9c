"""Keeps the last hour of group lag and throughput since the gateway started, sampled every five seconds.

The sampler is a viewer of the cluster like a request, so `cluster_view` bounds its cost. On a large cluster the parts of a
picture are seldom refreshed, and a point is added only when there is something new. Between two samples, the brokers get no
requests unless there is another viewer.

Memory is bounded: `POINTS_MAX` numbers for each of at most `GROUPS_MAX` groups, eight bytes a number. Further groups have no
history (`is_kept` false) until another group is deleted, or was last requested before the new one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from typing import Any

from tidemill.gateway.console_api.cluster_view import ClusterView
from tidemill.gateway.console_api.picture import Picture
from tidemill.gateway.console_api.trends import Counter, Counters
from tidemill.gateway.problems import Problem

SAMPLE_S = 5.0
POINTS_MAX = 720
GROUPS_MAX = 1000
# No lag is known: the group was not there, or has committed nothing.
_UNKNOWN = -1

_log = logging.getLogger("tidemill.gateway")


class Ring:
    """The last `POINTS_MAX` samples of one row of numbers, addressed by the sample's number."""

    def __init__(self, kind: str) -> None:
        self._values = array(kind, [_UNKNOWN]) * POINTS_MAX

    def put(self, sample: int, value: float) -> None:
        self._values[sample % POINTS_MAX] = value  # type: ignore[call-overload]

    def get(self, sample: int) -> Any:
        return self._values[sample % POINTS_MAX]


class History:
    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._count = 0
        self._times_ms = Ring("q")
        self._rates = (Ring("d"), Ring("d"), Ring("d"))
        self._lags: dict[str, Ring] = {}
        # When a group's lag was last requested.
        self._asked_s: dict[str, float] = {}
        self._before: Counters | None = None

    async def run(self) -> None:
        """Takes samples until it is cancelled."""
        while True:
            begun_s = time.monotonic()
            try:
                self.add(await self._view.look(lingers=False))
            except Problem as problem:
                _log.debug("no sample for the history: %s", problem.message)
            await asyncio.sleep(max(0.0, SAMPLE_S - (time.monotonic() - begun_s)))

    def add(self, picture: Picture) -> None:
        sample = self._count
        counters = self._view.counters
        if self._before is not None and counters.records_in.taken_s == self._before.records_in.taken_s:
            return
        for index, now in enumerate(counters):
            self._rates[index].put(sample, self._rate(index, now))
        self._before = counters
        self._times_ms.put(sample, int(time.time() * 1000))
        self._add_lags(sample, picture)
        self._count += 1

    def _rate(self, index: int, now: Counter) -> float:
        """Since the last sample; what was not counted anew since then stays what it was."""
        before = Counter() if self._before is None else self._before[index]
        if now.total is None or before.total is None:
            return _UNKNOWN
        if now.taken_s == before.taken_s:
            return float(self._rates[index].get(self._count - 1))
        return (now.total - before.total) / (now.taken_s - before.taken_s)

    def _add_lags(self, sample: int, picture: Picture) -> None:
        # A group that is gone keeps its place for as long as there is room.
        for group_id, group in picture.groups.items():
            ring = self._lags.get(group_id) or self._admit(group_id, picture)
            if ring is not None:
                lag = picture.lag_of(group)
                ring.put(sample, _UNKNOWN if lag is None else lag)
        for group_id, ring in self._lags.items():
            if group_id not in picture.groups:
                ring.put(sample, _UNKNOWN)

    def _admit(self, group_id: str, picture: Picture) -> Ring | None:
        if len(self._lags) >= GROUPS_MAX:
            gone = next((each for each in self._lags if each not in picture.groups), None)
            if gone is None and group_id in self._asked_s:
                gone = min(self._lags, key=lambda each: self._asked_s.get(each, 0.0))
            if gone is None:
                return None
            del self._lags[gone]
            self._asked_s.pop(gone, None)
        ring = self._lags[group_id] = Ring("q")
        return ring

    # --- answers ---

    def lag(self, group_id: str) -> dict[str, Any]:
        """The points of one group; those where its lag was not known are left out."""
        if len(self._asked_s) >= GROUPS_MAX:
            self._asked_s.pop(min(self._asked_s, key=lambda each: self._asked_s[each]))
        self._asked_s[group_id] = time.monotonic()
        ring = self._lags.get(group_id)
        points = []
        if ring is not None:
            for sample in self._samples():
                if (lag := ring.get(sample)) != _UNKNOWN:
                    points.append([self._times_ms.get(sample), lag])
        return {
            "points": points,
            "is_kept": ring is not None or len(self._lags) < GROUPS_MAX,
            "interval_ms": int(SAMPLE_S * 1000),
        }

    def throughput(self) -> dict[str, Any]:
        points = []
        for sample in self._samples():
            rates = [ring.get(sample) for ring in self._rates]
            points.append(
                [
                    self._times_ms.get(sample),
                    *(None if each == _UNKNOWN else round(each, 1) for each in rates),
                ]
            )
        return {"points": points, "interval_ms": int(SAMPLE_S * 1000)}

    def _samples(self) -> range:
        return range(max(0, self._count - POINTS_MAX), self._count)
