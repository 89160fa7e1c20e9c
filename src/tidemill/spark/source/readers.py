"""The readers of batches and streams that Spark asks for, over options, offsets, work and progress.

A batch is planned once: where each partition starts and ends, cut into tasks. A task of Python costs 50 ms before it
reads a record, so partitions are not cut unless `minPartitions` or `maxRecordsPerPartition` says so. There is no
`pushFilters`. Spark keeps the tasks that were planned under a filter for as long as the DataFrame lives. A later query
without one would read no more than those (seen in PySpark 4.3).

A stream is driven by one process for each run of the query. `latestOffset` decides how far the next batch goes, within
the limits of a trigger; `partitions` makes it tasks. Spark's checkpoint is the truth about progress. What becomes of
records that are gone before they are read is decided here, when a batch is planned, or in the task that misses them:

    offsets deleted by retention or DeleteRecords      named, with the partition
    a partition or topic deleted                       named, with the offset up to which it was read; but for a partition
                                                       that went because its topic has fewer now, and was read to its end
    a partition that ends before what was read of it   the topic was made anew, or lost its tail
    startingOffsets beyond the end of a partition      named, with both offsets

each of which ends the query, or with `failOnDataLoss=false` is logged. Partitions that appear while a stream runs are read
from their first offset on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from tidemill.claims.large_payloads import LargePayloads
from tidemill.client.cluster import Cluster
from tidemill.client.fetch import OffsetsLost
from tidemill.client.retry import UnknownTopic
from tidemill.spark import freeze_imports
from tidemill.spark.source.offsets import (
    AtOffsets,
    Log,
    OffsetRange,
    Offsets,
    Place,
    from_json,
    limited,
    split,
    to_json,
)
from tidemill.spark.source.options import SourceOptions
from tidemill.spark.source.progress import GroupProgress, InitialOffsets
from tidemill.spark.source.work import ARROW_BYTES, BrokerWork, Work, report_loss
from tidemill.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("tidemill.spark")

# Spark asks for the latest offsets every 10 ms while a stream has nothing to do; which partitions there are may be older.
_PARTITIONS_AGE_S = 1.0


def _read(partition: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    freeze_imports()
    # Spark makes up a partition where there is none to read.
    if not isinstance(partition, Work):
        return iter(())
    if options.large_payloads is None:
        return partition.read(options.columns)
    from tidemill.spark.claims import columns_to_read, resolved

    store = LargePayloads(
        options.large_payloads,
        limit_bytes=options.large_payload_bytes_max,
        aliases=options.large_payloads_aliases,
    )
    return resolved(partition.read(columns_to_read(options.columns)), options.columns, store, ARROW_BYTES)


def _works(options: SourceOptions, cluster: Cluster, ranges: Sequence[OffsetRange]) -> list[Work]:
    if not options.is_plain:
        from tidemill.spark.source.table import plan

        return plan(options, cluster, ranges)
    parts = split(
        ranges,
        partition_count_min=options.partition_count_min,
        records_max=options.records_per_partition_max,
    )
    return [
        BrokerWork(
            part.partition,
            part.start_offset,
            part.end_offset,
            options.access,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        for part in parts
    ]


class _Losses:
    """Ranges as planned, less what is gone."""

    def __init__(self, options: SourceOptions) -> None:
        self._is_error = options.fail_on_data_loss

    def report(self, loss: str) -> None:
        report_loss(loss, is_error=self._is_error)

    def existing(self, wanted: OffsetRange, log_start_offset: int) -> OffsetRange:
        """The part of the range that the log still has."""
        if wanted.start_offset >= log_start_offset or wanted.size <= 0:
            return wanted
        end = min(wanted.end_offset, log_start_offset)
        self.report(str(OffsetsLost(wanted.partition, wanted.start_offset, end, log_start_offset)))
        return wanted._replace(start_offset=end)


def _beyond(option: str, partition: TopicPartition, end_offset: int, asked: int) -> str:
    return f"{option}: {partition} ends at offset {end_offset}, before the {asked} that was asked for"


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def __repr__(self) -> str:
        return f"Tidemill[{self._options.subscription!r}]"

    def partitions(self) -> Sequence[InputPartition]:
        freeze_imports()
        options = self._options
        if not options.has_brokers:
            from tidemill.spark.source.table import plan_files

            return plan_files(options)
        with options.access.cluster() as cluster:
            log = Log(cluster, options.subscription, options.access.isolation_level)
            return _works(options, cluster, self._ranges(log))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options)

    def _ranges(self, log: Log) -> list[OffsetRange]:
        options = self._options
        partitions = log.partitions()
        starts = log.find(
            partitions,
            options.starting,
            option=options.starting_option,
            no_match_is_error=options.no_match_is_error,
        )
        ends = log.find(partitions, options.ending, option=options.ending_option, no_match_is_error=False)
        ranges = [
            OffsetRange(each, starts[each].offset, ends[each].offset, starts[each].is_earliest)
            for each in partitions
        ]
        # With an archive or segments, only `table.plan`, which sees all places, knows which offsets are lost.
        return self._within(log, ranges, starts) if options.is_plain else ranges

    def _within(
        self, log: Log, ranges: Sequence[OffsetRange], starts: dict[TopicPartition, Place]
    ) -> list[OffsetRange]:
        losses = _Losses(self._options)
        numbered = [each.partition for each in ranges if not starts[each.partition].is_earliest]
        log_starts, log_ends = log.starts(numbered), log.ends([each.partition for each in ranges])
        within = []
        for each in ranges:
            end = log_ends[each.partition]
            if max(each.start_offset, each.end_offset) > end:
                which = self._options.starting_option
                asked = each.start_offset
                if each.start_offset <= end:
                    which, asked = self._options.ending_option, each.end_offset
                losses.report(_beyond(which, each.partition, end, asked))
                each = each._replace(end_offset=min(each.end_offset, end))
            within.append(losses.existing(each, log_starts.get(each.partition, 0)))
        return within


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._losses = _Losses(options)
        self._initial = InitialOffsets()
        self._group = GroupProgress(options.group_id, options.access) if options.group_id else None
        # Opened when the broker is first asked: a task has a reader too, and none of this.
        self._opened: Log | None = None
        self._partitions: list[TopicPartition] | None = None
        self._partitions_asked_s = 0.0
        self._latest: Offsets = {}
        # The last known end of each partition, also of those that are gone.
        self._seen_ends: Offsets = {}
        self._is_available_now = False
        self._target: Offsets | None = None
        self._last_batch_s: float | None = None

    def __repr__(self) -> str:
        return f"Tidemill[{self._options.subscription!r}]"

    @property
    def _log(self) -> Log:
        if self._opened is None:
            access = self._options.access
            self._opened = Log(access.cluster(), self._options.subscription, access.isolation_level)
        return self._opened

    # --- how far ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial.told is None:
            places = self._log.find(
                self._log.partitions(),
                self._options.starting,
                option=self._options.starting_option,
                no_match_is_error=self._options.no_match_is_error,
            )
            self._initial.tell(self._existing_places(places))
        assert self._initial.told is not None
        return to_json(self._initial.told)

    def _existing_places(self, places: dict[TopicPartition, Place]) -> dict[TopicPartition, Place]:
        """Offsets that the user gave by number may lie beyond the end: the records up to them are gone, or never were."""
        if not isinstance(self._options.starting, AtOffsets):
            return places
        numbered = {each: place.offset for each, place in places.items() if not place.is_latest}
        ends = self._settled(self._log.ends(numbered), numbered, lambda: self._log.ends(numbered))
        within = dict(places)
        for each, end in ends.items():
            place = places[each]
            if place.offset > end:
                self._losses.report(_beyond(self._options.starting_option, each, end, place.offset))
                within[each] = place._replace(offset=end)
        return within

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._is_available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self._options.offsets_per_trigger_max)
        if self._options.offsets_per_trigger_min is not None:
            return ReadMinRows(self._options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begun = from_json(start)
        self._show(begun)
        self._latest = self._ends(begun)
        return to_json(self._initial.hold(begun, self._within(limit, begun, self._latest)))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return to_json(self._latest) if self._latest else None

    def _ends(self, begun: Offsets) -> Offsets:
        """Returns the end offsets of the partitions now; with AvailableNow, those at the first call."""
        if self._target is not None:
            return {each: max(end, begun.get(each, 0)) for each, end in self._target.items()}
        try:
            ends = self._log.ends(self._existing(begun, age_s_max=_PARTITIONS_AGE_S))
        except UnknownTopic:
            ends = self._log.ends(self._existing(begun))
        ends = self._settled(ends, begun, lambda: self._log.ends(self._existing(begun)))
        self._seen_ends.update(ends)
        if self._is_available_now:
            self._target = ends
        return ends

    def _settled(self, ends: Offsets, known: Offsets, ask: Callable[[], Offsets]) -> Offsets:
        """Asks again where an end is before what is known of the partition.

        A new leader may not know yet how far the old one had let consumers read.
        """
        attempts = self._options.offset_retries
        while attempts > 1 and any(end < known.get(each, 0) for each, end in ends.items()):
            time.sleep(self._options.offset_retry_interval_ms / 1000)
            ends = ask()
            attempts -= 1
        return ends

    def _existing(self, known: Offsets, age_s_max: float = 0.0) -> list[TopicPartition]:
        """Returns the existing partitions. A missing topic that was read before is a loss; a wrong name is an error."""
        now_s = time.monotonic()
        if self._partitions is None or now_s - self._partitions_asked_s >= age_s_max:
            gone = {each.topic for each in known}
            if not self._options.fail_on_data_loss:
                gone.update(self._options.subscription.topic_names)
            self._partitions = self._log.partitions(gone)
            self._partitions_asked_s = now_s
        return self._partitions

    def _within(self, limit: ReadLimit, begun: Offsets, ends: Offsets) -> Offsets:
        if isinstance(limit, ReadAllAvailable):
            return ends
        start = {**self._log.starts([each for each in ends if each not in begun]), **begun}
        least = limit.min_rows if isinstance(limit, ReadMinRows) else self._options.offsets_per_trigger_min
        if least is not None and not self._is_available_now:
            now_s = time.monotonic()
            if self._should_wait(least, start, ends, now_s):
                return begun
            self._last_batch_s = now_s
        return limited(start, ends, limit.max_rows) if isinstance(limit, ReadMaxRows) else ends

    def _should_wait(self, least: int, start: Offsets, ends: Offsets, now_s: float) -> bool:
        """Whether fewer than `least` rows are there, and the last batch is younger than the longest trigger delay."""
        if self._last_batch_s is None:
            return False
        waited_ms = (now_s - self._last_batch_s) * 1000
        waiting = sum(end - start[each] for each, end in ends.items())
        return waited_ms < self._options.trigger_delay_ms_max and waiting < least

    # --- what ---

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, until = from_json(start), from_json(end)
        self._initial.release()
        if begun == until:
            return []
        return _works(self._options, self._log.cluster, list(self._ranges(begun, until)))

    def _ranges(self, begun: Offsets, until: Offsets) -> Iterable[OffsetRange]:
        is_first = self._initial.is_start(begun)
        for each in sorted(begun.keys() - until.keys()):
            # Of a first batch the end is in the offset log, and the start asked for anew.
            if not is_first and not self._is_read_to_its_end(each, begun[each]):
                self._losses.report(f"{each} was deleted; what came after offset {begun[each] - 1} is lost")
        existing = set(self._existing({**begun, **until}))
        for each in sorted(until.keys() - existing):
            if until[each] > begun.get(each, 0):
                self._losses.report(
                    f"{each} was deleted; what came after offset {begun.get(each, 0) - 1} is lost"
                )
        log_starts = self._log.starts(sorted(existing.intersection(until)))
        for each, log_start in log_starts.items():
            # A new partition begins with 0, unless another one had its number before.
            first = self._log.first_offset(each) if log_start and each not in begun else 0
            wanted = OffsetRange(each, begun.get(each, first), until[each])
            if wanted.size < 0 and not is_first:
                self._losses.report(
                    f"{each} was read up to offset {wanted.start_offset - 1} and now ends at {wanted.end_offset - 1}; "
                    "it was made anew or lost its tail"
                )
            yield self._losses.existing(wanted, log_start)

    def _is_read_to_its_end(self, gone: TopicPartition, offset: int) -> bool:
        """Whether a partition is gone because its topic got fewer, and nothing of it is known that was not read.

        It took no new records before, and was empty when it went. So a query that reads what retention keeps has it all.
        """
        if self._seen_ends.get(gone, 0) > offset or not self._log.was_retired(gone):
            return False
        logger.info("%s is gone: its topic has fewer partitions now; it was read to offset %d", gone, offset)
        return True

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options)

    # --- progress ---

    def commit(self, end: dict[str, Any]) -> None:
        self._show(from_json(end))

    def _show(self, finished: Offsets) -> None:
        if self._group is not None:
            self._group.show(finished)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.cluster.close()
            self._opened = None
        if self._group is not None:
            self._group.close()
