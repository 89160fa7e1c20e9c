"""Orders of 100 or more. One function for both: this file is also a pipeline of its own.

tidemill pipeline run examples/spark/declarative/large_orders.py --from-topic orders --to-topic large-orders
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

ORDER = "id STRING, customer STRING, amount DOUBLE"


def pipeline(source: DataFrame) -> DataFrame:
    """Takes the columns of the source, returns the key and what becomes the JSON of the value."""
    orders = source.select("key", f.from_json(f.col("value").cast("string"), ORDER).alias("order"))
    return orders.where("order.amount >= 100").select("key", "order.id", "order.customer", "order.amount")
