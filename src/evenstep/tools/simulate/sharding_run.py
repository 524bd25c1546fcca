"""Methods of context-parallel sharding, run over the sequences of original packing.

Sequences are documents end to end, cut every `context` tokens; the part beyond a cut begins the
next sequence as a separate document. So every sequence is full, as it is in a training with context
parallelism.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from evenstep.arrays import Int64Array
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
from evenstep.plan.sharding.attention_tiles import TILE, causal_pairs
from evenstep.tools.simulate.distributions import DISTRIBUTIONS, sample_lengths
from evenstep.tools.simulate.lengths import load_lengths
from evenstep.tools.simulate.sharding_result import Figures, ShardingResult

_ADAPTIVE = "adaptive"


def draw_sequences(
    spec: str, *, context: int, sequences: int | None = None, seed: int = 0
) -> list[Int64Array]:
    """Sequences of exactly `context` tokens.

    Args:
        spec: lengths of documents, as `load_lengths` takes it.
        context: tokens of a sequence.
        sequences: sequences to return. From a file that holds fewer, and with None, all are
            returned.
        seed: seed of the lengths drawn from a distribution. Those of a file keep its order.

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
    tile: int = TILE,
    methods: Sequence[str] = METHODS,
    progress: Callable[[int, int], None] | None = None,
) -> ShardingResult:
    """Shards every sequence with each method, and adaptively.

    Args:
        sequences: [documents] int64 lengths of each.
        ranks: context-parallel ranks.
        latency: the model by which adaptive and hybrid sharding decide; None counts tiles of
            `tile`.
        tile: rows and columns of the tiles in which imbalance is measured.
        methods: the methods that adaptive sharding chooses from.
        progress: called with (done, total) sequences.

    Raises:
        ConfigurationError: as `shard`; or there are no sequences.
    """
    if not len(sequences):
        raise ConfigurationError("there are no sequences to shard; give at least one")
    tiles = TileLatency(tile=tile)
    model = tiles if latency is None else latency
    shard(sequences[0], ranks, latency=model, methods=methods)  # pays the costs of a first call
    plans: dict[str, list[Sharding]] = {name: [] for name in (*METHODS, _ADAPTIVE)}
    oracle, seconds = [], []
    for done, lengths in enumerate(sequences):
        for method in METHODS:
            plans[method].append(shard(lengths, ranks, latency=model, methods=(method,)))
        begun = time.thread_time()
        plans[_ADAPTIVE].append(shard(lengths, ranks, latency=model, methods=methods))
        seconds.append(time.thread_time() - begun)
        made = [own[-1] for own in plans.values()]
        if latency is not None:
            made.append(shard(lengths, ranks, latency=tiles))
        oracle.append(min(_tile_imbalance(plan, tile) for plan in made))
        if progress is not None:
            progress(done + 1, len(sequences))
    return ShardingResult(
        ranks=ranks,
        tile=tile,
        figures={name: _figures(own, model, tile) for name, own in plans.items()},
        oracle=np.array(oracle),
        chosen=Counter(plan.method for plan in plans[_ADAPTIVE]),
        plan_ms=np.array(seconds) * 1e3,
    )


def _figures(plans: Sequence[Sharding], latency: KernelLatency, tile: int) -> Figures:
    tokens = np.stack([plan.tokens for plan in plans])
    most = tokens.max(axis=1)
    real = np.array([int(plan.lengths.sum()) for plan in plans])
    return Figures(
        pair_imbalance=np.array([plan.pairs.max() / plan.pairs.mean() for plan in plans]),
        tile_imbalance=np.array([_tile_imbalance(plan, tile) for plan in plans]),
        latency=np.array([plan.latency(latency).max() for plan in plans]),
        fragments_per_rank=np.array([plan.fragments.mean() for plan in plans]),
        tokens_least=tokens.min(axis=1),
        tokens_most=most,
        padding=1 - real / (most * tokens.shape[1]),
    )


def _tile_imbalance(plan: Sharding, tile: int) -> float:
    needed = int(causal_pairs(0 * plan.lengths, plan.lengths).sum())
    return int(plan.tiles(tile).max()) * tile * tile * plan.ranks / needed


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
