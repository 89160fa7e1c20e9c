"""Loads on the group coordinator over plain sockets: heartbeats and commits of one member, rebalances of many."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench import group_frames as frames
from bench.connection import Connection, RequestFailedError
from bench.load import Load
from bench.processes import Meter, Metrics

SESSION_TIMEOUT_MS = 600_000
COORDINATOR_TIMEOUT_S = 60.0
REBALANCE_IN_PROGRESS = 27
# Not available, loading, not the coordinator: errors of the first requests.
_NOT_YET = {14, 15, 16}


def await_coordinator(bootstrap: str, group: str) -> None:
    """Wait for the group's coordinator. The first request creates the offsets topic."""
    deadline_s = time.monotonic() + COORDINATOR_TIMEOUT_S
    with Connection(bootstrap) as connection:
        while True:
            error = frames.error_of(connection.call(frames.find_coordinator(group)))
            if not error:
                error = frames.error_of(connection.call(frames.heartbeat(group, 0, "nobody")))
            if error not in _NOT_YET:
                return
            if time.monotonic() > deadline_s:
                raise RequestFailedError(f"no coordinator for {group}: error code {error}")
            time.sleep(0.02)


class Members:
    """Members of one group. Each has its own connection, because a join waits for the others."""

    def __init__(self, stack: ExitStack, bootstrap: str, group: str, count: int) -> None:
        await_coordinator(bootstrap, group)
        self.group = group
        self.connections = [stack.enter_context(Connection(bootstrap)) for _ in range(count)]
        self.member_ids = [""] * count
        self.generation = 0
        self._leader = ""
        # The first join of a member is rejected with its new id.
        self._ask_to_join(range(count))
        self._await_joins(is_refused=True)

    def rebalance(self) -> None:
        """From the first join to the last sync response. The leader starts the rebalance."""
        everybody = range(len(self.member_ids))
        if self._leader in self.member_ids:
            leader = self.member_ids.index(self._leader)
            self._ask_to_join([leader])
            others = [index for index in everybody if index != leader]
            self._await_rebalance(others[:1])
            self._ask_to_join(others)
        else:
            self._ask_to_join(everybody)
        self._await_joins()
        self._sync()

    def _ask_to_join(self, indexes: Iterable[int]) -> None:
        for index in indexes:
            frame = frames.join_group(self.group, self.member_ids[index], SESSION_TIMEOUT_MS)
            self.connections[index].send(frame)

    def _await_rebalance(self, watching: Sequence[int]) -> None:
        """A follower that joins too early gets the generation that is about to end."""
        for index in watching:
            beat = frames.heartbeat(self.group, self.generation, self.member_ids[index])
            while frames.error_of(self.connections[index].call(beat)) != REBALANCE_IN_PROGRESS:
                time.sleep(0.001)

    def _await_joins(self, *, is_refused: bool = False) -> None:
        for index, connection in enumerate(self.connections):
            joined = frames.joined(connection.receive())
            if joined.error and not is_refused:
                raise RequestFailedError(f"JoinGroup: error code {joined.error}")
            self.member_ids[index], self.generation = joined.member_id, joined.generation
            self._leader = joined.leader

    def _sync(self) -> None:
        """The leader sends its sync last; the others wait for it."""
        shares = dict.fromkeys(self.member_ids, frames.SUBSCRIPTION)
        order = sorted(
            zip(self.connections, self.member_ids, strict=True), key=lambda pair: pair[1] == self._leader
        )
        for connection, member_id in order:
            given = shares if member_id == self._leader else {}
            connection.send(frames.sync_group(self.group, self.generation, member_id, given))
        for connection, _ in order:
            if error := frames.error_of(connection.receive()):
                raise RequestFailedError(f"SyncGroup: error code {error}")

    def leave(self) -> None:
        self.connections[0].call(frames.leave_group(self.group, self.member_ids))


@dataclass(frozen=True)
class Heartbeats(Load):
    """One member that only sends heartbeats."""

    group: str
    requests: int
    in_flight_max: int

    def run(self) -> Metrics:
        with ExitStack() as stack:
            member = Members(stack, self.bootstrap, self.group, 1)
            member.rebalance()
            frame = frames.heartbeat(self.group, member.generation, member.member_ids[0])
            metrics = _pipelined(self, member.connections[0], [frame], _refuse_error)
            member.leave()
        return metrics


@dataclass(frozen=True)
class Commits(Load):
    """One member that commits a growing offset of each of some partitions."""

    group: str
    topic: str
    partitions: int
    requests: int
    in_flight_max: int

    def run(self) -> Metrics:
        with ExitStack() as stack:
            member = Members(stack, self.bootstrap, self.group, 1)
            member.rebalance()
            ready = [
                frames.offset_commit(
                    self.group,
                    member.generation,
                    member.member_ids[0],
                    self.topic,
                    dict.fromkeys(range(self.partitions), offset),
                )
                for offset in range(1000)
            ]
            metrics = _pipelined(self, member.connections[0], ready, _refuse_commit_errors)
            member.leave()
        return metrics


@dataclass(frozen=True)
class Rebalances(Load):
    """A group whose members all rejoin several times; the first time, with its delay, is not counted."""

    group: str
    members: int
    rounds: int

    def run(self) -> Metrics:
        with ExitStack() as stack:
            members = Members(stack, self.bootstrap, self.group, self.members)
            members.rebalance()
            members.rebalance()
            meters = []
            for _ in range(self.rounds):
                with Meter(self.broker_pids) as meter:
                    members.rebalance()
                meters.append(meter)
            members.leave()
        return {
            "rebalance_ms": statistics.median(meter.wall_s for meter in meters) * 1e3,
            "broker_cpu_ms": statistics.median(meter.broker_cpu_s for meter in meters) * 1e3,
            "client_cpu_ms": statistics.median(meter.client_cpu_s for meter in meters) * 1e3,
        }


def _refuse_error(response: memoryview) -> None:
    if error := frames.error_of(response):
        raise RequestFailedError(f"Heartbeat: error code {error}")


def _refuse_commit_errors(response: memoryview) -> None:
    if errors := frames.commit_errors(response):
        raise RequestFailedError(f"OffsetCommit: error codes {sorted(errors)}")


def _pipelined(
    load: Heartbeats | Commits,
    connection: Connection,
    ready: list[bytearray],
    check: Callable[[memoryview], None],
) -> Metrics:
    """As many requests as the load has, after half as many for warm-up."""
    _send(connection, ready, load.requests // 2, load.in_flight_max, check)
    with Meter(load.broker_pids) as meter:
        _send(connection, ready, load.requests, load.in_flight_max, check)
    return {
        "requests_per_s": load.requests / meter.wall_s,
        "requests_per_cpu_s": load.requests / meter.broker_cpu_s,
        "broker_us_per_request": meter.broker_cpu_s / load.requests * 1e6,
        "client_us_per_request": meter.client_cpu_s / load.requests * 1e6,
    }


def _send(
    connection: Connection,
    ready: list[bytearray],
    count: int,
    in_flight_max: int,
    check: Callable[[memoryview], None],
) -> None:
    in_flight = 0
    for frame in itertools.islice(itertools.cycle(ready), count):
        if in_flight == in_flight_max:
            check(connection.receive())
            in_flight -= 1
        connection.send(frame)
        in_flight += 1
    for _ in range(in_flight):
        check(connection.receive())
