"""Epochs that a policy plans offline: strategies for lengths, and how the epochs are dealt."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from evenstep.plan import Policy
from evenstep.plan.groups.groups import Groups


@st.composite
def several_lengths(draw: st.DrawFn) -> np.ndarray:
    # Their number and spread decide what matters, so those are drawn; lengths come from a seed.
    count, longest = draw(st.integers(1, 150)), draw(st.sampled_from([1, 5, 200]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.integers(1, longest, count, endpoint=True)


few = settings(max_examples=40)
LENGTHS = several_lengths()

WORLDS = st.integers(1, 20)
SEEDS = st.integers(0, 2**64 - 1)


def deal(policy: Policy, world_size: int, seed: int = 0, epoch: int = 0) -> list[Groups]:
    assert policy.lengths is not None
    return policy.deal(policy.lengths.values, world_size, seed=seed, epoch=epoch)


def listed(groups: Groups) -> list[list[int]]:
    return [groups.group(g).tolist() for g in range(len(groups))]
