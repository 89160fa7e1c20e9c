"""Bugs of topics that get fewer partitions, planted as in `bugs.py`: retries that are not found, order that is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as replace_
from typing import Any

from tests.sim.planted.bugs import ROUGH, Bug, Replace
from tests.unit.broker import test_shrinking as brokers
from tests.unit.broker.replica_world import World
from tests.unit.controller import test_fewer_partitions as controllers
from tests.unit.controller.test_fewer_partitions import four_partitions
from tidemill.broker.coordinators import marker_writer
from tidemill.broker.partitions import replicas
from tidemill.broker.partitions.appending import appender
from tidemill.broker.partitions.leadership import Leadership
from tidemill.broker.partitions.refusals import Refusals
from tidemill.broker.partitions.shrinking import passing_on, places
from tidemill.broker.partitions.shrinking.stored_elsewhere import StoredElsewhere
from tidemill.controller import configs, difference
from tidemill.controller.image import TopicImage
from tidemill.controller.topics import fewer_partitions
from tidemill.log.log import Log
from tidemill.log.producer_state.producers import AppendedBatch, Producers
from tidemill.protocol.records import BatchHeader, with_named_partition
from tidemill.replication.leader import IsrMember, ProposeIsr
from tidemill.types import NO_BROKER, TopicPartition

SHRINKING = replace_(
    ROUGH, duration_s=240.0, has_shrinking=True, shrink_pause_s_max=8.0, mean_upset_interval_s=10.0
)


def a_sequence_is_not_continued(replace: Replace) -> None:
    """The partition that stores a batch does not know which sequence the decommissioned one had reached."""
    original = passing_on.stored_before

    def stored_before(producers: Producers, header: BatchHeader) -> tuple[AppendedBatch | None, int | None]:
        duplicate, sequence = original(producers, header)
        return duplicate, None if sequence is None else 0

    replace(appender, "stored_before", stored_before)


def a_retry_is_not_looked_for_in_the_decommissioned_log(replace: Replace) -> None:
    original = passing_on.stored_before

    def stored_before(producers: Producers, header: BatchHeader) -> tuple[AppendedBatch | None, int | None]:
        duplicate, sequence = original(producers, header)
        return None, None if duplicate is not None else sequence

    replace(appender, "stored_before", stored_before)


def the_named_partition_is_not_stored(replace: Replace) -> None:
    """Its log has the batch without the partition that the producer named."""
    original = Log.append

    def append(self: Log, data: memoryview, headers: tuple[BatchHeader, ...], *rest: Any) -> int:
        (header,) = headers
        plain = header._replace(attributes=with_named_partition(header.attributes, 0))
        return original(self, data, (plain,), *rest)

    replace(Log, "append", append)


def a_follower_drops_the_named_partition(replace: Replace) -> None:
    original = Log.append_fetched

    def append_fetched(self: Log, data: memoryview, headers: Any, wall_ms: int) -> None:
        plain = [each._replace(attributes=with_named_partition(each.attributes, 0)) for each in headers]
        original(self, data, plain, wall_ms)

    replace(Log, "append_fetched", append_fetched)


def a_partition_is_removed_before_it_is_empty(replace: Replace) -> None:
    def retirement(self: Leadership) -> ProposeIsr | None:
        machine = self.machine
        if machine is None or set(machine.isr) != set(machine.replicas):
            return None
        of_no_broker = IsrMember(NO_BROKER, machine.end_offset)
        return ProposeIsr((of_no_broker,), machine.leader_epoch, machine.partition_epoch)

    replace(Leadership, "retirement", retirement)


def the_leader_epoch_stays(replace: Replace) -> None:
    """A shrink begins and ends without a new leader epoch."""
    original = fewer_partitions.role_changes

    def role_changes(topic: TopicImage, *rest: Any) -> Any:
        return original(replace_(topic, partitions=()), *rest)

    replace(configs, "role_changes", role_changes)


def several_batches_are_under_way(replace: Replace) -> None:
    def submit(self: passing_on.PassingOn, *batch: Any, **how: Any) -> None:
        one = passing_on.PassingOn(self._name, self.target, self._host, Refusals())
        original(one, *batch, **how)

    original = passing_on.PassingOn.submit
    replace(passing_on.PassingOn, "submit", submit)


def a_marker_does_not_reach_the_partition_that_stores(replace: Replace) -> None:
    original = marker_writer.MarkerWriter._write

    def _write(self: marker_writer.MarkerWriter, tp: TopicPartition, *rest: Any) -> Any:
        divisors = self._replicas.topic_config(tp.topic).tidemill_partitions_divisors
        is_active = divisors and tp.partition < int(divisors[-1])
        return original(self, TopicPartition(tp.topic, 0) if is_active else tp, *rest)

    replace(marker_writer.MarkerWriter, "_write", _write)


def a_partition_that_is_back_does_not_ask_the_others(replace: Replace) -> None:
    replace(StoredElsewhere, "find", lambda _self, _header: (None, None))


def late_batches_of_a_partition_that_is_back_are_stored(replace: Replace) -> None:
    """A partition stores what was passed on to it, although the partition that it was sent to takes records again."""

    def storing(self: replicas.Replicas, topic: str, index: int) -> tuple[int, int]:
        assert self.image is not None
        config = self.topic_config(topic)
        count = len(self.image.topics_by_name[topic].partitions)
        divisors = config.tidemill_partitions_divisors
        found = places.storing_partition(index, count, config)
        return index % int(divisors[-1]) if divisors else found, 0

    replace(replicas.Replicas, "storing", storing)


def a_partition_goes_before_retries_are_over(replace: Replace) -> None:
    original = passing_on.PassingOn.note_empty

    def note_empty(self: passing_on.PassingOn, *, is_empty: bool, kept_ms: int) -> None:
        original(self, is_empty=is_empty, kept_ms=0)

    replace(passing_on.PassingOn, "note_empty", note_empty)
    replace(passing_on.PassingOn, "may_go", property(lambda self: self._empty_since_ms is not None))


def what_is_not_committed_is_continued_elsewhere(replace: Replace) -> None:
    replace(appender, "is_committed", lambda _producers, _header, _high_watermark: True)


def a_snapshot_hides_a_removal(replace: Replace) -> None:
    """A partition that was removed and added again looks as if it had only changed."""
    replace(difference, "removed_epochs", lambda _configs: {})


def a_partition_that_is_added_again_begins_at_0(replace: Replace) -> None:
    replace(replicas, "removed_ends", lambda _configs: {})


SHRINKING_BUGS: tuple[Bug, ...] = (
    Bug("a follower drops the named partition", a_follower_drops_the_named_partition, plan=SHRINKING),
    Bug(
        "a marker does not reach the partition that stores",
        a_marker_does_not_reach_the_partition_that_stores,
        plan=SHRINKING,
    ),
    Bug(
        "a partition that is back does not ask the others",
        a_partition_that_is_back_does_not_ask_the_others,
        plan=SHRINKING,
    ),
)


# -- written down, because a seed costs much ---------------------------------------------------------------------


def _on_brokers(test: Callable[[World], None], *, is_held: bool = False) -> Callable[[], None]:
    """A course of events on three brokers, whose controller is the test."""

    def course() -> None:
        world = World(3)
        try:
            brokers.prepare(world)
            if is_held:
                brokers.hold(world)
            test(world)
        finally:
            world.close()

    return course


_a_sequence_goes_on = _on_brokers(brokers.test_a_sequence_goes_on_from_the_decommissioned_log_and_back)
SHRINKING_COURSES: tuple[tuple[Bug, Callable[[], None]], ...] = (
    (Bug("a sequence is not continued", a_sequence_is_not_continued), _a_sequence_goes_on),
    (
        Bug(
            "a retry is not looked for in the decommissioned log",
            a_retry_is_not_looked_for_in_the_decommissioned_log,
        ),
        _a_sequence_goes_on,
    ),
    (Bug("the named partition is not stored", the_named_partition_is_not_stored), _a_sequence_goes_on),
    (
        Bug(
            "a partition that is back does not ask the others",
            a_partition_that_is_back_does_not_ask_the_others,
        ),
        _a_sequence_goes_on,
    ),
    (
        Bug("a follower drops the named partition", a_follower_drops_the_named_partition),
        _on_brokers(brokers.test_a_retry_is_found_by_a_new_leader_of_the_partition_that_stores),
    ),
    (
        Bug("several batches are under way", several_batches_are_under_way),
        _on_brokers(brokers.test_a_batch_does_not_overtake_one_that_was_refused),
    ),
    (
        Bug("what is not committed is continued elsewhere", what_is_not_committed_is_continued_elsewhere),
        _on_brokers(brokers.test_a_batch_waits_until_those_that_it_follows_are_committed),
    ),
    (
        Bug(
            "late batches of a partition that is back are stored",
            late_batches_of_a_partition_that_is_back_are_stored,
        ),
        _on_brokers(brokers.test_a_batch_that_arrives_after_the_shrink_was_taken_back_is_not_stored),
    ),
    (
        Bug("a partition is removed before it is empty", a_partition_is_removed_before_it_is_empty),
        _on_brokers(brokers.test_only_an_empty_decommissioned_partition_asks_for_its_removal, is_held=True),
    ),
    (
        Bug("a partition goes before retries are over", a_partition_goes_before_retries_are_over),
        _on_brokers(
            brokers.test_a_partition_that_idempotent_producers_wrote_to_stays_for_their_retries, is_held=True
        ),
    ),
    (
        Bug("a snapshot hides a removal", a_snapshot_hides_a_removal),
        _on_brokers(brokers.test_broker_that_skipped_a_removal_by_a_snapshot_leads_an_empty_partition),
    ),
    (
        Bug("a partition that is added again begins at 0", a_partition_that_is_added_again_begins_at_0),
        _on_brokers(brokers.test_broker_that_skipped_a_removal_by_a_snapshot_leads_an_empty_partition),
    ),
    (
        Bug("the leader epoch stays", the_leader_epoch_stays),
        lambda: controllers.test_a_shrink_and_its_end_bump_the_epochs_of_decommissioned_partitions_alone(
            four_partitions()
        ),
    ),
)
