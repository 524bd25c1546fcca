"""Context-parallel ranks together train as one would on the whole rows: all of them in one process,
with the keys and values of all ranks laid out as a variable-length kernel takes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from evenstep.batch import shard_loss_scale
from evenstep.errors import ConfigurationError


def test_only_a_sum_is_a_number_on_a_shard_without_supervised_tokens():
    labels = torch.full((3,), -100)
    losses = {}
    for reduction in ("mean", "sum"):
        logits = torch.randn(3, 5, requires_grad=True)
        scale = shard_loss_scale(0, 7, 4, reduction=reduction)
        losses[reduction] = cross_entropy(logits, labels, reduction=reduction) * scale
        losses[reduction].backward()
        assert logits.grad is not None
        assert not logits.grad.any()
    assert losses["mean"].isnan()
    assert losses["sum"] == 0


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(0, 2**31))
def test_scales_turn_the_mean_over_ranks_into_the_mean_over_tokens(counts, seed):
    rng = np.random.default_rng(seed)
    losses = [rng.exponential(size=count) for count in counts]
    whole = np.concatenate(losses).mean() if sum(counts) else 0.0
    for reduction in ("mean", "sum"):
        scales = [
            shard_loss_scale(c, sum(counts), len(counts), reduction=reduction) for c in counts
        ]
        averaged = sum(
            scale * getattr(own, reduction)() for scale, own in zip(scales, losses) if len(own)
        )
        assert averaged / len(counts) == pytest.approx(whole, rel=1e-12)


def test_counts_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigurationError, match="'none' must be one of"):
        shard_loss_scale(1, 1, 1, reduction="none")
    with pytest.raises(ConfigurationError, match="5 supervised tokens of this rank, 4 of all 2"):
        shard_loss_scale(5, 4, 2)
    with pytest.raises(ConfigurationError, match="sum over all ranks"):
        shard_loss_scale(0, 0, 0)
