"""`Assignment`: to which bucket each sample of a step goes, in which micro-batch, in which order.

Invariants: the samples of a micro-batch are numbered 0, 1, 2, ... without gaps; and all buckets
have the same number of micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import BoolArray, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.partition.items import Costs, sums

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False, kw_only=True)
class Assignment:
    """Columns with one entry per sample of a plan."""

    bucket: Int32Array
    """[samples] int32, -1 for a sample in no bucket."""
    micro_batch: Int32Array
    """[samples] int32 within the bucket, -1 as above."""
    order: Int32Array
    """[samples] int32 index within the micro-batch, -1 as above."""
    buckets: int
    micro_batches: int
    """Micro-batches of each bucket."""

    @classmethod
    def of(
        cls,
        bucket: npt.ArrayLike,
        micro_batch: npt.ArrayLike,
        order: npt.ArrayLike,
        *,
        buckets: int,
        micro_batches: int,
    ) -> Assignment:
        """An assignment from columns of any integer type."""
        columns = {"bucket": bucket, "micro_batch": micro_batch, "order": order}
        given = {name: np.asarray(column, np.int32) for name, column in columns.items()}
        return cls(**given, buckets=buckets, micro_batches=micro_batches)

    def __len__(self) -> int:
        return len(self.bucket)

    @cached_property
    def placed(self) -> BoolArray:
        """[samples] whether each is in a bucket."""
        return self.bucket >= 0

    @cached_property
    def micro_batch_number(self) -> Int64Array:
        """[samples] number of the micro-batch among those of all buckets, bucket after bucket; -1
        for a sample in no bucket."""
        numbers = self.bucket.astype(np.int64) * self.micro_batches + self.micro_batch
        return np.where(self.placed, numbers, -1)

    @cached_property
    def rows(self) -> Int64Array:
        """[placed] samples that are in a bucket, micro-batch after micro-batch, in order."""
        keys = (self.micro_batch_number << 32) + self.order  # unique among samples in a bucket
        return keys.argsort()[np.count_nonzero(~self.placed) :]

    @cached_property
    def offsets(self) -> Int64Array:
        """[buckets x micro_batches + 1] micro-batch k is ``rows[offsets[k]:offsets[k + 1]]``."""
        numbers = self.micro_batch_number[self.placed]
        counts = np.bincount(numbers, minlength=self.buckets * self.micro_batches)
        return np.append(0, counts.cumsum())

    def members(self, bucket: int, micro_batch: int) -> Int64Array:
        """Samples of a micro-batch, in order.

        Raises:
            ConfigurationError: there is no such micro-batch.
        """
        limits = {"bucket": self.buckets, "micro_batch": self.micro_batches}
        for (name, limit), value in zip(limits.items(), (bucket, micro_batch)):
            if not 0 <= value < limit:
                raise ConfigurationError(f"{name}={value} must be from 0 to {limit - 1}")
        k = bucket * self.micro_batches + micro_batch
        return self.rows[self.offsets[k] : self.offsets[k + 1]]

    def sums(self, values: Costs) -> Costs:
        """[buckets, micro_batches] sum of the values of the samples in each micro-batch."""
        numbers = self.micro_batch_number[self.placed]
        total: Costs = sums(values[self.placed], numbers, self.buckets * self.micro_batches)
        return total.reshape(self.buckets, self.micro_batches)

    def __getstate__(self) -> dict[str, Any]:
        # Cached properties are not pickled.
        return {field.name: getattr(self, field.name) for field in fields(self)}
