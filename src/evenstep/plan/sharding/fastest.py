"""Which of several plans of a sequence is the best: the one whose slowest rank is the fastest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.errors import ConfigurationError
from evenstep.plan.sharding.kernel_latency import KernelLatency
from evenstep.plan.sharding.sharding import Sharding

__all__ = ["fastest"]


def fastest(plans: Sequence[Sharding], latency: KernelLatency) -> Sharding:
    """Of plans that are equally fast the one with the fewest fragments, and of these the first.

    Raises:
        ConfigurationError: a latency is not a number.
    """
    # One call for all plans: what a call costs by itself can be more than what its fragments do.
    queries = np.concatenate([plan.end - plan.start for plan in plans])
    keys = np.concatenate([plan.end for plan in plans])
    fragments = np.concatenate([plan.fragments for plan in plans])
    ranks = np.zeros(len(fragments))
    np.add.at(ranks, np.arange(len(fragments)).repeat(fragments), latency(queries, keys))
    slowest = ranks.reshape(len(plans), -1).max(axis=1)
    if not np.isfinite(slowest).all():
        raise ConfigurationError(
            f"latency={latency!r} predicts {slowest.tolist()} for the slowest ranks; it must "
            "return a finite number for every fragment"
        )
    order = np.lexsort(([len(plan.document) for plan in plans], slowest))
    return plans[int(order[0])]
