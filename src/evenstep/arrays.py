"""NumPy array types for annotations, running sums and multiples. Tokens and ids are int64."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

_Number = TypeVar("_Number", np.int64, np.float64)
_Count = TypeVar("_Count", int, Int64Array)


def prefix_sums(values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """[n + 1] sums of the first 0, 1, ..., n values."""
    sums = np.zeros(len(values) + 1, values.dtype)
    values.cumsum(out=sums[1:])
    return sums


def rounded_up(count: _Count, multiple: int) -> _Count:
    """The next multiple, of a number or of each of an array."""
    return -(-count // multiple) * multiple
