"""Sends proposals of ISR changes to the controller (Kafka: AlterPartitionManager), one AlterPartition at a time.

What is proposed while a request is in flight goes with the next one. Without a decision (no controller, a broker epoch that
is not known yet) the same proposals are sent again. The partition decides whether they still hold: it ignores answers that
it does not wait for.

Leaders of decommissioned partitions that are empty propose to remove them, as a change of the ISR, too (decision 18).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from tidemill.broker.partitions.partition import Partition
from tidemill.controller.image import MetadataImage
from tidemill.controller.topics.fewer_partitions import going_together
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.brokers import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    BrokerState,
)
from tidemill.protocol.schema import Request, Response
from tidemill.replication.leader import ProposeIsr

logger = logging.getLogger(__name__)

_RETRY_S = 0.05
_NO_EPOCH = -1

Ask = Callable[[Request], Awaitable[Response]]
_Batch = dict[Partition, ProposeIsr]


class IsrChanges:
    def __init__(self, broker_id: int, broker_epoch: Callable[[], int], ask: Ask) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._ask = ask
        self._proposed: _Batch = {}
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def propose(self, partition: Partition, proposal: ProposeIsr) -> None:
        """Send a proposal. It replaces an earlier one of the same partition that was not sent yet."""
        self._proposed[partition] = proposal
        if self._task is None and not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._proposed:
                # Proposals from the rest of this turn of the loop join the batch.
                await asyncio.sleep(0)
                batch, self._proposed = self._proposed, {}
                if not await self._try_send(batch):
                    self._proposed = {**batch, **self._proposed}
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._task = None

    async def _try_send(self, batch: _Batch) -> bool:
        """Whether the controller answered."""
        try:
            return await self._send(batch)
        except Exception:
            # A background task that dies unseen is failure 26: the partitions would wait for its answer for ever.
            logger.exception("AlterPartition for %d partitions failed; trying again", len(batch))
            return False

    async def _send(self, batch: _Batch) -> bool:
        """Whether the controller answered. Refusals of single partitions are an answer."""
        epoch = self._broker_epoch()
        if epoch == _NO_EPOCH:
            return False
        try:
            response = await self._ask(self._request(batch, epoch))
        except ApiError as error:
            logger.debug("no answer to an ISR change, trying again: %s", error)
            return False
        assert isinstance(response, AlterPartitionResponse)
        if response.error_code:
            logger.debug("an ISR change was refused: %s", ErrorCode(response.error_code).name)
            return False
        self._take(batch, response)
        return True

    def _request(self, batch: _Batch, epoch: int) -> AlterPartitionRequest:
        topics: dict[bytes, AlterPartitionRequestTopicData] = {}
        for partition, proposal in batch.items():
            topic = topics.setdefault(
                partition.topic_id, AlterPartitionRequestTopicData(topic_id=partition.topic_id)
            )
            members = [
                BrokerState(
                    broker_id=member.broker_id,
                    broker_epoch=epoch if member.broker_id == self._broker_id else member.broker_epoch,
                )
                for member in proposal.isr
            ]
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=partition.index,
                    leader_epoch=proposal.leader_epoch,
                    new_isr=[member.broker_id for member in members],
                    new_isr_with_epochs=members,
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker_id, broker_epoch=epoch, topics=list(topics.values())
        )

    def _take(self, batch: _Batch, response: AlterPartitionResponse) -> None:
        answers = {
            (topic.topic_id, answer.partition_index): answer
            for topic in response.topics
            for answer in topic.partitions
        }
        for partition, proposal in batch.items():
            answer = answers.get((partition.topic_id, partition.index))
            if answer is None:
                partition.leadership.isr_refused(proposal, ErrorCode.UNKNOWN_SERVER_ERROR)
            elif answer.error_code:
                code = ErrorCode(answer.error_code)
                logger.info("%s: an ISR of %s was refused: %s", partition.name, _ids(proposal), code.name)
                partition.leadership.isr_refused(proposal, code)
            else:
                isr: Sequence[int] = answer.isr
                partition.leadership.isr_committed(
                    proposal, isr, (answer.leader_epoch, answer.partition_epoch)
                )

    def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()


def retirements(
    partitions: Iterable[Partition], image: MetadataImage
) -> Iterator[tuple[Partition, ProposeIsr]]:
    """Yields the retirements that leaders of empty decommissioned partitions propose, the highest of a topic first."""
    for partition in list(partitions):
        passing_on = partition.appender.passing_on
        topic = image.topics_by_name.get(partition.name.topic)
        if passing_on is None or topic is None:
            continue
        going = going_together(image.topic_config(topic.name), len(topic.partitions))
        if partition.index not in going:
            continue
        proposal = partition.leadership.retirement()
        has_producers = partition.log is not None and len(partition.log.producers) > 0
        kept_ms = partition.config.tidemill_partitions_kept_ms if has_producers else 0
        passing_on.note_empty(is_empty=proposal is not None, kept_ms=kept_ms)
        if passing_on.may_go and proposal is not None:
            yield partition, proposal


def _ids(proposal: ProposeIsr) -> list[int]:
    return [member.broker_id for member in proposal.isr]
