"""NumPy array types for annotations, and running sums. Tokens and ids are int64 everywhere."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

_Number = TypeVar("_Number", np.int64, np.float64)


def prefix_sums(values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """[n + 1] sums of the first 0, 1, ..., n values."""
    sums = np.zeros(len(values) + 1, values.dtype)
    values.cumsum(out=sums[1:])
    return sums
