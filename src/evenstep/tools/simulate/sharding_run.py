"""Methods of context-parallel sharding, run over the sequences of original packing.

Sequences are documents end to end, cut every `context` tokens; the part beyond a cut begins the
next sequence as a separate document. So every sequence is full, as it is in a training with context
parallelism.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.packing.window_packing import cut_at_windows
from evenstep.plan.sharding import (
    METHODS,
    KernelLatency,
    Sharding,
    TileLatency,
    shard,
)
from evenstep.plan.sharding.attention_tiles import TILE
from evenstep.tools.simulate.distributions import DISTRIBUTIONS, sample_lengths
from evenstep.tools.simulate.lengths import load_lengths


def draw_sequences(
    spec: str, *, context: int, sequences: int | None = None, seed: int = 0
) -> list[Int64Array]:
    """Draws sequences of exactly `context` tokens.

    Args:
        spec: lengths of documents, as `load_lengths` takes it. Those of a file keep its order.
        context: tokens of a sequence.
        sequences: sequences to return. From a file that holds fewer, and with None, all are
            returned.
        seed: seed of the lengths drawn from a distribution.

    Returns:
        [documents] int64 lengths of each sequence.

    Raises:
        ConfigurationError: as `load_lengths`; or the file fills less than one sequence.
    """
    check_at_least(1, context=context, sequences=sequences)
    if spec in DISTRIBUTIONS:
        lengths = _enough(spec, context * (sequences or 1), seed)
    else:
        lengths = load_lengths(spec, seed=seed)
    cut = cut_at_windows(lengths, context)
    whole = int(lengths.sum()) // context
    if not whole:
        raise ConfigurationError(
            f"{spec} holds {int(lengths.sum()):,} tokens, less than one sequence of {context:,}; "
            "give more documents or a smaller context"
        )
    bounds = cut.windows.offsets
    count = whole if sequences is None else min(whole, sequences)
    return [cut.pieces.lengths[bounds[at] : bounds[at + 1]] for at in range(count)]


def run_sharding(
    sequences: Sequence[Int64Array],
    ranks: int,
    *,
    latency: KernelLatency | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Shards every sequence with each method, and adaptively.

    Args:
        sequences: [documents] int64 lengths of each.
        ranks: context-parallel ranks.
        latency: the model by which adaptive and hybrid sharding decide; None counts tiles.
        progress: called with (done, total) sequences.

    Returns:
        Means over sequences, and under names that end in ``_max`` maxima. For each method, and for
        "adaptive": ``pair_imbalance``, the query-key pairs of the rank with most over the mean;
        ``tile_imbalance``, the pairs that the slowest rank computes in whole tiles over the mean of
        the pairs needed; ``latency_over_best``, predicted time of the slowest rank over that of the
        best method; ``fragments_per_rank``; and ``chosen``, the sequences for which adaptive
        sharding took the method. ``tile_imbalance_oracle`` is the least of all plans.

    Raises:
        ConfigurationError: as `shard`; or there are no sequences.
    """
    if not len(sequences):
        raise ConfigurationError("there are no sequences to shard; give at least one")
    tiles = TileLatency()
    model = tiles if latency is None else latency
    shard(sequences[0], ranks, latency=model)  # a first call takes longer
    plans: dict[str, list[Sharding]] = {name: [] for name in (*METHODS, "adaptive")}
    oracle, milliseconds = [], []
    for done, lengths in enumerate(sequences):
        for method in METHODS:
            plans[method].append(shard(lengths, ranks, latency=model, methods=(method,)))
        started = time.thread_time()
        plans["adaptive"].append(shard(lengths, ranks, latency=model))
        milliseconds.append((time.thread_time() - started) * 1e3)
        made = [each[-1] for each in plans.values()]
        if latency is not None:
            made.append(shard(lengths, ranks, latency=tiles))
        oracle.append(min(_tile_imbalance(plan) for plan in made))
        if progress is not None:
            progress(done + 1, len(sequences))
    seconds = {name: _each(own, lambda p: p.latency(model).max()) for name, own in plans.items()}
    best = np.min(list(seconds.values()), axis=0)
    chosen = [plan.method for plan in plans["adaptive"]]
    found: dict[str, Any] = {"sequences": len(sequences), "cp": ranks, "tile": TILE}
    for name, own in plans.items():
        key = name.replace("-", "_")
        pairs = _each(own, lambda p: p.pairs.max() / p.pairs.mean())
        whole = _each(own, _tile_imbalance)
        found |= {
            f"pair_imbalance_{key}": float(pairs.mean()),
            f"pair_imbalance_{key}_max": float(pairs.max()),
            f"tile_imbalance_{key}": float(whole.mean()),
            f"tile_imbalance_{key}_max": float(whole.max()),
            f"latency_over_best_{key}": float((seconds[name] / best).mean()),
            f"fragments_per_rank_{key}": float(_each(own, lambda p: p.fragments.mean()).mean()),
        }
    every = [plan for own in plans.values() for plan in own]
    return {
        **found,
        **{f"chosen_{name.replace('-', '_')}": chosen.count(name) for name in METHODS},
        "tile_imbalance_oracle": float(np.mean(oracle)),
        "tile_imbalance_oracle_max": max(oracle),
        "tokens_per_rank_min": min(int(plan.tokens.min()) for plan in every),
        "tokens_per_rank_max": max(int(plan.tokens.max()) for plan in every),
        "padding": max(1 - float(plan.tokens.mean() / plan.tokens.max()) for plan in every),
        "plan_ms": float(np.mean(milliseconds)),
        "plan_ms_median": float(np.median(milliseconds)),
    }


def _each(plans: Sequence[Sharding], figure: Callable[[Sharding], float]) -> Float64Array:
    return np.array([figure(plan) for plan in plans], np.float64)


def _tile_imbalance(plan: Sharding) -> float:
    return int(plan.tiles().max()) * TILE * TILE / float(plan.pairs.mean())


def _enough(name: str, tokens: int, seed: int) -> Int64Array:
    """Lengths of documents with at least `tokens` tokens together."""
    # The mean of a draw differs little from that of the distribution, but clipping and few samples
    # can leave it below.
    count = tokens // int(DISTRIBUTIONS[name].mean) + 1
    while True:
        lengths = sample_lengths(name, count, seed)
        if int(lengths.sum()) >= tokens:
            return lengths
        count += count // 8 + 1
