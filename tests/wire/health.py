"""Checks what must hold after every kind of bad input. The broker serves, in the same process and in bounded memory. It
has logged no more than a line for each connection it closed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.brokers import Broker, RunningBroker, eventually
from tests.wire import batches
from tests.wire.connection import Connection

TOPIC = "health"
RSS_GROWTH_BYTES_MAX = 100_000_000
# What a test may cause to be logged besides closed connections: topics created, deleted, reconfigured.
OTHER_LOG_LINES_MAX = 40


@dataclass(frozen=True)
class Snapshot:
    pid: int
    log_size: int
    rss_bytes: int
    connections_opened: int


def snapshot(broker: RunningBroker) -> Snapshot | None:
    """None for a broker whose process is not ours to look at."""
    if not isinstance(broker, Broker):
        return None
    return Snapshot(broker.pid, broker.log_path.stat().st_size, broker.rss_bytes(), Connection.opened)


def assert_serves(broker: RunningBroker) -> None:
    """A new connection is greeted, and a record goes in and comes out."""
    with Connection(broker) as connection:
        greeting = connection.request("api_versions", 0)
        assert greeting.error_code == 0
        if connection.metadata(TOPIC).error_code:
            connection.create_topic(TOPIC)
        value = b"sound %d" % Connection.opened
        produced = connection.produce(TOPIC, batches.encode([value]))
        assert produced.error_code == 0, produced
        (batch,) = connection.read(TOPIC, produced.base_offset)
        assert batch.values() == [value]


def assert_healthy(broker: RunningBroker, before: Snapshot | None) -> None:
    if before is not None:
        assert isinstance(broker, Broker)
        assert broker.is_alive, f"the broker ended\n{broker.log()[-5000:]}"
    assert_serves(broker)
    if before is None or not isinstance(broker, Broker):
        return
    assert broker.pid == before.pid
    growth = broker.rss_bytes() - before.rss_bytes
    assert growth < RSS_GROWTH_BYTES_MAX, f"memory grew by {growth / 1e6:.0f} MB"
    logged = broker.log_path.read_bytes()[before.log_size :].decode(errors="replace")
    assert "Traceback" not in logged, logged[-5000:]
    lines_max = Connection.opened - before.connections_opened + OTHER_LOG_LINES_MAX
    assert logged.count("\n") <= lines_max, f"more than {lines_max} lines logged\n{logged[-5000:]}"


def assert_descriptors_return_to(broker: RunningBroker, before: int | None) -> None:
    """Closed connections must not leak descriptors."""
    if isinstance(broker, Broker) and before is not None:
        eventually(lambda: (broker.open_files() or 0) <= before + 5, f"descriptors back to {before}")
