"""The names of the topics that the cluster keeps for itself, as in Kafka, and of those that our clients keep."""

from __future__ import annotations

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
# The metadata log of the quorum. It has one partition, and clients do not see it as a topic.
METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = bytes(15) + b"\1"

# Those that clients see, marked as internal.
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})

# Where the drivers of Spark's sink write their decisions.
SPARK_COMMITS_TOPIC = "_tidemill_spark_commits"
# Those that our own clients keep. To brokers, and to other clients, they are ordinary topics; our client marks them.
CLIENT_TOPICS = frozenset({SPARK_COMMITS_TOPIC})
