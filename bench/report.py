"""Turns results into tables: aligned text, Markdown or JSON.

One table per family, one row per case and target; beside a second target a third row gives the ratio of the
first to the second. Pure: results in, text out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from bench.goals import Verdict
from bench.processes import Metrics
from bench.results import Result

Row = list[str]


@dataclass(frozen=True)
class Column:
    label: str
    digits: int


COLUMNS = {
    "mb_per_s": Column("MB/s", 0),
    "idempotent_mb_per_s": Column("idempotent MB/s", 0),
    "share_percent": Column("share %", 1),
    "mb_per_cpu_s": Column("MB/CPU-s", 1),
    "messages_per_s": Column("msgs/s", 0),
    "broker_cpu_s_per_gb": Column("broker CPU-s/GB", 2),
    "client_cpu_s_per_gb": Column("client CPU-s/GB", 2),
    "network_mb": Column("network MB", 1),
    "index_cpu_s_per_gb": Column("index CPU-s/GB", 1),
    "commit_p50_ms": Column("commit p50 ms", 2),
    "commit_p99_ms": Column("commit p99 ms", 2),
    "transactions_per_s": Column("transactions/s", 0),
    "p50_ms": Column("p50 ms", 2),
    "p99_ms": Column("p99 ms", 2),
    "p999_ms": Column("p99.9 ms", 2),
    "achieved_per_s": Column("achieved msgs/s", 0),
    "broker_us_per_message": Column("broker µs/msg", 1),
    "requests_per_s": Column("requests/s", 0),
    "requests_per_cpu_s": Column("requests/CPU-s", 0),
    "broker_us_per_request": Column("broker µs/request", 1),
    "client_us_per_request": Column("client µs/request", 1),
    "broker_us_per_further_partition": Column("µs/further partition", 1),
    "broker_us_per_record": Column("broker µs/record", 1),
    "broker_us_per_transaction": Column("broker µs/transaction", 0),
    "counted_us_per_request": Column("broker µs/request", 1),
    "uncounted_us_per_request": Column("without counting", 1),
    "counting_percent": Column("cost %", 1),
    "counting_percent_error": Column("± %", 1),
    "control_percent": Column("equal code %", 1),
    "control_percent_error": Column("± %", 1),
    "rebalance_ms": Column("rebalance ms", 1),
    "broker_cpu_ms": Column("broker CPU ms", 1),
    "client_cpu_ms": Column("client CPU ms", 1),
    "create_s": Column("create s", 2),
    "restart_s": Column("restart s", 2),
    "start_s": Column("start s", 2),
    "idle_cpu_percent": Column("idle CPU %", 2),
    "rss_mb": Column("RSS MB", 0),
    "pending_mb": Column("of pending MB", 0),
    "kill_to_writable_p50_s": Column("kill to writable p50 s", 2),
    "kill_to_writable_max_s": Column("max s", 2),
    "kill_to_ack_p50_s": Column("kill to ack p50 s", 2),
    "kill_to_ack_max_s": Column("max s", 2),
    "ack_to_ack_p50_s": Column("ack to ack p50 s", 2),
    "ack_to_ack_max_s": Column("max s", 2),
    "controllers": Column("of active controllers", 0),
    "messages": Column("messages", 0),
    "lost": Column("lost", 0),
    "repeated": Column("repeated", 0),
    "cold_start_s": Column("cold start s", 2),
    "failover_s": Column("failover s", 2),
    "rolling_restart_s": Column("rolling restart s", 1),
    "million_rows_per_s": Column("M rows/s", 3),
    "spark_cpu_s_per_gb": Column("Spark CPU-s/GB", 2),
    "wall_s": Column("took s", 1),
    "handshakes_per_s": Column("handshakes/s", 0),
    "broker_ms_per_handshake": Column("broker CPU ms each", 2),
    "set_mb_per_s": Column("set MB/s", 2),
    "held_mb_per_s": Column("held MB/s", 2),
    "off_percent": Column("off by %", 1),
    "fewest": Column("fewest records", 0),
    "most": Column("most records", 0),
    "without_work": Column("members without work", 0),
}


def number_text(name: str, value: float | None) -> str:
    return "–" if value is None else f"{value:,.{COLUMNS[name].digits}f}"


def ratio_text(first: float | None, second: float | None) -> str:
    return "–" if first is None or not second else f"{first / second:.2f}×"


def family_rows(results: Sequence[Result], measured: str = "broker") -> list[Row]:
    """The table of one family; the first row is its head, and `measured` is what its targets are."""
    names = list(dict.fromkeys(name for result in results for name in result.median))
    rows = [["case", measured, *(COLUMNS[name].label for name in names)]]
    for case in dict.fromkeys(result.case for result in results):
        of_case = [result for result in results if result.case == case]
        for position, result in enumerate(of_case):
            rows.append(["" if position else case, *_cells(result, names)])
        if len(of_case) == 2:
            first, second = (result.median for result in of_case)
            rows.append(["", "ratio", *(ratio_text(first.get(name), second.get(name)) for name in names)])
    return rows


def _cells(result: Result, names: Sequence[str]) -> Row:
    broker = result.target if result.error is None else f"{result.target} (failed)"
    median: Metrics = result.median
    return [broker, *(number_text(name, median.get(name)) for name in names)]


def verdict_rows(verdicts: Iterable[Verdict]) -> list[Row]:
    rows = [["goal", "limit", "measured", "met"]]
    for verdict in verdicts:
        sign, unit = ("≥" if verdict.goal.is_at_least else "≤"), ("×" if verdict.goal.is_ratio else "")
        limit = f"{sign} {verdict.goal.limit:g}{unit}"
        rows.append(
            [verdict.goal.text, limit, f"{verdict.worst:.2f}{unit}", "yes" if verdict.is_met else "no"]
        )
    return rows


def text_table(rows: Sequence[Row]) -> str:
    """Columns aligned by two spaces: words to the left, numbers to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def markdown_table(rows: Sequence[Row]) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rule = ["---" if at < 2 else "---:" for at in range(len(rows[0]))]
    return "\n".join([line(rows[0]), line(rule), *map(line, rows[1:])])


def document(
    results: Sequence[Result], verdicts: Sequence[Verdict], *, is_markdown: bool, measured: str = "broker"
) -> str:
    table = markdown_table if is_markdown else text_table
    blocks = []
    for family in dict.fromkeys(result.family for result in results):
        rows = family_rows([result for result in results if result.family == family], measured)
        blocks.append(f"{'### ' if is_markdown else ''}{family}\n\n{table(rows)}")
    if verdicts:
        blocks.append(f"{'### ' if is_markdown else ''}goals\n\n{table(verdict_rows(verdicts))}")
    failures = [f"{r.target}: {r.family}: {r.case}: {r.error}" for r in results if r.error is not None]
    if failures:
        blocks.append("\n".join(["failed:", *failures]))
    return "\n\n".join(blocks)


def as_json(results: Sequence[Result], verdicts: Sequence[Verdict]) -> dict[str, object]:
    return {
        "results": [asdict(result) | {"median": result.median} for result in results],
        "goals": [asdict(verdict) | {"is_met": verdict.is_met} for verdict in verdicts],
    }
