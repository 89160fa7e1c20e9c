"""Where replicas should go when brokers leave or come; no I/O.

A plan moves as little as it can: a replica stays where it is unless its broker may not keep it (`evacuate`) or holds
more than its share (`balance`). A partition never gets two replicas on one broker, keeps its number of replicas, and
spreads over as many racks as the brokers that may take replicas allow. The same input gives the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from tidemill.types import TopicPartition

Replicas = tuple[int, ...]
Assignments = dict[TopicPartition, Replicas]
# Every broker's rack, also of those that may not take replicas.
Racks = Mapping[int, str | None]


class PlanError(Exception):
    """There is no such plan; the text says why."""


def evacuate(
    assignments: Mapping[TopicPartition, Sequence[int]],
    racks: Racks,
    leaving: Collection[int],
    targets: Collection[int],
) -> Assignments:
    """New replicas for the partitions that have one on a `leaving` broker, which goes to one of `targets`."""
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
    """Everything on `targets`, replicas and preferred leaders evened out; only the partitions that change."""
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
    """The broker for one place: in a rack of its own if there is one, and with the least to do."""
    load, leads = loads
    taken = Counter(racks.get(each) for index, each in enumerate(replicas) if index != position)
    return min(candidates, key=lambda each: (taken[racks.get(each)], load[each], leads[each], each))


def _spread_replicas(planned: Assignments, racks: Racks, targets: Collection[int]) -> None:
    """Takes replicas, one at a time, from brokers with many to brokers with fewer, until all is even."""
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
            # Of the topic of which the source has the most more than the destination.
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
    """Reorders replicas, which moves no data, until no broker is preferred much more often than another."""
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
