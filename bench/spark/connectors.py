"""The two connectors that are measured, and what each does: read a topic, scan its sealed segments, write a topic.

Both run in one session with the same settings and, unless a case says so, with their own defaults, as a user gets
them. A read goes to Spark's `noop` sink with all columns. Spark's own connector has no segment scan: beside ours it
reads through the broker, which is the only way it has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.spark import jvm_connector

CORES = 2


@dataclass(frozen=True)
class Connector:
    name: str
    format: str
    has_segment_scan: bool = False

    def rows(
        self, session: SparkSession, bootstrap: str, topic: str, options: Mapping[str, str]
    ) -> DataFrame:
        reader = session.read.format(self.format).option("kafka.bootstrap.servers", bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    def scan_options(self, segments: Path) -> dict[str, str]:
        return {"scan": "segments", "segmentsPath": str(segments)} if self.has_segment_scan else {}

    def write(self, rows: DataFrame, bootstrap: str, topic: str, options: Mapping[str, str]) -> None:
        writer = rows.write.format(self.format).option("kafka.bootstrap.servers", bootstrap)
        writer.option("topic", topic).options(**options).mode("append").save()


OURS = Connector("tidemill", "tidemill", has_segment_scan=True)
JVM = Connector("jvm", "kafka")


def start_session(
    scratch: Path, python: str, *, with_jvm_connector: bool, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """`settings` go before those that stand here."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python
    builder = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("tidemill-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(CORES))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", str(scratch / "spark"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    )
    if with_jvm_connector:
        builder = builder.config("spark.jars", jvm_connector.spark_jars())
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
