"""The cost of a small request: one record in one partition, and in each further partition."""

from __future__ import annotations

from functools import partial

from bench.brokers import Broker
from bench.cases import LiveCase, Scale, topic
from bench.load import measure
from bench.processes import Metrics
from bench.raw_loads import SmallRequests

VALUE_BYTES = 100
IN_FLIGHT_MAX = 5
REQUESTS_MIN = 1_000


def cases(scale: Scale) -> list[LiveCase]:
    count = scale.small_requests
    one = [
        LiveCase("requests", "one record, one at a time", partial(_one_partition, count, 1)),
        LiveCase("requests", "one record, 5 in flight", partial(_one_partition, count, IN_FLIGHT_MAX)),
    ]
    many = [
        LiveCase(
            "requests",
            f"one record in each of {partitions} partitions, 5 in flight",
            partial(_partitions, max(count // partitions, REQUESTS_MIN), partitions),
        )
        for partitions in (10, 50)
    ]
    return one + many


def _load(broker: Broker, name: str, requests: int, partitions: int, in_flight_max: int) -> Metrics:
    metrics = measure(
        SmallRequests(
            broker.bootstrap,
            broker.pids,
            topics=(name,),
            requests=requests,
            partitions=partitions,
            value_bytes=VALUE_BYTES,
            in_flight_max=in_flight_max,
        )
    )
    del metrics["broker_us_per_record"]
    return metrics


def _one_partition(requests: int, in_flight_max: int, broker: Broker) -> Metrics:
    with topic(broker) as name:
        return _load(broker, name, requests, 1, in_flight_max)


def _partitions(requests: int, partitions: int, broker: Broker) -> Metrics:
    with topic(broker, partitions) as name:
        one = _load(broker, name, requests, 1, IN_FLIGHT_MAX)["broker_us_per_request"]
        metrics = _load(broker, name, requests, partitions, IN_FLIGHT_MAX)
    further = (metrics["broker_us_per_request"] - one) / (partitions - 1)
    return metrics | {"broker_us_per_further_partition": further}
