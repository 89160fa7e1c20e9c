"""Reconciliation: moves a member from its current partitions to its target assignment, one heartbeat at a time.

    STABLE ──new target──▶ UNREVOKED_PARTITIONS ──member gave them up──▶ UNRELEASED_PARTITIONS ──others did, too──▶ STABLE

The member first gives up partitions that the target takes from it. Until it has, it stays in its epoch. Then it moves
to the target's epoch and gets the free partitions. It gets a partition that another member still owns one heartbeat
after that member has given it up. So a partition never has two owners, and no member waits for the whole group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from tidemill.coordinator.consumer_groups.member import (
    NOTHING_OWNED,
    ConsumerMember,
    MemberState,
    OwnedPartitions,
)
from tidemill.coordinator.groups.assignors import Partitions
from tidemill.errors import ApiError, ErrorCode
from tidemill.types import TopicId

# The partitions that a member reports as owned; None when the request has no such field.
Reported = Mapping[TopicId, Collection[int]] | None


def reconcile(
    member: ConsumerMember,
    *,
    assignment_epoch: int,
    target: Partitions,
    subscribed: Collection[TopicId],
    has_subscription_changed: bool,
    reported: Reported,
    is_owned: Callable[[TopicId, int], bool],
) -> ConsumerMember:
    """Returns the member after this heartbeat; the same object when nothing changes.

    `is_owned` returns whether any member owns a partition. A topic that the member no longer subscribes to is revoked
    at once, even before there is a new target.
    """

    def next_assignment() -> ConsumerMember:
        return _next_assignment(member, assignment_epoch, target, subscribed, reported, is_owned)

    if member.state is MemberState.STABLE:
        if member.member_epoch != assignment_epoch:
            return next_assignment()
    elif member.state is MemberState.UNREVOKED_PARTITIONS:
        if not _holds_any(reported, member.pending_revocation):
            return next_assignment()
    elif member.state is MemberState.UNRELEASED_PARTITIONS:
        return next_assignment()
    elif reported is None or any(reported.values()):
        # A later version wrote the state. Start again.
        raise ApiError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The member's state is not known here; it must give up all partitions and join again.",
        )
    else:
        return next_assignment()
    return _drop_unsubscribed(member, subscribed, reported) if has_subscription_changed else member


def _next_assignment(
    member: ConsumerMember,
    assignment_epoch: int,
    target: Partitions,
    subscribed: Collection[TopicId],
    reported: Reported,
    is_owned: Callable[[TopicId, int], bool],
) -> ConsumerMember:
    assigned: dict[TopicId, dict[int, int]] = {}
    to_revoke: dict[TopicId, dict[int, int]] = {}
    to_assign: dict[TopicId, list[int]] = {}
    has_unreleased = False
    for topic_id in dict.fromkeys([*target, *member.assigned]):
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        held = member.assigned.get(topic_id, {})
        kept = {partition: epoch for partition, epoch in held.items() if partition in wanted}
        given_up = {partition: epoch for partition, epoch in held.items() if partition not in wanted}
        own = member.pending_revocation.get(topic_id, {})
        free = []
        for partition in sorted(wanted):
            if partition in kept:
                continue
            if partition not in own and is_owned(topic_id, partition):
                has_unreleased = True
            else:
                free.append(partition)
        if kept:
            assigned[topic_id] = kept
        if given_up:
            to_revoke[topic_id] = given_up
        if free:
            to_assign[topic_id] = free
    if to_revoke and _holds_any(reported, to_revoke):
        return member.moved_to(MemberState.UNREVOKED_PARTITIONS, member.member_epoch, assigned, to_revoke)
    for topic_id, partitions in to_assign.items():
        assigned.setdefault(topic_id, {}).update(dict.fromkeys(partitions, assignment_epoch))
    state = MemberState.UNRELEASED_PARTITIONS if has_unreleased else MemberState.STABLE
    moved = member.moved_to(state, assignment_epoch, assigned)
    return member if moved == member else moved


def _drop_unsubscribed(
    member: ConsumerMember, subscribed: Collection[TopicId], reported: Reported
) -> ConsumerMember:
    dropped = {topic_id: epochs for topic_id, epochs in member.assigned.items() if topic_id not in subscribed}
    if not dropped:
        return member
    assigned = {topic_id: epochs for topic_id, epochs in member.assigned.items() if topic_id in subscribed}
    to_revoke = {topic_id: dict(epochs) for topic_id, epochs in member.pending_revocation.items()}
    for topic_id, epochs in dropped.items():
        to_revoke.setdefault(topic_id, {}).update(epochs)
    if _holds_any(reported, to_revoke):
        return member.moved_to(MemberState.UNREVOKED_PARTITIONS, member.member_epoch, assigned, to_revoke)
    return replace(member, previous_member_epoch=member.member_epoch, assigned=assigned)


def _holds_any(reported: Reported, partitions: OwnedPartitions) -> bool:
    """A member that does not report its partitions may still own all of them."""
    if reported is None:
        return True
    return any(
        partition in partitions.get(topic_id, NOTHING_OWNED)
        for topic_id, indexes in reported.items()
        for partition in indexes
    )
