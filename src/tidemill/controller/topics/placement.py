"""The placement of replicas on brokers.

Every partition takes the least loaded brokers, one from each rack before a second from any. So the loss of a rack
costs a partition as few replicas as possible. No broker gets two replicas of a partition. The first replica, the
preferred leader, is on the broker that leads the fewest of the topic's partitions. Ties are broken by a hash of seed,
partition and broker: the same seed gives the same placement. The other replicas of a broker's partitions are on
different brokers from partition to partition, so that its load spreads over many when it fails.

Brokers that are not active are used last and never lead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.types import BrokerId

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class UsableBroker:
    id: BrokerId
    rack: str | None
    is_active: bool


class PlacementError(Exception):
    """There are not enough brokers. The message says what is missing."""


def place_replicas(
    brokers: Sequence[UsableBroker],
    partition_count: int,
    replication_factor: int,
    seed: int,
    existing: Iterable[Sequence[BrokerId]] = (),
) -> list[tuple[BrokerId, ...]]:
    """Returns the replicas of each new partition, preferred leader first. `existing` are those of the topic's present
    partitions.
    """
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
        replicas = tuple(broker.id for broker in chosen)
        load.update(replicas)
        leaderships[replicas[0]] += 1
        placed.append(replicas)
    return placed


def extend_replicas(
    brokers: Sequence[UsableBroker],
    replicas: tuple[BrokerId, ...],
    racks: Mapping[BrokerId, str | None],
    replication_factor: int,
    seed: int,
    index: int,
    load: Counter[BrokerId],
) -> tuple[BrokerId, ...]:
    """Returns the replicas with more appended, up to the replication factor or until there are no more brokers.

    `load` is updated. `racks` covers all brokers, also those that hold a replica and cannot get another.
    """
    per_rack = Counter(racks.get(each) for each in replicas)
    free = [broker for broker in brokers if broker.id not in replicas]
    while free and len(replicas) < replication_factor:
        chosen = min(
            free,
            key=lambda broker: (per_rack[broker.rack], load[broker.id], _mix(seed, index, broker.id)),
        )
        free.remove(chosen)
        replicas = (*replicas, chosen.id)
        per_rack[chosen.rack] += 1
        load[chosen.id] += 1
    return replicas


def _check(brokers: Sequence[UsableBroker], replication_factor: int) -> None:
    if replication_factor > len(brokers):
        raise PlacementError(f"only {len(brokers)} broker(s) are registered and not shutting down")
    if not any(broker.is_active for broker in brokers):
        raise PlacementError("all brokers are fenced")


def _choose(
    brokers: Sequence[UsableBroker],
    replication_factor: int,
    load: Counter[BrokerId],
    leaderships: Counter[BrokerId],
    tie: dict[BrokerId, int],
) -> list[UsableBroker]:
    candidates = list(brokers)
    per_rack: Counter[str | None] = Counter()
    chosen: list[UsableBroker] = []
    while len(chosen) < replication_factor:
        # Brokers that lead many partitions become followers here. Those that lead few can then lead the next partitions.
        sign = -1 if chosen else 1
        broker = min(
            candidates,
            key=lambda each: (
                per_rack[each.rack],
                not each.is_active,
                load[each.id],
                sign * leaderships[each.id],
                tie[each.id],
            ),
        )
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
