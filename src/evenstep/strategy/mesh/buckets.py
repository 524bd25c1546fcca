"""Buckets at an axis, numbered by coordinates, and the groups that they form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array

__all__ = ["Buckets"]


@dataclass(frozen=True)
class Buckets:
    """Buckets at an axis, and the groups of buckets within which samples are balanced.

    Group g begins at bucket ``g * group_size``; the last group may have fewer buckets.
    """

    axis: str
    bucket_count: int
    group_size: int
    """Buckets of a group, at most `bucket_count`."""

    @property
    def group_count(self) -> int:
        """``ceil(bucket_count / group_size)``."""
        return -(-self.bucket_count // self.group_size)

    def members(self, group: int) -> Int64Array:
        """Buckets of a group."""
        first = group * self.group_size
        return np.arange(first, min(first + self.group_size, self.bucket_count), dtype=np.int64)
