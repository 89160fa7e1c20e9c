"""From what the brokers and the records tell to the findings: rates, shares, and when which disk fills up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tidemill.spark.pipelines.topic_report.brokers import GROWTH_DAYS_MAX, Log, LogDir
from tidemill.spark.pipelines.topic_report.findings import (
    Findings,
    TopicUse,
    Written,
    partition_uses,
    retention_text,
    top,
)
from tidemill.spark.pipelines.topic_report.forecast import (
    BUCKETS_MIN,
    DAY_MS,
    HOUR_MS,
    Disk,
    Rate,
    TopicGrowth,
    complete_hours,
    fit,
    forecast,
)
from tidemill.spark.pipelines.topic_report.records import Counts
from tidemill.types import TopicPartition

_HOURLY_DAYS_MAX = 3


def judge(
    log: Log, counts: Counts, cluster_id: str, wall_ms: int, percent: float, last_ms: int | None
) -> Findings:
    findings = Findings(cluster_id, wall_ms, _scope(last_ms, percent), percent, remarks=list(log.remarks))
    since_ms = wall_ms - min(last_ms or GROWTH_DAYS_MAX * DAY_MS, GROWTH_DAYS_MAX * DAY_MS)
    totals: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    strays = 0
    for topic, partition_count in log.partition_counts.items():
        of_topic = {
            index: counts.by_partition.get(TopicPartition(topic, index), (0, 0))
            for index in range(partition_count)
        }
        on_disk = _on_disk(log, topic) if log.is_disk_known else None
        findings.partitions += partition_uses(topic, of_topic, partition_count, on_disk)
        seen = counts.hours.get(topic, {})
        within = {hour: each for hour, each in seen.items() if since_ms - HOUR_MS < hour <= wall_ms}
        strays += sum(seen[hour][0] for hour in seen.keys() - within.keys())
        for hour, (records, size) in within.items():
            totals[hour][0] += records
            totals[hour][1] += size
        findings.topics.append(
            _topic_use(log, counts, topic, of_topic, on_disk, _rate(within, since_ms, wall_ms))
        )
    if strays:
        findings.remarks.append(
            f"{strays:,} records have timestamps in the future or before the time that growth looks at."
        )
    findings.bucket_ms, findings.written = _written(totals)
    findings.keys_by_records = top(counts.keys, len(counts.keys), by_bytes=False)
    findings.keys_by_bytes = top(counts.keys, len(counts.keys), by_bytes=True)
    return findings


def _scope(last_ms: int | None, percent: float) -> str:
    which = f"Records of the last {last_ms // HOUR_MS} hours" if last_ms else "All records"
    how = (
        "counted one by one"
        if percent >= 100
        else f"estimated from {percent:.3g} % of them, evenly spread pieces"
    )
    return f"{which}, {how}."


def _on_disk(log: Log, topic: str) -> dict[int, int]:
    sizes: dict[int, int] = defaultdict(int)
    for each in log.dirs:
        for partition, size in each.sizes.items():
            if partition.topic == topic:
                sizes[partition.partition] += size
    return sizes


def _topic_use(
    log: Log,
    counts: Counts,
    topic: str,
    of_topic: Mapping[int, tuple[int, int]],
    on_disk: Mapping[int, int] | None,
    rate: Rate | None,
) -> TopicUse:
    return TopicUse(
        topic,
        log.partition_counts[topic],
        log.replica_counts[topic],
        sum(records for records, _ in of_topic.values()),
        sum(size for _, size in of_topic.values()),
        None if on_disk is None else sum(on_disk.values()),
        counts.keyless.get(topic, 0),
        log.settings["cleanup.policy"].get(topic) or "delete",
        retention_text(log.setting(topic, "retention.ms"), log.setting(topic, "retention.bytes")),
        rate,
    )


def _rate(hours: Mapping[int, tuple[int, int]], since_ms: int, wall_ms: int) -> Rate | None:
    if not hours:
        return None
    return fit(
        complete_hours(
            {hour: size for hour, (_, size) in hours.items()}, max(min(hours) + 1, since_ms), wall_ms
        )
    )


def _written(totals: Mapping[int, list[int]]) -> tuple[int, list[Written]]:
    """By hour for a few days, by day for more; hours without records are there too."""
    if not totals:
        return HOUR_MS, []
    bucket_ms = HOUR_MS if max(totals) - min(totals) <= _HOURLY_DAYS_MAX * DAY_MS else DAY_MS
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for hour, (records, size) in totals.items():
        sums[hour // bucket_ms * bucket_ms][0] += records
        sums[hour // bucket_ms * bucket_ms][1] += size
    starts = range(min(sums), max(sums) + 1, bucket_ms)
    return bucket_ms, [Written(start, *sums.get(start, [0, 0])) for start in starts]


def foresee(findings: Findings, log: Log, capacity_bytes: int | None) -> None:
    """Fills in the forecasts, or why there are none."""
    rates = {each.topic: each.rate for each in findings.topics if each.rate is not None}
    missing = [each.topic for each in findings.topics if each.rate is None and each.records]
    if not rates or missing:
        names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        findings.forecast_refusal = (
            f"Too little data for a forecast: it takes at least {BUCKETS_MIN} complete hours of records"
            + (f", and {names} {'has' if len(missing) == 1 else 'have'} fewer." if missing else ".")
        )
        return
    if capacity_bytes is None and (not log.is_disk_known or any(each.usable_bytes < 0 for each in log.dirs)):
        findings.forecast_refusal = "The brokers do not tell how large their disks are: give --capacity SIZE."
        return
    compacted = [each.topic for each in findings.topics if "delete" not in each.cleanup_policy]
    if compacted:
        findings.remarks.append(
            f"The forecast takes compacted topics as they are now: {', '.join(compacted)}."
        )
    dirs = log.dirs if log.is_disk_known else [LogDir("records", 0, {})]
    growths = {id(each): _growths(findings, log, rates, each) for each in dirs}
    if capacity_bytes is not None:
        disks = [Disk("cluster", capacity_bytes, [growth for each in growths.values() for growth in each])]
    else:
        disks = [
            Disk(each.name, each.usable_bytes + sum(each.sizes.values()), growths[id(each)]) for each in dirs
        ]
        findings.remarks.append(
            "The forecast takes each log directory as a disk of its own: where several share one, give --capacity."
        )
    findings.forecasts = [forecast(disk) for disk in disks if disk.topics]
    if any(rate.trend > 0 for rate in rates.values()):
        findings.remarks.append(
            "Writing to some topics is rising, so that a disk may be full earlier than told."
        )


def _growths(findings: Findings, log: Log, rates: Mapping[str, Rate], place: LogDir) -> list[TopicGrowth]:
    growths = []
    for each in findings.topics:
        rate = rates.get(each.topic)
        if rate is None:
            continue
        retention_ms = log.setting(each.topic, "retention.ms")
        retention_bytes = log.setting(each.topic, "retention.bytes")
        if log.is_disk_known:
            here = {
                partition: size for partition, size in place.sizes.items() if partition.topic == each.topic
            }
            if not here:
                continue
            now_bytes, replica_count = sum(here.values()), len(here)
        else:
            now_bytes = each.record_bytes * each.replica_count
            replica_count = each.partition_count * each.replica_count
        # What a record takes here, of keys and values: compression, headers and copies are in it.
        whole_bytes = each.record_bytes / max(each.records, 1) * log.record_spans[each.topic]
        factor = now_bytes / whole_bytes if whole_bytes else 0.0
        growths.append(
            TopicGrowth(
                each.topic,
                now_bytes,
                rate.scaled(factor if "delete" in each.cleanup_policy else 0.0),
                None if retention_ms is None else retention_ms / DAY_MS,
                None if retention_bytes is None else float(retention_bytes * replica_count),
            )
        )
    return growths
