"""Water filling: how equal micro-batches become when short documents are added.

Short documents are so many and so small that they are as good as water. A vessel is a micro-batch
with its long documents in it: they are its floor, and the cap on tokens is its rim. Water runs to
where the surface is lowest, and a vessel that is full takes no more.

Three vessels with floors at 0, 2 and 5 and depths of 10 take 6 units of water: 2 raise the first to
2, and 4 raise the first two to 4. The surface is at 4, and the third vessel stays dry.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array


def water_fill(
    floors: npt.NDArray[np.floating], depths: npt.NDArray[np.integer], supply: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Fills vessels with water.

    Args:
        floors: [cases, vessels] height of the floor of each vessel.
        depths: [cases, vessels] from the floor to the rim; none negative.
        supply: [cases] water, in units of height in one vessel; none negative.

    Returns:
        [cases] height of the surface in vessels that are not full, and [cases] water that was
        poured, which is less than the supply where all vessels are full.
    """
    # The water below a height is linear between the heights of floors and rims.
    heights = np.concatenate([floors, floors + depths], axis=1)  # [cases, 2 x vessels]
    heights.sort(axis=1)
    above = heights[:, :, None] - floors[:, None, :]  # [cases, heights, vessels]
    # below: [cases, heights] water up to each height
    below = np.minimum(np.maximum(above, 0.0), depths[:, None, :]).sum(axis=2)
    poured = np.minimum(supply, below[:, -1])
    last = heights.shape[1] - 1
    upper = np.minimum(np.maximum((below < poured[:, None]).sum(axis=1), 1), last)
    rows = np.arange(len(floors))
    low, high = below[rows, upper - 1], below[rows, upper]
    share = (poured - low) / np.maximum(high - low, 1e-12)
    base = heights[rows, upper - 1]
    return base + share * (heights[rows, upper] - base), poured
