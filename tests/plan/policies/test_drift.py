"""Long and short samples are mixed from the first update to the last."""

from __future__ import annotations

import numpy as np
import pytest

import evenstep
from evenstep.tools.simulate import DISTRIBUTIONS, deal, load_lengths, simulate
from evenstep.tools.simulate.run import run_epoch


@pytest.mark.parametrize("name", ["coyo-image"])
def test_long_samples_are_not_left_to_the_last_quarter(name: str) -> None:
    """They were: samples of the last quarter were 2.3 and 2.9 times as long as of the first."""
    lengths = load_lengths(name, samples=8 * 8000, seed=0)
    shards = deal(len(lengths), 8)
    epoch = run_epoch(
        evenstep.Even(DISTRIBUTIONS[name].max_tokens),
        [lengths[shard] for shard in shards],
        identities=shards,
    )
    steps = [lengths[epoch.step(n)].astype(float) for n in range(len(epoch.ranks[0].steps))]
    quarters = np.array_split(np.arange(len(steps)), 4)
    means = []
    for quarter in quarters:
        taken = np.concatenate([steps[n] for n in quarter])
        means.append((taken**2).sum() / taken.sum())
    assert means[3] < 1.8 * means[0]


@pytest.mark.parametrize(
    ("name", "ranks", "steps"),
    [("ultrachat", 2, 4), ("llava", 4, 2)],
)
def test_short_epochs_are_mixed_to_their_end(name: str, ranks: int, steps: int) -> None:
    """Epochs of which all is in the first windows."""
    lengths = load_lengths(name, samples=1_500 * ranks, seed=2)
    most = DISTRIBUTIONS[name].max_tokens
    shards = deal(len(lengths), ranks, 2)
    policy = evenstep.Even(most, target_tokens=most // steps)
    result = simulate(policy, [lengths[shard] for shard in shards], accumulate=steps, seed=2)
    assert result.composition > 0.93
    assert result.missing == 0
