"""Large payloads through a Spark session: written to a store in the sink's transaction, and read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.brokers import RunningBroker
from tests.spark.sinks import create, read


def test_large_values_are_written_as_claims_and_read_back_and_a_missing_one_fails_by_name(
    spark: SparkSession, target: RunningBroker, topic: str, tmp_path: Path
) -> None:
    create(target.bootstrap, topic, 1)
    options = {"kafka.bootstrap.servers": target.bootstrap, "largePayloads": str(tmp_path)}
    frame = spark.createDataFrame(
        [("a", "small"), ("b", "large " * 50)], "key string, value string"
    ).coalesce(1)
    writer = frame.write.format("tidemill").options(**options, topic=topic, largePayloadsThreshold="100")
    writer.mode("append").save()
    assert [each.value for each in read(target.bootstrap, topic)] == [b"small", b""]
    reader = spark.read.format("tidemill").options(**options, subscribe=topic)
    found = reader.load().selectExpr("cast(key as string)", "cast(value as string)").collect()
    assert [tuple(row) for row in found] == [("a", "small"), ("b", "large " * 50)]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(PySparkException, match=f"{topic}-0 at offset 1: .* is gone"):
        reader.load().collect()
