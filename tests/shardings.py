"""Shardings to test with: those of the library, and arbitrary ones."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from evenstep.plan.sharding import METHODS, Sharding, shard


@st.composite
def shardings(draw: st.DrawFn, lengths: list[int] | None = None, most: int = 4) -> Sharding:
    """By every method and at random; ranks may have no token.

    Args:
        lengths: those of the documents; None draws them.
        most: the largest number of ranks.
    """
    if lengths is None:
        lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    ranks = draw(st.integers(1, most))
    method = draw(st.sampled_from((*METHODS, "random")))
    if method != "random":
        return shard(lengths, ranks, methods=(method,))
    seed, cuts = draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 12))
    return random_sharding(lengths, ranks, seed, cuts)


def random_sharding(lengths: list[int], ranks: int, seed: int, cuts: int = 6) -> Sharding:
    """Chunks at random places on random ranks, the fragments of a rank in any order; ranks may
    have very different numbers of tokens, or none."""
    made = np.random.default_rng(seed)
    inner = np.sort(made.integers(0, sum(lengths) + 1, cuts))
    bounds = [0, *inner.tolist(), sum(lengths)]
    chunks = any_chunks(lengths, bounds, made.integers(0, ranks, cuts + 1).tolist(), ranks)
    owner = np.arange(ranks).repeat(np.diff(chunks.offsets))
    order = np.lexsort((made.random(len(owner)), owner))
    parts = {name: getattr(chunks, name)[order] for name in ("document", "start", "end")}
    return Sharding(lengths=chunks.lengths, offsets=chunks.offsets, method="random", **parts)


def any_chunks(lengths: list[int], bounds: list[int], owners: list[int], ranks: int) -> Sharding:
    """A sharding without balance; ranks may have no tokens at all."""
    arrays = (np.array(values, np.int64) for values in (lengths, bounds, owners))
    return Sharding.of_chunks(*arrays, ranks, "any")
