"""The order of a pool: sorted by length, then permuted alike on every rank."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.batch.measure import length_of
from evenstep.errors import SampleError
from evenstep.plan.rng import generator


def sample_key(sample: Any) -> int:
    """The default sort key: ``total_len`` or ``length``, else the number of ``tokens``, else that
    of ``input_ids``; a field of a mapping, or an attribute.

    Raises:
        SampleError: it has none of them.
    """

    def find(name: str) -> Any:
        return sample.get(name) if isinstance(sample, Mapping) else getattr(sample, name, None)

    for name in ("total_len", "length"):
        if (value := find(name)) is not None:
            return int(value)
    if (tokens := find("tokens")) is not None:
        return len(tokens)
    try:
        return length_of(sample)
    except SampleError as error:
        raise SampleError(
            f"a {type(sample).__name__} has no total_len, length, tokens or input_ids to sort by; "
            "pass key_fn=, a function from a sample to a number"
        ) from error


def pool_order(keys: Int64Array | Float64Array, size: int, *key: int) -> Int64Array:
    """[n] indices of a pool's samples in the order in which they come.

    Args:
        keys: [n] in any order; n is at most `size`.
        size: samples of a full pool. Those of a smaller one take evenly spaced entries of its
            permutation, so that like quantiles come at like times in pools of any size.
        key: of the permutation.
    """
    by_key = np.argsort(keys, kind="stable")
    turns = np.argsort(generator(*key).permutation(size))  # [size] when each quantile comes
    quantiles = (2 * np.arange(len(keys)) + 1) * size // (2 * max(len(keys), 1))  # [n]
    order: Int64Array = by_key[np.argsort(turns[quantiles])]
    return order


def reference_order(
    keys: Float64Array, size: int, *, before: int, seed: int, epoch: int
) -> Int64Array:
    """[n] indices of a pool's samples in the order of LengthPoolSortDataset of LLaVA-OneVision-2.

    A full pool is shuffled by a generator of its own, seeded with 42 and the number in the pass of
    the sample that filled it. What is left at the end is shuffled by a generator of the run, which
    has shuffled the ends of the passes before.

    Args:
        keys: [n] as for `pool_order`.
        before: samples of the pass before this pool.
        seed: of the run's generator.
        epoch: passes before this one; all ended with as many samples.
    """
    order = np.argsort(keys, kind="stable").tolist()
    if len(order) == size:
        random.Random(42 + before + size - 1).shuffle(order)
    else:
        of_run = random.Random(seed)
        for _ in range(epoch):
            of_run.shuffle(list(order))
        of_run.shuffle(order)
    return np.array(order, np.int64)
