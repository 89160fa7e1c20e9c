"""Keeps one picture of the cluster, shared by all requests and event streams of the console.

A picture has parts: topology, brokers that do not answer, end offsets, start offsets and sizes, groups, the quorum,
`min.insync.replicas`, traffic. One task refreshes a part, and only while it has a viewer (a request, an event stream,
the history's sampler). A part's interval is a second, or as long as its cost needs to stay below its share of one core
(`_SHARES`, together 5 %; 1 % while only the history looks). The cost of a part is measured from request to response, so
it is an upper bound. A hundred partitions are refreshed every second, ten thousand every few seconds. Parts with
intervals up to a minute are refreshed within `_INTERVAL_S_MAX` after a change of the topology: a new topic soon gets its
number of messages.

A part that fails keeps its last value, and the picture lists the failure among its problems. A broker that does not answer
delays no other part: after `_PATIENCE_S` the picture continues without it, and the broker gets no new request before the
last one has ended.

A request gets the current picture. It waits only for the first one, or when a new one is due and quickly taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import operator
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from tidemill.client.admin.cluster import Quorum
from tidemill.client.admin.health import Severity, minima
from tidemill.client.admin.probes import Probes
from tidemill.client.connections.connection import Address, Connection
from tidemill.client.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidemill.gateway.cluster import inquiries
from tidemill.gateway.cluster.backend import CLIENT_ID, Admins, Backend
from tidemill.gateway.cluster.facts import ByPartition, GroupFact, Topology
from tidemill.gateway.console_api import traffic
from tidemill.gateway.console_api.picture import Picture, ProblemText, Traffic, stuck_group_problem
from tidemill.gateway.console_api.trends import Counters, StuckGroups, Trends
from tidemill.gateway.problems import Problem

T = TypeVar("T")

INTERVAL_S = 1.0
# Also when changes come thick and fast.
_INTERVAL_S_MIN = 0.2
# Also when everything is slow; what is dear and changes slowly may wait longer.
_INTERVAL_S_MAX = 5.0
_INTERVALS_S_MAX = {"disks": 60.0, "minima": 60.0, "traffic": 60.0}
# A request counts as a viewer for this long.
_ATTENTION_S = 5.0
_PATIENCE_S = 2.0
_FIRST_PATIENCE_S = 10.0
# A picture that takes longer is not waited for by a request that has an older one.
_QUICK_S = 0.05
# What a part may cost, of one core.
_SHARES = {
    "topology": 0.018,
    "ends": 0.012,
    "disks": 0.002,
    "minima": 0.001,
    "silent": 0.002,
    "groups": 0.01,
    "quorum": 0.0025,
    "traffic": 0.0025,
}
# A part's cost is the least of this many measurements: the others waited for other work.
_COSTS_KEPT = 3
# The factor by which the shares shrink while only the history looks.
_THRIFT = 5.0

_log = logging.getLogger("tidemill.gateway")


class Part(Generic[T]):
    """The last value of a part, and when to refresh it."""

    def __init__(self, name: str, empty: T, question: Callable[[], Awaitable[T]]) -> None:
        self.name = name
        self.value = empty
        self._question = question
        self.version = 0
        self.taken_s = float("-inf")
        self.failure: str | None = None
        self._costs_s: deque[float] = deque(maxlen=_COSTS_KEPT)
        self._asked_s = float("-inf")
        # The version of the topology that the last answer is about.
        self._topology_version = -1
        self._task: asyncio.Task[None] | None = None

    @property
    def cost_s(self) -> float:
        # The first one paid for the connections as well.
        return min(self._costs_s) if len(self._costs_s) > 1 else 0.0

    @property
    def interval_s(self) -> float:
        return self.cost_s / _SHARES[self.name]

    def is_due(self, now_s: float, thrift: float = 1.0, topology_version: int | None = None) -> bool:
        longest_s = _INTERVAL_S_MAX * thrift
        if topology_version in (None, self._topology_version):
            longest_s = _INTERVALS_S_MAX.get(self.name, longest_s)
        # A tick may come a little early.
        wait_s = min(max(INTERVAL_S, self.interval_s * thrift), longest_s) * 0.98
        return self._task is None and now_s - self._asked_s >= wait_s

    def expire(self) -> None:
        self._asked_s = float("-inf")

    def ask(self, topology_version: int) -> asyncio.Task[None]:
        self._asked_s = time.monotonic()
        self._topology_version = topology_version
        self._task = asyncio.create_task(self._take(), name=f"console-{self.name}")
        return self._task

    async def _take(self) -> None:
        begun_s = time.monotonic()
        try:
            value = await self._question()
        except Problem as problem:
            self.failure = problem.message
        except Exception:
            # A bug here must not end the refreshing of pictures.
            _log.exception("the %s of the cluster could not be taken", self.name)
            self.failure = "the gateway failed; its log has the reason"
        else:
            self.failure = None
            self.taken_s = time.monotonic()
            self._costs_s.append(self.taken_s - begun_s)
            # In a thread: it may be a comparison of thousands of partitions.
            if await asyncio.to_thread(operator.ne, value, self.value):
                self.version += 1
                self.value = value
        finally:
            self._task = None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class ClusterView:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._topology: Part[Topology | None] = Part("topology", None, self._ask_topology)
        self._ends: Part[ByPartition] = Part("ends", {}, self._ask_ends)
        # Start offsets, and sizes by broker.
        self._disks: Part[tuple[ByPartition, dict[int, ByPartition]]] = Part(
            "disks", ({}, {}), self._ask_disks
        )
        self._groups: Part[dict[str, GroupFact]] = Part("groups", {}, self._ask_groups)
        self._quorum: Part[Quorum | None] = Part("quorum", None, self._ask_quorum)
        self._probes = Probes(self._open_probe)
        self._silent: Part[dict[int, str]] = Part("silent", {}, self._ask_silent)
        self._minima: Part[dict[str, int]] = Part("minima", {}, self._ask_minima)
        self._traffic: Part[dict[str, Traffic]] = Part("traffic", {}, self._ask_traffic)
        self._trends = Trends()
        self._stuck = StuckGroups()
        self._picture: Picture | None = None
        self._watchers = 0
        self._looked_s = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._taken = asyncio.Event()
        self._changed = asyncio.Event()
        self._is_closed = False

    @property
    def parts(self) -> list[Part[Any]]:
        return [
            self._topology,
            self._silent,
            self._ends,
            self._disks,
            self._groups,
            self._quorum,
            self._minima,
            self._traffic,
        ]

    @property
    def last(self) -> Picture | None:
        return self._picture

    @property
    def counters(self) -> Counters:
        return self._trends.counters

    # --- looking ---

    async def look(self, *, lingers: bool = True) -> Picture:
        """The picture for one request. With `lingers` it stays a viewer: the next page is likely to follow."""
        if lingers:
            self._looked_s = time.monotonic()
        taken = self._start()
        if self._picture is None or self._is_worth_a_wait():
            try:
                async with asyncio.timeout(_FIRST_PATIENCE_S if self._picture is None else _PATIENCE_S):
                    await taken.wait()
            except TimeoutError:
                _log.debug("the picture of the cluster is late")
        if self._picture is None:
            reason = self._topology.failure or "the cluster did not answer in time"
            raise Problem(503, 50301, reason)
        return self._picture

    def _is_worth_a_wait(self) -> bool:
        now_s = time.monotonic()
        old_s = now_s - self._topology.taken_s
        if old_s > max(10 * INTERVAL_S, 2 * _THRIFT * self._topology.interval_s):
            return True
        is_quick = self._topology.cost_s + self._ends.cost_s < _QUICK_S
        return is_quick and any(part.is_due(now_s) for part in (self._topology, self._ends))

    def watch(self) -> Watch:
        """For an event stream: `async with view.watch() as watch: await watch.next(timeout_s)`."""
        return Watch(self)

    def expire(self) -> None:
        """Takes a new picture after a change, at once or when there is a viewer."""
        self._changed.set()
        for part in (self._topology, self._ends, self._groups):
            part.expire()

    async def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for part in self.parts:
            await part.close()
        self._probes.close()
        self._taken.set()

    # --- taking pictures ---

    def _start(self) -> asyncio.Event:
        """The event of the next picture; the task that takes it runs then."""
        if self._is_closed:
            raise Problem(503, 50301, "the gateway is stopping")
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="console-view")
        return self._taken

    async def _run(self) -> None:
        try:
            while True:
                begun_s = time.monotonic()
                await self._take_picture()
                taken, self._taken = self._taken, asyncio.Event()
                taken.set()
                if not self._is_looked_at():
                    break
                await self._pause(begun_s)
        finally:
            self._task = None

    async def _pause(self, begun_s: float) -> None:
        """Waits for the next picture: a second after the last, or sooner when something was changed."""
        await asyncio.sleep(max(0.0, begun_s + _INTERVAL_S_MIN - time.monotonic()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, begun_s + INTERVAL_S - time.monotonic())):
                await self._changed.wait()
        self._changed.clear()

    async def _take_picture(self) -> None:
        now_s = time.monotonic()
        patience_s = _PATIENCE_S if self._picture else _FIRST_PATIENCE_S
        thrift = 1.0 if self._is_looked_at() else _THRIFT
        asked = []
        if self._topology.is_due(now_s, thrift):
            asked.append(self._topology.ask(self._topology.version))
            await asyncio.wait(asked, timeout=patience_s)
        if self._topology.value is None:
            return
        others = [part for part in self.parts if part is not self._topology]
        version = self._topology.version
        asked += [part.ask(version) for part in others if part.is_due(now_s, thrift, version)]
        if asked:
            await asyncio.wait(asked, timeout=patience_s)
            self._trends.add_ends(self._ends.taken_s, self._ends.value)
            self._trends.add_traffic(self._traffic.taken_s, self._traffic.value)
            self._picture = await asyncio.to_thread(self._assemble, self._topology.value)

    def _is_looked_at(self) -> bool:
        return self._watchers > 0 or time.monotonic() - self._looked_s <= _ATTENTION_S

    def _assemble(self, topology: Topology) -> Picture:
        starts, sizes = self._disks.value
        picture = Picture(
            as_of_ms=int((time.time() - time.monotonic() + self._topology.taken_s) * 1000),
            topology=topology,
            end_offsets=self._ends.value,
            start_offsets=starts,
            sizes=sizes,
            silent=self._silent.value,
            minima=self._minima.value,
            quorum=self._quorum.value,
            groups=self._groups.value,
            rates=self._trends.rates,
            topic_rates=self._trends.topics,
            findings=tuple(self._findings()),
            topics_version=self._topology.version + self._ends.version + self._disks.version,
            groups_version=self._groups.version + self._ends.version,
        )
        stuck = self._stuck.find(picture, time.monotonic())
        if stuck:
            picture = replace(picture, findings=(*picture.findings, stuck_group_problem(stuck)))
        # Computed here, in a thread, instead of by the first request.
        _ = picture.overview
        return picture

    def _findings(self) -> list[ProblemText]:
        found = []
        if self._topology.failure:
            found.append(
                ProblemText(
                    Severity.CRITICAL,
                    f"The cluster does not answer, this is what it was: {self._topology.failure}.",
                )
            )
        if self._quorum.failure:
            found.append(
                ProblemText(
                    Severity.CRITICAL, f"The controller quorum does not answer: {self._quorum.failure}."
                )
            )
        for part in (self._ends, self._disks, self._groups):
            if part.failure:
                found.append(
                    ProblemText(Severity.WARNING, f"A broker did not tell its {part.name}: {part.failure}.")
                )
        return found

    # --- questions ---

    async def _ask_topology(self) -> Topology | None:
        return await self._backend.ask(lambda admins: inquiries.topology(admins.cluster))

    async def _ask_quorum(self) -> Quorum | None:
        return await self._backend.ask(lambda admins: inquiries.quorum(admins.cluster))

    def _open_probe(self, address: Address, timeout_s: float) -> Connection:
        security = self._backend.settings.security
        return Connection(address, client_id=CLIENT_ID, timeout_s=timeout_s, security=security)

    async def _ask_silent(self) -> dict[int, str]:
        brokers = self._known_topology().brokers
        asked = {each.id: each.address for each in brokers if not each.is_fenced}
        return await asyncio.to_thread(self._probes.silent, asked)

    async def _ask_minima(self) -> dict[str, int]:
        topics = list(self._known_topology().topics)
        return await self._backend.ask(lambda admins: minima(admins.admin, topics))

    async def _ask_traffic(self) -> dict[str, Traffic]:
        settings = self._backend.settings
        if settings.user is not None and self._quorum.value is None:
            # The status listeners know nothing of users: their numbers are for those who may describe the cluster.
            return {}
        return await traffic.traffic(settings)

    def _known_topology(self) -> Topology:
        assert self._topology.value is not None
        return self._topology.value

    async def _ask_ends(self) -> ByPartition:
        return await self._offsets(self._known_topology(), LATEST_TIMESTAMP, self._ends.value)

    async def _ask_disks(self) -> tuple[ByPartition, dict[int, ByPartition]]:
        topology = self._known_topology()
        starts_before, sizes_before = self._disks.value
        starts = await self._offsets(topology, EARLIEST_TIMESTAMP, starts_before)
        sizes = await self._per_broker(
            topology.live_ids, lambda broker_id, admins: inquiries.sizes(admins.cluster, broker_id)
        )
        return starts, {
            each: known for each in topology.live_ids if (known := sizes.get(each) or sizes_before.get(each))
        }

    async def _ask_groups(self) -> dict[str, GroupFact]:
        topology = self._known_topology()
        answers = await self._per_broker(
            topology.live_ids, lambda broker_id, admins: inquiries.groups(admins.cluster, broker_id)
        )
        found = [group for groups in answers.values() for group in groups]
        # A coordinator that did not answer still has its groups.
        found += [
            group
            for group in self._groups.value.values()
            if group.coordinator in topology.live_ids and group.coordinator not in answers
        ]
        return {group.group_id: group for group in sorted(found, key=lambda group: group.group_id)}

    async def _offsets(self, topology: Topology, timestamp_ms: int, before: ByPartition) -> ByPartition:
        led = topology.led
        answers = await self._per_broker(
            list(led),
            lambda broker_id, admins: inquiries.offsets(
                admins.cluster, broker_id, led[broker_id], timestamp_ms
            ),
        )
        return await asyncio.to_thread(inquiries.merged, topology, before, answers.values())

    async def _per_broker(self, broker_ids: list[int], ask: Callable[[int, Admins], T]) -> dict[int, T]:
        """The answers of the brokers that gave one; `Problem` when none did."""

        async def of(broker_id: int) -> T:
            return await self._backend.ask(lambda admins: ask(broker_id, admins))

        answers = await asyncio.gather(*map(of, broker_ids), return_exceptions=True)
        found: dict[int, T] = {}
        failures = []
        for broker_id, answer in zip(broker_ids, answers, strict=True):
            if isinstance(answer, Problem):
                failures.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[broker_id] = answer
        if failures and not found:
            raise failures[0]
        return found


class Watch:
    """Keeps pictures coming while it is open."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    async def __aenter__(self) -> Watch:
        self._view._watchers += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._view._watchers -= 1

    async def next(self, timeout_s: float) -> Picture | None:
        """The picture after the next one was taken; None when none was in time."""
        taken = self._view._start()
        try:
            async with asyncio.timeout(timeout_s):
                await taken.wait()
        except TimeoutError:
            return None
        return self._view.last
