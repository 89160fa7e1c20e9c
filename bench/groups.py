"""The cost of groups: a heartbeat, a commit, a rebalance of many members."""

from __future__ import annotations

import itertools
from functools import partial

from bench.brokers import Broker
from bench.cases import LiveCase, Scale, topic
from bench.group_loads import Commits, Heartbeats, Rebalances
from bench.load import measure
from bench.processes import Metrics

IN_FLIGHT_MAX = 5
MEMBERS = 500
REBALANCES = 5
_group_numbers = itertools.count(1)


def cases(scale: Scale) -> list[LiveCase]:
    count = scale.small_requests
    return [
        LiveCase("groups", "heartbeat, one at a time", partial(_heartbeats, count, 1)),
        LiveCase("groups", "heartbeat, 5 in flight", partial(_heartbeats, count, IN_FLIGHT_MAX)),
        LiveCase("groups", "commit of 1 partition, 5 in flight", partial(_commits, count, 1)),
        LiveCase("groups", "commit of 10 partitions, 5 in flight", partial(_commits, count // 2, 10)),
        LiveCase("groups", f"rebalance of {MEMBERS} members", _rebalances),
    ]


def _group() -> str:
    return f"bench-{next(_group_numbers)}"


def _heartbeats(requests: int, in_flight_max: int, broker: Broker) -> Metrics:
    load = Heartbeats(
        broker.bootstrap, broker.pids, group=_group(), requests=requests, in_flight_max=in_flight_max
    )
    return measure(load)


def _commits(requests: int, partitions: int, broker: Broker) -> Metrics:
    with topic(broker, partitions) as name:
        load = Commits(
            broker.bootstrap,
            broker.pids,
            group=_group(),
            topic=name,
            partitions=partitions,
            requests=requests,
            in_flight_max=IN_FLIGHT_MAX,
        )
        return measure(load)


def _rebalances(broker: Broker) -> Metrics:
    load = Rebalances(broker.bootstrap, broker.pids, group=_group(), members=MEMBERS, rounds=REBALANCES)
    return measure(load)
