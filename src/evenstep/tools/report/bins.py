"""Counts lengths in bins of equal width on a logarithmic scale, with whole numbers as edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array


@dataclass(frozen=True)
class Bins:
    """Bin b counts lengths from ``edges[b]`` to ``edges[b + 1] - 1``; they cover all lengths."""

    edges: Int64Array
    """[bins + 1] strictly increasing."""
    shares: npt.NDArray[np.float64]
    """[bins] share of all samples."""

    @classmethod
    def count(cls, lengths: Int64Array, bins: int) -> Bins:
        """Counts `lengths` in `bins` bins, or fewer if they span few whole numbers."""
        low, high = int(lengths.min()), int(lengths.max()) + 1
        edges = np.unique(np.rint(np.geomspace(low, high, bins + 1)).astype(np.int64))
        counts, _ = np.histogram(lengths, edges)
        return cls(edges, counts / len(lengths))

    def __len__(self) -> int:
        return len(self.shares)

    def holds(self, index: int, tokens: float) -> bool:
        """Whether a sample of `tokens` would be counted in this bin."""
        return bool(self.edges[index] <= tokens < self.edges[index + 1])
