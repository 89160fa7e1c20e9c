"""Chooses the values of requests' fields: by the field's name those that lead past the first check, and extreme ones.

`Pools` knows what is real at the target (topics, ids, members, epochs). Durations that a broker may wait for stay small, so
that an answer is always due soon.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.wire.fuzz.records import BatchMaker
from tests.wire.fuzz.schemas import Field, Struct

Pick = Callable[["Pools", random.Random], Any]

TOPICS = (
    "fuzz-plain",
    "fuzz-compacted",
    "fuzz-zstd",
    "fuzz-append-time",
    "fuzz-aged",
    "fuzz-delays",
    "fuzz-shrunk",
)
VIEWS = ("fuzz-view", "fuzz-view-of-delays", "fuzz-view-of-shrunk")
# Created and deleted all the time.
PASSING_TOPICS = tuple(f"passing-{number}" for number in range(8))
GROUPS = tuple(f"group-{number}" for number in range(12))
SHARE_GROUPS = tuple(f"share-group-{number}" for number in range(4))
TRANSACTIONAL_IDS = tuple(f"transactional-{number}" for number in range(8))
_BAD_NAMES = ("", ".", "..", "a/b", "a b", "x" * 249, "x" * 250, "\0", "ä€𝄞", "__cluster_metadata", "nothing")
_INTERNAL = ("__consumer_offsets", "__transaction_state")
_CONFIG_NAMES = (
    "cleanup.policy",
    "compression.type",
    "retention.ms",
    "retention.bytes",
    "segment.bytes",
    "max.message.bytes",
    "min.insync.replicas",
    "flush.messages",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "delete.retention.ms",
    "leader.replication.throttled.replicas",
    "unclean.leader.election.enable",
    "no.such.config",
    "consumer.session.timeout.ms",
    "interval.ms",
    "metrics",
    "tidemill.delays.enable",
    "tidemill.delays.max.ms",
    "tidemill.delays.interval.min.ms",
    "tidemill.partitions.active",
    "tidemill.partitions.former",
    "tidemill.partitions.kept.ms",
    "tidemill.partitions.total",
    "tidemill.view.filter",
    "tidemill.view.source",
)
_FILTERS = (
    "key exists",
    "key starts with 'k'",
    "a = 'b' and not ('x' in tags or \"key\" exists)",
    "a in (" + "'x'," * 300 + "'y')",
    "(" * 300,
    "not " * 3000 + "key exists",
    "key = '" + "x" * 30_000 + "'",
)
_CONFIG_VALUES = (
    *_FILTERS,
    "2",
    "3",
    "fuzz-plain",
    "1",
    "0",
    "-1",
    "-2",
    "3600000",
    "compact",
    "delete",
    "compact,delete",
    "gzip",
    "zstd",
    "producer",
    "LogAppendTime",
    "true",
    "false",
    "",
    "9" * 30,
    "1e9",
    "nan",
    "*",
    "0:1,1:2",
    "x" * 1000,
    "ä",
    "\0",
)
_REGEXES = (
    "fuzz-.*",
    "(a+)+$",
    "(a|a)*b",
    ".*" * 30,
    "[",
    "(?P<x>",
    "\\",
    "(" * 200,
    "a{1000}{1000}",
    "^(([a-z])+.)+$",
)
_HOSTS = (
    "127.0.0.1",
    "localhost",
    "",
    "no.such.host.invalid",
    "256.256.256.256",
    "::1",
    "x" * 300,
    "127.0.0.1\0",
)
_CLIENT_METRICS = ("org.apache.kafka.producer.", "", "*", "x" * 200)
_PRINCIPALS = ("User:fuzz", "User:*", "", "Group:x", "nobody")
_LONG = ("x" * 32_767, "y" * 32_760, "z" * 300, "ä" * 10_000)
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_REMEMBERED = 32


@dataclass
class Pools:
    """What is real at the target. Sequences add to it while the attack goes on."""

    cluster_id: str = "no cluster"
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    broker_ids: tuple[int, ...] = (1,)
    broker_epochs: tuple[int, ...] = ()
    directory_ids: tuple[bytes, ...] = ()
    leader_epochs: tuple[int, ...] = (0, 1)
    members: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    producers: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    fetch_sessions: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    telemetry: deque[tuple[bytes, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    batches: BatchMaker = field(default_factory=BatchMaker)


def _one_of(*values: Any) -> Pick:
    return lambda _, rng: values[int(rng.random() * len(values))]


def _topic(_: Pools, rng: random.Random) -> str:
    chance = rng.random()
    if chance < 0.7:
        return rng.choice(TOPICS + VIEWS)
    if chance < 0.9:
        return rng.choice(PASSING_TOPICS)
    return rng.choice(_BAD_NAMES) if chance < 0.95 else rng.choice(_INTERNAL)


def _passing_topic(_: Pools, rng: random.Random) -> str:
    """For requests that would take a topic away from the others."""
    return rng.choice(PASSING_TOPICS) if rng.random() < 0.8 else rng.choice(_BAD_NAMES)


def _topic_id(pools: Pools, rng: random.Random) -> bytes:
    if pools.topic_ids and rng.random() < 0.8:
        return rng.choice(list(pools.topic_ids.values()))
    return rng.choice((bytes(16), bytes(15) + b"\1", rng.randbytes(16)))


def _member_id(pools: Pools, rng: random.Random) -> str:
    if pools.members and rng.random() < 0.6:
        return rng.choice(pools.members)[0]
    return rng.choice(("", "", "stranger", "AAAAAAAAAAAAAAAAAAAAAA"))


def _generation(pools: Pools, rng: random.Random) -> int:
    if pools.members and rng.random() < 0.6:
        return rng.choice(pools.members)[1]
    return rng.choice((-2, -1, 0, 0, 1, 2))


def _producer_id(pools: Pools, rng: random.Random) -> int:
    return (
        rng.choice(pools.producers)[0] if pools.producers and rng.random() < 0.7 else rng.choice((-1, 0, 77))
    )


def _producer_epoch(pools: Pools, rng: random.Random) -> int:
    return (
        rng.choice(pools.producers)[1] if pools.producers and rng.random() < 0.7 else rng.choice((-1, 0, 1))
    )


def _broker_id(pools: Pools, rng: random.Random) -> int:
    return rng.choice(pools.broker_ids) if rng.random() < 0.7 else rng.choice((-1, 0, 77, 1000))


def _replica_id(pools: Pools, rng: random.Random) -> int:
    return -1 if rng.random() < 0.6 else _broker_id(pools, rng)


def _broker_epoch(pools: Pools, rng: random.Random) -> int:
    return rng.choice((*pools.broker_epochs, -1, 0, 1))


def _directory_id(pools: Pools, rng: random.Random) -> bytes:
    return rng.choice((*pools.directory_ids, bytes(16), rng.randbytes(16)))


def _epoch(pools: Pools, rng: random.Random) -> int:
    return rng.choice((-1, -1, *pools.leader_epochs))


def _session_id(pools: Pools, rng: random.Random) -> int:
    return rng.choice(pools.fetch_sessions) if pools.fetch_sessions and rng.random() < 0.5 else 0


def _subscription(pools: Pools, rng: random.Random) -> int:
    return rng.choice(pools.telemetry)[1] if pools.telemetry and rng.random() < 0.7 else 0


def _client_instance(pools: Pools, rng: random.Random) -> bytes:
    return rng.choice(pools.telemetry)[0] if pools.telemetry and rng.random() < 0.7 else bytes(16)


def _batch(pools: Pools, rng: random.Random) -> bytes:
    producer = rng.choice(pools.producers) if pools.producers and rng.random() < 0.3 else None
    return pools.batches.make(rng, producer)


def _timestamp(_: Pools, rng: random.Random) -> int:
    return rng.choice((-1, -2, -3, -4, -5, 0, int(time.time() * 1000) - rng.randrange(100_000)))


def _small_bytes(_: Pools, rng: random.Random) -> bytes:
    return rng.choice((b"", _SUBSCRIPTION, _SUBSCRIPTION, _ASSIGNMENT, rng.randbytes(30), b"\xff" * 12))


# ConsumerProtocolSubscription and -Assignment, version 0.
_SUBSCRIPTION = b"\0\0" + b"\0\0\0\1" + b"\0\x0afuzz-plain" + b"\xff\xff\xff\xff"
_ASSIGNMENT = b"\0\0" + b"\0\0\0\1" + b"\0\x0afuzz-plain" + b"\0\0\0\1\0\0\0\0" + b"\xff\xff\xff\xff"

_partition = _one_of(0, 0, 0, 1, 2, 3, -1)
_small = _one_of(0, 1, -1, 2, 10)
_offset = _one_of(0, 0, 1, 2, 5, 17, 100, -1, 100_000)
_soon = _one_of(0, 1, 50, 100, 200)
_group = _one_of(*GROUPS, *SHARE_GROUPS, "")
_transactional = _one_of(*TRANSACTIONAL_IDS)

# By the name of the field, whatever API it is in.
BY_NAME: dict[str, Pick] = {
    "topic": _topic,
    "topic_name": _topic,
    "subscribed_topic_names": _topic,
    "source_topics": _topic,
    "topic_names": _passing_topic,
    "topic_id": _topic_id,
    "partition": _partition,
    "partition_index": _partition,
    "partition_indexes": _partition,
    "partitions": _partition,
    "index": _partition,
    "group_id": _group,
    "group_ids": _group,
    "groups": _group,
    "groups_names": _group,
    "key": _one_of(*GROUPS, *TRANSACTIONAL_IDS, "group-0:AAAAAAAAAAAAAAAAAAAAAA:0"),
    "coordinator_keys": _one_of(*GROUPS, *TRANSACTIONAL_IDS),
    "key_type": _one_of(0, 0, 1, 2),
    "member_id": _member_id,
    "group_instance_id": _one_of(None, None, "instance-1", "instance-2"),
    "generation_id": _generation,
    "generation_id_or_member_epoch": _generation,
    "member_epoch": _generation,
    "protocol_type": _one_of("consumer", "consumer", "connect", ""),
    "protocol_name": _one_of("range", "roundrobin"),
    "server_assignor": _one_of(None, "uniform", "range", "no-such-assignor"),
    "subscribed_topic_regex": _one_of(None, *_REGEXES),
    "transactional_id_pattern": _one_of(None, *_REGEXES),
    "transactional_id": _transactional,
    "transactional_ids": _transactional,
    "v3_and_below_transactional_id": _transactional,
    "producer_id": _producer_id,
    "v3_and_below_producer_id": _producer_id,
    "producer_id_filters": _producer_id,
    "producer_epoch": _producer_epoch,
    "v3_and_below_producer_epoch": _producer_epoch,
    "broker_id": _broker_id,
    "broker_ids": _broker_id,
    "replicas": _broker_id,
    "new_isr": _broker_id,
    "controller_id": _broker_id,
    "voter_id": _broker_id,
    "candidate_id": _broker_id,
    "leader_id": _broker_id,
    "preferred_successors": _broker_id,
    "replica_id": _replica_id,
    "broker_epoch": _broker_epoch,
    "previous_broker_epoch": _broker_epoch,
    "replica_epoch": _broker_epoch,
    "leader_epoch": _epoch,
    "current_leader_epoch": _epoch,
    "last_fetched_epoch": _epoch,
    "last_offset_epoch": _epoch,
    "committed_leader_epoch": _epoch,
    "partition_epoch": _epoch,
    "voter_directory_id": _directory_id,
    "candidate_directory_id": _directory_id,
    "replica_directory_id": _directory_id,
    "log_dirs": _directory_id,
    "cluster_id": lambda pools, rng: rng.choice((None, pools.cluster_id, pools.cluster_id, "another")),
    "session_id": _session_id,
    "session_epoch": _one_of(-1, 0, 1, 2),
    "subscription_id": _subscription,
    "client_instance_id": _client_instance,
    "acks": _one_of(-1, -1, 1, 0),
    "max_wait": _soon,
    "min_bytes": _one_of(0, 1, 100),
    "max_bytes": _one_of(0, 1, 1000, 65_536, 1_000_000),
    "partition_max_bytes": _one_of(0, 1, 1000, 65_536, 1_000_000),
    "isolation_level": _one_of(0, 1),
    "session_timeout": _one_of(300, 500, 1000),
    "rebalance_timeout": _one_of(100, 300, 500),
    "transaction_timeout": _one_of(500, 1000, 5000),
    "num_partitions": _one_of(1, 2, -1),
    "count": _one_of(1, 2, 3, 4),
    "replication_factor": _one_of(1, -1, 3),
    "timestamp": _timestamp,
    "offset": _offset,
    "fetch_offset": _offset,
    "committed_offset": _offset,
    "records": _batch,
    "assignment": _small_bytes,
    "metadata": _small_bytes,
    "metrics": _small_bytes,
    "request_principal": _small_bytes,
    "client_host_address": _one_of(b"\x7f\0\0\1", b"", bytes(16), b"\xff" * 5),
    "resource_type": _one_of(2, 2, 2, 4, 8, 16, 32),
    "resource_types": _one_of(2, 4, 8, 16, 32),
    "config_operation": _one_of(0, 1, 2, 3),
    "configuration_keys": _one_of(*_CONFIG_NAMES),
    "election_type": _one_of(0, 1),
    "endpoint_type": _one_of(1, 2),
    "host": _one_of(*_HOSTS),
    "port": _one_of(1, 9092, 65_535),
    "feature": _one_of(
        "metadata.version", "kraft.version", "group.version", "transaction.version", "no.such"
    ),
    "states_filter": _one_of("Stable", "Empty", "Ongoing", "no such state"),
    "state_filters": _one_of("Ongoing", "Empty", "PrepareCommit", "no such state"),
    "types_filter": _one_of("consumer", "classic", "no such type"),
    "principal": _one_of(*_PRINCIPALS),
    "path": _one_of("", "/", "/nowhere", "data"),
    "mechanism": _one_of(1, 2),
}


def _resource_name(pools: Pools, rng: random.Random, resource_type: int) -> str:
    match resource_type:
        case 4 | 8:
            return rng.choice((*map(str, pools.broker_ids), "", "x"))
        case 16:
            return rng.choice(_CLIENT_METRICS)
        case 32:
            return rng.choice(GROUPS)
    return rng.choice(PASSING_TOPICS + TOPICS + VIEWS)


def sane(pools: Pools, rng: random.Random, field: Field, struct: Struct, before: dict[str, Any]) -> Any:
    """A value that the request may well have. `before` holds what the struct has been given already."""
    name = field.name
    if name == "resource_name":
        return _resource_name(pools, rng, before.get("resource_type", 2))
    if name in ("name", "value") and field.kind == "string":
        if "onfig" in struct.name or name == "value":
            return rng.choice(_CONFIG_NAMES if name == "name" else _CONFIG_VALUES)
        if struct.name.startswith("Delete"):
            return _passing_topic(pools, rng)
        return (
            rng.choice(("range", "PLAINTEXT", "metadata.version"))
            if "Topic" not in struct.name
            else _topic(pools, rng)
        )
    pick = BY_NAME.get(name)
    if pick is not None:
        value = pick(pools, rng)
        if value is not None or field.may_be_null:
            return value if _fits(value, field.kind) else default(rng, field)
    return default(rng, field)


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, bytes):
        return len(value) == 16 if kind == "uuid" else kind == "bytes"
    if isinstance(value, str):
        return kind == "string"
    return value is None or kind not in ("string", "bytes", "uuid")


def default(rng: random.Random, field: Field) -> Any:
    match field.kind:
        case "string":
            return rng.choice(("", "a", "some text"))
        case "bytes":
            return rng.choice((b"", b"some bytes"))
        case "uuid":
            return rng.choice((bytes(16), rng.randbytes(16)))
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.random()
    return _soon(_NOTHING, rng) if field.is_duration else abs(_small(_NOTHING, rng))


_NOTHING = Pools()


def extreme(rng: random.Random, field: Field) -> Any:
    """The ends of the type, and what is nowhere near any sense."""
    match field.kind:
        case "string":
            return rng.choice(
                (*_LONG, *_BAD_NAMES, *_REGEXES, "".join(map(chr, rng.choices(range(1, 0xD000), k=20))))
            )
        case "bytes":
            return rng.choice((b"", bytes(70_000), rng.randbytes(200), b"\xff" * 100))
        case "uuid":
            return rng.choice((bytes(16), b"\xff" * 16, bytes(15) + b"\1", rng.randbytes(16)))
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.choice((float("nan"), float("inf"), -1e308))
        case "uint16":
            return rng.choice((0, 65_535))
    bits = _BITS[field.kind]
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return rng.choice((low, low + 1, high, high - 1, -1, 0, 1, rng.randint(low, high), min(high, 1 << 16)))
