"""The settings of share groups: the brokers' for all groups, and those in force for one group.

A group overrides a broker key `group.share.X` by its own `share.X`, between two other broker keys, which are its
limits. The limits may have changed since the group was configured, so `share_group_config` keeps each value within
them, as Kafka does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidemill.config.definitions import Check, ConfigKey, ConfigType, at_least, key, one_of
from tidemill.config.values import Values

_BY_DURATION = "by_duration:"
# Java's Duration.parse, without signs: days, hours, minutes and seconds with a fraction.
_DURATION = re.compile(
    r"P(?=.)(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d{1,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
RELEASE_BACKOFF = "tidemill.share.release.backoff.ms"
RELEASE_BACKOFF_FACTOR = "tidemill.share.release.backoff.factor"
RELEASE_BACKOFF_MAX = "tidemill.share.release.backoff.max.ms"
READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"


class OffsetReset(Enum):
    """The offset at which a share group begins in a partition that it has never read."""

    EARLIEST = "earliest"
    LATEST = "latest"
    BY_DURATION = "by_duration"


@dataclass(frozen=True, slots=True)
class OffsetResetStrategy:
    """The value of `share.auto.offset.reset`. `duration_ms` is how far back BY_DURATION begins."""

    reset: OffsetReset
    duration_ms: int = 0

    @staticmethod
    def parse(text: str) -> OffsetResetStrategy | None:
        """Returns None for a text that is not a strategy. Names are in lower case, as in Kafka."""
        if text in (OffsetReset.EARLIEST.value, OffsetReset.LATEST.value):
            return OffsetResetStrategy(OffsetReset(text))
        if not text.startswith(_BY_DURATION):
            return None
        found = _DURATION.fullmatch(text.removeprefix(_BY_DURATION))
        if found is None:
            return None
        days, hours, minutes, seconds, fraction = (part or "0" for part in found.groups())
        whole_s = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
        return OffsetResetStrategy(OffsetReset.BY_DURATION, whole_s * 1000 + int(fraction.ljust(3, "0")[:3]))


_OFFSET_RESETS = Check(
    "earliest, latest, or by_duration: and a duration such as PT1H",
    lambda value: OffsetResetStrategy.parse(str(value)) is not None,
)

# The keys of a group that override no broker key.
SHARE_ONLY_KEYS: dict[str, ConfigKey] = {
    each.name: each
    for each in (
        key(
            "share.auto.offset.reset",
            ConfigType.STRING,
            OffsetReset.LATEST.value,
            "Where a share group begins in a partition that it has never read.",
            _OFFSET_RESETS,
        ),
        key(
            "share.isolation.level",
            ConfigType.STRING,
            READ_UNCOMMITTED,
            "Whether a share group gets records of transactions that are not committed.",
            one_of(READ_COMMITTED, READ_UNCOMMITTED),
        ),
        key(
            "share.renew.acknowledge.enable",
            ConfigType.BOOLEAN,
            "true",
            "Whether members of a share group may extend the locks of their records.",
        ),
        key(
            DEAD_LETTER_TOPIC,
            ConfigType.STRING,
            "",
            "The topic for records that were rejected or reached the delivery limit (KIP-1191); empty for none.",
            is_internal=True,
        ),
        key(
            RELEASE_BACKOFF,
            ConfigType.INT,
            "0",
            "How long a record waits after its first release before it is delivered again.",
            at_least(0),
            is_internal=True,
        ),
        key(
            RELEASE_BACKOFF_FACTOR,
            ConfigType.DOUBLE,
            "2",
            "By how much the wait after a release grows with each delivery.",
            at_least(1),
            is_internal=True,
        ),
        key(
            RELEASE_BACKOFF_MAX,
            ConfigType.INT,
            "600000",
            "The longest wait after a release.",
            at_least(0),
            is_internal=True,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Limited:
    """A setting for all groups, and the limits within which a group may choose its own."""

    default: int
    least: int
    most: int

    def of(self, text: str | None) -> int:
        return self.default if text is None else min(max(int(text), self.least), self.most)


@dataclass(frozen=True, slots=True)
class ShareGroupsConfig:
    """The brokers' settings of share groups, under Kafka's names."""

    session_timeout_ms: Limited = Limited(45_000, 45_000, 60_000)
    heartbeat_interval_ms: Limited = Limited(5_000, 5_000, 15_000)
    assignment_interval_ms: Limited = Limited(1_000, 0, 15_000)
    record_lock_duration_ms: Limited = Limited(30_000, 15_000, 60_000)
    delivery_count_limit: Limited = Limited(5, 2, 10)
    partition_max_record_locks: Limited = Limited(2_000, 100, 4_000)
    max_size: int = 200
    max_share_sessions: int = 2_000


@dataclass(frozen=True, slots=True)
class ShareGroupConfig:
    """The settings in force for one share group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    record_lock_duration_ms: int
    delivery_count_limit: int
    partition_max_record_locks: int
    auto_offset_reset: OffsetResetStrategy = field(
        default_factory=lambda: OffsetResetStrategy(OffsetReset.LATEST)
    )
    is_read_committed: bool = False
    is_renew_enabled: bool = True
    dead_letter_topic: str = ""
    release_backoff_ms: int = 0
    release_backoff_factor: float = 2.0
    release_backoff_ms_max: int = 600_000


def share_group_config(overrides: Mapping[str, str], brokers: ShareGroupsConfig) -> ShareGroupConfig:
    """`overrides` are the group's own values (ConfigResource GROUP), which have been validated."""
    get = overrides.get
    reset = OffsetResetStrategy.parse(get("share.auto.offset.reset", OffsetReset.LATEST.value).strip())
    assert reset is not None, "validated when it was set"
    return ShareGroupConfig(
        session_timeout_ms=brokers.session_timeout_ms.of(get("share.session.timeout.ms")),
        heartbeat_interval_ms=brokers.heartbeat_interval_ms.of(get("share.heartbeat.interval.ms")),
        assignment_interval_ms=brokers.assignment_interval_ms.of(get("share.assignment.interval.ms")),
        record_lock_duration_ms=brokers.record_lock_duration_ms.of(get("share.record.lock.duration.ms")),
        delivery_count_limit=brokers.delivery_count_limit.of(get("share.delivery.count.limit")),
        partition_max_record_locks=brokers.partition_max_record_locks.of(
            get("share.partition.max.record.locks")
        ),
        auto_offset_reset=reset,
        is_read_committed=get("share.isolation.level", "").strip() == READ_COMMITTED,
        is_renew_enabled=get("share.renew.acknowledge.enable", "true").strip().lower() != "false",
        dead_letter_topic=get(DEAD_LETTER_TOPIC, "").strip(),
        release_backoff_ms=int(get(RELEASE_BACKOFF, "0")),
        release_backoff_factor=float(get(RELEASE_BACKOFF_FACTOR, "2")),
        release_backoff_ms_max=int(get(RELEASE_BACKOFF_MAX, "600000")),
    )


def load_share_groups(values: Values) -> ShareGroupsConfig:
    def limited(name: str) -> Limited:
        return Limited(
            values.number(f"group.share.{name}"),
            values.number(f"group.share.min.{name}"),
            values.number(f"group.share.max.{name}"),
        )

    return ShareGroupsConfig(
        session_timeout_ms=limited("session.timeout.ms"),
        heartbeat_interval_ms=limited("heartbeat.interval.ms"),
        assignment_interval_ms=limited("assignment.interval.ms"),
        record_lock_duration_ms=limited("record.lock.duration.ms"),
        delivery_count_limit=limited("delivery.count.limit"),
        partition_max_record_locks=limited("partition.max.record.locks"),
        max_size=values.number("group.share.max.size"),
        max_share_sessions=values.number("group.share.max.share.sessions"),
    )
