"""Large payloads of the source and the sink: claims become values, and values above a threshold become claims.

Only rows with a claim or a large value are touched one by one; all others stay in their Arrow columns. The source cuts its
batches so that the payloads in one of them stay within what Spark moves well. A claim that cannot be resolved fails the
task, with an error that names the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.claims.claim import CLAIM_HEADERS, CLAIM_VALUE, Claim, Place, parse_claim
from tidemill.claims.large_payloads import LargePayloads
from tidemill.errors import TidemillError
from tidemill.spark.arrow.fields import HEADERS

_NEEDED = ("value", "headers", "topic", "partition", "offset")

_Pairs = list[tuple[str, bytes | None]]


# --- the source ---


def columns_to_read(columns: Sequence[str]) -> list[str]:
    """The columns of a query, and those that say where the payload of a value is."""
    if "value" not in columns:
        return list(columns)
    return [*columns, *(name for name in _NEEDED if name not in columns)]


def resolved(
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[str],
    large_payloads: LargePayloads,
    bytes_max: int,
) -> Iterator[pa.RecordBatch]:
    """The rows with payloads in place of claims, and only these columns. `batches` have `columns_to_read`.

    The payloads in one batch have about `bytes_max`, or are one.
    """
    for rows in batches:
        claims = _claims(rows) if "value" in columns else {}
        for first, end in _cuts(rows.num_rows, claims, bytes_max):
            inside = {index - first: claim for index, claim in claims.items() if first <= index < end}
            part = rows.slice(first, end - first)
            yield (_with_payloads(part, inside, large_payloads) if inside else part).select(list(columns))


def _claims(rows: pa.RecordBatch) -> dict[int, Claim]:
    """By the index of its row."""
    lengths = pc.binary_length(rows.column("value")).fill_null(-1).to_numpy(zero_copy_only=False)
    claims: dict[int, Claim] = {}
    for index in map(int, np.flatnonzero(lengths == 0)):
        claim = parse_claim(CLAIM_VALUE, _pairs(rows, index), _place(rows, index))
        if claim is not None:
            claims[index] = claim
    return claims


def _cuts(row_count: int, claims: dict[int, Claim], bytes_max: int) -> Iterator[tuple[int, int]]:
    """First and end of runs of rows whose payloads have about `bytes_max`, or are one."""
    first = size = 0
    for index, claim in claims.items():
        if size and size + claim.size > bytes_max:
            yield first, index
            first, size = index, 0
        size += claim.size
    if first < row_count:
        yield first, row_count


def _with_payloads(
    rows: pa.RecordBatch, claims: dict[int, Claim], large_payloads: LargePayloads
) -> pa.RecordBatch:
    payloads = [large_payloads.read(claim, _place(rows, index)) for index, claim in claims.items()]
    headers: list[_Pairs | None] = _all_pairs(rows)
    for index in claims:
        headers[index] = [pair for pair in headers[index] or [] if pair[0] not in CLAIM_HEADERS]
    return _replaced(rows, list(claims), payloads, headers)


# --- the sink ---


def stored(rows: pa.RecordBatch, topic: str, large_payloads: LargePayloads) -> pa.RecordBatch:
    """The rows with claims in place of large values, which are in the store when this returns."""
    values = rows.column("value")
    if values.null_count == len(values):
        return rows
    values = values.cast(pa.binary())
    lengths = pc.binary_length(values).fill_null(-1).to_numpy(zero_copy_only=False)
    large = [int(index) for index in np.flatnonzero(lengths > large_payloads.threshold_bytes)]
    if not large:
        return rows
    headers = _all_pairs(rows)
    for index in large:
        pairs = headers[index] or []
        if any(name in CLAIM_HEADERS for name, _ in pairs):
            raise TidemillError(
                f"write to {topic}: headers of claims are for rows without a value; drop them from the column headers"
            )
        claim = large_payloads.put(topic, values[index].as_py())
        headers[index] = [*pairs, *claim.headers()]
    return _replaced(
        rows.set_column(rows.schema.get_field_index("value"), "value", values), large, None, headers
    )


# --- both ---


def _replaced(
    rows: pa.RecordBatch, indexes: list[int], payloads: list[bytes] | None, headers: list[_Pairs | None]
) -> pa.RecordBatch:
    """Other values at these indexes, empty ones unless they are given, and other headers for all rows."""
    mask = np.zeros(rows.num_rows, dtype=np.bool_)
    mask[indexes] = True
    new = pa.array(payloads or [CLAIM_VALUE] * len(indexes), pa.binary())
    values = pc.replace_with_mask(rows.column("value"), pa.array(mask), new)
    rows = rows.set_column(rows.schema.get_field_index("value"), "value", values)
    dicts = [
        None if pairs is None else [{"key": name, "value": content} for name, content in pairs]
        for pairs in headers
    ]
    column = pa.array(dicts, HEADERS)
    at = rows.schema.get_field_index("headers")
    return rows.append_column("headers", column) if at < 0 else rows.set_column(at, "headers", column)


def _place(rows: pa.RecordBatch, index: int) -> Place:
    return Place(*(rows.column(name)[index].as_py() for name in ("topic", "partition", "offset")))


def _pairs(rows: pa.RecordBatch, index: int) -> _Pairs:
    return [(each["key"], each["value"]) for each in rows.column("headers")[index].as_py() or ()]


def _all_pairs(rows: pa.RecordBatch) -> list[_Pairs | None]:
    if "headers" not in rows.schema.names:
        return [None] * rows.num_rows
    return [
        None if pairs is None else [(each["key"], _bytes(each["value"])) for each in pairs]
        for pairs in rows.column("headers").to_pylist()
    ]


def _bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
