"""`SourceStripe`: the part of a source that one loader owns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array

STRIPE = 16
"""Consecutive positions in a stripe."""


@dataclass(frozen=True, kw_only=True)
class SourceStripe:
    """The positions of a source that a loader owns: stripe `part`, `part + parts`, and so on."""

    source: str
    part: int = 0
    parts: int = 1
    stripe: int = STRIPE

    def owns(self, positions: Int64Array) -> npt.NDArray[np.bool_]:
        """[positions] whether each is owned."""
        owned: npt.NDArray[np.bool_] = (positions // self.stripe) % self.parts == self.part
        return owned

    def next_owned(self, position: int) -> int:
        """The first owned position from this one on."""
        stripe, part = position // self.stripe, (position // self.stripe) % self.parts
        ahead = (self.part - part) % self.parts
        return position if not ahead else (stripe + ahead) * self.stripe
