"""The options of `format("tidemill")` when it reads: those of Spark's Kafka source, checked before a broker is asked.

Names are taken without regard to case, as Spark does. An option is one of these:

    known          in `_OF_CONNECTOR`, `_KAFKA` or `_OWN`; its value is checked here, and what contradicts another is refused
    without effect in `java_client`: it tunes a client that is not used, so it is named in a warning when the query is loaded
    refused        it would change what is read, and cannot here; the reason says what to do instead
    unknown        refused with the nearest name that is known

Nothing is ignored silently: an option that had no effect would be believed to have one. Options that only a stream or only
a batch understands are refused by the other, except the limits of a trigger, which Spark's source allows in a batch too.

Our own, which Spark's source does not have:

    columns        the columns to read, such as `value,offset`; Spark does not tell a Python source which ones it needs
    groupId        a stream shows its progress as the committed offsets of this consumer group, which must have no members
    scan           `broker`, or `segments`: sealed segments are read as files and never asked of a broker
    segmentsPath   where those files are, when not where the brokers say
    archive        the folder of an archive, which is read before what the topics still hold; read_committed throughout
    commandConfig  a file with the security properties of Kafka's clients; see `access`

With `segmentsPath` or `archive` a read may do without `kafka.bootstrap.servers`: it ends where the files do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tidemill.claims.large_payloads import LIMIT_BYTES
from tidemill.client.cluster import parse_bootstrap
from tidemill.client.fetch import FETCH_BYTES
from tidemill.errors import ConfigError
from tidemill.protocol.isolation import READ_COMMITTED, READ_UNCOMMITTED
from tidemill.spark.access import COMMAND_CONFIG, SECURITY_PREFIXES, BrokerAccess, security_properties
from tidemill.spark.java_client import NO_EFFECT, warn_of_no_effect
from tidemill.spark.source.java_regex import finder
from tidemill.spark.source.offsets import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Earliest,
    Latest,
    Position,
    Subscription,
    parse_offsets,
    parse_partitions,
    parse_timestamps,
)

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
HEADERS = "headers"


class Query(Enum):
    BATCH = "batch"
    STREAM = "stream"
    # Not told yet: Spark asks for the schema before it says which of the two it will be.
    ANY = "any"


_OF_CONNECTOR = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
)
_OWN = (
    "columns",
    "groupId",
    "scan",
    "segmentsPath",
    "archive",
    "largePayloads",
    "largePayloadsLimit",
    "largePayloadsAliases",
    COMMAND_CONFIG,
)
_KAFKA = (
    "kafka.bootstrap.servers",
    "kafka.client.id",
    "kafka.isolation.level",
    "kafka.fetch.max.bytes",
    "kafka.max.partition.fetch.bytes",
    "kafka.request.timeout.ms",
)

STRATEGIES = ("subscribe", "subscribePattern", "assign")
_BATCH_ONLY = (
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "scan",
    "segmentsPath",
    "archive",
)
_STREAM_ONLY = ("groupId",)

_BYTES = "keys and values are bytes; convert them with DataFrame functions"
_REFUSED = {
    "path": "topics are named by subscribe, subscribePattern or assign; call load() without a path",
    "topic": "topics to read are named by subscribe, subscribePattern or assign",
    "kafka.auto.offset.reset": "startingOffsets says where a query starts; set it to earliest or latest",
    "kafka.enable.auto.commit": "Spark's checkpoint keeps the progress; groupId shows it in a consumer group",
    "kafka.key.deserializer": _BYTES,
    "kafka.value.deserializer": _BYTES,
    "kafka.interceptor.classes": "there are no interceptors; use DataFrame functions",
    "kafka.exclude.internal.topics": "a pattern never matches an internal topic; name it in subscribe",
}
_CANONICAL = {name.lower(): name for name in (*_OF_CONNECTOR, *_KAFKA, *_OWN, *_REFUSED, *NO_EFFECT)}

_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_DURATION_MS = {None: 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class SourceOptions:
    access: BrokerAccess
    subscription: Subscription
    starting: Position
    # The option that `starting` comes from, for errors.
    starting_option: str
    ending: Position
    ending_option: str
    columns: tuple[str, ...]
    no_match_is_error: bool = True
    fail_on_data_loss: bool = True
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_ms_max: int = 15 * 60_000
    partition_count_min: int = 0
    records_per_partition_max: int = 0
    offset_retries: int = 3
    offset_retry_interval_ms: int = 1000
    group_id: str | None = None
    scan: str = "broker"
    segments_path: str | None = None
    archive: str | None = None
    # The object store of payloads that are not in their records, and how large one may be.
    large_payloads: str | None = None
    large_payloads_aliases: tuple[str, ...] = ()
    large_payload_bytes_max: int = LIMIT_BYTES

    @property
    def is_plain(self) -> bool:
        """Everything comes from brokers."""
        return self.scan == "broker" and self.archive is None

    @property
    def has_brokers(self) -> bool:
        """Otherwise everything comes from files."""
        return bool(self.access.bootstrap)

    @classmethod
    def parse(cls, options: Mapping[str, str], query: Query = Query.ANY) -> SourceOptions:
        return _Parser(options, query).parse()


def is_known(name: str) -> bool:
    """Also of what is known to be refused."""
    return name.lower() in _CANONICAL and _CANONICAL[name.lower()] != "topic"


def is_of_connector(name: str) -> bool:
    """Whether it is an option of reading that a job of Spark's own connector may have."""
    canonical = _CANONICAL.get(name.lower())
    return canonical in _OF_CONNECTOR or (is_known(name) and name.lower().startswith("kafka."))


def known_names(options: Mapping[str, str]) -> dict[str, str]:
    """The options by their canonical names; anything that is neither known nor without effect is refused."""
    named = {}
    for name, value in options.items():
        lower = name.lower()
        canonical = lower if lower.startswith(SECURITY_PREFIXES) else _CANONICAL.get(lower)
        if canonical is None:
            near = difflib.get_close_matches(lower, _CANONICAL, n=1, cutoff=0.5)
            hint = f"; did you mean {_CANONICAL[near[0]]}?" if near else ""
            raise ConfigError(f"{name} is not an option of this source{hint}")
        if canonical in _REFUSED:
            raise ConfigError(f"{canonical} is not an option of this source: {_REFUSED[canonical]}")
        named[canonical] = str(value)
    return named


class _Parser:
    def __init__(self, options: Mapping[str, str], query: Query) -> None:
        self._options = known_names(options)
        self._query = query
        # The schema is asked for first; what is planned and run later is the same query.
        if query is Query.ANY:
            warn_of_no_effect({name: NO_EFFECT[name] for name in self._options if name in NO_EFFECT})

    def parse(self) -> SourceOptions:
        self._check_query()
        access = self._access()
        subscription = self._subscription()
        starting, starting_option = self._starting()
        ending, ending_option = self._ending()
        _check_order(starting, starting_option, ending, ending_option)
        least, most = self._count("minOffsetsPerTrigger"), self._count("maxOffsetsPerTrigger")
        if least is not None and most is not None and least > most:
            raise ConfigError(f"minOffsetsPerTrigger={least} is larger than maxOffsetsPerTrigger={most}")
        scan, segments_path = self._scan()
        return SourceOptions(
            access=access,
            subscription=subscription,
            starting=starting,
            starting_option=starting_option,
            ending=ending,
            ending_option=ending_option,
            columns=self._columns(),
            no_match_is_error=self._choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
            == "error",
            fail_on_data_loss=self._flag("failOnDataLoss", True),
            offsets_per_trigger_max=most,
            offsets_per_trigger_min=least,
            trigger_delay_ms_max=self._duration_ms("maxTriggerDelay", SourceOptions.trigger_delay_ms_max),
            partition_count_min=self._count("minPartitions") or 0,
            records_per_partition_max=self._count("maxRecordsPerPartition") or 0,
            offset_retries=self._count("fetchOffset.numRetries") or SourceOptions.offset_retries,
            offset_retry_interval_ms=self._duration_ms(
                "fetchOffset.retryIntervalMs", SourceOptions.offset_retry_interval_ms
            ),
            group_id=self._text("groupId"),
            scan=scan,
            segments_path=segments_path,
            archive=self._text("archive"),
            large_payloads=self._text("largePayloads"),
            large_payloads_aliases=tuple(
                each.strip() for each in (self._text("largePayloadsAliases") or "").split(",") if each.strip()
            ),
            large_payload_bytes_max=self._count("largePayloadsLimit") or LIMIT_BYTES,
        )

    def _check_query(self) -> None:
        others = {Query.BATCH: _STREAM_ONLY, Query.STREAM: _BATCH_ONLY, Query.ANY: ()}[self._query]
        for name in others:
            if name in self._options:
                kind = "a streaming query" if self._query is Query.STREAM else "a batch query"
                raise ConfigError(f"{name} is not an option of {kind}; remove it")

    # --- values ---

    def _text(self, name: str) -> str | None:
        value = self._options.get(name)
        if value is not None and not value.strip():
            raise ConfigError(f"{name} is empty; give it a value or remove it")
        return None if value is None else value.strip()

    def _number(self, name: str) -> int | None:
        value = self._text(name)
        if value is None:
            return None
        if not value.isdecimal():
            raise ConfigError(f"{name}={value} is not understood; it should be a whole number")
        return int(value)

    def _count(self, name: str) -> int | None:
        number = self._number(name)
        if number == 0:
            raise ConfigError(f"{name}=0 is not allowed; it should be 1 or more")
        return number

    def _flag(self, name: str, default: bool) -> bool:
        value = self._choice(name, ("true", "false"), str(default).lower())
        return value == "true"

    def _choice(self, name: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        value = (self._text(name) or default or allowed[0]).lower()
        if value not in allowed:
            raise ConfigError(f"{name}={value} is not understood; it should be {' or '.join(allowed)}")
        return value

    def _duration_ms(self, name: str, default_ms: int) -> int:
        value = self._text(name)
        if value is None:
            return default_ms
        if (found := _DURATION.fullmatch(value.lower())) is None:
            raise ConfigError(f"{name}={value} is not understood; it should be a time such as 30s or 15m")
        return int(found[1]) * _DURATION_MS[found[2]]

    # --- groups of options ---

    def _access(self) -> BrokerAccess:
        bootstrap = self._text("kafka.bootstrap.servers")
        if bootstrap is not None:
            parse_bootstrap(bootstrap)
        elif self._query is Query.STREAM or not {"segmentsPath", "archive"} & self._options.keys():
            raise ConfigError(
                "kafka.bootstrap.servers is missing; it should be HOST:PORT of one or more brokers"
            )
        isolation = self._isolation()
        timeout_ms = self._count("kafkaConsumer.pollTimeoutMs") or self._count("kafka.request.timeout.ms")
        sizes = [self._count("kafka.fetch.max.bytes"), self._count("kafka.max.partition.fetch.bytes")]
        return BrokerAccess(
            bootstrap=bootstrap or "",
            client_id=self._text("kafka.client.id") or BrokerAccess.client_id,
            timeout_s=timeout_ms / 1000 if timeout_ms else BrokerAccess.timeout_s,
            isolation_level=READ_COMMITTED if isolation == "read_committed" else READ_UNCOMMITTED,
            fetch_bytes=min((size for size in sizes if size), default=FETCH_BYTES),
            security=security_properties(self._options),
            config_file=self._text(COMMAND_CONFIG),
        )

    def _isolation(self) -> str:
        """An archive has committed records only, and what a read returns is not to depend on where a record lies."""
        levels = ("read_uncommitted", "read_committed")
        if "archive" not in self._options:
            return self._choice("kafka.isolation.level", levels)
        level = self._choice("kafka.isolation.level", levels, "read_committed")
        if level != "read_committed":
            raise ConfigError(
                f"kafka.isolation.level={level} is not possible with archive, which has committed records only; "
                "set read_committed or remove it"
            )
        return level

    def _subscription(self) -> Subscription:
        given = [name for name in STRATEGIES if name in self._options]
        if len(given) != 1:
            problem = "none" if not given else " and ".join(given)
            raise ConfigError(
                f"one of subscribe, subscribePattern and assign says what to read; {problem} is set"
            )
        (name,) = given
        value = self._text(name) or ""
        if name == "assign":
            return Subscription(partitions=parse_partitions(value, name))
        if name == "subscribePattern":
            try:
                finder(value)
            except ConfigError as error:
                raise ConfigError(f"{name}={value}: {error}") from None
            return Subscription(pattern=value)
        topics = tuple(dict.fromkeys(filter(None, (each.strip() for each in value.split(",")))))
        if not topics:
            raise ConfigError(f"{name}={value} names no topic")
        return Subscription(topics=topics)

    def _position(self, prefix: str) -> tuple[Position | None, str]:
        """The one that counts of three ways to say it, in Spark's order of preference."""
        name = f"{prefix}Timestamp"
        if name in self._options:
            return AtTimestamp(self._number(name) or 0), name
        name = f"{prefix}OffsetsByTimestamp"
        if (value := self._text(name)) is not None:
            return parse_timestamps(value, name), name
        name = f"{prefix}Offsets"
        value = self._text(name)
        return None if value is None else parse_offsets(value, name), name

    def _starting(self) -> tuple[Position, str]:
        position, name = self._position("starting")
        if position is None:
            return (Latest() if self._query is Query.STREAM else Earliest()), name
        is_latest = isinstance(position, Latest) or (
            isinstance(position, AtOffsets) and -1 in position.offsets.values()
        )
        if is_latest and self._query is Query.BATCH:
            raise ConfigError(
                f"{name}: a batch query cannot start at the latest offset; it would read nothing"
            )
        return position, name

    def _ending(self) -> tuple[Position, str]:
        position, name = self._position("ending")
        if isinstance(position, Earliest) or (
            isinstance(position, AtOffsets) and -2 in position.offsets.values()
        ):
            raise ConfigError(f"{name}: a query cannot end at the earliest offset; it would read nothing")
        return position or Latest(), name

    def _columns(self) -> tuple[str, ...]:
        has_headers = self._flag("includeHeaders", False)
        value = self._text("columns")
        if value is None:
            return COLUMNS if has_headers else COLUMNS[:-1]
        by_lower = {name.lower(): name for name in COLUMNS}
        columns = []
        for each in value.split(","):
            name = by_lower.get(each.strip().lower())
            if name is None or name in columns:
                problem = "is there twice" if name else "is not a column"
                raise ConfigError(
                    f"columns={value}: {each.strip()!r} {problem}; there are {', '.join(COLUMNS)}"
                )
            columns.append(name)
        if "includeHeaders" in self._options and has_headers != (HEADERS in columns):
            raise ConfigError(f"columns={value} contradicts includeHeaders={str(has_headers).lower()}")
        return tuple(columns)

    def _scan(self) -> tuple[str, str | None]:
        scan = self._choice("scan", ("broker", "segments"))
        path = self._text("segmentsPath")
        if path is not None and scan != "segments":
            raise ConfigError("segmentsPath has no effect without scan=segments")
        return scan, path


def _check_order(starting: Position, starting_option: str, ending: Position, ending_option: str) -> None:
    """Checks the order of both ends, as far as it is known without the cluster."""
    match starting, ending:
        case AtTimestamp(first), AtTimestamp(last):
            pairs = [("the read", first, last)]
        case (AtOffsets(firsts), AtOffsets(lasts)) | (AtTimestamps(firsts), AtTimestamps(lasts)):
            pairs = [(str(each), firsts[each], lasts[each]) for each in firsts if each in lasts]
        case _:
            return
    for what, first, last in pairs:
        if first > last >= 0:
            raise ConfigError(
                f"{what} would start at {first} ({starting_option}) and end before, at {last} ({ending_option})"
            )
