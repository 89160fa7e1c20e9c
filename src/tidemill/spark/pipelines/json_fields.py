"""Fields of JSON values as columns. What is no JSON, or lacks the field, gives null; nothing here fails on a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.spark.pipelines import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column

# A number of this size or more is in milliseconds: in seconds it would be the year 5138.
_MILLISECONDS_MIN = 100_000_000_000


def field_text(field: str) -> Column:
    """`customer.country` of the record's value, as text."""
    from pyspark.sql import functions as f

    return f.get_json_object(f.col("value").cast("string"), _path(field))


def field_number(field: str) -> Column:
    return field_text(field).try_cast("double")


def field_time(field: str) -> Column:
    """Seconds or milliseconds since 1970, or a text such as 2026-03-01T12:00:00Z."""
    from pyspark.sql import functions as f

    text = field_text(field)
    number = text.try_cast("double")
    seconds = f.when(number >= _MILLISECONDS_MIN, number / 1000).otherwise(number)
    return f.when(number.isNull(), text.try_cast("timestamp")).otherwise(seconds.cast("timestamp"))


def _path(field: str) -> str:
    parts = field.split(".")
    if not all(parts) or "'" in field:
        raise PipelineError(f"{field!r} is not a field: it should be a name, or names with dots between them")
    return "$" + "".join(f"['{part}']" for part in parts)
