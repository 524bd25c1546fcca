"""Shardings to test with: those of the library, and arbitrary ones."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from evenstep.plan.sharding import METHODS, Sharding, shard


@st.composite
def shardings(draw: st.DrawFn, lengths: list[int] | None = None, most: int = 5) -> Sharding:
    """
    Args:
        lengths: those of the documents; None draws them.
        most: the largest number of ranks.
    """
    if lengths is None:
        lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    ranks = draw(st.integers(1, most))
    method = draw(st.sampled_from((*METHODS, "any")))
    if method != "any":
        return shard(lengths, ranks, methods=(method,))
    total = sum(lengths)
    inner = draw(st.lists(st.integers(0, total), max_size=12))
    owners = draw(
        st.lists(st.integers(0, ranks - 1), min_size=len(inner) + 1, max_size=len(inner) + 1)
    )
    return any_chunks(lengths, [0, *sorted(inner), total], owners, ranks)


def any_chunks(lengths: list[int], bounds: list[int], owners: list[int], ranks: int) -> Sharding:
    """A sharding without balance; ranks may have no tokens at all."""
    arrays = (np.array(values, np.int64) for values in (lengths, bounds, owners))
    return Sharding.of_chunks(*arrays, ranks, "any")
