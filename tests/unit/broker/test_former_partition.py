"""A partition that its topic has had, served by a broker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tidemill.broker.metrics.registry import TopicCounts
from tidemill.broker.partitions.appending.former_partition import FormerPartition
from tidemill.broker.partitions.hosted_topic import HostedTopic
from tidemill.broker.partitions.refusals import Refusals
from tidemill.broker.partitions.shrinking.passing_on import PassingOn, Settle
from tidemill.broker.partitions.shrinking.stored_elsewhere import Answered
from tidemill.config import TopicConfig
from tidemill.controller.image import MetadataImage
from tidemill.errors import ErrorCode
from tidemill.protocol.produce import ProduceResult
from tidemill.protocol.records import Record, build_batch, header_at
from tidemill.types import TopicPartition

NAME = TopicPartition("t", 5)
# Its records went to partition 2 first, and go to partition 1 now.
CONFIG = replace(TopicConfig(), tidemill_partitions_former=6, tidemill_partitions_divisors=("3", "2"))


@dataclass
class Brokers:
    """The leaders of the partitions that store records."""

    asked: list[Answered] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    now_ms: int = 0
    result: ErrorCode = ErrorCode.NONE
    image: MetadataImage | None = None

    def steady_ms(self) -> int:
        return self.now_ms

    def ask_stored(self, storing: TopicPartition, named: int, answered: Answered) -> None:
        assert (storing, named) == (TopicPartition("t", 2), NAME.partition)
        self.asked.append(answered)

    def pass_on(
        self,
        target: TopicPartition,
        batch: memoryview,
        _acks: int,
        _transactional_id: str | None,
        settle: Settle,
    ) -> None:
        if not self.result:
            self.stored.append(header_at(batch).base_sequence)
        settle(ProduceResult(target.partition, self.result, 0))


def send(former: FormerPartition, sequence: int) -> ErrorCode:
    batch = build_batch([Record(0, 0, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=sequence)
    results: list[ProduceResult] = []
    former.append_later(memoryview(batch), -1, results.append)
    return results[0].error


def test_a_batch_overtakes_none_that_was_refused_after_its_partition_was_removed() -> None:
    """What passed batches on goes on under the former number, and knows what is refused from then on."""
    brokers = Brokers()
    refusals = Refusals()
    former = FormerPartition(NAME, 3, CONFIG, brokers, PassingOn(NAME, 1, brokers, refusals))
    assert send(former, 0) is ErrorCode.NOT_ENOUGH_REPLICAS
    brokers.asked.pop()([])
    assert send(former, 1) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [send(former, sequence) for sequence in (0, 1)] == [ErrorCode.NONE] * 2
    assert brokers.stored == [0, 1]


def test_a_batch_overtakes_none_that_was_refused_for_an_earlier_one_which_is_forgotten() -> None:
    """The earlier one is stored through another broker meanwhile, and never comes back here."""
    brokers = Brokers(result=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    former = FormerPartition(NAME, 3, CONFIG, brokers)
    assert send(former, 0) is ErrorCode.NOT_ENOUGH_REPLICAS
    brokers.asked.pop()([])
    assert send(former, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    brokers.result = ErrorCode.NONE
    brokers.now_ms = 9_900
    assert send(former, 1) is not ErrorCode.NONE
    brokers.now_ms = 10_100
    assert send(former, 2) is not ErrorCode.NONE
    assert [send(former, sequence) for sequence in (1, 2)] == [ErrorCode.NONE] * 2
    assert brokers.stored == [1, 2]


class _Silent(Brokers):
    """The leader that stores records does not answer."""

    def pass_on(self, *_batch: object) -> None:
        return


def test_partition_that_is_added_again_knows_that_a_batch_under_way_was_refused() -> None:
    brokers = _Silent()
    hosted = HostedTopic("t", TopicCounts())
    former = hosted.former_partition(NAME.partition, 3, CONFIG, brokers)
    assert former is not None
    assert send(former, 0) is ErrorCode.NOT_ENOUGH_REPLICAS
    brokers.asked.pop()([])
    batch = build_batch([Record(0, 0, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0)
    results: list[ProduceResult] = []
    former.append_later(memoryview(batch), -1, results.append)
    assert results == [], "it is under way"
    refusals = hosted.replace_former(NAME.partition)
    assert [each.error for each in results] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    later = build_batch([Record(0, 0, None, b"y")], producer_id=7, producer_epoch=0, base_sequence=1)
    assert refusals is not None
    assert refusals.before(header_at(later), brokers.now_ms) is not None, "the next batch has to wait for it"
    assert hosted.replace_former(NAME.partition) is None


def test_asking_whether_a_partition_may_go_starts_no_timer() -> None:
    brokers = Brokers()
    passing_on = PassingOn(NAME, 1, brokers, Refusals())
    brokers.now_ms = 10_000
    assert not passing_on.may_go
    passing_on.note_empty(is_empty=True, kept_ms=10_001)
    assert not passing_on.may_go
    passing_on.note_empty(is_empty=True, kept_ms=10_000)
    assert passing_on.may_go
    passing_on.note_empty(is_empty=False, kept_ms=0)
    assert not passing_on.may_go
