"""Streaming queries that read all there is and end. One whose reader is late is started again, as pipelines do."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from tidemill.spark.session import is_late_worker

LIMIT_S = 300
_TRIES = 20


def ended(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """The query that `start` starts, at its end."""
    for tries_left in reversed(range(_TRIES)):
        query = start()
        try:
            assert query.awaitTermination(LIMIT_S), "the query did not end"
        except StreamingQueryException as failure:
            if not tries_left or not is_late_worker(failure):
                raise
        else:
            break
    return query
