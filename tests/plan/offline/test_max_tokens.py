from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dealt_epochs import LENGTHS, SEEDS, deal, few, listed
from evenstep.plan.offline.policies import BucketedMaxTokens, MaxTokens, fill_ascending


@st.composite
def policies(draw: st.DrawFn) -> MaxTokens:
    lengths, max_tokens = draw(LENGTHS), draw(st.integers(1, 3000))
    if draw(st.booleans()):
        return MaxTokens(max_tokens, lengths=lengths)
    return BucketedMaxTokens(max_tokens, lengths=lengths, bucket_size=draw(st.integers(1, 200)))


def batches(policy: MaxTokens, seed: int = 0, epoch: int = 0) -> list[list[int]]:
    """In the order in which they are dealt out."""
    return listed(deal(policy, 1, seed, epoch)[0])


@few
@given(policies(), SEEDS)
def test_only_single_samples_exceed_the_limit(policy: MaxTokens, seed: int) -> None:
    shapes = deal(policy, 1, seed)[0].shapes(policy.lengths.values)
    assert (policy.limit.fits(shapes) | (shapes.samples == 1)).all()
    assert policy.max_length is None
    assert shapes.samples.max() <= policy.largest_group


@few
@given(LENGTHS, st.integers(1, 3000), st.integers(1, 200))
def test_batches_take_all_that_fits(lengths: np.ndarray, max_tokens: int, run: int) -> None:
    ascending = np.concatenate(
        [np.sort(lengths[begin : begin + run]) for begin in range(0, len(lengths), run)]
    )
    expected, size, longest = [0], 0, 0
    for place, length in enumerate(ascending.tolist()):
        begins_run = place % run == 0
        if size and (begins_run or (size + 1) * max(longest, length) > max_tokens):
            expected.append(place)
            size = longest = 0
        size, longest = size + 1, max(longest, length)
    expected.append(len(ascending))
    assert fill_ascending(ascending, max_tokens, run).tolist() == expected


@few
@given(LENGTHS, st.integers(1, 3000))
def test_max_tokens_runs_from_the_shortest_to_the_longest(
    lengths: np.ndarray, max_tokens: int
) -> None:
    order = [i for batch in batches(MaxTokens(max_tokens, lengths=lengths)) for i in batch]
    assert (lengths[order] == np.sort(lengths)).all()


def test_bucketed_batches_and_their_order_differ_between_epochs_and_seeds() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 500)
    policy = BucketedMaxTokens(1000, lengths=lengths, bucket_size=100)
    drawn = [batches(policy, *key) for key in ((0, 0), (0, 1), (1, 0))]
    assert len({tuple(map(tuple, one)) for one in drawn}) == 3
    assert len({frozenset(map(frozenset, one)) for one in drawn}) == 3


def test_bucketed_order_does_not_follow_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 20_000)
    groups = deal(BucketedMaxTokens(4000, lengths=lengths), 1)[0]
    means = groups.shapes(lengths).tokens / groups.sizes
    steps = np.arange(len(groups))
    assert abs(np.corrcoef(steps, means)[0, 1]) < 4 / np.sqrt(len(groups))
    sorted_groups = deal(MaxTokens(4000, lengths=lengths), 1)[0]
    means = sorted_groups.shapes(lengths).tokens / sorted_groups.sizes
    assert np.corrcoef(np.arange(len(means)), means)[0, 1] > 0.9
