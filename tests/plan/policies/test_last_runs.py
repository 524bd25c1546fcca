"""The steps of the last window: every sample in one run, none over memory, costs as asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cost import PaddedTokenCost
from evenstep.plan.groups.groups import Groups
from evenstep.plan.policies.even import Even
from evenstep.plan.policies.even.last_runs import fill_last, levels, targets_of
from evenstep.plan.policies.even.padded_end import LastSamples
from evenstep.plan.policies.even.sorted_window import SortedWindow
from evenstep.plan.policy import Window
from evenstep.tools.simulate import deal, sample_lengths, simulate

LIMIT = 4096


def last_of(lengths: np.ndarray, limit: int = LIMIT) -> LastSamples:
    window = Window(lengths=lengths, ages=np.zeros_like(lengths))
    return LastSamples.of(SortedWindow.of(window, PaddedTokenCost()), limit, None, None)


def costs_of(groups: Groups, lengths: np.ndarray) -> np.ndarray:
    longest = np.maximum.reduceat(lengths[groups.members], groups.offsets[:-1])
    return longest * groups.sizes


@given(
    lengths=st.lists(st.integers(1, LIMIT), min_size=1, max_size=80),
    steps=st.integers(1, 80),
    seed=st.integers(0, 99),
    pull=st.sampled_from([0.0, 1.0]),
)
def test_each_sample_is_in_one_run_that_fits(lengths, steps, seed, pull) -> None:
    drawn = np.array(lengths, np.int64)
    last = last_of(drawn)
    steps = min(steps, len(drawn))
    draw = np.random.default_rng(seed)
    targets = np.sort(draw.uniform(1, LIMIT, steps))[::-1]
    groups = fill_last(last, targets, draw.random(steps), pull)
    assert len(groups) == steps
    assert (groups.sizes > 0).all()
    assert len(np.unique(groups.members)) == len(groups.members)
    assert (costs_of(groups, drawn) <= LIMIT).all()
    if steps >= last.needed() * 2:  # enough steps, however runs are cut
        assert len(groups.members) == len(drawn)


def test_a_long_sample_has_a_step_on_every_rank() -> None:
    """One of 4,000 tokens on each of 4 ranks, where groups should have 512: as many steps cost so
    much as the samples of the others can fill."""
    lengths = np.array([4_000] + [16] * 4_000, np.int64)
    costs = levels(last_of(lengths, 512), 512, 4, 28)
    total = last_of(lengths, 512).total()
    targets = targets_of(np.stack([costs] * 4), np.full(4, total), least=1, most=4_001)
    assert np.count_nonzero(targets == 4_000) == pytest.approx(4, abs=1)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("name", ["ultrachat", "llava", "mm-mix", "longtail"])
def test_short_epochs_are_mixed_to_their_end(name: str, ranks: int) -> None:
    """Epochs of which all is in the first windows."""
    lengths = sample_lengths(name, 1_500 * ranks, seed=2)
    most = {"ultrachat": 12_288, "llava": 12_288, "mm-mix": 8_192, "longtail": 4_096}[name]
    shards = deal(len(lengths), ranks, 2)
    steps = {2: 4, 4: 2, 8: 1}[ranks]
    policy = Even(most, target_tokens=most // steps)
    result = simulate(policy, [lengths[shard] for shard in shards], accumulate=steps, seed=2)
    assert result.composition > 0.93
    assert result.missing == 0
