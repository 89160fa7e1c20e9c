"""Facts that brokers report about the cluster, as values: its topology, and its groups with their committed offsets.

A fact never changes once it is made, so any number of threads and requests may read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

from tidemill.client.admin.groups import GroupMember
from tidemill.client.admin.health import BrokerFact
from tidemill.client.admin.share_groups import InFlight
from tidemill.protocol.api.cluster import MetadataResponseTopic
from tidemill.types import TopicPartition

# By topic, then by partition.
ByPartition = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class Topology:
    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerFact, ...]
    topics: Mapping[str, MetadataResponseTopic]

    @property
    def live_ids(self) -> list[int]:
        return [broker.id for broker in self.brokers if not broker.is_fenced]

    @cached_property
    def led(self) -> dict[int, dict[str, list[int]]]:
        """The partitions by leader and topic."""
        led: dict[int, dict[str, list[int]]] = {}
        for name, topic in self.topics.items():
            for each in topic.partitions:
                if each.leader_id >= 0:
                    led.setdefault(each.leader_id, {}).setdefault(name, []).append(each.partition_index)
        return led


class ShareFact(NamedTuple):
    """The start offset, lag and records in flight of a share group in a partition; None where that is not known."""

    start_offset: int | None
    lag: int | None
    in_flight: InFlight | None


class GroupFact(NamedTuple):
    """A group as its coordinator describes it, with what it has committed."""

    group_id: str
    state: str
    # The assignor, or the type of a group that has agreed on none.
    protocol: str
    coordinator: int
    members: tuple[GroupMember, ...]
    committed: Mapping[TopicPartition, int]
    # Of a share group, in place of commits; None for the others.
    shares: Mapping[TopicPartition, ShareFact] | None = None

    @property
    def by_deliveries(self) -> list[int]:
        """The numbers of records in flight that were delivered once, twice, and so on."""
        found = [each.in_flight.by_deliveries for each in (self.shares or {}).values() if each.in_flight]
        return [sum(counts) for counts in zip_longest(*found, fillvalue=0)]
