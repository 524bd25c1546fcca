"""What no plan can be below."""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.dynamic_context.options import DynamicContext


def least_step(lengths: Int64Array, options: DynamicContext) -> float:
    """Cost of a step at least, in any number of micro-batches: that of the slowest rank of each,
    added up.

    The larger of the mean of all ranks, nothing waited for and no tile cut, and the document that
    is slowest on the number of ranks that suits it best: on more, exchange takes longer than the
    attention that it would save.

    Args:
        lengths: [documents] int64 tokens of each.
    """
    if not len(lengths):
        return 0.0
    attention = options.attention(lengths)
    cost = options.cost.linear * lengths + attention
    mean = float(cost.sum()) / options.ranks
    return max(mean, least_alone(int(lengths.max()), options))


def least_alone(length: int, options: DynamicContext) -> float:
    """Cost of the slowest rank, at least, of a document on the number of ranks that suits it best;
    no micro-batch that has it takes less."""
    ranks = np.arange(1, options.ranks + 1)
    # [ranks] what a rank receives, as in `Exchange.of`
    exchange = options.exchange
    rate = np.where(ranks <= exchange.node, exchange.within, exchange.between)
    received = rate * length * (ranks - 1) / ranks
    own = float(options.attention(np.array([length]))[0]) / ranks
    alone = options.cost.linear * length / ranks + np.maximum(own, received)
    return float(alone[ranks * options.tokens_per_rank >= length].min())
