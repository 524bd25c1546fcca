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
    ranks = np.arange(1, options.ranks + 1)
    longest = int(lengths.argmax())
    # [ranks] what a rank receives, as in `Exchange.of`
    exchange = options.exchange
    rate = np.where(ranks <= exchange.node, exchange.within, exchange.between)
    received = rate * lengths[longest] * (ranks - 1) / ranks
    own = float(attention[longest]) / ranks
    alone = (float(cost[longest]) - float(attention[longest])) / ranks + np.maximum(own, received)
    fits = ranks * options.tokens_per_rank >= lengths[longest]
    return max(mean, float(alone[fits].min()))
