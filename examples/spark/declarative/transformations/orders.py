"""A topic becomes a streaming table, a view over it, and a stream of records into another topic.

`spark-pipelines` imports this file in the folder of spark-pipeline.yml, where `large_orders.py` is.
"""

import importlib
import os
import sys
from collections.abc import Callable

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

sys.path.insert(0, os.getcwd())
pipeline: Callable[[DataFrame], DataFrame] = importlib.import_module("large_orders").pipeline
spark = SparkSession.active()

BOOTSTRAP = os.environ.get("TIDEMILL_BOOTSTRAP", "127.0.0.1:9092")
FROM_TOPIC = os.environ.get("ORDERS_TOPIC", "orders")
TO_TOPIC = os.environ.get("LARGE_ORDERS_TOPIC", "large-orders")


def orders_topic() -> DataFrame:
    return (
        spark.readStream.format("tidemill")
        .option("kafka.bootstrap.servers", BOOTSTRAP)
        .option("subscribe", FROM_TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )


@dp.table
def large_orders() -> DataFrame:
    """Every large order once, in a table that other queries can read."""
    return pipeline(orders_topic())


@dp.materialized_view
def customers() -> DataFrame:
    """What each customer has ordered, computed anew from the table in every run."""
    totals = spark.read.table("large_orders").groupBy("customer")
    return totals.agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))


dp.create_sink("large_orders_topic", "tidemill", {"kafka.bootstrap.servers": BOOTSTRAP, "topic": TO_TOPIC})


@dp.append_flow(target="large_orders_topic")
def publish_large_orders() -> DataFrame:
    """The same orders as records of a topic: the key stays, the rest is JSON."""
    value = f.to_json(f.struct("id", "customer", "amount"))
    return pipeline(orders_topic()).select("key", value.alias("value"))
