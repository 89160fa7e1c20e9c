"""`tidemill bench`: measures a cluster from this machine, and names the limit.

It creates a topic, loads it and deletes it, also after Ctrl-C. The load comes from one Python thread. That is enough
to find a fault, not to saturate a large cluster, and the result says when the client was the limit. `make bench`
measures the broker itself.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import secrets
import sys
from collections.abc import Callable

from tidemill.cli.benchmark.clients import ConfluentClient, LoadClient, OwnClient, Plan
from tidemill.cli.benchmark.measures import Result
from tidemill.cli.failures import CommandError
from tidemill.cli.options import (
    complete,
    connect,
    positive,
    positive_seconds,
    print_json,
    security_options,
)
from tidemill.cli.progress import Progress
from tidemill.cli.stop import Stop
from tidemill.cli.table import Quantity, print_table, size_text
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.errors import ApiError, ErrorCode

_LOADS = ("produce", "consume", "end-to-end")
_CLIENTS: dict[str, Callable[[Plan], LoadClient]] = {"confluent": ConfluentClient, "tidemill": OwnClient}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "load",
        metavar="LOAD",
        nargs="?",
        choices=(*_LOADS, "all"),
        default="all",
        help="produce, consume, end-to-end or all (default)",
    )
    parser.add_argument(
        "--seconds", metavar="S", type=positive_seconds, default=5.0, help="for each load (default 5)"
    )
    parser.add_argument(
        "--record-bytes", metavar="N", type=positive, default=1000, help="size of a value (default 1000)"
    )
    parser.add_argument(
        "--partitions", metavar="N", type=positive, default=3, help="of the topic (default 3)"
    )
    parser.add_argument(
        "--replication-factor",
        metavar="N",
        type=positive,
        help="default: the broker's default.replication.factor",
    )
    parser.add_argument(
        "--acks",
        choices=("all", "1", "0"),
        default="all",
        help="which replicas must have a record (default all)",
    )
    parser.add_argument("--compression", choices=("none", "gzip", "snappy", "lz4", "zstd"), default="none")
    parser.add_argument(
        "--linger-ms", metavar="MS", type=float, default=5.0, help="how long a batch is gathered (default 5)"
    )
    parser.add_argument(
        "--rate",
        metavar="N",
        type=positive,
        default=200,
        help="records a second for end-to-end (default 200)",
    )
    parser.add_argument(
        "--client", choices=tuple(_CLIENTS), help="default: confluent where confluent-kafka is installed"
    )
    parser.add_argument(
        "--topic",
        metavar="NAME",
        help="must not exist; it is created and deleted (default: a name of its own)",
    )
    complete(
        parser,
        run,
        "tidemill bench\n"
        "tidemill bench produce --record-bytes 100 --acks 1 --compression lz4\n"
        "tidemill bench end-to-end --rate 1000 --seconds 30\n"
        "tidemill bench all --bootstrap broker-1:9092 --replication-factor 3 --json",
    )


def run(arguments: argparse.Namespace) -> int:
    loads = _LOADS if arguments.load == "all" else (arguments.load,)
    results: list[Result] = []
    busy = _busy_note()
    # A KeyboardInterrupt in a callback of librdkafka would be lost, and one between creating and deleting the topic
    # would leave it.
    with Stop() as stop, connect(arguments) as cluster, Progress() as progress:
        for load in loads:
            # The end-to-end load needs an empty topic, and consume needs the records of produce.
            if load == "consume" and results and results[0].load == "produce":
                continue
            plan = _plan(arguments)
            with _Topic(cluster, plan, arguments.replication_factor):
                results += _run(load, _client(arguments.client, plan), progress, stop, "consume" in loads)
    if arguments.json:
        print_json(
            {"client": _client_name(arguments.client), "results": [each.as_json() for each in results]}
        )
    else:
        _print(arguments, results)
        if busy is not None:
            print(busy)
    return 1 if any(result.errors for result in results) else 0


def _run(load: str, client: LoadClient, progress: Progress, stop: Stop, reads_too: bool) -> list[Result]:
    def report(share: float, text: str) -> None:
        stop.check()
        progress.show(min(share, 0.99), f"{load}: {text}")

    if load == "end-to-end":
        return [client.end_to_end(report)]
    written = client.produce(report)
    results = [written] if load == "produce" else []
    if written.errors:
        return [written]
    if load == "consume" or reads_too:
        load = "consume"
        results.append(client.consume(written.records, report))
    return results


def _plan(arguments: argparse.Namespace) -> Plan:
    if arguments.record_bytes < 8:
        raise CommandError("--record-bytes must be at least 8: a record holds the time it was sent at")
    return Plan(
        bootstrap=arguments.bootstrap,
        security=security_options(arguments),
        timeout_s=arguments.timeout,
        topic=arguments.topic or f"tidemill-bench-{secrets.token_hex(4)}",
        partitions=arguments.partitions,
        record_bytes=arguments.record_bytes,
        seconds=arguments.seconds,
        acks=arguments.acks,
        compression=arguments.compression,
        linger_ms=arguments.linger_ms,
        rate=arguments.rate,
    )


def _client_name(chosen: str | None) -> str:
    if chosen is not None:
        return chosen
    return "tidemill" if importlib.util.find_spec("confluent_kafka") is None else "confluent"


def _client(chosen: str | None, plan: Plan) -> LoadClient:
    name = _client_name(chosen)
    if name == "confluent" and importlib.util.find_spec("confluent_kafka") is None:
        raise CommandError("--client confluent needs confluent-kafka: pip install 'tidemill[client]'")
    return _CLIENTS[name](plan)


class _Topic:
    """A topic that exists for the duration of the block."""

    def __init__(self, cluster: Cluster, plan: Plan, replication_factor: int | None) -> None:
        self._admin = Admin(cluster)
        self._plan = plan
        self._replication_factor = replication_factor or -1

    def __enter__(self) -> None:
        try:
            self._admin.create_topic(
                self._plan.topic,
                partition_count=self._plan.partitions,
                replication_factor=self._replication_factor,
            )
        except ApiError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            raise CommandError(
                f"topic {self._plan.topic} exists already; name another one, since it would be deleted"
            ) from None

    def __exit__(self, *_: object) -> None:
        self._admin.delete_topic(self._plan.topic)


# -- what is shown ---------------------------------------------------------------------------------------------


def _print(arguments: argparse.Namespace, results: list[Result]) -> None:
    print_table(
        ("LOAD", "RECORDS/S", "BYTES/S", "RECORDS", "P50 MS", "P95 MS", "P99 MS", "MAX MS"),
        [
            (
                each.load,
                Quantity(f"{each.records_per_s:,.0f}"),
                Quantity(f"{size_text(int(each.bytes_per_s))}/s"),
                Quantity(f"{each.records:,}"),
                *(_latency(each, name) for name in ("p50", "p95", "p99", "max")),
            )
            for each in results
        ],
    )
    for each in results:
        print(
            f"{each.load}: limited by {each.limit}"
            if each.load != "end-to-end"
            else f"{each.load}: {each.limit}"
        )
        for note in each.notes:
            print(f"{each.load}: {note}")
        if each.errors:
            print(f"{each.load}: {each.errors} records failed: {each.error}", file=sys.stderr)
    if _is_here(arguments.bootstrap):
        print(f"client and broker share the {os.cpu_count()} processors of this machine")


def _latency(result: Result, name: str) -> Quantity | None:
    return None if result.latency_ms is None else Quantity(f"{result.latency_ms[name]:,.1f}")


def _busy_note() -> str | None:
    """A note about the machine's load before the measurement."""
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    if load < processors:
        return None
    return (
        f"this machine was busy before (load {load:.1f} on {processors} processors): the numbers are too low"
    )


def _is_here(bootstrap: str) -> bool:
    return bootstrap.startswith(("127.", "localhost", "[::1]"))
