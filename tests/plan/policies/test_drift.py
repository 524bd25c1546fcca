"""Long samples are not held back to the end of an epoch."""

from __future__ import annotations

import numpy as np
import pytest

import evenstep
from evenstep.plan.policies.even.padded_round import drift
from evenstep.plan.policy import Window
from evenstep.tools.simulate import DISTRIBUTIONS, deal, load_lengths
from evenstep.tools.simulate.run import run_epoch


def window(lengths: list[int], seen: tuple[int, int]) -> Window:
    values = np.array(lengths, np.int64)
    return Window(lengths=values, ages=np.zeros_like(values), seen_lengths=seen)


def test_drift_tells_which_samples_are_held_back() -> None:
    lengths = list(range(100, 200))
    tokens, squares = sum(lengths), sum(n * n for n in lengths)
    assert drift(window(lengths, (tokens, squares))) == pytest.approx(0.0)
    assert drift(window(lengths[50:], (tokens, squares))) > 2
    assert drift(window(lengths[:50], (tokens, squares))) < -2
    assert drift(window(lengths, (0, 0))) == 0.0
    assert drift(window([7] * 20, (140, 980))) == 0.0


@pytest.mark.parametrize("name", ["pretrain-128k", "coyo-image"])
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


def test_one_rank_mixes_every_update() -> None:
    lengths = load_lengths("longtail", samples=6000, seed=0)
    policy = evenstep.Even(4096, target_tokens=1024)
    epoch = run_epoch(policy, [lengths], identities=[np.arange(6000)], accumulate=8)
    steps = [epoch.step(n) for n in range(len(epoch.ranks[0].steps))]
    assert sorted(np.concatenate(steps).tolist()) == list(range(6000))
    whole = (lengths.astype(float) ** 2).sum() / lengths.sum()
    updates = [np.concatenate(steps[n : n + 8]) for n in range(0, len(steps) - 8, 8)]
    means = [(lengths[u].astype(float) ** 2).sum() / lengths[u].sum() for u in updates]
    random = np.random.default_rng(0).permutation(6000)
    cuts = np.cumsum([len(u) for u in updates])
    usual = [
        (lengths[u].astype(float) ** 2).sum() / lengths[u].sum()
        for u in np.split(random, cuts)[: len(updates)]
    ]
    assert np.std(means) < np.std(usual)
    assert np.mean(means) == pytest.approx(whole, rel=0.05)
