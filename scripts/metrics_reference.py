"""Writes docs/metrics.md: every metric that a node shows, from the tables of the code.

A test compares the file with what this would write, so that it is never stale.
"""

from __future__ import annotations

from pathlib import Path

from tidemill.broker.metrics.names import QUANTILES, SECTIONS
from tidemill.broker.metrics.registry import LATENCY_BOUNDS_S

TARGET = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"

_INTRODUCTION = """\
# Metrics

Written by `make docs` from the tables of the code. `tidemill serve --status HOST:PORT` shows them at
`http://HOST:PORT/metrics`; [how to monitor](monitor.md) has Prometheus, the dashboard and the alerts.

Names are those that public Kafka dashboards expect: `kafka_server_*`, `kafka_network_*`, `kafka_controller_*`,
`kafka_cluster_*` and `kafka_log_*` as the JMX exporter's rules for KRaft make them, `kafka_topic_*`, `kafka_consumergroup_*`
and `kafka_broker*` as the widespread exporter of offsets and lag has them. What only Tidemill has begins with `tidemill_`.

- Metrics with a `topic` have no further series over all topics: sum over the label.
- Those of a partition are reported by its leader, so a sum over brokers counts it once; `kafka_log_log_size` is reported by
  every broker that has a replica.
- Those of a group are reported by its coordinator. It knows the lag of partitions that it has a replica of;
  `kafka_topic_partition_current_offset` less `kafka_consumergroup_current_offset` is known for all, and is what the
  dashboard shows.
- Counters keep their value when a topic is deleted or moves, and start from 0 with the process."""


def render() -> str:
    lines = [_INTRODUCTION]
    for title in dict.fromkeys(section.title for section in SECTIONS):
        lines += ["", f"## {title}", "", "| name | kind | labels | what it is |", "|---|---|---|---|"]
        for section in SECTIONS:
            if section.title != title:
                continue
            suffix = "_total" if section.kind == "counter" else ""
            labels = ", ".join(f"`{label}`" for label in section.labels)
            lines += [
                f"| `{metric.name}{suffix}` | {section.kind} | {labels} | {metric.help} |"
                for metric in section.metrics
            ]
    bounds = ", ".join(f"{bound:g}" for bound in LATENCY_BOUNDS_S)
    lines += [
        "",
        f"Bounds of the histograms, in seconds: {bounds}. Quantiles: {', '.join(QUANTILES)}.",
        "",
        "## The process",
        "",
        "`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_virtual_memory_bytes`, `process_open_fds`,",
        "`process_max_fds` and `process_start_time_seconds`, as Python programs with `prometheus_client` have them (Linux).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    TARGET.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
