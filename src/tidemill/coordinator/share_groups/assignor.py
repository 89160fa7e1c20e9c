"""The simple assignor of share groups: it decides which members of a group consume which partitions.

Members of a share group share partitions. With more members than partitions each partition has several members, and
with fewer each member has several partitions. Every partition has as many members as all others, so far as that is
possible, and no two members with the same topics differ by more than one partition. Within that, as little moves as
possible: a member keeps a partition until the partition has too many members, or the member too many partitions.

When all members subscribe to the same topics, all partitions are shared out together. Otherwise each topic is shared
out by itself among its subscribers, as in Kafka.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.coordinator.groups.assignors import NO_PARTITIONS, Partitions
from tidemill.types import TopicId

_Partition = tuple[TopicId, int]


@dataclass(frozen=True, slots=True)
class ShareAssignmentSpec:
    """The input of the assignor. It holds only topics that exist."""

    # Sorted topics of each member.
    subscriptions: Mapping[str, tuple[TopicId, ...]]
    # The partitions that may be assigned: those whose state is initialised.
    assignable: Partitions
    current: Mapping[str, Partitions]


def assign_simple(spec: ShareAssignmentSpec) -> dict[str, Partitions]:
    held: dict[str, list[_Partition]] = {member_id: [] for member_id in spec.subscriptions}
    if len(set(spec.subscriptions.values())) == 1:
        topics = next(iter(spec.subscriptions.values()))
        _share_out(spec, topics, list(spec.subscriptions), held)
    else:
        for topic_id, members in sorted(_subscribers(spec).items()):
            _share_out(spec, (topic_id,), members, held)
    return {member_id: _by_topic(partitions) for member_id, partitions in held.items()}


def _subscribers(spec: ShareAssignmentSpec) -> dict[TopicId, list[str]]:
    subscribers: dict[TopicId, list[str]] = {}
    for member_id, topics in spec.subscriptions.items():
        for topic_id in topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    return subscribers


def _share_out(
    spec: ShareAssignmentSpec,
    topics: Iterable[TopicId],
    members: Sequence[str],
    held: dict[str, list[_Partition]],
) -> None:
    """Add the partitions of the topics to what the members hold."""
    partitions = [
        (topic_id, index) for topic_id in topics for index in sorted(spec.assignable.get(topic_id, ()))
    ]
    if not partitions or not members:
        return
    sharing = -(-len(members) // len(partitions))
    quotas = _quotas(members, sharing * len(partitions))
    kept = _kept(spec, partitions, members, quotas, sharing)
    _fill(partitions, members, quotas, sharing, kept)
    for member_id, mine in kept.items():
        held[member_id] += mine


def _quotas(members: Sequence[str], total: int) -> dict[str, int]:
    """Divides the places among the members, so that no two differ by more than one."""
    share, extras = divmod(total, len(members))
    return {member_id: share + (order < extras) for order, member_id in enumerate(members)}


def _kept(
    spec: ShareAssignmentSpec,
    partitions: Sequence[_Partition],
    members: Sequence[str],
    quotas: Mapping[str, int],
    sharing: int,
) -> dict[str, dict[_Partition, None]]:
    """Returns what each member keeps: at most its quota, and no partition more often than it is to be shared."""
    wanted = dict.fromkeys(partitions)
    old: dict[str, list[_Partition]] = {}
    for member_id in members:
        current = spec.current.get(member_id, NO_PARTITIONS)
        mine = ((topic_id, index) for topic_id, indexes in current.items() for index in sorted(indexes))
        old[member_id] = [each for each in mine if each in wanted]
    places = dict.fromkeys(partitions, sharing)
    kept: dict[str, dict[_Partition, None]] = {member_id: {} for member_id in members}
    # Members within their quota choose first: what they keep need not move, whereas the others must give up something.
    for member_id in sorted(members, key=lambda each: len(old[each]) > quotas[each]):
        for partition in old[member_id]:
            if places[partition] and len(kept[member_id]) < quotas[member_id]:
                places[partition] -= 1
                kept[member_id][partition] = None
    return kept


def _fill(
    partitions: Sequence[_Partition],
    members: Sequence[str],
    quotas: Mapping[str, int],
    sharing: int,
    kept: Mapping[str, dict[_Partition, None]],
) -> None:
    """Give the places that are left to members below their quota, first to the one that lacks most.

    A member cannot hold a partition twice. Where only such members are left a place stays empty, as in Kafka.
    """
    holders = dict.fromkeys(partitions, 0)
    for mine in kept.values():
        for partition in mine:
            holders[partition] += 1
    lacking = [
        (len(kept[member_id]) - quotas[member_id], order, member_id)
        for order, member_id in enumerate(members)
        if len(kept[member_id]) < quotas[member_id]
    ]
    heapq.heapify(lacking)
    for partition in sorted(partitions, key=lambda each: holders[each]):
        passed_over = []
        missing = sharing - holders[partition]
        while missing and lacking:
            lack, order, member_id = heapq.heappop(lacking)
            if partition in kept[member_id]:
                passed_over.append((lack, order, member_id))
                continue
            kept[member_id][partition] = None
            missing -= 1
            if lack + 1 < 0:
                passed_over.append((lack + 1, order, member_id))
        for each in passed_over:
            heapq.heappush(lacking, each)


def _by_topic(partitions: Iterable[_Partition]) -> Partitions:
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, index in partitions:
        by_topic.setdefault(topic_id, []).append(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in by_topic.items()}
