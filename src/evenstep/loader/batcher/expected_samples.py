"""What an epoch that was planned offline expects of its samples; the batcher checks it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import SampleError

__all__ = ["ExpectedSamples"]


@dataclass(frozen=True)
class ExpectedSamples:
    """A rank's planned groups and the lengths they were planned by, by arrival number."""

    ends: Int64Array
    """[groups] arrival number at which each group ends."""
    lengths: Int64Array
    """[samples] tokens that each sample had when lengths were counted."""

    def check(self, numbers: Int64Array, lengths: Int64Array, indices: Sequence[Any]) -> None:
        """
        Args:
            numbers, lengths, indices: [samples] that have arrived.

        Raises:
            SampleError: a sample has another length now.
        """
        known = self.lengths[numbers]
        if (wrong := np.flatnonzero(known != lengths)).size:
            first = int(wrong[0])
            raise SampleError(
                f"sample {indices[first]!r} has {lengths[first]:,} tokens, and {known[first]:,} in "
                "the lengths that the epoch was planned by; count them again (evenstep lengths), "
                "or use a policy that needs no lengths in advance, such as evenstep.Even"
            )
