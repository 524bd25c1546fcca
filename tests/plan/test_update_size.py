"""How many groups an update has, and how large they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evenstep
from evenstep.cost import FittedCost
from evenstep.errors import ConfigurationError
from evenstep.plan import Policy
from evenstep.plan.update_size import GROUPS, LEAST_TOKENS, UpdateSize
from evenstep.tools.simulate import DISTRIBUTIONS, deal, load_lengths, simulate
from evenstep.tools.simulate.run import run_epoch

LENGTHS = np.random.default_rng(0).lognormal(np.log(300), 0.7, 256).astype(np.int64).clip(16, 4096)


@given(
    st.integers(1, 300_000),
    st.integers(1, 600),
    st.integers(64, 40_000),
    st.lists(st.integers(1, 40_000), max_size=40),
)
def test_groups_are_no_larger_than_memory(
    asked: int, ranks: int, memory: int, lengths: list[int]
) -> None:
    policy = evenstep.Even(memory)
    size = UpdateSize.of(policy, asked, ranks=ranks, lengths=np.array(lengths, np.int64))
    assert size.accumulate >= 1
    assert size.policy.max_tokens == memory
    target = size.policy.target_tokens or memory
    assert 1 <= target <= memory


@pytest.mark.parametrize(
    ("ranks", "asked"), [(1, 20_000), (3, 60_000), (8, 1_000_000), (64, 20_000)]
)
def test_an_update_has_several_groups_where_they_are_large_enough(ranks: int, asked: int) -> None:
    size = UpdateSize.of(evenstep.Even(16_384), asked, ranks=ranks, lengths=LENGTHS)
    groups = size.accumulate * ranks
    share = asked / groups
    assert groups >= GROUPS or share < 2 * LEAST_TOKENS
    assert share <= 16_384 * 1.1
    assert share >= LEAST_TOKENS or size.accumulate == 1


def test_a_measured_cost_says_how_small_groups_may_be() -> None:
    slow = FittedCost(per_group=1000.0, per_token=1.0, per_pair=0.0)
    size = UpdateSize.of(evenstep.Even(16_384, cost=slow), 16_384, ranks=1, lengths=LENGTHS)
    assert size.accumulate == 1


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (evenstep.SequencePacking(8192), 4),
        (evenstep.FixedBatch(8), round(65_536 / 2 / 8 / LENGTHS.mean())),
    ],
)
def test_other_policies_keep_their_groups(policy: Policy, expected: int) -> None:
    size = UpdateSize.of(policy, 65_536, ranks=2, lengths=LENGTHS)
    assert (size.policy, size.accumulate) == (policy, expected)


def test_auto_is_a_full_group_of_each_rank() -> None:
    for policy, ranks in ((evenstep.Even(8192), 8), (evenstep.Even(8192, packed=True), 1)):
        size = UpdateSize.of(policy, "auto", ranks=ranks, lengths=LENGTHS)
        assert (size.policy, size.accumulate) == (policy, 1)
    size = UpdateSize.of(evenstep.Even(8192), "auto", ranks=1, lengths=LENGTHS)
    assert size.accumulate == GROUPS
    assert 8192 / GROUPS <= size.policy.target_tokens <= 1.3 * 8192 / GROUPS


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="pool-sort does not say"):
        UpdateSize.of(evenstep.PoolSort(8), 4096, ranks=1, lengths=None)
    with pytest.raises(ConfigurationError, match=r'update_tokens=.all. must be "auto"'):
        UpdateSize.of(evenstep.Even(4096), "all", ranks=1, lengths=LENGTHS)


def test_updates_of_several_groups_are_mixed_and_even() -> None:
    ranks = 2
    lengths = load_lengths("llava", samples=3000 * ranks, seed=0)
    policy = evenstep.Even(DISTRIBUTIONS["llava"].max_tokens)
    asked = 2 * ranks * policy.max_tokens
    size = UpdateSize.of(policy, asked, ranks=ranks, lengths=lengths[:256])
    shards = deal(len(lengths), ranks)
    result = simulate(
        size.policy,
        [lengths[shard] for shard in shards],
        accumulate=size.accumulate,
        update_tokens=asked,
        identities=shards,
    )
    assert result.missing + result.duplicates == 0
    assert result.composition > 0.9
    assert result.imbalance < 1.01


@pytest.mark.parametrize(
    ("policy", "ranks", "asked"),
    [
        (evenstep.Even(1024), 1, 2048),
        (evenstep.Even(2048), 2, 8192),
        (evenstep.Even(1024), 8, 32_768),
        (evenstep.Even(2048, sync="update"), 4, 32_768),
        (evenstep.Even(1024, packed=True), 1, 2500),
        (evenstep.Even(1024, packed=True), 16, 25_000),
    ],
    ids=str,
)
def test_updates_have_the_tokens_that_were_asked_for(
    policy: evenstep.Even, ranks: int, asked: int
) -> None:
    """Of lengths whose longest leave much of a group empty, and the epoch's end apart."""
    rng = np.random.default_rng(0)
    tokens = ranks * policy.max_tokens * 100
    lengths = np.clip(rng.lognormal(np.log(30), 1.2, tokens // 55), 2, 1000).astype(np.int64)
    size = UpdateSize.of(policy, asked, ranks=ranks, lengths=rng.choice(lengths, 256))
    epoch = run_epoch(
        size.policy,
        [lengths[rank::ranks] for rank in range(ranks)],
        accumulate=size.accumulate,
        update_tokens=asked,
    )
    steps = np.array([step.totals.tokens.sum() for step in epoch.ranks[0].steps])
    updates = np.add.reduceat(steps, np.arange(0, len(steps), size.accumulate))
    assert updates[: 2 * len(updates) // 3].mean() == pytest.approx(asked, rel=0.05)
