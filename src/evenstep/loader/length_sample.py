"""Lengths of a few samples, measured before the first step."""

from __future__ import annotations

import time

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.batch.random_state import keeping_random_state
from evenstep.errors import SampleError, described
from evenstep.loader.options import LoaderOptions
from evenstep.loader.workers.seeding import epoch_seed, sample_seed, seed_everything


def length_sample(
    options: LoaderOptions, samples: int, *, seconds: float = float("inf"), fewest: int = 1
) -> tuple[Int64Array, float]:
    """Of a map-style dataset, drawn at random, but alike on all ranks and for any number of them.

    Bad samples are left out: the loader skips them, or says what is bad.

    Args:
        samples: how many to draw.
        seconds: draw no more after so long, except for `fewest`. Ranks may differ then.

    Returns:
        [measured] lengths; and which share of the samples drawn they are.

    Raises:
        SampleError: all of them are bad.
    """
    source, policy, of_epoch = options.source, options.policy, epoch_seed(options.seed, 0)
    size, longest = len(source), policy.max_length
    lengths: list[int] = []
    until = time.monotonic() + seconds
    bad = ""
    order = np.random.default_rng(options.seed).choice(size, min(size, samples), replace=False)
    with keeping_random_state():
        for drawn, index in enumerate(order.tolist(), 1):
            name = f"sample {index}"
            try:
                seed_everything(sample_seed(of_epoch, index))
                sample = source[index]
                if options.prepare is not None:
                    sample = options.prepare(sample, name)
                length = int(options.measure([sample], [name])[0, 0])
            except Exception as error:
                bad = described(error)
            else:
                if longest is None or length <= longest:
                    lengths.append(length)
                else:
                    bad = f"{name} has {length:,} tokens, over max_tokens={longest:,}"
            if drawn >= fewest and time.monotonic() > until:
                break
    if not lengths:
        raise SampleError(f"none of {drawn} samples is good: {bad}")
    return np.array(lengths, np.int64), len(lengths) / drawn
