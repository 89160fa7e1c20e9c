"""Record batches become Arrow batches and Arrow rows become record batches, with no Python object for a record.

`pa.array` and `pa.scalar` import pandas, which takes 0.2 s of a core in each new worker. What is here does without.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def array_of(numbers: NDArray[Any]) -> pa.Array:
    """Returns an array over the same memory."""
    numbers = np.ascontiguousarray(numbers)
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)]
    )


def scalar_of(data: bytes, of: pa.DataType) -> pa.Scalar:
    """One value of a binary or string type."""
    offsets = np.array([0, len(data)], dtype=np.int32)
    return pa.Array.from_buffers(of, 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])[0]
