"""Streaming queries that read all there is and end.

Spark starts a process for each streaming source in Python and waits ten seconds for it, which no setting changes. Where
dozens of processes wait for a core it takes longer. The query then fails with the words below, and is started again.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

LIMIT_S = 300
_TOO_SLOW = "Python worker failed to connect back"
_TRIES = 20


def ended(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """The query that `start` starts, at its end."""
    for tries_left in reversed(range(_TRIES)):
        query = start()
        try:
            assert query.awaitTermination(LIMIT_S), "the query did not end"
        except StreamingQueryException as failure:
            if not tries_left or _TOO_SLOW not in str(failure):
                raise
        else:
            break
    return query
