"""Loads of prepared frames on a plain socket: the broker's ceiling, from a client that costs little."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from bench import frames
from bench.connection import Connection, RequestFailedError, log_end_offsets
from bench.load import Load
from bench.processes import Meter, Metrics


def _check(response: memoryview) -> None:
    errors = frames.produce_errors(response)
    if errors:
        raise RequestFailedError(f"Produce: error codes by partition {errors}")


def send_pipelined(connection: Connection, requests: Iterable[bytearray], in_flight_max: int) -> None:
    """Send them all, at most `in_flight_max` unanswered, and wait for every answer."""
    in_flight = 0
    for frame in requests:
        if in_flight == in_flight_max:
            _check(connection.receive())
            in_flight -= 1
        connection.send(frame)
        in_flight += 1
    for _ in range(in_flight):
        _check(connection.receive())


@dataclass(frozen=True)
class CannedProduce(Load):
    """The same full batch repeatedly, to one partition."""

    topic: str
    payload_bytes: int
    value_bytes: int
    batch_bytes: int
    acks: int = 1
    in_flight_max: int = 5

    def run(self) -> Metrics:
        batch, count = frames.full_batch(self.batch_bytes, bytes(self.value_bytes))
        request = frames.produce_request(self.topic, {0: batch}, self.acks)
        requests = -(-self.payload_bytes // (count * self.value_bytes))
        with Connection(self.bootstrap) as connection:
            with Meter(self.broker_pids) as meter:
                send_pipelined(connection, itertools.repeat(request, requests), self.in_flight_max)
            ((error, end_offset),) = log_end_offsets(connection, self.topic, 1)
        messages = requests * count
        if error or end_offset != messages:
            raise RequestFailedError(
                f"{messages} messages sent, log end offset {end_offset}, error code {error}"
            )
        return meter.throughput(messages, messages * self.value_bytes) | {"messages": messages}


@dataclass(frozen=True)
class CannedFetch(Load):
    """Everything in partition 0 from offset 0, one request at a time; the bytes are dropped."""

    topic: str
    value_bytes: int
    messages: int
    fetch_bytes_max: int

    def run(self) -> Metrics:
        offset = 0
        with Connection(self.bootstrap) as connection, Meter(self.broker_pids) as meter:
            while offset < self.messages:
                response = connection.call(frames.fetch_request(self.topic, offset, self.fetch_bytes_max))
                error, records = frames.fetched(response)
                end_offset = frames.end_of_batches(records, offset)
                if error or end_offset == offset:
                    raise RequestFailedError(
                        f"Fetch at offset {offset}: error code {error}, {len(records)} bytes"
                    )
                offset = end_offset
        return meter.throughput(self.messages, self.messages * self.value_bytes)


@dataclass(frozen=True)
class SmallRequests(Load):
    """Requests of one record for each of some partitions, to each topic in turn."""

    topics: tuple[str, ...]
    requests: int
    partitions: int
    value_bytes: int
    in_flight_max: int

    def run(self) -> Metrics:
        batch = frames.record_batch([bytes(self.value_bytes)])
        batches = dict.fromkeys(range(self.partitions), batch)
        ready = [frames.produce_request(topic, batches, acks=1) for topic in self.topics]
        with Connection(self.bootstrap) as connection:
            # The first use of a partition and the JIT compilation are not measured.
            warm_up = itertools.islice(itertools.cycle(ready), max(len(ready), self.requests // 2))
            send_pipelined(connection, warm_up, self.in_flight_max)
            with Meter(self.broker_pids) as meter:
                requests = itertools.islice(itertools.cycle(ready), self.requests)
                send_pipelined(connection, requests, self.in_flight_max)
        return {
            "requests_per_s": self.requests / meter.wall_s,
            "broker_us_per_request": meter.broker_cpu_s / self.requests * 1e6,
            "broker_us_per_record": meter.broker_cpu_s / self.requests / self.partitions * 1e6,
            "client_us_per_request": meter.client_cpu_s / self.requests * 1e6,
        }
