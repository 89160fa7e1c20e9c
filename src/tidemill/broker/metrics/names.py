"""The names of everything that a node shows at /metrics: the whole list, as tables.

There are three families, as public dashboards know them. `kafka_server_*`, `kafka_network_*`, `kafka_controller_*`,
`kafka_cluster_*`, `kafka_log_*` and `kafka_coordinator_*` are what the JMX exporter's rules for KRaft make of a Kafka
broker's beans. `kafka_topic_*`, `kafka_consumergroup_*` and `kafka_broker*` are those of the widespread exporter of
offsets and lag. What no Kafka has begins with `tidemill_`. The reference in the docs is written from these tables, and
the dashboard and the alerts in deploy/ are checked against them. A counter's name stands here without `_total`.
"""

from __future__ import annotations

from typing import NamedTuple


class MetricName(NamedTuple):
    name: str
    # The attribute of the counts, the snapshot or the row that it shows.
    source: str
    help: str


INFO = MetricName("tidemill_info", "", "Always 1; says which version and node this is.")
INFO_LABELS = ("version", "node_id", "cluster_id")

NODE_GAUGES = (
    MetricName(
        "kafka_server_kafkaserver_brokerstate", "broker_state", "3 while it serves, 6 while it stops."
    ),
    MetricName(
        "kafka_server_replicamanager_partitioncount", "partition_count", "Replicas that this broker hosts."
    ),
    MetricName(
        "kafka_server_replicamanager_leadercount", "leader_count", "Partitions that this broker leads."
    ),
    MetricName(
        "kafka_server_replicamanager_underreplicatedpartitions",
        "under_replicated",
        "Partitions led here with a replica out of sync.",
    ),
    MetricName(
        "kafka_server_replicamanager_underminisrpartitioncount",
        "under_min_isr",
        "Partitions led here with fewer replicas in sync than min.insync.replicas.",
    ),
    MetricName(
        "kafka_server_replicamanager_atminisrpartitioncount",
        "at_min_isr",
        "Partitions led here with no more replicas in sync than min.insync.replicas.",
    ),
    MetricName(
        "kafka_server_replicamanager_offlinereplicacount",
        "offline_replicas",
        "Replicas here whose log cannot be used.",
    ),
    MetricName(
        "tidemill_decommissioned_partitions",
        "decommissioned",
        "Partitions led here that take no new records, and are removed when they are empty.",
    ),
    MetricName(
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        "idle_share",
        "Share of the last minute or two in which the event loop had nothing to compute, 0 to 1.",
    ),
    MetricName(
        "kafka_network_socketserver_networkprocessoravgidle_percent",
        "idle_share",
        "The same: one event loop does both.",
    ),
    MetricName(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "is_active_controller",
        "1 on the node that is the active controller.",
    ),
    MetricName(
        "kafka_controller_kafkacontroller_activebrokercount",
        "active_brokers",
        "Brokers of the cluster that are up, as this node knows.",
    ),
    MetricName(
        "kafka_controller_kafkacontroller_fencedbrokercount",
        "fenced_brokers",
        "Registered brokers of the cluster that are not up.",
    ),
    MetricName("kafka_controller_kafkacontroller_globaltopiccount", "topic_count", "Topics of the cluster."),
    MetricName(
        "kafka_controller_kafkacontroller_globalpartitioncount",
        "global_partition_count",
        "Partitions of the cluster.",
    ),
    MetricName(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "offline_partitions",
        "Partitions of the cluster without a leader.",
    ),
    MetricName(
        "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
        "not_preferred",
        "Partitions of the cluster that are not led by their preferred replica.",
    ),
    MetricName(
        "kafka_server_raft_metrics_current_leader", "quorum_leader", "Id of the active controller, -1: none."
    ),
    MetricName(
        "kafka_server_raft_metrics_current_epoch", "quorum_epoch", "Epoch of the quorum, as this node knows."
    ),
    MetricName(
        "kafka_server_raft_metrics_high_watermark",
        "quorum_high_watermark",
        "How far the metadata log is committed.",
    ),
    MetricName(
        "kafka_server_raft_metrics_log_end_offset", "quorum_end_offset", "End of the metadata log here."
    ),
    MetricName("kafka_brokers", "active_brokers", "Brokers of the cluster that are up."),
    MetricName(
        "kafka_coordinator_group_groupmetadatamanager_numgroups", "group_count", "Groups coordinated here."
    ),
    MetricName(
        "kafka_server_sharesessioncache_sharesessioncount",
        "share_sessions",
        "Members of share groups that fetch from this broker.",
    ),
    MetricName(
        "kafka_server_sharesessioncache_sharepartitionscount",
        "share_session_partitions",
        "Partitions in their sessions, counted for each member.",
    ),
    MetricName(
        "tidemill_broker_delays_pending",
        "pending_delays",
        "Delayed records that wait in the partitions led here.",
    ),
    MetricName(
        "tidemill_data_dir_size_bytes", "disk_size_bytes", "Size of the file system of the data directory."
    ),
    MetricName("tidemill_data_dir_free_bytes", "disk_free_bytes", "What is free there for this process."),
)
RAFT_STATE = MetricName(
    "kafka_server_raft_metrics_current_state_info", "quorum_state", "1 for the state that this node is in."
)
RAFT_STATE_LABELS = ("state",)
BROKER_INFO = MetricName("kafka_broker_info", "", "Always 1; a broker of the cluster that is up.")
BROKER_INFO_LABELS = ("id", "address")
GROUP_STATES = MetricName(
    "tidemill_groups", "group_states", "Groups coordinated here, by state as `tidemill groups list` names it."
)
GROUP_STATES_LABELS = ("state",)
GROUP_TYPES = MetricName(
    "tidemill_group_types", "group_types", "Groups coordinated here, by type: classic, consumer or share."
)
GROUP_TYPES_LABELS = ("type",)

NODE_COUNTERS = (
    MetricName("kafka_server_replicamanager_isrshrinks", "isr_shrinks", "Times that a replica fell behind."),
    MetricName(
        "kafka_server_replicamanager_isrexpands", "isr_expands", "Times that a replica came back in sync."
    ),
    MetricName(
        "tidemill_event_loop_cpu_seconds", "loop_cpu_s", "CPU time of the thread that the event loop runs in."
    ),
)

TOPIC_COUNTERS = (
    MetricName("kafka_server_brokertopicmetrics_messagesin", "messages_in", "Records that producers wrote."),
    MetricName("kafka_server_brokertopicmetrics_bytesin", "bytes_in", "Bytes that producers wrote."),
    MetricName("kafka_server_brokertopicmetrics_bytesout", "bytes_out", "Bytes that consumers read."),
    MetricName(
        "kafka_server_brokertopicmetrics_totalproducerequests",
        "produce_requests",
        "Writes to a partition, a request counting once for each.",
    ),
    MetricName(
        "kafka_server_brokertopicmetrics_failedproducerequests",
        "failed_produce_requests",
        "Writes to a partition that were refused or failed.",
    ),
    MetricName(
        "kafka_server_brokertopicmetrics_totalfetchrequests",
        "fetch_requests",
        "Reads of a partition by consumers, a request counting once for each.",
    ),
    MetricName(
        "kafka_server_brokertopicmetrics_failedfetchrequests",
        "failed_fetch_requests",
        "Reads of a partition by consumers that failed.",
    ),
    MetricName(
        "kafka_server_brokertopicmetrics_replicationbytesin",
        "replication_bytes_in",
        "Bytes that replicas here copied from their leaders.",
    ),
    MetricName(
        "kafka_server_brokertopicmetrics_replicationbytesout",
        "replication_bytes_out",
        "Bytes that replicas elsewhere copied from leaders here.",
    ),
)
TOPIC_LABELS = ("topic",)
# Shown for views that were read.
VIEW_COUNTERS = (
    MetricName(
        "tidemill_view_bytesscanned",
        "view_bytes_scanned",
        "Bytes of a view's source that were looked through for its consumers; bytesout counts what they were shown.",
    ),
    MetricName(
        "tidemill_view_recordsscanned",
        "view_records_scanned",
        "Records of a view's source that were looked through; what an index excludes is not among them.",
    ),
    MetricName("tidemill_view_recordsshown", "view_records_shown", "Records of these that the view showed."),
)
# Shown for topics whose delayed records this broker delivered or cancelled.
DELAY_COUNTERS = (
    MetricName("tidemill_delays_delivered", "delays_delivered", "Delayed records that were delivered."),
    MetricName(
        "tidemill_delays_cancelled",
        "delays_cancelled",
        "Delayed records that were cancelled before they were due.",
    ),
)
# Shown for topics of which this broker passed batches on.
SHRINK_COUNTERS = (
    MetricName(
        "tidemill_shrink_batchespassedon",
        "batches_passed_on",
        "Batches for decommissioned partitions that were stored in others.",
    ),
)
# Of partitions led here, in topics with `tidemill.delays.enable=true`.
DELAY_GAUGES = (
    MetricName("tidemill_delays_pending", "pending_count", "Delayed records that wait for their time."),
    MetricName(
        "tidemill_delays_next_due_timestamp_seconds",
        "next_due_s",
        "When the next of them is due, in seconds since 1970; missing while none waits.",
    ),
)
DELAY_LATENESS = MetricName(
    "tidemill_delays_lateness_seconds",
    "delay_lateness",
    "How long after its due time a delayed record was delivered, by the clock of this broker.",
)
TOPIC_PARTITIONS = MetricName(
    "kafka_topic_partitions", "", "Partitions of a topic of which this broker leads one, told by one broker."
)

# Told by the leader, so that a sum over brokers counts a partition once.
PARTITION_GAUGES = (
    MetricName("kafka_topic_partition_current_offset", "end_offset", "The offset that comes next."),
    MetricName("kafka_topic_partition_oldest_offset", "start_offset", "The oldest offset that is kept."),
    MetricName("kafka_topic_partition_leader", "leader", "Id of the leading broker."),
    MetricName(
        "kafka_topic_partition_leader_is_preferred", "is_preferred", "1 when the first replica leads."
    ),
    MetricName("kafka_topic_partition_replicas", "replicas", "Replicas of the partition."),
    MetricName("kafka_topic_partition_in_sync_replica", "in_sync", "Replicas that are in sync."),
    MetricName(
        "kafka_topic_partition_under_replicated_partition",
        "is_under_replicated",
        "1 when a replica is out of sync.",
    ),
    MetricName("kafka_cluster_partition_replicascount", "replicas", "Replicas of the partition."),
    MetricName("kafka_cluster_partition_insyncreplicascount", "in_sync", "Replicas that are in sync."),
    MetricName(
        "kafka_cluster_partition_underreplicated", "is_under_replicated", "1 when a replica is out of sync."
    ),
    MetricName(
        "kafka_cluster_partition_underminisr",
        "is_under_min_isr",
        "1 when fewer replicas are in sync than min.insync.replicas.",
    ),
    MetricName(
        "kafka_cluster_partition_atminisr",
        "is_at_min_isr",
        "1 when no more replicas are in sync than min.insync.replicas.",
    ),
)
# Told by every broker of the replicas that it has.
REPLICA_GAUGES = (MetricName("kafka_log_log_size", "size_bytes", "Bytes of the log on this broker's disk."),)
PARTITION_LABELS = ("topic", "partition")

GROUP_PARTITION_GAUGES = (
    MetricName(
        "kafka_consumergroup_current_offset", "committed_offset", "The offset that a group committed."
    ),
    MetricName(
        "kafka_consumergroup_lag",
        "lag",
        "Records that a group has not come to yet; only of partitions with a replica on the coordinator.",
    ),
)
GROUP_PARTITION_LABELS = ("consumergroup", "topic", "partition")
GROUP_TOPIC_GAUGES = (
    MetricName("kafka_consumergroup_current_offset_sum", "committed_offset", "The same, over a topic."),
    MetricName("kafka_consumergroup_lag_sum", "lag", "The same, over a topic."),
)
GROUP_TOPIC_LABELS = ("consumergroup", "topic")
GROUP_MEMBERS = MetricName("kafka_consumergroup_members", "members", "Members of a group.")
GROUP_LABELS = ("consumergroup",)

# Told by the leader of the partition, of share groups that fetch from it.
SHARE_PARTITION_GAUGES = (
    MetricName(
        "kafka_server_sharepartitionmetrics_inflightmessagecount",
        "open_count",
        "Records of a share group that are locked, wait for another delivery, or are owed a dead letter.",
    ),
    MetricName("tidemill_share_acquired", "acquired", "Records that members hold under a lock."),
    MetricName(
        "tidemill_share_available",
        "available",
        "Records that no member holds and that are to be delivered, for the first time or again.",
    ),
    MetricName(
        "tidemill_share_dead_letters_owed", "owed", "Records that were given up and whose dead letter waits."
    ),
    MetricName(
        "tidemill_share_delivery_count_max",
        "delivery_count_max",
        "The most deliveries of a record that is locked or waits for another one.",
    ),
)
SHARE_PARTITION_COUNTERS = (
    MetricName(
        "tidemill_share_deliveries", "deliveries", "Records that were handed out; each delivery counts."
    ),
    MetricName(
        "kafka_server_sharepartitionmetrics_acquisitionlocktimeout",
        "lock_timeouts",
        "Locks that ended by their time, without an acknowledgement.",
    ),
    MetricName(
        "tidemill_share_archived",
        "archived",
        "Records that were given up: rejected, or delivered as often as the group allows.",
    ),
    MetricName("tidemill_share_dead_letters", "dead_letters", "Dead letters that were written."),
)
SHARE_PARTITION_LABELS = ("group", "topic", "partition")
SHARE_ACKNOWLEDGEMENTS = MetricName(
    "tidemill_share_acknowledgements",
    "acknowledged",
    "Records that members acknowledged, by type: accept, release, reject, renew.",
)
SHARE_ACKNOWLEDGEMENT_LABELS = (*SHARE_PARTITION_LABELS, "type")

REQUESTS = MetricName("kafka_network_requestmetrics_requests", "requests", "Requests that were answered.")
REQUEST_LABELS = ("request",)
REQUEST_QUANTILES_MS = MetricName(
    "kafka_network_requestmetrics_totaltimems",
    "recent",
    "Quantiles of the time until the answer over the last minute or two, estimated from the histogram.",
)
REQUEST_QUANTILES_LABELS = ("request", "quantile")
QUANTILES = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
REQUEST_SECONDS = MetricName(
    "tidemill_request_duration_seconds",
    "requests",
    "From the arrival of a request to its answer; a fetch includes the time that it waits for data.",
)
LOOP_LAG = MetricName(
    "tidemill_event_loop_lag_seconds", "loop_lag", "How late the event loop comes to what is due."
)


CLIENT_METRIC = MetricName(
    "tidemill_client_metric",
    "value",
    "What clients push as telemetry (KIP-714), as long as they push; `metric` and `attributes` are theirs.",
)
CLIENT_METRIC_LABELS = ("metric", "attributes", "client_id", "client_instance_id", "client_software_name")


# The rate and the throttle time of each kind of quota. The source is the quota's key.
QUOTA_GAUGES = (
    (
        MetricName(
            "kafka_server_produce_byte_rate",
            "producer_byte_rate",
            "Bytes a second that the clients of a quota produce.",
        ),
        MetricName(
            "kafka_server_produce_throttle_time",
            "producer_byte_rate",
            "Milliseconds for which their produce requests over the quota were throttled, on average.",
        ),
    ),
    (
        MetricName(
            "kafka_server_fetch_byte_rate",
            "consumer_byte_rate",
            "Bytes a second that the clients of a quota fetch.",
        ),
        MetricName(
            "kafka_server_fetch_throttle_time",
            "consumer_byte_rate",
            "Milliseconds for which their fetches over the quota were throttled, on average.",
        ),
    ),
    (
        MetricName(
            "kafka_server_request_request_time",
            "request_percentage",
            "Time of the event loop that the clients of a quota use, in percent.",
        ),
        MetricName(
            "kafka_server_request_throttle_time",
            "request_percentage",
            "Milliseconds for which their requests over the quota were throttled, on average.",
        ),
    ),
    (
        MetricName(
            "kafka_server_controllermutation_mutation_rate",
            "controller_mutation_rate",
            "Partitions a second that the clients of a quota create and delete.",
        ),
        MetricName(
            "kafka_server_controllermutation_throttle_time",
            "controller_mutation_rate",
            "Milliseconds for which their mutations over the quota were throttled, on average.",
        ),
    ),
)
QUOTA_LABELS = ("user", "client_id")
# In Kafka the throttle time is that of all addresses of a listener.
IP_QUOTA_GAUGES = (
    MetricName(
        "kafka_server_socket_server_metrics_connection_accept_rate",
        "rate",
        "Connections a second from an address that has a quota.",
    ),
    MetricName(
        "kafka_server_socket_server_metrics_ip_connection_accept_throttle_time",
        "throttle_time",
        "Milliseconds for which its connections over the quota were kept waiting, on average.",
    ),
)
IP_QUOTA_LABELS = ("ip",)


class Section(NamedTuple):
    title: str
    kind: str
    labels: tuple[str, ...]
    metrics: tuple[MetricName, ...]


SECTIONS = (
    Section("The node", "gauge", (), NODE_GAUGES),
    Section("The node", "counter", (), NODE_COUNTERS),
    Section("The node", "gauge", INFO_LABELS, (INFO,)),
    Section("The node", "gauge", RAFT_STATE_LABELS, (RAFT_STATE,)),
    Section("The node", "gauge", BROKER_INFO_LABELS, (BROKER_INFO,)),
    Section("Requests", "counter", REQUEST_LABELS, (REQUESTS,)),
    Section("Requests", "histogram", REQUEST_LABELS, (REQUEST_SECONDS,)),
    Section("Requests", "gauge", REQUEST_QUANTILES_LABELS, (REQUEST_QUANTILES_MS,)),
    Section("Requests", "histogram", (), (LOOP_LAG,)),
    Section("Topics", "counter", TOPIC_LABELS, TOPIC_COUNTERS),
    Section("Topics", "gauge", TOPIC_LABELS, (TOPIC_PARTITIONS,)),
    Section("Topics that get fewer partitions", "counter", TOPIC_LABELS, SHRINK_COUNTERS),
    Section("Views and delayed records", "counter", TOPIC_LABELS, (*VIEW_COUNTERS, *DELAY_COUNTERS)),
    Section("Views and delayed records", "gauge", PARTITION_LABELS, DELAY_GAUGES),
    Section("Views and delayed records", "histogram", (), (DELAY_LATENESS,)),
    Section("Partitions", "gauge", PARTITION_LABELS, (*PARTITION_GAUGES, *REPLICA_GAUGES)),
    Section("Groups", "gauge", GROUP_PARTITION_LABELS, GROUP_PARTITION_GAUGES),
    Section("Groups", "gauge", GROUP_TOPIC_LABELS, GROUP_TOPIC_GAUGES),
    Section("Groups", "gauge", GROUP_LABELS, (GROUP_MEMBERS,)),
    Section("Groups", "gauge", GROUP_STATES_LABELS, (GROUP_STATES,)),
    Section("Groups", "gauge", GROUP_TYPES_LABELS, (GROUP_TYPES,)),
    Section("Share groups", "gauge", SHARE_PARTITION_LABELS, SHARE_PARTITION_GAUGES),
    Section("Share groups", "counter", SHARE_PARTITION_LABELS, SHARE_PARTITION_COUNTERS),
    Section("Share groups", "counter", SHARE_ACKNOWLEDGEMENT_LABELS, (SHARE_ACKNOWLEDGEMENTS,)),
    Section("Clients", "gauge", QUOTA_LABELS, tuple(each for pair in QUOTA_GAUGES for each in pair)),
    Section("Clients", "gauge", IP_QUOTA_LABELS, IP_QUOTA_GAUGES),
    Section("Clients", "gauge", CLIENT_METRIC_LABELS, (CLIENT_METRIC,)),
)
