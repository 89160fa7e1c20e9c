"""A decision about one consumer group that is being built: the records so far, and the resulting group epoch.

The group itself does not change before the records are replayed. So this module computes the group's later state (its
subscribed topics, its target) from the present group and the member that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from tidemill.coordinator.consumer_groups.machine import ConsumerGroup
from tidemill.coordinator.consumer_groups.member import ConsumerMember
from tidemill.coordinator.consumer_groups.records import (
    member_tombstones,
    regex_tombstone,
    target_epoch_record,
    target_record,
)
from tidemill.coordinator.groups.assignors import ASSIGNORS, AssignmentSpec, Partitions
from tidemill.coordinator.groups.group import Answer, Decision
from tidemill.coordinator.groups.modern import ModernGroupChange, metadata_hash
from tidemill.coordinator.records import Record
from tidemill.machine import NO_REPLY
from tidemill.types import TopicId

_CHANGES_NAMED_MAX = 3


class GroupChange(ModernGroupChange[ConsumerGroup]):
    def __init__(
        self,
        group: ConsumerGroup,
        steady_ms: int,
        records: Iterable[Record] = (),
        *,
        sees_topic: Callable[[str], bool] | None = None,
    ) -> None:
        """`sees_topic` says which topics the client of the change may describe; None: all."""
        super().__init__(group, steady_ms, records)
        self.sees_topic = sees_topic

    def decision(self, reply: Any = NO_REPLY, answers: Sequence[Answer] = ()) -> Decision:
        return Decision(self.records, reply, answers, self.events)

    def remove(self, members: Collection[ConsumerMember], cause: str) -> None:
        """Remove the members from the group. Other members may get their partitions."""
        group = self.group
        for member in members:
            self.records += member_tombstones(group.group_id, member.member_id)
        forgotten = []
        for regex in dict.fromkeys(each.subscribed_topic_regex for each in members):
            count = sum(each.subscribed_topic_regex == regex for each in members)
            if regex and group.regex_subscribers(regex) == count:
                forgotten.append(regex)
                self.records.append(regex_tombstone(group.group_id, regex))
        topics = group.subscribed_topics(members, None, forgotten)
        self.bump(metadata_hash(group.environment.topics, topics), cause, len(group.members) - len(members))

    def assign(
        self, updated: ConsumerMember, replaced: ConsumerMember | None, default_assignor: str
    ) -> Partitions:
        """Compute the target assignment for the group epoch. Returns the updated member's part of it."""
        group = self.group
        members = {**group.members, updated.member_id: updated}
        targets = dict(group.target)
        if replaced is not None and replaced.member_id != updated.member_id:
            del members[replaced.member_id]
            if replaced.member_id in targets:
                targets[updated.member_id] = targets.pop(replaced.member_id)
        spec = self._spec(members, targets)
        assigned = ASSIGNORS[preferred_assignor(members.values()) or default_assignor](spec)
        for member_id, partitions in assigned.items():
            if targets.get(member_id) != partitions:
                self.records.append(target_record(group.group_id, member_id, partitions))
        self.records.append(target_epoch_record(group.group_id, self.group_epoch, self.steady_ms))
        return assigned[updated.member_id]

    def _spec(self, members: dict[str, ConsumerMember], targets: dict[str, Partitions]) -> AssignmentSpec:
        group = self.group
        topics = group.environment.topics
        ids: dict[tuple[tuple[str, ...], str], tuple[TopicId, ...]] = {}
        counts: dict[TopicId, int] = {}
        subscriptions: dict[str, tuple[TopicId, ...]] = {}
        # Static members come first, in the order of their instance ids, so that a restart of all of them changes nothing.
        for member in sorted(members.values(), key=_lasting_name):
            key = (member.subscribed_topic_names, member.subscribed_topic_regex)
            topic_ids = ids.get(key)
            if topic_ids is None:
                found = []
                for name in group.topics_of(member):
                    topic_id, count = topics.id_of(name), topics.partitions_of(name)
                    if topic_id is not None and count is not None:
                        found.append(topic_id)
                        counts[topic_id] = count
                topic_ids = ids[key] = tuple(sorted(found))
            subscriptions[member.member_id] = topic_ids
        return AssignmentSpec(subscriptions, counts, targets)

    def what_changed(self) -> str:
        """Returns a text that names the subscribed topics which have changed."""
        names = self.group.changed_topics
        if not names:
            return "subscribed topics changed while the coordinator was elsewhere"
        told = "; ".join(self._how_changed(name) for name in list(names)[:_CHANGES_NAMED_MAX])
        more = len(names) - _CHANGES_NAMED_MAX
        return f"{told}; and {more} more topics" if more > 0 else told

    def _how_changed(self, name: str) -> str:
        topic_id = self.group.environment.topics.id_of(name)
        if topic_id is None:
            return f"topic {name} was deleted"
        if any(topic_id in target for target in self.group.target.values()):
            return f"topic {name} grew to {self.group.environment.topics.partitions_of(name)} partitions"
        return f"topic {name} was created"


def preferred_assignor(members: Iterable[ConsumerMember]) -> str | None:
    """Returns the assignor that most members prefer; None when no member names one."""
    votes: dict[str, int] = {}
    for member in members:
        # An unknown name comes from the records of another broker with other assignors.
        if member.server_assignor in ASSIGNORS:
            votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
    return max(votes, key=lambda name: (votes[name], name)) if votes else None


def _lasting_name(member: ConsumerMember) -> tuple[bool, str]:
    if member.instance_id is not None:
        return (False, member.instance_id)
    return (True, member.member_id)
