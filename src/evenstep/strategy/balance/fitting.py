"""How many samples fit under the token cap."""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array


def count_within(tokens: Int64Array, bins: int, cap: int | None) -> int:
    """How many samples, in the order drawn, have no more tokens than all bins hold."""
    if cap is None:
        return len(tokens)
    return int(np.searchsorted(tokens.cumsum(), bins * cap, side="right"))
