"""Replication throttles: they limit the rate of a move, so that clients keep their bandwidth.

The settings are Kafka's: a rate for each broker, and for each topic the throttled replicas. Present replicas are
throttled as senders, new ones as receivers. The settings stay until they are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.types import TopicPartition

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
SENDERS = "leader.replication.throttled.replicas"
RECEIVERS = "follower.replication.throttled.replicas"


def throttled_replicas(
    present: Mapping[TopicPartition, Sequence[int]], targets: Mapping[TopicPartition, Sequence[int]]
) -> dict[str, dict[str, str]]:
    """The two lists of throttled replicas of each topic for a move, as `partition:broker` pairs."""
    senders: dict[str, list[str]] = {}
    receivers: dict[str, list[str]] = {}
    for partition, replicas in sorted(targets.items()):
        topic, index = partition
        senders.setdefault(topic, []).extend(f"{index}:{each}" for each in present[partition])
        added = [each for each in replicas if each not in present[partition]]
        receivers.setdefault(topic, []).extend(f"{index}:{each}" for each in added)
    return {
        topic: {SENDERS: ",".join(senders[topic]), RECEIVERS: ",".join(receivers[topic])} for topic in senders
    }


def set_rate(admin: Admin, brokers: Iterable[int], rate_bytes: int | None) -> None:
    """Set the rate of the brokers; None removes the limit."""
    value = None if rate_bytes is None else str(rate_bytes)
    for broker_id in brokers:
        admin.alter_configs(ResourceType.BROKER, str(broker_id), changes=dict.fromkeys(RATES, value))


def start(
    admin: Admin,
    brokers: Iterable[int],
    present: Mapping[TopicPartition, Sequence[int]],
    targets: Mapping[TopicPartition, Sequence[int]],
    rate_bytes: int,
) -> None:
    """Start a throttle. The rates are set first, because a list without a rate has no effect."""
    set_rate(admin, brokers, rate_bytes)
    for topic, lists in throttled_replicas(present, targets).items():
        admin.alter_configs(ResourceType.TOPIC, topic, changes=dict(lists))


def stop(admin: Admin, brokers: Iterable[int], topics: Collection[str]) -> None:
    """Remove the throttle. A topic that was deleted has no lists any more."""
    for topic in sorted(admin.existing_topics(list(topics)) if topics else ()):
        admin.alter_configs(ResourceType.TOPIC, topic, changes=dict.fromkeys((SENDERS, RECEIVERS)))
    set_rate(admin, brokers, None)


def throttled_topics(admin: Admin, topics: Sequence[str]) -> list[str]:
    """The topics that have a list of throttled replicas."""
    found: set[str] = set()
    for key in (SENDERS, RECEIVERS) if topics else ():
        found.update(topic for topic, value in admin.topic_values(topics, key).items() if value)
    return sorted(found)
