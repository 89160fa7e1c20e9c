"""Broker keys of topics, replication, metadata, transactions, producers; defaults and limits as Kafka 4's."""

from __future__ import annotations

from tidemill.config.definitions import LONG_MAX, ConfigKey, ConfigType, UpdateMode, at_least, key

BOOLEAN = ConfigType.BOOLEAN
CLASS = ConfigType.CLASS
INT = ConfigType.INT
LONG = ConfigType.LONG
SHORT = ConfigType.SHORT
STRING = ConfigType.STRING
CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE

TOPICS_KEYS: tuple[ConfigKey, ...] = (
    key(
        "add.partitions.to.txn.retry.backoff.max.ms",
        INT,
        "100",
        "Longest total time the broker retries the verification of a transaction's partition.",
        at_least(0),
    ),
    key(
        "add.partitions.to.txn.retry.backoff.ms",
        INT,
        "20",
        "Pause between two tries to verify a transaction's partition.",
        at_least(1),
    ),
    key("alter.config.policy.class.name", CLASS, None, "Policy that may refuse changes of configuration."),
    key(
        "auto.create.topics.enable",
        BOOLEAN,
        "true",
        "Whether asking for the metadata of a missing topic creates it.",
    ),
    key(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        "true",
        "Whether leadership moves back to preferred replicas by itself.",
    ),
    key("create.topic.policy.class.name", CLASS, None, "Policy that may refuse the creation of topics."),
    key("default.replication.factor", INT, "1", "Replication factor of a topic that is created without one."),
    key(
        "delete.records.purgatory.purge.interval.requests",
        INT,
        "1",
        "Waiting DeleteRecords requests after which completed ones are purged.",
    ),
    key("delete.topic.enable", BOOLEAN, "true", "Whether topics can be deleted."),
    key("fetch.max.bytes", INT, "57671680", "Most bytes of records in one fetch response.", at_least(1024)),
    key(
        "fetch.purgatory.purge.interval.requests",
        INT,
        "1000",
        "Waiting fetches after which completed ones are purged.",
    ),
    ConfigKey(
        "follower.replication.throttled.rate",
        LONG,
        str(LONG_MAX),
        "Bytes a second that a follower fetches for throttled replicas.",
        at_least(0),
        CLUSTER_WIDE,
        is_internal=True,
    ),
    key(
        "follower.fetch.last.tiered.offset.enable",
        BOOLEAN,
        "false",
        "Whether a new follower of a tiered topic starts at the last tiered offset.",
        mode=CLUSTER_WIDE,
    ),
    key(
        "leader.imbalance.check.interval.seconds",
        LONG,
        "300",
        "Time between two looks for partitions that their preferred replica does not lead.",
        at_least(1),
    ),
    ConfigKey(
        "leader.imbalance.per.broker.percentage",
        INT,
        "10",
        "Share of a broker's preferred partitions led elsewhere, in percent, above which they are moved back.",
        at_least(0),
        is_internal=True,
    ),
    ConfigKey(
        "leader.replication.throttled.rate",
        LONG,
        str(LONG_MAX),
        "Bytes a second that a leader sends to throttled replicas.",
        at_least(0),
        CLUSTER_WIDE,
        is_internal=True,
    ),
    key(
        "max.incremental.fetch.session.cache.slots",
        INT,
        "1000",
        "Most fetch sessions that the broker remembers.",
        at_least(0),
    ),
    key(
        "max.request.partition.size.limit",
        INT,
        "2000",
        "Most partitions in one response of DescribeTopicPartitions.",
        at_least(1),
    ),
    key("metadata.log.dir", STRING, None, "Directory of the metadata log; by default the first of log.dirs."),
    key(
        "metadata.log.max.record.bytes.between.snapshots",
        LONG,
        "20971520",
        "Bytes of metadata records after which a snapshot is written.",
        at_least(1),
    ),
    key(
        "metadata.log.max.snapshot.interval.ms",
        LONG,
        "3600000",
        "Time after which a snapshot of the metadata is written when something has changed.",
        at_least(0),
    ),
    key(
        "metadata.log.segment.bytes",
        INT,
        "1073741824",
        "Size at which a segment of the metadata log is rolled.",
        at_least(8388608),
    ),
    key(
        "metadata.log.segment.ms", LONG, "604800000", "Age at which a segment of the metadata log is rolled."
    ),
    key(
        "metadata.max.idle.interval.ms",
        INT,
        "500",
        "Time between two no-op records of an idle controller.",
        at_least(0),
    ),
    key(
        "metadata.max.retention.bytes",
        LONG,
        "104857600",
        "Bytes the metadata log and its snapshots may hold.",
    ),
    key(
        "metadata.max.retention.ms",
        LONG,
        "604800000",
        "Age at which parts of the metadata log that a snapshot covers are deleted.",
    ),
    key("num.io.threads", INT, "8", "Threads that process requests.", at_least(1), CLUSTER_WIDE),
    key("num.network.threads", INT, "3", "Threads that serve connections.", at_least(1), CLUSTER_WIDE),
    key("num.partitions", INT, "1", "Partitions of a topic that is created without a number.", at_least(1)),
    key(
        "num.replica.alter.log.dirs.threads", INT, None, "Threads that move replicas between log directories."
    ),
    key("num.replica.fetchers", INT, "1", "Fetchers per source broker.", at_least(1), CLUSTER_WIDE),
    key(
        "producer.id.expiration.ms",
        INT,
        "86400000",
        "Idle time after which the state of a producer is forgotten.",
        at_least(1),
        CLUSTER_WIDE,
    ),
    key(
        "producer.purgatory.purge.interval.requests",
        INT,
        "1000",
        "Waiting produce requests after which completed ones are purged.",
    ),
    key("replica.fetch.backoff.ms", INT, "1000", "Pause of a follower after a failed fetch.", at_least(0)),
    key(
        "replica.fetch.max.bytes",
        INT,
        "1048576",
        "Bytes per partition that a follower requests.",
        at_least(0),
    ),
    key("replica.fetch.min.bytes", INT, "1", "Fewest bytes that a follower's fetch waits for."),
    key(
        "replica.fetch.response.max.bytes",
        INT,
        "10485760",
        "Most bytes in one response to a follower.",
        at_least(0),
    ),
    key("replica.fetch.wait.max.ms", INT, "500", "Longest wait of a follower's fetch."),
    key(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        "5000",
        "Time between two writes of the high watermarks to disk.",
    ),
    key(
        "replica.lag.time.max.ms",
        LONG,
        "30000",
        "Time a follower may lag behind before it leaves the in-sync replicas.",
    ),
    key("replica.selector.class", STRING, None, "Selector of the replica that a consumer reads from."),
    key("replica.socket.receive.buffer.bytes", INT, "65536", "Socket receive buffer of followers."),
    key("replica.socket.timeout.ms", INT, "30000", "Socket timeout of followers."),
    key("replication.quota.window.num", INT, "11", "Samples kept for replication quotas.", at_least(1)),
    key(
        "replication.quota.window.size.seconds",
        INT,
        "1",
        "Length of one sample for replication quotas.",
        at_least(1),
    ),
    key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        "10000",
        "Time between two searches for transactions that have timed out.",
        at_least(1),
    ),
    key(
        "transaction.max.timeout.ms", INT, "900000", "Largest timeout a transaction may ask for.", at_least(1)
    ),
    key(
        "transaction.partition.verification.enable",
        BOOLEAN,
        "true",
        "Whether a transaction's partition is verified before the first append.",
        mode=CLUSTER_WIDE,
    ),
    key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        "3600000",
        "Time between two searches for transactional ids that have expired.",
        at_least(1),
    ),
    key(
        "transaction.state.log.load.buffer.size",
        INT,
        "5242880",
        "Bytes read at once when transaction state is loaded.",
        at_least(1),
    ),
    key(
        "transaction.state.log.min.isr",
        INT,
        "2",
        "In-sync replicas that a write to the topic of transaction state needs.",
        at_least(1),
    ),
    key(
        "transaction.state.log.num.partitions",
        INT,
        "50",
        "Partitions of the topic of transaction state.",
        at_least(1),
    ),
    key(
        "transaction.state.log.replication.factor",
        SHORT,
        "3",
        "Replication factor of the topic of transaction state.",
        at_least(1),
    ),
    key(
        "transaction.state.log.segment.bytes",
        INT,
        "104857600",
        "Segment size of the topic of transaction state.",
        at_least(1),
    ),
    key(
        "transaction.two.phase.commit.enable",
        BOOLEAN,
        "true",
        "Whether clients may take part in two-phase commits: their transactions have no timeout (KIP-939).",
    ),
    key(
        "transactional.id.expiration.ms",
        INT,
        "604800000",
        "Idle time after which a transactional id is forgotten.",
        at_least(1),
    ),
    ConfigKey(
        "unclean.leader.election.interval.ms",
        LONG,
        "300000",
        "Time between two looks for partitions without a leader that may be elected uncleanly.",
        at_least(1),
        is_internal=True,
    ),
)
