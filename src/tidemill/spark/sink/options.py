"""Options and columns of the sink `format("tidemill")`, checked on the driver before a task runs.

Names and columns are those of Spark's Kafka sink, names without regard to case. An option is known, without an
effect here (`java_client`: how a Java producer waits and buffers, which changes no result and is warned of), or refused by
name. What belongs to the source alone, `catalog` has left out before.

Columns: `value` (string or binary) and, if they are there, `key`, `topic`, `partition`, `headers` as Spark's sink has
them, and `timestamp`. The last becomes the record's own; without it records carry the time at which they are written.
Other columns are left out, as Spark does. The option `topic` stands above the column.

Our own options:

    exactlyOnce        true: one transaction a task, all of them committed by one decision of the driver.
                       false: as Spark's sink, a task that is repeated writes again
    queryName,         of a batch write, as in `foreachBatch`: who writes, and which batch it is. A batch that this name
    batchId            has committed is not committed again
    writeName          which of the batch's writes it is, where the option `topic` does not tell
    commandConfig      a file with the security properties of Kafka's clients; see `access`
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from crc32c import crc32c
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from tidemill.claims.large_payloads import THRESHOLD_BYTES
from tidemill.client.cluster import parse_bootstrap
from tidemill.errors import ConfigError
from tidemill.protocol.compression import CompressionType
from tidemill.spark.access import COMMAND_CONFIG, SECURITY_PREFIXES, BrokerAccess, security_properties
from tidemill.spark.java_client import NO_EFFECT, warn_of_no_effect

COLUMNS = ("key", "value", "topic", "partition", "headers", "timestamp")
REQUEST_BYTES_MAX = 1 << 20
# Larger batches do not fit the processor's caches, neither here nor in the broker.
BATCH_BYTES = 512 << 10
# Longer than a task should take, shorter than the longest that brokers allow: 15 minutes.
TRANSACTION_TIMEOUT_MS = 300_000

# Spark's own, which it hands to every sink.
_OF_SPARK = ("checkpointLocation", "queryName")
# What happens when rows move between tasks was an option once.
_FORMER = ("failOnMovedRows",)
_KNOWN = (
    "topic",
    "includeHeaders",
    "exactlyOnce",
    "queryName",
    "batchId",
    "writeName",
    "largePayloads",
    "largePayloadsThreshold",
    "kafka.bootstrap.servers",
    "kafka.client.id",
    "kafka.acks",
    "kafka.enable.idempotence",
    "kafka.compression.type",
    "kafka.batch.size",
    "kafka.max.request.size",
    "kafka.request.timeout.ms",
    "kafka.delivery.timeout.ms",
    "kafka.transaction.timeout.ms",
    COMMAND_CONFIG,
)
_BYTES = "keys and values are bytes; convert them with DataFrame functions"
_REFUSED = {
    "path": "the topic is an option or a column; call save() or start() without a path",
    "kafka.key.serializer": _BYTES,
    "kafka.value.serializer": _BYTES,
    "kafka.transactional.id": "each task has its own transactional id, by which it is fenced; remove it",
    "kafka.partitioner.ignore.keys": "keys go where the Java client puts them; a key that is null goes anywhere",
    "kafka.partitioner.class": "keys go where the Java client puts them; use the column partition for another place",
    "kafka.interceptor.classes": "there are no interceptors; use DataFrame functions",
}
_CANONICAL = {name.lower(): name for name in (*_KNOWN, *_OF_SPARK, *_FORMER, *NO_EFFECT, *_REFUSED)}
_TEXT_OR_BYTES = "string or binary"


@dataclass(frozen=True)
class SinkOptions:
    access: BrokerAccess
    topic: str | None = None
    writes_headers: bool = True
    exactly_once: bool = True
    # Who writes, when a batch write is not one of a kind, and which batch it is.
    job: str | None = None
    # Of a stream; None when the session names the place.
    checkpoint: str | None = None
    batch_id: int | None = None
    codec: int = CompressionType.NONE
    # Of one batch of records, header included: what is gathered, and the most for a single record. A topic's
    # max.message.bytes may be less.
    batch_bytes: int = BATCH_BYTES
    batch_bytes_max: int = REQUEST_BYTES_MAX
    delivery_timeout_s: float = 120.0
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    # The object store of values above a threshold.
    large_payloads: str | None = None
    large_payloads_threshold: int = THRESHOLD_BYTES

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        return _Parser(options).parse()

    @property
    def mark(self) -> str:
        """A mark in the names of a stream's tasks, which finds its transactions. Other streams may have the same one."""
        if self.checkpoint is None:
            return ""
        place = f"{self.checkpoint} {self.topic or ''}"
        return f"{crc32c(place.encode()):08x}"


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Whether rows of this schema can become records; `ConfigError` says which column cannot."""
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise ConfigError(f"there is no column value, only {', '.join(types) or 'none'}; select one as value")
    if options.topic is None and "topic" not in types:
        raise ConfigError("where to write is not said: set the option topic or select a column topic")
    _check_type(types, "value", _TEXT_OR_BYTES, StringType, BinaryType)
    _check_type(types, "key", _TEXT_OR_BYTES, StringType, BinaryType)
    _check_type(types, "topic", "string", StringType)
    _check_type(types, "partition", "int", IntegerType)
    _check_type(types, "timestamp", "timestamp", TimestampType)
    headers = types.get("headers")
    if headers is not None and not _are_headers(headers):
        raise ConfigError(
            f"the column headers is {headers.simpleString()}; it should be array<struct<key:string,value:binary>>"
        )


def _check_type(types: Mapping[str, DataType], name: str, wanted: str, *allowed: type[DataType]) -> None:
    found = types.get(name)
    if found is not None and not isinstance(found, allowed):
        raise ConfigError(f"the column {name} is {found.simpleString()}; it should be {wanted}: cast it")


def _are_headers(found: DataType) -> bool:
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in found.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


class _Parser:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options: dict[str, str] = {}
        for name, value in options.items():
            self._options[_known_name(name)] = str(value).strip()
        warn_of_no_effect({name: NO_EFFECT[name] for name in self._options if name in NO_EFFECT})

    def parse(self) -> SinkOptions:
        self._at_least("kafka.acks", ("0", "1"), ("all", "-1"), "the sink waits for all replicas in sync")
        self._at_least("kafka.enable.idempotence", ("false",), ("true",), "the sink is always idempotent")
        request_bytes = self._count("kafka.max.request.size") or REQUEST_BYTES_MAX
        delivery_ms = self._count("kafka.delivery.timeout.ms")
        return SinkOptions(
            access=self._access(),
            topic=self._options.get("topic") or None,
            writes_headers=self._flag("includeHeaders", True),
            exactly_once=self._flag("exactlyOnce", True),
            job=self._job(),
            batch_id=self._batch_id(),
            checkpoint=self._options.get("checkpointLocation") or None,
            codec=self._codec(),
            batch_bytes=min(request_bytes, self._count("kafka.batch.size") or BATCH_BYTES),
            batch_bytes_max=request_bytes,
            delivery_timeout_s=delivery_ms / 1000 if delivery_ms else SinkOptions.delivery_timeout_s,
            transaction_timeout_ms=self._count("kafka.transaction.timeout.ms") or TRANSACTION_TIMEOUT_MS,
            large_payloads=self._options.get("largePayloads") or None,
            large_payloads_threshold=self._count("largePayloadsThreshold") or THRESHOLD_BYTES,
        )

    def _batch_id(self) -> int | None:
        value = self._options.get("batchId")
        if value is not None and not value.isdecimal():
            raise ConfigError(
                f"batchId={value} is not understood; it should be the number that foreachBatch gives"
            )
        return None if value is None else int(value)

    def _job(self) -> str | None:
        """Each write of a batch is a job of its own. Of a stream `queryName` is only what Spark calls it."""
        name, topic, write = (self._options.get(each) for each in ("queryName", "topic", "writeName"))
        if "batchId" not in self._options:
            return None
        if not name:
            raise ConfigError("batchId says which batch it is and queryName whose: set both, or neither")
        if not topic and not write:
            raise ConfigError(
                "two writes of one batch cannot be told apart by a column topic, and the second would count as the first: "
                "set the option topic, or writeName, which is another for each write of a batch"
            )
        return "/".join(each for each in (name, topic or "", write) if each is not None)

    def _access(self) -> BrokerAccess:
        bootstrap = self._options.get("kafka.bootstrap.servers")
        if not bootstrap:
            raise ConfigError(
                "kafka.bootstrap.servers is missing; it should be HOST:PORT of one or more brokers"
            )
        parse_bootstrap(bootstrap)
        timeout_ms = self._count("kafka.request.timeout.ms")
        return BrokerAccess(
            bootstrap=bootstrap,
            client_id=self._options.get("kafka.client.id") or BrokerAccess.client_id,
            timeout_s=timeout_ms / 1000 if timeout_ms else BrokerAccess.timeout_s,
            security=security_properties(self._options),
            config_file=self._options.get(COMMAND_CONFIG) or None,
        )

    def _codec(self) -> int:
        value = self._options.get("kafka.compression.type", "none").lower()
        names = {each.name.lower(): int(each) for each in CompressionType}
        if value not in names:
            raise ConfigError(f"kafka.compression.type={value} is not one of {', '.join(names)}")
        return names[value]

    def _at_least(self, name: str, weaker: tuple[str, ...], strongest: tuple[str, ...], reason: str) -> None:
        """The sink does what the strongest value says. A job that asks for less gets more."""
        value = self._options.get(name, strongest[0]).lower()
        if value in weaker:
            warn_of_no_effect({f"{name}={value}": reason})
        elif value not in strongest:
            raise ConfigError(
                f"{name}={value} is not understood; it should be {' or '.join((*weaker, *strongest))}"
            )

    def _flag(self, name: str, default: bool) -> bool:
        value = self._options.get(name, str(default)).lower()
        if value not in ("true", "false"):
            raise ConfigError(f"{name}={value} is not understood; it should be true or false")
        return value == "true"

    def _count(self, name: str) -> int | None:
        value = self._options.get(name)
        if value is None:
            return None
        if not value.isdecimal() or not int(value):
            raise ConfigError(f"{name}={value} is not understood; it should be a whole number above 0")
        return int(value)


def is_known(name: str) -> bool:
    return name.lower() in _CANONICAL


def is_of_spark(name: str) -> bool:
    return _CANONICAL.get(name.lower()) in _OF_SPARK


def is_of_connector(name: str) -> bool:
    """Whether it is an option of writing that a job of Spark's own connector may have."""
    return is_of_spark(name) or (is_known(name) and name.lower().startswith("kafka."))


def _known_name(name: str) -> str:
    lower = name.lower()
    if lower.startswith(SECURITY_PREFIXES):
        return lower
    canonical = _CANONICAL.get(lower)
    if canonical is None:
        near = difflib.get_close_matches(lower, _CANONICAL, n=1, cutoff=0.5)
        hint = f"; did you mean {_CANONICAL[near[0]]}?" if near else ""
        raise ConfigError(f"{name} is not an option of this sink{hint}")
    if canonical in _REFUSED:
        raise ConfigError(f"{canonical} is not an option of this sink: {_REFUSED[canonical]}")
    return canonical
