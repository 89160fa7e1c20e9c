"""The report as one HTML file that needs nothing else: its style and its plots are in it, and it has no scripts.

The page's own content security policy forbids whatever it does not contain. Each value from outside is escaped where it
is put in: `_table`, `_section` and the plots do that. Every plot has its numbers in a table under it. The page follows
the reader's light or dark setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from tidemill.spark.pipelines.topic_report.findings import Findings, size_text
from tidemill.spark.pipelines.topic_report.forecast import DAY_MS, Forecast, first_to_fill, rough_time
from tidemill.spark.pipelines.topic_report.plots import Bar, Column, FanPoint, Limit, bars, columns, fan

_BARS_MAX = 30
_FAN_POINTS = 25
_FAN_DAYS_MIN = 1.0

_STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --text: #1f2328; --soft: #59636e; --line: #d5d9de; --bar: #2a6fb0;
  --hot: #b3480f; --band: #2a6fb033; --mark: #6b2fa0; }
@media (prefers-color-scheme: dark) { :root { --page: #16191d; --text: #e6e8ea; --soft: #a3abb3; --line: #3a4149;
  --bar: #6aaae4; --hot: #f0935a; --band: #6aaae44d; --mark: #c79bf0; } }
body { background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem;
  padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
p { margin: .4rem 0; } .soft { color: var(--soft); }
svg { display: block; margin: .8rem 0; max-width: 100%; height: auto; }
svg text { fill: var(--text); font-size: 12px; } svg .axis { fill: var(--soft); }
.bar { fill: var(--bar); } .bar.marked { fill: var(--hot); } .band { fill: var(--band); }
.line { fill: none; stroke: var(--bar); stroke-width: 2; } .frame { stroke: var(--line); }
.mark { stroke: var(--mark); stroke-width: 1.5; stroke-dasharray: 5 4; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .8rem .25rem 0; text-align: left; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
summary { cursor: pointer; color: var(--soft); }
"""

Cell = str | int | None


def page(findings: Findings) -> str:
    sections = [
        _topics(findings),
        _partitions(findings),
        _keys(findings),
        _lags(findings),
        _growth(findings),
        _forecast(findings),
    ]
    remarks = "".join(f"<li>{escape(remark)}</li>" for remark in findings.remarks)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Topics of cluster {escape(findings.cluster_id)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Topics of cluster {escape(findings.cluster_id)}</h1>"
        f'<p class="soft">{escape(_moment(findings.made_at_ms))} UTC. {escape(findings.scope)}</p>'
        + (f"<ul>{remarks}</ul>" if remarks else "")
        + "".join(sections)
        + "</body></html>\n"
    )


def _topics(findings: Findings) -> str:
    topics = sorted(findings.topics, key=lambda each: -(each.disk_bytes or each.record_bytes))
    is_on_disk = any(each.disk_bytes is not None for each in topics)
    rows = [
        Bar(each.topic, size, size_text(size))
        for each in topics[:_BARS_MAX]
        for size in [each.record_bytes if each.disk_bytes is None else each.disk_bytes]
    ]
    measure = "on disk, all replicas" if is_on_disk else "keys and values"
    plot = bars("Bytes by topic", f"The size of each topic: {measure}. The table has the numbers.", rows)
    table = _table(
        (
            "Topic",
            "Partitions",
            "Replicas",
            "Records",
            "Record bytes",
            "On disk",
            "Without key",
            "Cleanup",
            "Kept",
        ),
        [
            (
                each.topic,
                each.partition_count,
                each.replica_count,
                each.records,
                each.record_bytes,
                each.disk_bytes,
                each.keyless_records,
                each.cleanup_policy,
                each.retention,
            )
            for each in topics
        ],
    )
    return _section("Topics", f"Bytes {measure}.{_scaled(findings)}", plot if rows else "", table)


def _partitions(findings: Findings) -> str:
    hot = findings.hot_partitions
    words = (
        f"{len(hot)} of {len(findings.partitions)} partitions have more than 1.5 times their fair share."
        if hot
        else "No partition has more than 1.5 times its fair share."
    )
    plots = []
    for topic in sorted({each.topic for each in hot}):
        uses = [each for each in findings.partitions if each.topic == topic]
        rows = [
            Bar(
                f"{topic} {each.partition}",
                each.share,
                f"{each.share:.1%}{' hot' if each.is_hot else ''}",
                each.is_hot,
            )
            for each in sorted(uses, key=lambda each: -each.share)[:_BARS_MAX]
        ]
        fair = Limit(uses[0].fair_share, f"fair share {uses[0].fair_share:.1%}")
        plots.append(bars(f"Share of each partition of {topic}", "Of the topic's record bytes.", rows, fair))
    table = _table(
        ("Topic", "Partition", "Records", "Record bytes", "On disk", "Share", "Fair share", ""),
        [
            (
                each.topic,
                each.partition,
                each.records,
                each.record_bytes,
                each.disk_bytes,
                f"{each.share:.1%}",
                f"{each.fair_share:.1%}",
                "hot" if each.is_hot else "",
            )
            for each in findings.partitions
        ],
    )
    return _section("Partitions", words, "".join(plots), table)


def _keys(findings: Findings) -> str:
    words = (
        f"Approximate: counted in {findings.sample_percent:.3g} % of the records and scaled up."
        if findings.is_sampled
        else "Counted in all records that were read."
    )
    parts = []
    for title, keys, by_bytes in (
        ("Keys with the most records", findings.keys_by_records, False),
        ("Keys with the most bytes", findings.keys_by_bytes, True),
    ):
        if not keys:
            continue
        rows = [
            Bar(
                f"{each.topic}: {each.key}",
                each.record_bytes if by_bytes else each.records,
                size_text(each.record_bytes) if by_bytes else f"{each.records:,}",
            )
            for each in keys[:_BARS_MAX]
        ]
        parts.append(bars(title, words, rows))
        parts.append(
            _table(
                ("Topic", "Key", "Records", "Record bytes", "Share of records"),
                [
                    (each.topic, each.key, each.records, each.record_bytes, f"{each.share:.1%}")
                    for each in keys
                ],
            )
        )
    return _section("Keys", words if parts else "The records have no keys.", *parts)


def _lags(findings: Findings) -> str:
    totals: dict[str, int] = {}
    for each in findings.lags:
        totals[each.group] = totals.get(each.group, 0) + (each.lag or 0)
    if not totals:
        return _section("Lag", "No consumer group has committed offsets of these topics.")
    rows = [
        Bar(group, lag, f"{lag:,}")
        for group, lag in sorted(totals.items(), key=lambda each: (-each[1], each[0]))
    ]
    table = _table(
        ("Group", "State", "Topic", "Partition", "Committed", "End", "Lag"),
        [
            (
                each.group,
                each.state,
                each.topic,
                each.partition,
                each.committed_offset,
                each.end_offset,
                each.lag,
            )
            for each in findings.lags
        ],
    )
    plot = bars("Lag by group", "Records that each group has not consumed.", rows[:_BARS_MAX])
    return _section("Lag", "Records that each group has still to consume.", plot, table)


def _growth(findings: Findings) -> str:
    if not findings.written:
        return _section("Growth", "No record was read, so nothing is known about growth.")
    unit = "day" if findings.bucket_ms == DAY_MS else "hour"
    values = [
        Column(
            _moment(each.start_ms),
            each.record_bytes,
            f"{size_text(each.record_bytes)}, {each.records:,} records",
        )
        for each in findings.written
    ]
    largest = max(each.record_bytes for each in findings.written)
    plot = columns(
        f"Bytes written per {unit}",
        f"By the timestamps of the records, {len(values)} {unit}s, at most {size_text(largest)}.",
        values,
        size_text(largest),
    )
    written = _table(
        ("From (UTC)", "Records", "Record bytes"),
        [(_moment(each.start_ms), each.records, each.record_bytes) for each in findings.written],
    )
    rates = _table(
        ("Topic", "Bytes a day", "Low", "High", "From"),
        [
            (each.topic, None, None, None, "too little data")
            if each.rate is None
            else (
                each.topic,
                size_text(each.rate.mean),
                size_text(each.rate.low),
                size_text(each.rate.high),
                f"{each.rate.bucket_count} complete {'days' if each.rate.bucket_ms == DAY_MS else 'hours'}"
                f"{_trend_text(each.rate.trend)}",
            )
            for each in findings.topics
        ],
    )
    words = f"By the timestamps of the records. The last {unit} is not over yet.{_scaled(findings)}"
    return _section(
        "Growth",
        words,
        plot,
        written,
        "<p>The mean, and between what it lies in four of five cases:</p>",
        rates,
    )


def _forecast(findings: Findings) -> str:
    chosen = first_to_fill(findings.forecasts)
    if chosen is None:
        return _section("Capacity", findings.forecast_refusal or "There is no forecast.")
    table = _table(
        ("Disk", "Capacity", "Used now", "In the end, at most", "Forecast"),
        [
            (
                each.disk.name,
                size_text(each.disk.capacity_bytes),
                size_text(each.disk.used_bytes),
                "no limit" if each.final_bytes == float("inf") else size_text(each.final_bytes),
                each.verdict,
            )
            for each in findings.forecasts
        ],
    )
    words = f"{chosen.disk.name}: {chosen.verdict}. It assumes that writing goes on as in the observed time."
    return _section("Capacity", words, _fan(chosen), table)


def _fan(chosen: Forecast) -> str:
    known = [days for days in (chosen.late_days, chosen.likely_days, chosen.early_days) if days]
    days = max(_FAN_DAYS_MIN, min([*(1.2 * day for day in known[:1]), chosen.horizon_days]))
    disk = chosen.disk
    steps = [days * index / (_FAN_POINTS - 1) for index in range(_FAN_POINTS)]
    points = [
        FanPoint(
            "now" if step == 0 else f"in {rough_time(step)}",
            disk.after(step, lambda rate: rate.low),
            disk.after(step, lambda rate: rate.mean),
            disk.after(step, lambda rate: rate.high),
        )
        for step in steps
    ]
    largest = 1.1 * disk.capacity_bytes
    return fan(
        f"Use of {disk.name}",
        f"Expected use over {rough_time(days)} with the current retention. {chosen.verdict}.",
        points,
        Limit(disk.capacity_bytes, f"capacity {size_text(disk.capacity_bytes)}"),
        size_text(largest),
        largest,
    )


def _trend_text(trend: int) -> str:
    return {1: ", rising: expect more", -1: ", falling"}.get(trend, "")


def _scaled(findings: Findings) -> str:
    if not findings.is_sampled:
        return ""
    return f" Records and record bytes are scaled up from {findings.sample_percent:.3g} % of the records."


def _section(title: str, words: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2><p>{escape(words)}</p>{''.join(parts)}</section>"


def _table(names: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    rows = list(rows)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return (
        f'<details{" open" if len(rows) <= 12 else ""}><summary>{len(rows)} rows</summary><div class="scroll">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


def _cell(value: Cell) -> str:
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{'–' if value is None else escape(value)}</td>"


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
