from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.batch import LOSS_SCALING, StepTotals, loss_scale
from evenstep.batch.loss_scale import micro_batch_scales
from evenstep.errors import ConfigurationError


def totals(samples: list[int], supervised: list[int]) -> StepTotals:
    n, t = np.array(samples, np.int64), np.array(supervised, np.int64)
    return StepTotals(n, t, t, t, *[t.astype(np.float64)] * 4)


ranks = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5), min_size=1, max_size=6)


@given(ranks, st.integers(0, 2**31), st.sampled_from(["token", "sample"]))
def test_scaling_turns_the_mean_over_ranks_into_the_mean_over_all(groups, seed, mode):
    """Of tokens, of which a rank or all may have none, or of samples."""
    rng = np.random.default_rng(seed)
    counts = [sum(group) if mode == "token" else len(group) for group in groups]
    losses = [rng.exponential(size=count) for count in counts]
    step = totals([len(group) for group in groups], [sum(group) for group in groups])
    averaged = sum(
        loss_scale(step, rank, mode) / len(groups) * mine.mean()
        for rank, mine in enumerate(losses)
        if len(mine)
    )
    everything = np.concatenate(losses)
    assert averaged == pytest.approx(everything.mean() if len(everything) else 0.0, rel=1e-12)
    for rank, group in enumerate(groups):
        assert sum(group) or mode == "sample" or loss_scale(step, rank, mode) == 0.0


@pytest.mark.parametrize("mode", LOSS_SCALING)
def test_a_filler_weighs_nothing_in_every_mode(mode):
    step = totals([3, 0], [12, 0])
    scales = [loss_scale(step, rank, mode) for rank in (0, 1)]
    assert scales == [1.0 if mode == "none" else 2.0, 0.0]


def test_unknown_modes_are_refused():
    step = totals([1], [1])
    with pytest.raises(ConfigurationError, match=r"'tokens' must be one of .*'token'"):
        loss_scale(step, 0, "tokens")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token", (0.4, 1.2)),
        ("sample", (1.2, 0.4)),
        ("none", (1.6, 1.6)),
    ],
)
def test_micro_batches_share_the_scale_of_their_rank_by_what_they_count(mode, expected) -> None:
    scales = micro_batch_scales(1.6, mode, samples=[3, 1], supervised=[10, 30])
    assert scales == pytest.approx(expected)
    assert micro_batch_scales(0.0, "token", [2, 1], [0, 0]) == (0.0, 0.0)
