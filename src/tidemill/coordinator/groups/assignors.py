"""The server-side assignors: they decide which member of a consumer group consumes which partition.

An assignor is a pure function of the members' subscriptions, the number of partitions of each topic and the target
assignment so far. Every partition of a subscribed topic goes to exactly one member that subscribes to it. Both
assignors are sticky: a partition leaves its member only when that member is gone, no longer subscribes, or has more
than its share.

- `uniform` balances the number of partitions per member. When all subscribe to the same topics no two members differ by
  more than one, and no fewer partitions could have moved. Otherwise no single move could make the loads more even.
- `range` shares out each topic by itself, in ranges. Topics with as many partitions and the same subscribers are
  treated alike: partition n of each goes to the same member, so that they can be joined.

The result depends on nothing but the arguments and their order: nothing here iterates over a set of topics or
members.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.types import TopicId

Partitions = Mapping[TopicId, frozenset[int]]
NO_PARTITIONS: Partitions = {}


@dataclass(frozen=True, slots=True)
class AssignmentSpec:
    """The input of an assignor. It holds only topics that exist."""

    # Sorted topics of each member. The order of the members decides which of them get the partitions left over.
    subscriptions: Mapping[str, tuple[TopicId, ...]]
    partition_counts: Mapping[TopicId, int]
    current: Mapping[str, Partitions]

    @property
    def is_homogeneous(self) -> bool:
        topics = iter(self.subscriptions.values())
        first = next(topics, ())
        return all(each is first or each == first for each in topics)


Assignor = Callable[[AssignmentSpec], dict[str, Partitions]]
_Partition = tuple[TopicId, int]


def assign_uniform(spec: AssignmentSpec) -> dict[str, Partitions]:
    if not spec.subscriptions:
        return {}
    kept, free = _keep_what_is_allowed(spec)
    if spec.is_homogeneous:
        _share_equally(kept, free)
    else:
        _hand_out(spec, kept, free)
        _even_out(spec, kept)
    return {member_id: _by_topic(partitions) for member_id, partitions in kept.items()}


def _keep_what_is_allowed(spec: AssignmentSpec) -> tuple[dict[str, list[_Partition]], list[_Partition]]:
    """Returns the partitions that each member may keep, and the partitions without an owner."""
    taken: set[_Partition] = set()
    kept: dict[str, list[_Partition]] = {}
    subscribed: dict[TopicId, None] = {}
    for member_id, topics in spec.subscriptions.items():
        mine = kept[member_id] = []
        subscribed.update(dict.fromkeys(topics))
        old = spec.current.get(member_id)
        if not old:
            continue
        for topic_id in topics:
            count = spec.partition_counts[topic_id]
            for partition in sorted(old.get(topic_id, ())):
                if partition < count and (topic_id, partition) not in taken:
                    mine.append((topic_id, partition))
        taken.update(mine)
    free = [
        (topic_id, partition)
        for topic_id in sorted(subscribed)
        for partition in range(spec.partition_counts[topic_id])
        if (topic_id, partition) not in taken
    ]
    return kept, free


def _share_equally(kept: dict[str, list[_Partition]], free: list[_Partition]) -> None:
    total = len(free) + sum(map(len, kept.values()))
    share, extras = divmod(total, len(kept))
    for partitions in kept.values():
        quota = share
        if len(partitions) > share and extras:
            # A member that has one more already keeps it; otherwise it would move without need.
            extras -= 1
            quota += 1
        if len(partitions) > quota:
            free += partitions[quota:]
            del partitions[quota:]
    position = 0
    for partitions in kept.values():
        missing = share - len(partitions)
        if missing == 0 and extras:
            missing = 1
            extras -= 1
        elif missing > 0 and extras:
            missing += 1
            extras -= 1
        if missing > 0:
            partitions += free[position : position + missing]
            position += missing
    assert position == len(free), "a partition is left over"


def _subscribers(spec: AssignmentSpec) -> dict[TopicId, list[str]]:
    subscribers: dict[TopicId, list[str]] = {}
    for member_id, topics in spec.subscriptions.items():
        for topic_id in topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    return subscribers


def _hand_out(spec: AssignmentSpec, kept: dict[str, list[_Partition]], free: list[_Partition]) -> None:
    """Give each free partition to the subscriber with the fewest, topics with few subscribers first."""
    subscribers = _subscribers(spec)
    free_by_topic: dict[TopicId, list[_Partition]] = {}
    for each in free:
        free_by_topic.setdefault(each[0], []).append(each)
    for topic_id in sorted(free_by_topic, key=lambda each: (len(subscribers[each]), each)):
        loads = [(len(kept[each]), order, each) for order, each in enumerate(subscribers[topic_id])]
        heapq.heapify(loads)
        for partition in free_by_topic[topic_id]:
            load, order, member_id = loads[0]
            kept[member_id].append(partition)
            heapq.heapreplace(loads, (load + 1, order, member_id))


def _even_out(spec: AssignmentSpec, kept: dict[str, list[_Partition]]) -> None:
    """Move single partitions until no move makes two loads more even; each move lowers the sum of squares."""
    held: dict[TopicId, dict[str, list[int]]] = {topic_id: {} for topic_id in spec.partition_counts}
    loads: dict[str, int] = {}
    for member_id, partitions in kept.items():
        loads[member_id] = len(partitions)
        for topic_id, partition in partitions:
            held[topic_id].setdefault(member_id, []).append(partition)
    subscribers = _subscribers(spec)
    has_moved = True
    while has_moved:
        has_moved = False
        for topic_id, members in subscribers.items():
            has_moved |= _even_out_topic(members, held[topic_id], loads)
    for partitions in kept.values():
        partitions.clear()
    for topic_id, by_member in held.items():
        for member_id, indexes in by_member.items():
            kept[member_id] += [(topic_id, index) for index in indexes]


def _even_out_topic(subscribers: Sequence[str], held: dict[str, list[int]], loads: dict[str, int]) -> bool:
    """Whether a partition of the topic moved. While it runs only the loads of its subscribers change."""
    lightest = [(loads[each], order, each) for order, each in enumerate(subscribers)]
    heaviest = [(-loads[each], order, each) for order, each in enumerate(subscribers) if held.get(each)]
    heapq.heapify(lightest)
    heapq.heapify(heaviest)
    has_moved = False
    while heaviest:
        negative_load, order, giver = heaviest[0]
        if -negative_load != loads[giver] or not held[giver]:
            heapq.heappop(heaviest)
            if held[giver]:
                heapq.heappush(heaviest, (-loads[giver], order, giver))
            continue
        load, taker_order, taker = lightest[0]
        if load != loads[taker]:
            heapq.heapreplace(lightest, (loads[taker], taker_order, taker))
            continue
        if loads[giver] - load < 2:
            break
        held.setdefault(taker, []).append(held[giver].pop())
        loads[giver] -= 1
        loads[taker] += 1
        # The giver's entry among the lightest is now too high, which at worst leaves a move to the next pass.
        heapq.heapreplace(lightest, (load + 1, taker_order, taker))
        heapq.heappush(heaviest, (-loads[taker], taker_order, taker))
        has_moved = True
    return has_moved


def _by_topic(partitions: Sequence[_Partition]) -> Partitions:
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, partition in partitions:
        by_topic.setdefault(topic_id, []).append(partition)
    return {topic_id: frozenset(indexes) for topic_id, indexes in by_topic.items()}


def assign_range(spec: AssignmentSpec) -> dict[str, Partitions]:
    assigned: dict[str, dict[TopicId, frozenset[int]]] = {each: {} for each in spec.subscriptions}
    alike: dict[tuple[int, tuple[str, ...]], list[TopicId]] = {}
    for topic_id, subscribers in sorted(_subscribers(spec).items()):
        alike.setdefault((spec.partition_counts[topic_id], tuple(subscribers)), []).append(topic_id)
    for (count, members), topics in alike.items():
        for member_id, indexes in _ranges(spec, topics, members, count).items():
            if indexes:
                share = frozenset(indexes)
                for topic_id in topics:
                    assigned[member_id][topic_id] = share
    return dict(assigned)


def _ranges(
    spec: AssignmentSpec, topics: Sequence[TopicId], members: Sequence[str], count: int
) -> dict[str, list[int]]:
    """Returns, for each member, the numbers of the partitions that it gets in every one of the topics."""
    kept: dict[str, list[int]] = {member_id: [] for member_id in members}
    owners: dict[int, str] = {}
    # In reverse, so that the first topic in which the partition has an owner decides.
    for topic_id in reversed(topics):
        for member_id in members:
            for partition in spec.current.get(member_id, NO_PARTITIONS).get(topic_id, ()):
                owners[partition] = member_id
    for partition in sorted(owners):
        if partition < count:
            kept[owners[partition]].append(partition)
    share, extras = divmod(count, len(members))
    quotas = {}
    for member_id, partitions in kept.items():
        has_extra = len(partitions) > share and extras > 0
        extras -= has_extra
        quotas[member_id] = share + has_extra
        del partitions[quotas[member_id] :]
    taken = {partition for partitions in kept.values() for partition in partitions}
    free = [partition for partition in range(count) if partition not in taken]
    position = 0
    for member_id, partitions in kept.items():
        if quotas[member_id] == share and extras > 0:
            extras -= 1
            quotas[member_id] += 1
        missing = quotas[member_id] - len(partitions)
        partitions += free[position : position + missing]
        position += missing
    return kept


# By the names that group.consumer.assignors and a heartbeat's server_assignor use.
ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
