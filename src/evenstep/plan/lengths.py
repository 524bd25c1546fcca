"""The lengths of a whole data set, for policies that plan offline."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError

MAX_LENGTH = 2**31 - 1
"""Planners keep a length and a position in one int64."""


@dataclass(frozen=True, eq=False)
class Lengths:
    """[samples] int64 tokens of each sample, by dataset index. Equal if the numbers are.

    Raises:
        ConfigurationError: the array is not one-dimensional, not of integers, or empty; or a length
            is out of range.
    """

    values: Int64Array
    digest: int = field(init=False)

    def __post_init__(self) -> None:
        given = np.asarray(self.values)
        if given.ndim != 1 or not len(given) or given.dtype.kind not in "iu":
            raise ConfigurationError(
                f"lengths of shape {given.shape} and type {given.dtype} must be one dimension of "
                "integers, one for each sample of the dataset"
            )
        wrong = np.flatnonzero((given < 1) | (given > MAX_LENGTH))
        if len(wrong):
            raise ConfigurationError(
                f"{len(wrong):,} lengths are not from 1 to {MAX_LENGTH:,}, the first of them "
                f"{given[wrong[0]]} at position {wrong[0]}; remove these samples first"
            )
        values = np.array(given, "<i8")
        values.flags.writeable = False
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "digest", zlib.crc32(values.tobytes()))

    @classmethod
    def of(cls, given: Lengths | npt.ArrayLike) -> Lengths:
        """`Lengths` as they are, or made of an array."""
        return given if isinstance(given, cls) else cls(np.asarray(given))

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lengths) and np.array_equal(self.values, other.values)

    def __hash__(self) -> int:
        return self.digest

    def __repr__(self) -> str:
        return f"Lengths({len(self):,} samples, digest {self.digest:08x})"
