"""Where the documents of a packed row lie: one after the other, each with room for its padding.

A row is documents 0 to n - 1, each its real tokens and then its own padding, and at the end, where
the row as a whole is padded, document n, which is padding only. So padding comes after everything
real that it could disturb: causal attention within documents never lets a real token see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from evenstep.arrays import rounded_up


@dataclass(frozen=True)
class RowLayout:
    """Lengths are in tokens; `T` is the sum of all rooms."""

    lengths: tuple[int, ...]
    """Real tokens of each document; 0 for the last where it is padding only."""
    rooms: tuple[int, ...]
    """The same, padding included."""

    @classmethod
    def of(cls, lengths: list[int], *, document_multiple: int, row_multiple: int) -> RowLayout:
        """Pads each document, then the row, to a multiple; 1 pads nothing."""
        rooms: Sequence[int] = lengths
        if document_multiple > 1:
            rooms = [rounded_up(length, document_multiple) for length in lengths]
        rest = rounded_up(sum(rooms), row_multiple) - sum(rooms)
        if rest:
            return cls((*lengths, 0), (*rooms, rest))
        return cls(tuple(lengths), tuple(rooms))

    @property
    def longest(self) -> int:
        """Tokens of the longest document, padding included."""
        return max(self.rooms)

    @property
    def padded(self) -> bool:
        return self.lengths != self.rooms

    @property
    def starts(self) -> list[int]:
        """Where each document begins in the row."""
        return [0, *accumulate(self.rooms)][:-1]

    def cu_seqlens(self, *, padded: bool) -> torch.Tensor:
        """int32 [documents + 1]: sums of `rooms` if padded, of `lengths` if not."""
        sizes = self.rooms if padded else self.lengths
        return torch.tensor([0, *accumulate(sizes)], dtype=torch.int32)

    def documents(self) -> torch.Tensor:
        """int32 [T]: the document of each token; padding belongs to the document before it."""
        return torch.from_numpy(self._spread(np.arange(len(self.rooms), dtype=np.int32)))

    def positions(self) -> torch.Tensor:
        """int64 [T]: counts from 0 in every document, on through its padding."""
        positions = np.arange(sum(self.rooms))
        positions -= self._spread(np.array(self.starts))
        return torch.from_numpy(positions)

    def place(self, real: torch.Tensor, fill: float | torch.Tensor) -> torch.Tensor:
        """Puts real tokens into the row.

        Args:
            real: [sum of lengths, ...].
            fill: what padding gets: a number, or a tensor [T] of which it takes its part.

        Returns:
            [T, ...], `real` itself where nothing is padded.
        """
        if not self.padded:
            return real
        total = sum(self.rooms)
        if isinstance(fill, torch.Tensor):
            row = fill.to(real.dtype, copy=True)
        else:
            row = real.new_full((total, *real.shape[1:]), fill)
        lengths = torch.tensor(self.lengths)
        before = lengths.cumsum(0) - lengths  # real tokens in front of each document
        shift = torch.repeat_interleave(torch.tensor(self.starts) - before, lengths)
        row[torch.arange(len(shift)) + shift] = real
        return row

    def _spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One value per document to one per token. NumPy does it several times as fast as torch."""
        return values.repeat(self.rooms)
