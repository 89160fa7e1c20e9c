"""The broker's settings of the share coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.config.values import Values


@dataclass(frozen=True, slots=True)
class ShareCoordinatorConfig:
    """Kafka's broker settings `share.coordinator.*`. `__share_group_state` is created with `state_topic_*`."""

    snapshot_update_records_per_snapshot: int = 500
    cold_partition_snapshot_interval_ms: int = 300_000
    state_topic_prune_interval_ms: int = 300_000
    state_topic_num_partitions: int = 50
    state_topic_replication_factor: int = 3
    state_topic_min_isr: int = 2
    state_topic_segment_bytes: int = 104_857_600
    write_timeout_ms: int = 5_000


def load_share_coordinator(values: Values) -> ShareCoordinatorConfig:
    number = values.number
    return ShareCoordinatorConfig(
        snapshot_update_records_per_snapshot=number("share.coordinator.snapshot.update.records.per.snapshot"),
        cold_partition_snapshot_interval_ms=number("share.coordinator.cold.partition.snapshot.interval.ms"),
        state_topic_prune_interval_ms=number("share.coordinator.state.topic.prune.interval.ms"),
        state_topic_num_partitions=number("share.coordinator.state.topic.num.partitions"),
        state_topic_replication_factor=number("share.coordinator.state.topic.replication.factor"),
        state_topic_min_isr=number("share.coordinator.state.topic.min.isr"),
        state_topic_segment_bytes=number("share.coordinator.state.topic.segment.bytes"),
        write_timeout_ms=number("share.coordinator.write.timeout.ms"),
    )
