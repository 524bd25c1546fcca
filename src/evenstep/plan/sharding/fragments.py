"""Fragments while a plan is being made, in columns and in no particular order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.sharding.sharding import Sharding

__all__ = ["Fragments"]


@dataclass(frozen=True, kw_only=True)
class Fragments:
    """All columns are int64 [fragments]."""

    document: Int64Array
    start: Int64Array
    end: Int64Array
    owner: Int64Array
    """The rank that holds each."""

    def sharding(self, lengths: Int64Array, ranks: int, method: str) -> Sharding:
        """The plan; neighbours on one rank become one fragment."""
        first = (lengths.cumsum() - lengths)[self.document] + self.start
        order = first.argsort()
        bounds = np.append(first[order], lengths.sum())
        return Sharding.of_chunks(lengths, bounds, self.owner[order], ranks, method)
