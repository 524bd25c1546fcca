"""Names of NumPy array types for annotations. Tokens and ids are int64 everywhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
