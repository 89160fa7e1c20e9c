"""Spark looks here, by this module's name, for what `format("tidemill")` means."""

from tidemill.spark.data_source import TidemillDataSource as DefaultSource

__all__ = ["DefaultSource"]
