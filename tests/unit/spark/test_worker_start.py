"""What a Python worker of Spark imports before it works."""

from __future__ import annotations

import subprocess
import sys

TASKS = """
import sys
import pyspark_tidemill
import tidemill.spark.sink.writers
from tidemill.protocol.records import Record, build_batch, header_at
from tidemill.spark.arrow.decode import SCHEMA, Decoder
from tidemill.types import TopicPartition

data = build_batch([Record(0, 1, b"k", b"v")])
decoder = Decoder(TopicPartition("orders", 3), 0, 9, SCHEMA.names)
rows = decoder.decode([(header_at(data), memoryview(data))])
assert rows.num_rows == 1
print(*sorted({"pandas", "tidemill.config"} & sys.modules.keys()))
"""


def test_a_worker_that_reads_or_commits_imports_neither_pandas_nor_the_settings_of_brokers() -> None:
    done = subprocess.run([sys.executable, "-c", TASKS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
