"""Where the replicas of new partitions go.

Every partition takes the least loaded brokers, one from each rack before a second from any, so that the loss
of a rack costs a partition as few replicas as can be, and never two replicas on one broker. Of those brokers,
the one that leads the fewest of the topic's partitions comes first, which makes it the preferred leader.
Equals are ordered by a hash of seed, partition and broker: the same seed gives the same placement, and the
partners of a broker differ from partition to partition, so that its load spreads over many when it dies.

Brokers that are not active are used last and never lead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemill.types import BrokerId

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class UsableBroker:
    id: BrokerId
    rack: str | None
    is_active: bool


class PlacementError(Exception):
    """There are not enough brokers; the text says what is missing."""


def place_replicas(
    brokers: Sequence[UsableBroker],
    partition_count: int,
    replication_factor: int,
    seed: int,
    existing: Iterable[Sequence[BrokerId]] = (),
) -> list[tuple[BrokerId, ...]]:
    """The replicas of each new partition, preferred leader first; `existing` are the topic's present ones."""
    _check(brokers, replication_factor)
    load: Counter[BrokerId] = Counter()
    leaderships: Counter[BrokerId] = Counter()
    first_index = 0
    for replicas in existing:
        load.update(replicas)
        leaderships[replicas[0]] += 1
        first_index += 1
    placed = []
    for index in range(first_index, first_index + partition_count):
        tie = {broker.id: _mix(seed, index, broker.id) for broker in brokers}
        chosen = _choose(brokers, replication_factor, load, leaderships, tie)
        leader = min(
            (broker for broker in chosen if broker.is_active),
            key=lambda broker: (leaderships[broker.id], tie[broker.id]),
        )
        chosen.remove(leader)
        replicas = (leader.id, *(broker.id for broker in chosen))
        load.update(replicas)
        leaderships[leader.id] += 1
        placed.append(replicas)
    return placed


def _check(brokers: Sequence[UsableBroker], replication_factor: int) -> None:
    if replication_factor > len(brokers):
        raise PlacementError(f"only {len(brokers)} broker(s) are registered")
    if not any(broker.is_active for broker in brokers):
        raise PlacementError("all brokers are fenced or shutting down")


def _choose(
    brokers: Sequence[UsableBroker],
    replication_factor: int,
    load: Counter[BrokerId],
    leaderships: Counter[BrokerId],
    tie: dict[BrokerId, int],
) -> list[UsableBroker]:
    candidates = sorted(
        brokers,
        key=lambda broker: (not broker.is_active, load[broker.id], leaderships[broker.id], tie[broker.id]),
    )
    per_rack: Counter[str | None] = Counter()
    chosen: list[UsableBroker] = []
    while len(chosen) < replication_factor:
        fewest = min(per_rack[broker.rack] for broker in candidates)
        broker = next(broker for broker in candidates if per_rack[broker.rack] == fewest)
        candidates.remove(broker)
        chosen.append(broker)
        per_rack[broker.rack] += 1
    return chosen


def _mix(seed: int, index: int, broker_id: int) -> int:
    """64 well-mixed bits (the finaliser of splitmix64)."""
    bits = (seed ^ (index * 0x9E3779B97F4A7C15) ^ (broker_id * 0xD1B54A32D192ED03)) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)
