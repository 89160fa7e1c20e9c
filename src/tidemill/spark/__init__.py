"""Tidemill on Spark through PySpark: a source, a sink, a topic as a table, and ready pipelines.

Needs `tidemill[spark]` and Java 17.
"""
