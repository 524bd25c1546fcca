"""The scheduler for Megatron-LM beside that of the installed megatron-core."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

hybrid = pytest.importorskip(
    "megatron.core.pipeline_parallel.hybrid_cp_schedule", reason="megatron-core is not installed"
)

from evenstep.context_parallel.frameworks import DynamicContextScheduler  # noqa: E402

pytestmark = pytest.mark.integrations
RANKS = SimpleNamespace(size=lambda: 64)


def test_it_is_more_even_than_the_scheduler_in_whose_place_it_stands() -> None:
    made = np.random.default_rng(0).normal(np.log(1024), 1.4, 800)
    lengths = np.clip(np.exp(made), 16, 131_072).astype(int)
    samples = list(enumerate(lengths.tolist()))

    def imbalance(scheduler: Any) -> float:
        tokens, ids = scheduler.get_groups_and_subsamples(samples, None)
        slowest = mean = 0.0
        for tokens_of, ids_of in zip(tokens, ids):
            ranks_of: dict[int, int] = {}
            for own in ids_of:
                for each in own:
                    ranks_of[each] = ranks_of.get(each, 0) + 1
            work = [
                sum(n * (n + 24_576) / ranks_of[each] for n, each in zip(lengths_of, own))
                for lengths_of, own in zip(tokens_of, ids_of)
            ]
            slowest += max(work)
            mean += sum(work) / len(work)
        return slowest / mean

    theirs = imbalance(hybrid.BalancedCPScheduler(8192, RANKS))
    ours = imbalance(DynamicContextScheduler(8192, RANKS))
    assert ours < 1.1
    assert ours < theirs - 0.1
