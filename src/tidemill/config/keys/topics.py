"""The topic keys of Kafka 4, their defaults and limits, and the broker keys from which a topic inherits.

Keys that only Tidemill has begin with `tidemill.` and are internal: DescribeConfigs lists them only where they are set, so
that tools for Kafka find what they expect.
"""

from __future__ import annotations

from tidemill.config.definitions import (
    LONG_MAX,
    PARTITION_COUNTS,
    PARTITION_EPOCHS,
    PARTITION_OFFSETS,
    THROTTLED_REPLICAS,
    ConfigKey,
    ConfigType,
    Synonym,
    any_of,
    at_least,
    between,
    between_or,
    one_of,
)

BOOLEAN = ConfigType.BOOLEAN
DOUBLE = ConfigType.DOUBLE
INT = ConfigType.INT
LIST = ConfigType.LIST
LONG = ConfigType.LONG
STRING = ConfigType.STRING
MINUTE_MS = 60_000
HOUR_MS = 3_600_000

DELAYS_ENABLE = "tidemill.delays.enable"
DEAD_LETTERS_ENABLE = "errors.deadletterqueue.group.enable"
PARTITIONS_ACTIVE = "tidemill.partitions.active"
PARTITIONS_DIVISORS = "tidemill.partitions.divisors"
PARTITIONS_EMPTY = "tidemill.partitions.empty"
PARTITIONS_ENDS = "tidemill.partitions.ends"
PARTITIONS_EPOCHS = "tidemill.partitions.epochs"
PARTITIONS_FORMER = "tidemill.partitions.former"
PARTITIONS_KEPT_MS = "tidemill.partitions.kept.ms"
PARTITIONS_TOTAL = "tidemill.partitions.total"
PARTITIONS_UNKEYED = "tidemill.partitions.unkeyed"
VIEW_SOURCE = "tidemill.view.source"
VIEW_FILTER = "tidemill.view.filter"

TOPIC_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "cleanup.policy",
        LIST,
        "delete",
        "Old segments are deleted by age or size, compacted to the latest value of a key, both, or neither.",
        any_of("compact", "delete"),
        synonyms=(Synonym("log.cleanup.policy"),),
    ),
    ConfigKey(
        "compression.gzip.level",
        INT,
        "-1",
        "Compression level when the topic's compression type is gzip; -1 is the codec's own default.",
        between_or(1, 9, -1),
        synonyms=(Synonym("compression.gzip.level"),),
    ),
    ConfigKey(
        "compression.lz4.level",
        INT,
        "9",
        "Compression level when the topic's compression type is lz4.",
        between(1, 17),
        synonyms=(Synonym("compression.lz4.level"),),
    ),
    ConfigKey(
        "compression.type",
        STRING,
        "producer",
        "Codec in which batches are stored; 'producer' keeps whatever the producer sent.",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=(Synonym("compression.type"),),
    ),
    ConfigKey(
        "compression.zstd.level",
        INT,
        "3",
        "Compression level when the topic's compression type is zstd.",
        between(-131072, 22),
        synonyms=(Synonym("compression.zstd.level"),),
    ),
    ConfigKey(
        "delete.retention.ms",
        LONG,
        "86400000",
        "How long tombstones of a compacted topic are kept for readers that start at its beginning.",
        at_least(0),
        synonyms=(Synonym("log.cleaner.delete.retention.ms"),),
    ),
    ConfigKey(
        "file.delete.delay.ms",
        LONG,
        "60000",
        "How long a segment that is no longer part of the log stays on disk before its files are removed.",
        at_least(0),
        synonyms=(Synonym("log.segment.delete.delay.ms"),),
    ),
    ConfigKey(
        "flush.messages",
        LONG,
        str(LONG_MAX),
        "Records after which the log is forced to disk; 1 means before every acknowledgement.",
        at_least(1),
        synonyms=(Synonym("log.flush.interval.messages"),),
    ),
    ConfigKey(
        "flush.ms",
        LONG,
        str(LONG_MAX),
        "Longest time a record may stay in memory before the log is forced to disk.",
        at_least(0),
        synonyms=(
            Synonym("log.flush.interval.ms"),
            Synonym("log.flush.scheduler.interval.ms"),
        ),
    ),
    ConfigKey(
        "follower.replication.throttled.replicas",
        LIST,
        "",
        "Replicas whose fetching is throttled: partition:broker pairs, or * for all.",
        THROTTLED_REPLICAS,
    ),
    ConfigKey(
        "index.interval.bytes",
        INT,
        "4096",
        "Bytes of records between two entries of the offset index.",
        at_least(0),
        synonyms=(Synonym("log.index.interval.bytes"),),
    ),
    ConfigKey(
        "leader.replication.throttled.replicas",
        LIST,
        "",
        "Replicas to which the leader's sending is throttled: partition:broker pairs, or * for all.",
        THROTTLED_REPLICAS,
    ),
    ConfigKey(
        "local.retention.bytes",
        LONG,
        "-2",
        "Bytes of a tiered partition that stay on local disk; -2 means as much as retention.bytes says.",
        at_least(-2),
        synonyms=(Synonym("log.local.retention.bytes"),),
    ),
    ConfigKey(
        "local.retention.ms",
        LONG,
        "-2",
        "How long segments of a tiered topic stay on local disk; -2 means as long as retention.ms says.",
        at_least(-2),
        synonyms=(Synonym("log.local.retention.ms"),),
    ),
    ConfigKey(
        "max.compaction.lag.ms",
        LONG,
        str(LONG_MAX),
        "Longest time a record may stay uncompacted.",
        at_least(1),
        synonyms=(Synonym("log.cleaner.max.compaction.lag.ms"),),
    ),
    ConfigKey(
        "max.message.bytes",
        INT,
        "1048588",
        "Largest record batch, after compression, that the topic accepts.",
        at_least(0),
        synonyms=(Synonym("message.max.bytes"),),
    ),
    ConfigKey(
        "message.timestamp.after.max.ms",
        LONG,
        "3600000",
        "How far a record's timestamp may lie ahead of the broker's clock.",
        at_least(0),
        synonyms=(Synonym("log.message.timestamp.after.max.ms"),),
    ),
    ConfigKey(
        "message.timestamp.before.max.ms",
        LONG,
        str(LONG_MAX),
        "How far a record's timestamp may lie behind the broker's clock.",
        at_least(0),
        synonyms=(Synonym("log.message.timestamp.before.max.ms"),),
    ),
    ConfigKey(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "Whether a record keeps the timestamp of its creation or gets the time of its append.",
        one_of("CreateTime", "LogAppendTime"),
        synonyms=(Synonym("log.message.timestamp.type"),),
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        "0.5",
        "Share of the log that must be uncompacted before compaction starts.",
        between(0, 1),
        synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),),
    ),
    ConfigKey(
        "min.compaction.lag.ms",
        LONG,
        "0",
        "Shortest time a record stays uncompacted.",
        at_least(0),
        synonyms=(Synonym("log.cleaner.min.compaction.lag.ms"),),
    ),
    ConfigKey(
        "min.insync.replicas",
        INT,
        "1",
        "Replicas that must be in sync for a write with acks=all to be accepted.",
        at_least(1),
        synonyms=(Synonym("min.insync.replicas"),),
    ),
    ConfigKey(
        "preallocate",
        BOOLEAN,
        "false",
        "Whether a new segment's file is created at its full size.",
        synonyms=(Synonym("log.preallocate"),),
    ),
    ConfigKey(
        "remote.log.copy.disable",
        BOOLEAN,
        "false",
        "Whether a tiered topic stops copying segments to remote storage.",
    ),
    ConfigKey(
        "remote.log.delete.on.disable",
        BOOLEAN,
        "false",
        "Whether remote data is deleted when tiering is switched off for the topic.",
    ),
    ConfigKey(
        "remote.storage.enable", BOOLEAN, "false", "Whether sealed segments are copied to remote storage."
    ),
    ConfigKey(
        "retention.bytes",
        LONG,
        "-1",
        "Bytes a partition may hold before its oldest segments are deleted; -1 is no limit.",
        synonyms=(Synonym("log.retention.bytes"),),
    ),
    ConfigKey(
        "retention.ms",
        LONG,
        "604800000",
        "Age at which a segment is deleted; -1 is no limit.",
        at_least(-1),
        synonyms=(
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", unit_ms=MINUTE_MS),
            Synonym("log.retention.hours", unit_ms=HOUR_MS),
        ),
    ),
    ConfigKey(
        "segment.bytes",
        INT,
        "1073741824",
        "Size at which the active segment is closed and a new one begun.",
        at_least(1048576),
        synonyms=(Synonym("log.segment.bytes"),),
    ),
    ConfigKey(
        "segment.index.bytes",
        INT,
        "10485760",
        "Largest size of a segment's offset index; the segment is rolled when it is full.",
        at_least(4),
        synonyms=(Synonym("log.index.size.max.bytes"),),
    ),
    ConfigKey(
        "segment.jitter.ms",
        LONG,
        "0",
        "Largest random part taken off segment.ms, so that segments do not all roll at once.",
        at_least(0),
        synonyms=(
            Synonym("log.roll.jitter.ms"),
            Synonym("log.roll.jitter.hours", unit_ms=HOUR_MS),
        ),
    ),
    ConfigKey(
        "segment.ms",
        LONG,
        "604800000",
        "Age at which the active segment is closed even when it is not full.",
        at_least(1),
        synonyms=(
            Synonym("log.roll.ms"),
            Synonym("log.roll.hours", unit_ms=HOUR_MS),
        ),
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        BOOLEAN,
        "false",
        "Whether a replica that is not in sync may become leader, at the price of lost records.",
        synonyms=(Synonym("unclean.leader.election.enable"),),
    ),
    ConfigKey(
        DEAD_LETTERS_ENABLE,
        BOOLEAN,
        "false",
        "Whether share groups may write dead letters to the topic (KIP-1191).",
        is_internal=True,
    ),
    ConfigKey(
        DELAYS_ENABLE,
        BOOLEAN,
        "false",
        "Whether records with delay headers are hidden until they are due. Set when the topic is created.",
        is_internal=True,
    ),
    ConfigKey(
        "tidemill.delays.interval.min.ms",
        LONG,
        "1000",
        "The shortest interval of a schedule that is accepted.",
        at_least(1),
        is_internal=True,
    ),
    ConfigKey(
        "tidemill.delays.max.ms",
        LONG,
        "31622400000",
        "The longest delay that is accepted; the default is 366 days.",
        at_least(1),
        is_internal=True,
    ),
    ConfigKey(
        PARTITIONS_ACTIVE,
        INT,
        "0",
        "How many partitions store new records, while the topic gets fewer; 0: all. Partition p passes its records on to "
        "p modulo this number, and disappears when retention has emptied it.",
        at_least(0),
        is_internal=True,
    ),
    ConfigKey(
        PARTITIONS_DIVISORS,
        LIST,
        "",
        "The numbers that the topic was shrunk to, or had when a shrink was taken back, the last one at the end. What "
        "producers sent to partition p may be stored in p modulo each of them. Written by the controller.",
        PARTITION_COUNTS,
        is_internal=True,
    ),
    ConfigKey(
        PARTITIONS_EMPTY,
        LIST,
        "",
        "Which of the partitions that are removed next are empty, as index:end of the log. Written by the controller.",
        PARTITION_OFFSETS,
        is_internal=True,
    ),
    ConfigKey(
        PARTITIONS_ENDS,
        LIST,
        "",
        "Where the log of each partition that was removed ended, as index:offset. One that is added later under its number "
        "begins there. Written by the controller.",
        PARTITION_OFFSETS,
        is_internal=True,
    ),
    ConfigKey(
        PARTITIONS_EPOCHS,
        LIST,
        "",
        "The last leader epoch of each partition that was removed, as index:epoch. Written by the controller.",
        PARTITION_EPOCHS,
        is_internal=True,
    ),
    ConfigKey(
        PARTITIONS_FORMER,
        INT,
        "0",
        "How many partitions the topic has had. Producers that know the old number are served. Written by the controller.",
        at_least(0),
        is_internal=True,
    ),
    ConfigKey(
        PARTITIONS_KEPT_MS,
        LONG,
        "120000",
        "How long a decommissioned partition stays at least, if idempotent producers have written to it: their retries are "
        "recognised for so long. At least their delivery.timeout.ms.",
        at_least(0),
        is_internal=True,
    ),
    ConfigKey(
        PARTITIONS_TOTAL,
        INT,
        "0",
        "How many partitions are left, while the topic gets fewer. Written by the controller.",
        at_least(0),
        is_internal=True,
    ),
    ConfigKey(
        PARTITIONS_UNKEYED,
        BOOLEAN,
        "false",
        "Whether the topic may get a number of partitions that does not divide the old one: records with the same key may "
        "go to another partition then.",
        is_internal=True,
    ),
    ConfigKey(
        VIEW_SOURCE,
        STRING,
        "",
        "Makes the topic a view: it shows the records of this topic that match the filter, and has none of its own.",
        is_internal=True,
    ),
    ConfigKey(
        VIEW_FILTER,
        STRING,
        "",
        "Which records a view shows, such as `region = 'eu' and not 'test' in tags`.",
        is_internal=True,
    ),
)
