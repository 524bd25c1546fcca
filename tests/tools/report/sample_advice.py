"""Advice over a few samples, made once for the tests of its texts."""

from __future__ import annotations

from functools import cache

import numpy as np

from evenstep.cost import PaddedTokenCost
from evenstep.plan import Even, FixedBatch, Policy
from evenstep.plan.policies.by_name import PolicyOptions
from evenstep.tools.advise import Advice, LengthSample, advise, set_up

__all__ = ["NAME", "made"]

NAME = "chat<&>.parquet:tokens"


def _broken(options: PolicyOptions) -> Policy:
    raise ImportError("needs <numba>")


@cache
def made(*, whole: bool = False) -> Advice:
    """Advice of three policies, of which one cannot run; from drawn samples, or from all."""
    lengths = np.random.default_rng(1).lognormal(5, 1, 160).astype(np.int64) + 1
    length_sample = LengthSample(
        name=NAME,
        lengths=lengths,
        total=len(lengths) if whole else 600,
        longest=int(lengths.max()) if whole else None,
        how="drawn at random",
    )
    return advise(
        length_sample,
        {
            "even": lambda s: Even(s.max_tokens, cost=s.cost),
            "fixed-batch": lambda s: FixedBatch(s.batch_size, cost=s.cost),
            "broken": _broken,
        },
        setup=set_up(length_sample, world_size=2),
        cost=PaddedTokenCost(),
    )
