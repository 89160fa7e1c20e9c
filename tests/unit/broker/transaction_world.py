"""A broker whose verifications the test answers, and the requests of a transactional producer to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.unit.broker.replica_world import TOPIC, TOPIC_ID, Answer, World, produced
from tests.wire.batches import TRANSACTIONAL, Header, encode
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.protocol.api.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tidemill.types import TopicPartition

PRODUCER = 7
OTHER = 8
# The last version of clients that add their partitions themselves, and the first that leaves it to the broker.
OLD, NEW = 11, 12
READ_COMMITTED = 1


@dataclass
class Question:
    transactional_id: str
    producer: tuple[int, int]
    partitions: list[TopicPartition]
    adds: bool
    on_answer: Callable[[dict[TopicPartition, ErrorCode]], None]

    def answer(self, code: ErrorCode = ErrorCode.NONE) -> None:
        self.on_answer(dict.fromkeys(self.partitions, code))


@dataclass
class ScriptedVerification:
    """In the place of `Verification`: keeps the questions for the test, or confirms all at once."""

    questions: list[Question] = field(default_factory=list)
    confirms: bool = False

    def ask(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        on_answer: Callable[[dict[TopicPartition, ErrorCode]], None],
        *,
        adds: bool,
    ) -> None:
        question = Question(
            transactional_id, (producer_id, producer_epoch), list(partitions), adds, on_answer
        )
        self.questions.append(question)
        if self.confirms:
            question.answer()


def verification_of(world: World, broker_id: int = 1, *, confirms: bool = False) -> ScriptedVerification:
    verification = ScriptedVerification(confirms=confirms)
    world[broker_id].broker.verification = verification
    return verification


def send(
    world: World,
    sequence: int,
    *,
    producer_id: int = PRODUCER,
    epoch: int = 0,
    broker_id: int = 1,
    version: int = OLD,
    transactional_id: str | None = "tx",
    attributes: int = TRANSACTIONAL,
    values: Sequence[bytes] | None = None,
) -> Answer:
    header = Header(
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=attributes,
        base_timestamp_ms=wall_ms(world),
    )
    data = PartitionProduceData(index=0, records=encode(values or [b"%d" % sequence], header))
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=5_000,
        topic_data=[TopicProduceData(name=TOPIC, topic_id=TOPIC_ID, partition_data=[data])],
    )
    return world.ask(broker_id, request, version)


def wall_ms(world: World) -> int:
    """Markers have the broker's time; records of another year would go to another segment."""
    return int(world[1].broker.clock.wall_ms())


def write(world: World, *values: bytes) -> None:
    """Records that belong to no producer."""
    answer = send(world, -1, producer_id=-1, epoch=-1, transactional_id=None, attributes=0, values=values)
    assert outcome(world, answer) is ErrorCode.NONE


def outcome(world: World, answer: Answer) -> ErrorCode:
    world.until(lambda: answer.is_there, "an answer")
    return ErrorCode(produced(answer).error_code)


def start_marker(
    world: World,
    *,
    is_commit: bool,
    producer_id: int = PRODUCER,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    broker_id: int = 1,
    topic: str = TOPIC,
    index: int = 0,
    ordinal: int = -1,
    leader_epochs: Sequence[int] = (),
) -> Answer:
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=is_commit,
        coordinator_epoch=coordinator_epoch,
        topics=[
            WritableTxnMarkerTopic(name=topic, partition_indexes=[index], leader_epochs=list(leader_epochs))
        ],
        ordinal=ordinal,
    )
    return world.ask(broker_id, WriteTxnMarkersRequest(markers=[marker]))


def mark(world: World, **fields: Any) -> ErrorCode:
    """Write a marker; returns the coordinator's response."""
    answer = start_marker(world, **fields)
    world.until(lambda: answer.is_there, "an answer to a marker")
    (result,) = answer.response.markers
    return ErrorCode(result.topics[0].partitions[0].error_code)


def start_fetch(
    world: World,
    offset: int,
    *,
    broker_id: int = 1,
    isolation: int = READ_COMMITTED,
    min_bytes: int = 1,
    max_wait_ms: int = 0,
    max_bytes: int = 1 << 20,
) -> Answer:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topic = FetchTopic(topic_id=TOPIC_ID, partitions=[wanted])
    request = FetchRequest(
        topics=[topic], isolation_level=isolation, min_bytes=min_bytes, max_wait_ms=max_wait_ms
    )
    return world.ask(broker_id, request)


def fetched(world: World, answer: Answer) -> Any:
    world.until(lambda: answer.is_there, "an answer to a fetch")
    return answer.response.responses[0].partitions[0]


def list_offset(world: World, timestamp: int, *, isolation: int = READ_COMMITTED) -> Any:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=TOPIC, partitions=[wanted])],
    )
    return world.ask(1, request).response.topics[0].partitions[0]
