"""Measures the Spark source, segment scan and sink beside Spark's own Kafka connector."""

SOURCE, SCAN, SINK = "spark-source", "spark-scan", "spark-sink"
# In the order of the report.
FAMILIES = (SOURCE, SCAN, SINK)
