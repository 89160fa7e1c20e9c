"""The life of a member of a consumer group, of either protocol: heartbeats, reconciliation, session end, removal.

`advance` is the core of the consumer protocol. It takes a member before and after its request, and has three steps,
each of which may write records. It stores the member, and bumps the group epoch if the assignment must change. It
computes the target assignment if that is behind the group epoch. It moves the member towards its part of the target.

Target assignments are computed at most once in `group.consumer.assignment.interval.ms` (KIP-1263): of many members
that start together the first gets all partitions, and one more assignment divides them among all members.

There are three timers. `session` removes a member without heartbeats, `rebalance` one that does not give up revoked
partitions in time. `regex` resolves the group's regular expressions right after the request that requires it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Protocol

from tidemill.config import GroupsConfig
from tidemill.coordinator.consumer_groups.change import GroupChange
from tidemill.coordinator.consumer_groups.machine import ConsumerGroup
from tidemill.coordinator.consumer_groups.member import STATIC_LEAVE_EPOCH, ConsumerMember, MemberState
from tidemill.coordinator.consumer_groups.reconciliation import Reported, reconcile
from tidemill.coordinator.consumer_groups.records import (
    current_assignment_record,
    member_record,
    regex_record,
    regex_tombstone,
)
from tidemill.coordinator.groups.assignors import ASSIGNORS, Partitions
from tidemill.coordinator.groups.classic_protocol import ClassicProtocol
from tidemill.coordinator.groups.group import Decision, Registry
from tidemill.coordinator.groups.modern import metadata_hash
from tidemill.coordinator.groups.rebalance import names_of
from tidemill.errors import ErrorCode
from tidemill.machine import NO_REPLY
from tidemill.regex import Regex
from tidemill.types import TopicId

# Resolved regular expressions are refreshed at most once in this time, however often topics change.
REGEX_REFRESH_INTERVAL_MS_MIN = 10_000
REMOVAL_RETRY_MS = 500


class ConsumerRegistry(Registry, Protocol):
    """The groups of a shard, with what groups that become classic need."""

    @property
    def classic(self) -> ClassicProtocol: ...


class ConsumerMembership:
    def __init__(self, registry: ConsumerRegistry) -> None:
        self.registry = registry
        self.environment = registry.environment
        self.timers = registry.environment.timers
        self.topics = registry.environment.topics
        self.assignors = [name for name in self.config.group_consumer_assignors if name in ASSIGNORS] or [
            *ASSIGNORS
        ]

    @property
    def config(self) -> GroupsConfig:
        return self.environment.config

    # Advancing a member.

    def advance(
        self,
        change: GroupChange,
        member: ConsumerMember,
        updated: ConsumerMember,
        replaced: ConsumerMember | None,
        reported: Reported,
    ) -> ConsumerMember:
        """Decide a heartbeat. `replaced` is the static member of the group that `member` replaces."""
        group = change.group
        if updated is member and group.changed_topics == {} and not group.has_regexes:
            # Nearly every heartbeat: neither the member nor the cluster has changed.
            has_new_subscription = False
        else:
            has_new_subscription = self._take_in(change, member, updated, replaced)
        if change.group_epoch > group.assignment_epoch and self._may_assign(group, change.steady_ms):
            target = change.assign(updated, replaced, self.assignors[0])
            assignment_epoch = change.group_epoch
        else:
            target = group.target_of(updated)
            assignment_epoch = group.assignment_epoch
        if not has_new_subscription and updated.is_reconciled_to(assignment_epoch):
            return updated
        return self._reconcile(change, updated, assignment_epoch, target, reported, has_new_subscription)

    def _take_in(
        self,
        change: GroupChange,
        member: ConsumerMember,
        updated: ConsumerMember,
        replaced: ConsumerMember | None,
    ) -> bool:
        """Store the member, and bump the group epoch if needed. Returns whether its subscription has changed."""
        group = change.group
        if updated is not member:
            change.records.append(member_record(group.group_id, updated))
        has_new_names = updated.subscribed_topic_names != member.subscribed_topic_names
        has_new_regex = updated.subscribed_topic_regex != member.subscribed_topic_regex
        forgotten = self._forgotten_regexes(change, member) if has_new_regex else []
        if has_new_regex and updated.subscribed_topic_regex:
            is_regex_known = group.regex_subscribers(updated.subscribed_topic_regex) > 0
            if not is_regex_known:
                # Only to refuse it if it is not valid.
                Regex(updated.subscribed_topic_regex)
            is_resolved = is_regex_known and updated.subscribed_topic_regex in group.regexes
        else:
            is_resolved = has_new_regex
        self._refresh_regexes(change, member, updated)
        must_bump = has_new_names or is_resolved
        if must_bump or group.changed_topics is None or group.changed_topics:
            known = replaced if replaced is not None else member
            new_hash = metadata_hash(self.topics, group.subscribed_topics([known], updated, forgotten))
            is_new = known.member_id not in group.members
            if must_bump or new_hash != group.metadata_hash:
                cause = self._cause(change, known, updated, is_new=is_new, must_bump=must_bump)
                change.bump(new_hash, cause, len(group.members) + is_new)
            else:
                group.changed_topics = {}
        return has_new_names or has_new_regex

    def _forgotten_regexes(self, change: GroupChange, member: ConsumerMember) -> list[str]:
        regex = member.subscribed_topic_regex
        if not regex or change.group.regex_subscribers(regex) != 1:
            return []
        change.records.append(regex_tombstone(change.group.group_id, regex))
        return [regex]

    def _cause(
        self,
        change: GroupChange,
        known: ConsumerMember,
        updated: ConsumerMember,
        *,
        is_new: bool,
        must_bump: bool,
    ) -> str:
        if not must_bump:
            return change.what_changed()
        if is_new:
            return f"member {updated.member_id} joined"
        if known.member_id != updated.member_id:
            return f"static member {updated.instance_id} came back as {updated.member_id} with other subscriptions"
        return f"member {updated.member_id} subscribes to other topics"

    def _may_assign(self, group: ConsumerGroup, steady_ms: int) -> bool:
        if group.assignment_timestamp_ms == 0:
            return True
        # The last assignment may be another coordinator's, whose clock was ahead (failure 28).
        elapsed_ms = steady_ms - group.assignment_timestamp_ms
        return elapsed_ms < 0 or elapsed_ms >= self.assignment_interval_ms(group)

    def _reconcile(
        self,
        change: GroupChange,
        member: ConsumerMember,
        assignment_epoch: int,
        target: Partitions,
        reported: Reported,
        has_new_subscription: bool,
    ) -> ConsumerMember:
        group = change.group
        moved = reconcile(
            member,
            assignment_epoch=assignment_epoch,
            target=target,
            subscribed=self._topic_ids_of(group, member),
            has_subscription_changed=has_new_subscription,
            reported=reported,
            is_owned=group.is_owned,
        )
        if moved is not member:
            change.records.append(current_assignment_record(group.group_id, moved))
            if not moved.is_classic:
                # Classic members have a time to join and a time to sync instead.
                self._watch_revocation(group, moved, change.steady_ms)
        return moved

    def _topic_ids_of(self, group: ConsumerGroup, member: ConsumerMember) -> set[TopicId]:
        ids = (self.topics.id_of(name) for name in group.topics_of(member))
        return {topic_id for topic_id in ids if topic_id is not None}

    # Regular expressions.

    def _refresh_regexes(self, change: GroupChange, member: ConsumerMember, updated: ConsumerMember) -> None:
        group, steady_ms, sees_topic = change.group, change.steady_ms, change.sees_topic
        regexes = dict.fromkeys(group.subscribed_regexes)
        old, new = member.subscribed_topic_regex, updated.subscribed_topic_regex
        if old != new and group.regex_subscribers(old) == 1:
            regexes.pop(old, None)
        if new:
            regexes[new] = None
        if not regexes or self.timers.is_set(group.regex_key):
            return
        last_ms = group.regexes_resolved_at_ms
        if last_ms is not None and steady_ms <= last_ms + REGEX_REFRESH_INTERVAL_MS_MIN:
            return
        is_due = (
            last_ms is None
            or group.are_regexes_stale
            or any(regex not in group.regexes for regex in regexes)
            or steady_ms > last_ms + self.config.group_consumer_regex_refresh_interval_ms
        )
        if is_due:
            group_id = group.group_id
            self.timers.set(
                group.regex_key,
                steady_ms,
                lambda steady_ms: self._resolve_regexes(group_id, sees_topic, steady_ms),
            )

    def _resolve_regexes(
        self, group_id: str, sees_topic: Callable[[str], bool] | None, steady_ms: int
    ) -> Decision | None:
        """As Kafka: topics that the member whose request made it necessary may not describe are left out."""
        group = self.registry.groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or not group.subscribed_regexes:
            return None
        names = list(self.topics.names())
        change = GroupChange(group, steady_ms)
        topics = set(group.subscribed_topics(forgotten_regexes=group.regexes))
        changed = []
        for regex in group.subscribed_regexes:
            found = Regex(regex).matching(names)
            matching = frozenset(name for name in found if sees_topic is None or sees_topic(name))
            topics |= matching
            known = group.regexes.get(regex)
            if matching != (frozenset() if known is None else known.topics):
                changed.append(regex)
            change.records.append(regex_record(group_id, regex, matching, steady_ms))
        new_hash = metadata_hash(self.topics, sorted(topics))
        if changed or new_hash != group.metadata_hash:
            cause = change.what_changed()
            if changed:
                cause = f"other topics match {names_of([f'`{regex}`' for regex in changed])}"
            change.bump(new_hash, cause, len(group.members))
        group.are_regexes_stale = False
        return change.decision()

    # Sessions and other limits.

    def _group_setting(self, group: ConsumerGroup, name: str, default: int, least: int, most: int) -> int:
        text = self.environment.group_configs(group.group_id).get(name)
        return default if text is None else min(max(int(text), least), most)

    def session_timeout_ms(self, group: ConsumerGroup) -> int:
        config = self.config
        return self._group_setting(
            group,
            "consumer.session.timeout.ms",
            config.group_consumer_session_timeout_ms,
            config.group_consumer_min_session_timeout_ms,
            config.group_consumer_max_session_timeout_ms,
        )

    def heartbeat_interval_ms(self, group: ConsumerGroup) -> int:
        config = self.config
        return self._group_setting(
            group,
            "consumer.heartbeat.interval.ms",
            config.group_consumer_heartbeat_interval_ms,
            config.group_consumer_min_heartbeat_interval_ms,
            config.group_consumer_max_heartbeat_interval_ms,
        )

    def assignment_interval_ms(self, group: ConsumerGroup) -> int:
        config = self.config
        return self._group_setting(
            group,
            "consumer.assignment.interval.ms",
            config.group_consumer_assignment_interval_ms,
            config.group_consumer_min_assignment_interval_ms,
            config.group_consumer_max_assignment_interval_ms,
        )

    def start_timers(self, group: ConsumerGroup, steady_ms: int) -> None:
        """Start all timers of a group that was loaded or converted."""
        for member in group.members.values():
            self.renew_session(group, member, steady_ms)
            if not member.is_classic:
                self._watch_revocation(group, member, steady_ms)

    def renew_session(self, group: ConsumerGroup, member: ConsumerMember, steady_ms: int) -> None:
        timeout_ms = member.session_timeout_ms
        if timeout_ms is None:
            timeout_ms = self.session_timeout_ms(group)
        group_id, member_id = group.group_id, member.member_id
        self.timers.set(
            group.session_key(member_id),
            steady_ms + timeout_ms,
            lambda steady_ms: self._session_expired(group_id, member_id, timeout_ms, steady_ms),
        )

    def _session_expired(
        self, group_id: str, member_id: str, timeout_ms: int, steady_ms: int
    ) -> Decision | None:
        group, member = self.find(group_id, member_id)
        if group is None or member is None:
            return None
        cause = f"member {member_id} sent no heartbeat for {timeout_ms} ms"
        if member.member_epoch == STATIC_LEAVE_EPOCH:
            cause = f"static member {member.instance_id} did not come back within {timeout_ms} ms"
        return self.remove_late(group, member, cause, steady_ms)

    def remove_late(
        self, group: ConsumerGroup, member: ConsumerMember, cause: str, steady_ms: int
    ) -> Decision:
        """Remove a member whose session or rebalance timeout is over. If that cannot be written it is tried again later."""
        group_id, member_id = group.group_id, member.member_id

        def try_again(steady_ms: int) -> Decision | None:
            group, member = self.find(group_id, member_id)
            return (
                None if group is None or member is None else self.remove_late(group, member, cause, steady_ms)
            )

        def on_failed(_error: ErrorCode) -> None:
            self.timers.set(group.session_key(member_id), steady_ms + REMOVAL_RETRY_MS, try_again)

        return replace(self.remove(group, [member], cause, steady_ms), on_failed=on_failed)

    def _watch_revocation(self, group: ConsumerGroup, member: ConsumerMember, steady_ms: int) -> None:
        key = group.rebalance_key(member.member_id)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self.timers.cancel(key)
            return
        group_id, member_id, epoch = group.group_id, member.member_id, member.member_epoch
        timeout_ms = member.rebalance_timeout_ms

        def end(steady_ms: int) -> Decision | None:
            group, member = self.find(group_id, member_id)
            if group is None or member is None or member.member_epoch != epoch:
                return None
            if member.state is not MemberState.UNREVOKED_PARTITIONS:
                return None
            cause = f"member {member_id} did not give up its partitions within {timeout_ms} ms"
            return self.remove_late(group, member, cause, steady_ms)

        self.timers.set(key, steady_ms + timeout_ms, end)

    def find(self, group_id: str, member_id: str) -> tuple[ConsumerGroup, ConsumerMember] | tuple[None, None]:
        group = self.registry.groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or member_id not in group.members:
            return None, None
        return group, group.members[member_id]

    def remove(
        self,
        group: ConsumerGroup,
        members: Collection[ConsumerMember],
        cause: str,
        steady_ms: int,
        reply: Any = NO_REPLY,
    ) -> Decision:
        downgrade = self.downgrade_without(group, members, cause, steady_ms, reply)
        if downgrade is not None:
            return downgrade
        change = GroupChange(group, steady_ms)
        change.remove(members, cause)
        return change.decision(reply)

    def downgrade_without(
        self,
        _group: ConsumerGroup,
        _members: Collection[ConsumerMember],
        _cause: str,
        _steady_ms: int,
        _reply: Any,
    ) -> Decision | None:
        """Returns the decision that makes the group classic when the members leave; None here. migration.py overrides it."""
        return None
