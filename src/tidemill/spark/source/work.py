"""One task's share of a read: a range of one partition's offsets, and how to get at the records in it.

A `Work` is made where the query is planned, is pickled, and reads where a task runs: it holds addresses and offsets,
never a connection. Where the records lie is the subclass's matter; that each record of the range is given exactly once,
in order, is every subclass's duty.

`BrokerWork` reads the live log. What a broker returns is gathered to about `GATHER_BYTES` before it is decoded, because
a decode costs the same for few records as for some thousands. The result is cut to Arrow batches of about
`ARROW_BYTES`, which is what Spark moves best. Offsets that retention took between planning and reading are an error
that names them. With `failOnDataLoss=false` the same line is logged, and the read goes on where the partition now
begins.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from tidemill.client.cluster import Cluster
from tidemill.client.fetch import Batch, OffsetsLost, fetch_range
from tidemill.errors import TidemillError
from tidemill.spark.access import BrokerAccess
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

GATHER_BYTES = 4 * 1024 * 1024
ARROW_BYTES = 4 * 1024 * 1024

logger = logging.getLogger("tidemill.spark")


class DataLost(TidemillError):
    """Records of the query are gone, and its options do not let it continue without them."""


def report_loss(loss: str, *, is_error: bool) -> None:
    if is_error:
        raise DataLost(f"{loss}; failOnDataLoss=false goes on without them")
    logger.warning("%s", loss)


class Work(InputPartition, ABC):
    def __init__(self, partition: TopicPartition, start_offset: int, end_offset: int) -> None:
        super().__init__(None)
        self.partition = partition
        self.start_offset = start_offset
        self.end_offset = end_offset

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.partition}, {self.start_offset}, {self.end_offset})"

    @abstractmethod
    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The records of the range, in order of their offsets, with these columns in this order."""


class BrokerWork(Work):
    def __init__(
        self,
        partition: TopicPartition,
        start_offset: int,
        end_offset: int,
        access: BrokerAccess,
        *,
        fail_on_data_loss: bool = True,
    ) -> None:
        super().__init__(partition, start_offset, end_offset)
        self.access = access
        self.fail_on_data_loss = fail_on_data_loss

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        position = self.start_offset
        with self.access.reached() as cluster:
            while position < self.end_offset:
                try:
                    yield from self._read_from(cluster, position, columns)
                    return
                except OffsetsLost as lost:
                    report_loss(str(lost), is_error=self.fail_on_data_loss)
                    position = lost.end_offset

    def _read_from(self, cluster: Cluster, position: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        # Not before it is needed: planning a query needs neither numpy nor Arrow.
        from tidemill.spark.arrow.decode import Decoder

        decoder = Decoder(self.partition, position, self.end_offset, columns)
        for batches in self._gathered(cluster, position):
            for rows in decoder.parts(batches):
                yield from arrow_batches(rows)

    def _gathered(self, cluster: Cluster, position: int) -> Iterator[list[Batch]]:
        answers = fetch_range(
            cluster,
            self.partition,
            position,
            self.end_offset,
            isolation_level=self.access.isolation_level,
            fetch_bytes=self.access.fetch_bytes,
        )
        gathered: list[Batch] = []
        size = 0
        lost: OffsetsLost | None = None
        try:
            for answer in answers:
                gathered += answer.batches
                size += sum(header.size for header, _ in answer.batches)
                if size >= GATHER_BYTES:
                    yield gathered
                    gathered, size = [], 0
        except OffsetsLost as failure:
            lost = failure
        if gathered:
            yield gathered
        if lost is not None:
            raise lost


def arrow_batches(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields the rows in batches of a suitable size for Spark; none when there are no rows."""
    if not rows.num_rows:
        return
    count = max(1, round(rows.nbytes / ARROW_BYTES))
    step = -(-rows.num_rows // count)
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)
