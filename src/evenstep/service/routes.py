"""Where samples of one plan are in another plan of the same samples."""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.strategy import Assignment

__all__ = ["routes"]


def routes(assignment: Assignment, rows: Int64Array) -> Int64Array:
    """[n, 3] bucket, micro-batch and place of each; -1 for one that is in none.

    Args:
        rows: [n] of the plan.
    """
    columns = (assignment.bucket, assignment.micro_batch, assignment.order)
    return np.stack([column[rows].astype(np.int64) for column in columns], axis=1)
