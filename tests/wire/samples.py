"""One valid request for every API that is served, at its oldest and newest version."""

from __future__ import annotations

from typing import Any

from tests.wire import batches
from tests.wire.connection import fetch_fields, produce_fields

TOPIC = "samples"
BATCH = batches.encode([b"first", batches.Record(b"second", b"key")])
PLACE = [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
CONFIG = {"name": "retention.ms", "value": "3600000"}
OLD_FETCH = {
    "replica_id": -1,
    "min_bytes": 1,
    "max_bytes": 1000,
    "topics": [{"topic": TOPIC, "partitions": [{"partition_max_bytes": 1000}]}],
}

# (api, version, fields). Fields differ between versions where Kafka's schemas do.
SAMPLES: list[tuple[str, int, dict[str, Any]]] = [
    ("api_versions", 0, {}),
    ("api_versions", 4, {"client_software_name": "fuzz", "client_software_version": "1"}),
    ("metadata", 0, {"topics": [{"name": TOPIC}]}),
    ("metadata", 13, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False}),
    ("produce", 3, produce_fields(TOPIC, BATCH)),
    ("produce", 12, produce_fields(TOPIC, BATCH)),
    ("fetch", 4, OLD_FETCH),
    ("fetch", 12, fetch_fields(TOPIC, 0)),
    ("list_offsets", 1, {"replica_id": -1, "topics": PLACE}),
    ("list_offsets", 10, {"replica_id": -1, "topics": PLACE}),
    ("create_topics", 2, {"topics": [{"name": TOPIC, "num_partitions": 1, "replication_factor": 1}]}),
    ("create_topics", 7, {"topics": [{"name": TOPIC, "num_partitions": 1, "configs": [CONFIG]}]}),
    ("delete_topics", 1, {"topic_names": ["no-such-topic"]}),
    ("delete_topics", 6, {"topics": [{"name": "no-such-topic", "topic_id": None}]}),
    (
        "create_partitions",
        0,
        {"topics": [{"name": TOPIC, "count": 2, "assignments": None}], "validate_only": True},
    ),
    (
        "create_partitions",
        3,
        {"topics": [{"name": TOPIC, "count": 2, "assignments": None}], "validate_only": True},
    ),
    ("describe_configs", 1, {"resources": [{"resource_type": 2, "resource_name": TOPIC}]}),
    ("describe_configs", 4, {"resources": [{"resource_type": 2, "resource_name": TOPIC}]}),
    ("alter_configs", 0, {"resources": [{"resource_type": 2, "resource_name": TOPIC, "configs": [CONFIG]}]}),
    ("alter_configs", 2, {"resources": [{"resource_type": 2, "resource_name": TOPIC, "configs": [CONFIG]}]}),
    (
        "incremental_alter_configs",
        1,
        {
            "resources": [
                {"resource_type": 2, "resource_name": TOPIC, "configs": [CONFIG | {"config_operation": 0}]}
            ]
        },
    ),
    ("delete_records", 0, {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 0}]}]}),
    ("delete_records", 2, {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 0}]}]}),
    (
        "offset_for_leader_epoch",
        4,
        {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
    ),
    ("describe_cluster", 2, {}),
    ("describe_topic_partitions", 0, {"topics": [{"name": TOPIC}], "response_partition_limit": 10}),
    ("describe_log_dirs", 1, {"topics": [{"topic": TOPIC, "partitions": [0]}]}),
    ("describe_log_dirs", 4, {"topics": [{"topic": TOPIC, "partitions": [0]}]}),
    ("init_producer_id", 0, {"transaction_timeout": 60_000}),
    ("init_producer_id", 5, {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}),
]
NAMES = [f"{api}-v{version}" for api, version, _ in SAMPLES]
