"""The settings in force for a share group, as its share partitions use them."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.config.share_groups import OffsetResetStrategy, ShareGroupConfig
from tidemill.replication.share_messages import ShareLimits


@dataclass(frozen=True, slots=True)
class ShareSettings:
    limits: ShareLimits
    is_read_committed: bool
    offset_reset: OffsetResetStrategy
    # Empty for none.
    dead_letter_topic: str = ""


def share_settings(config: ShareGroupConfig) -> ShareSettings:
    return ShareSettings(
        ShareLimits(
            lock_duration_ms=config.record_lock_duration_ms,
            delivery_count_max=config.delivery_count_limit,
            record_locks_max=config.partition_max_record_locks,
            is_renew_enabled=config.is_renew_enabled,
            has_dead_letters=bool(config.dead_letter_topic),
            backoff_ms=config.release_backoff_ms,
            backoff_factor=config.release_backoff_factor,
            backoff_ms_max=config.release_backoff_ms_max,
        ),
        config.is_read_committed,
        config.auto_offset_reset,
        config.dead_letter_topic,
    )
