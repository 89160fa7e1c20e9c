"""The planning of replica placement when brokers join or leave; without I/O.

A plan moves as little as possible. A replica stays unless its broker is leaving (`evacuate`) or holds more than its
share (`balance`). A partition never has two replicas on one broker, keeps its number of replicas, and spreads over as
many racks as the target brokers allow. The same input gives the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from tidemill.types import TopicPartition

Replicas = tuple[int, ...]
Assignments = dict[TopicPartition, Replicas]
# The rack of every broker, including those that may not take replicas.
Racks = Mapping[int, str | None]


class PlanError(Exception):
    """No valid plan exists. The text says why."""


def evacuate(
    assignments: Mapping[TopicPartition, Sequence[int]],
    racks: Racks,
    leaving: Collection[int],
    targets: Collection[int],
) -> Assignments:
    """New replicas for the partitions on the `leaving` broker: each of its replicas goes to one of `targets`."""
    load, leads = _loads(assignments)
    changed: Assignments = {}
    for partition, present in sorted(assignments.items()):
        replicas = list(present)
        for position, broker_id in enumerate(present):
            if broker_id not in leaving:
                continue
            candidates = [each for each in targets if each not in replicas and each not in leaving]
            if not candidates:
                raise PlanError(
                    f"{partition} has {len(present)} replicas, and no broker is left that could take the one "
                    f"of broker {broker_id}"
                )
            replicas[position] = _best(replicas, position, racks, candidates, (load, leads))
            load[replicas[position]] += 1
            leads[replicas[position]] += position == 0
        if tuple(replicas) != tuple(present):
            changed[partition] = tuple(replicas)
    return changed


def balance(
    assignments: Mapping[TopicPartition, Sequence[int]], racks: Racks, targets: Collection[int]
) -> Assignments:
    """Spread replicas and preferred leaders evenly over `targets`. Returns only the partitions that change."""
    leaving = {each for replicas in assignments.values() for each in replicas if each not in targets}
    planned = {partition: tuple(replicas) for partition, replicas in sorted(assignments.items())}
    planned |= evacuate(assignments, racks, leaving, targets)
    _spread_replicas(planned, racks, targets)
    _spread_leaders(planned)
    return {each: replicas for each, replicas in planned.items() if replicas != tuple(assignments[each])}


def _best(
    replicas: Sequence[int],
    position: int,
    racks: Racks,
    candidates: Collection[int],
    loads: tuple[Counter[int], Counter[int]],
) -> int:
    """The best broker for one replica: in a new rack if possible, with the lowest load."""
    load, leads = loads
    taken = Counter(racks.get(each) for index, each in enumerate(replicas) if index != position)
    return min(candidates, key=lambda each: (taken[racks.get(each)], load[each], leads[each], each))


def _spread_replicas(planned: Assignments, racks: Racks, targets: Collection[int]) -> None:
    """Move replicas, one at a time, from brokers with many to brokers with fewer, until they are even."""
    held: dict[int, set[TopicPartition]] = {broker_id: set() for broker_id in targets}
    for partition, replicas in planned.items():
        for broker_id in replicas:
            held[broker_id].add(partition)
    while (move := _next_move(planned, racks, held)) is not None:
        partition, source, destination = move
        planned[partition] = _replaced(planned[partition], source, destination)
        held[source].remove(partition)
        held[destination].add(partition)


def _next_move(
    planned: Assignments, racks: Racks, held: Mapping[int, set[TopicPartition]]
) -> tuple[TopicPartition, int, int] | None:
    by_load = sorted(held, key=lambda each: (len(held[each]), each))
    for source in reversed(by_load):
        for destination in by_load:
            if len(held[source]) - len(held[destination]) < 2:
                break
            # Taken from the topic in which the source exceeds the destination most.
            surplus = Counter(partition.topic for partition in held[source])
            surplus.subtract(partition.topic for partition in held[destination])
            candidates = (
                partition
                for partition in held[source] - held[destination]
                if _rack_count(planned[partition], racks)
                <= _rack_count(_replaced(planned[partition], source, destination), racks)
            )
            best = min(candidates, key=lambda each: (-surplus[each.topic], each), default=None)
            if best is not None:
                return best, source, destination
    return None


def _replaced(replicas: Replicas, source: int, destination: int) -> Replicas:
    return tuple(destination if each == source else each for each in replicas)


def _rack_count(replicas: Collection[int], racks: Racks) -> int:
    return len({racks.get(each) for each in replicas})


def _spread_leaders(planned: Assignments) -> None:
    """Reorder replicas, which moves no data, until preferred leaders are spread evenly."""
    _, leads = _loads(planned)
    is_changed = True
    while is_changed:
        is_changed = False
        for partition, replicas in planned.items():
            lightest = min(replicas, key=lambda each: (leads[each], each))
            if leads[replicas[0]] - leads[lightest] > 1:
                leads[replicas[0]] -= 1
                leads[lightest] += 1
                planned[partition] = (lightest, *(each for each in replicas if each != lightest))
                is_changed = True


def _loads(assignments: Mapping[TopicPartition, Sequence[int]]) -> tuple[Counter[int], Counter[int]]:
    load: Counter[int] = Counter()
    leads: Counter[int] = Counter()
    for replicas in assignments.values():
        load.update(replicas)
        leads[replicas[0]] += 1
    return load, leads
