"""Epochs that policies deal out from lengths known in advance."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dealt_epochs import LENGTHS, SEEDS, WORLDS, deal, few, listed
from evenstep.plan import Policy, SequencePacking
from evenstep.plan.groups.groups import Groups
from evenstep.plan.offline.policies import (
    BucketedMaxTokens,
    LengthGrouped,
    MaxTokens,
    Sorted,
    fill_ascending,
    shares,
    sorted_runs,
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    lengths, size, tokens = draw(LENGTHS), draw(st.integers(1, 9)), draw(st.integers(1, 3000))
    kind = draw(st.sampled_from([Sorted, LengthGrouped, MaxTokens, BucketedMaxTokens, None]))
    if kind is Sorted:
        return Sorted(size, lengths=lengths, ascending=draw(st.booleans()))
    if kind is LengthGrouped:
        return LengthGrouped(size, lengths=lengths, megabatch=draw(st.none() | st.integers(1, 60)))
    if kind is MaxTokens:
        return MaxTokens(tokens, lengths=lengths)
    if kind is BucketedMaxTokens:
        return BucketedMaxTokens(tokens, lengths=lengths, bucket_size=draw(st.integers(1, 200)))
    return SequencePacking(max(tokens, int(lengths.max())), lengths=lengths)


@few
@given(policies(), WORLDS, SEEDS, st.integers(0, 100))
def test_ranks_get_equally_many_groups_and_only_what_wraps_around_comes_twice(
    policy: Policy, world_size: int, seed: int, epoch: int
) -> None:
    assert policy.lengths is not None
    dealt = deal(policy, world_size, seed, epoch)
    assert len(dealt) == world_size
    assert len({len(share) for share in dealt}) == 1
    for share in dealt:
        assert share.sizes.min() >= 1
        assert share.sizes.max() <= policy.largest_group  # type: ignore[attr-defined]
        assert len(np.unique(share.members)) == len(share.members)
    assert [listed(share) for share in deal(policy, world_size, seed, epoch)] == [
        listed(share) for share in dealt
    ]
    times = Counter(int(i) for share in dealt for i in share.members)
    assert sorted(times) == list(range(len(policy.lengths)))
    if isinstance(policy, LengthGrouped):  # samples wrap around
        assert sum(times.values()) - len(policy.lengths) == -len(policy.lengths) % world_size
        return
    once = listed(deal(policy, 1, seed, epoch)[0])
    padded = -(-len(once) // world_size) * world_size
    assert Counter(tuple(group) for share in dealt for group in listed(share)) == Counter(
        tuple(once[i % len(once)]) for i in range(padded)
    )


@few
@given(st.integers(1, 60), WORLDS)
def test_batches_are_dealt_in_turn_and_the_leading_ones_again_to_fill_the_last_step(
    count: int, world_size: int
) -> None:
    dealt = shares(Groups(np.arange(count), np.arange(count + 1)), world_size)
    in_turn = [share.members[step] for step in range(len(dealt[0])) for share in dealt]
    steps = -(-count // world_size)
    assert in_turn == [i % count for i in range(steps * world_size)]


# Batches of one size


@few
@given(LENGTHS, st.integers(1, 160), st.booleans(), SEEDS)
def test_runs_are_sorted_each_by_itself_and_ties_stay_in_order(
    lengths: np.ndarray, run: int, longest_first: bool, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(lengths))
    expected: list[int] = []
    for begin in range(0, len(order), run):
        # Python's sort is stable, also where it is reversed.
        expected += sorted(
            order[begin : begin + run].tolist(), key=lambda i: lengths[i], reverse=longest_first
        )
    assert sorted_runs(order, lengths, run, longest_first=longest_first).tolist() == expected


def test_runs_of_the_longest_samples_allowed_are_sorted() -> None:
    lengths = np.array([2**31 - 1, 1, 2**31 - 2])
    assert sorted_runs(np.arange(3), lengths, 3).tolist() == [1, 2, 0]
    assert sorted_runs(np.arange(3), lengths, 3, longest_first=True).tolist() == [0, 2, 1]


# Sorted


@few
@given(LENGTHS, st.integers(1, 9), WORLDS, st.booleans())
def test_sorted_batches_run_through_all_lengths_in_one_direction(
    lengths: np.ndarray, batch_size: int, world_size: int, ascending: bool
) -> None:
    dealt = deal(Sorted(batch_size, lengths=lengths, ascending=ascending), world_size)
    in_turn = [share.group(step) for step in range(len(dealt[0])) for share in dealt]
    batches = -(-len(lengths) // batch_size)
    once = lengths[np.concatenate(in_turn[:batches])]
    expected = np.sort(lengths)
    assert (once == (expected if ascending else expected[::-1])).all()


# Length grouped


@few
@given(LENGTHS, st.integers(1, 9), WORLDS, SEEDS)
def test_length_grouped_batches_are_full_but_the_last(
    lengths: np.ndarray, batch_size: int, world_size: int, seed: int
) -> None:
    for share in deal(LengthGrouped(batch_size, lengths=lengths), world_size, seed):
        assert (share.sizes[:-1] == batch_size).all()


def test_length_grouped_draws_another_order_for_another_epoch_or_seed() -> None:
    policy = LengthGrouped(4, lengths=np.random.default_rng(0).integers(1, 1000, 480))
    orders = [deal(policy, 1, *key)[0].members.tolist() for key in ((0, 0), (0, 1), (1, 0))]
    assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize(("count", "batch_size"), [(3, 4), (70, 4), (1003, 4), (2000, 8)])
def test_length_grouped_orders_a_permutation_as_hugging_face_does(
    count: int, batch_size: int
) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.trainer_pt_utils")
    lengths = np.random.default_rng(count).integers(1, 300, count)
    permutation = torch.randperm(count, generator=torch.Generator().manual_seed(5)).numpy()
    expected = theirs.get_length_grouped_indices(
        lengths.tolist(), batch_size, generator=torch.Generator().manual_seed(5)
    )

    policy = LengthGrouped(batch_size, lengths=lengths)
    size = policy.megabatch_size(count)
    order = sorted_runs(permutation, lengths, size, longest_first=True)
    # They also let the first of all and the first of the longest megabatch change places.
    longest = int(lengths[order[::size]].argmax()) * size
    order[[0, longest]] = order[[longest, 0]]
    assert order.tolist() == expected


def test_length_grouped_pads_and_steps_as_hugging_face_does() -> None:
    theirs = pytest.importorskip("transformers.trainer_pt_utils")
    batch_size, world_size = 8, 3
    lengths = np.exp(np.random.default_rng(1).normal(5, 0.8, 20_003)).astype(np.int64) + 1

    def padded(ranks: list[list[np.ndarray]]) -> float:
        return sum(len(b) * lengths[b].max() for batches in ranks for b in batches)

    own = deal(LengthGrouped(batch_size, lengths=lengths), world_size)
    own_batches = [[share.group(g) for g in range(len(share))] for share in own]
    their_batches = []
    for rank in range(world_size):
        sampler = theirs.DistributedLengthGroupedSampler(
            batch_size, num_replicas=world_size, rank=rank, lengths=lengths.tolist()
        )
        drawn = np.array(list(sampler))
        their_batches.append(np.split(drawn, range(batch_size, len(drawn), batch_size)))
    assert [len(b) for b in own_batches] == [len(b) for b in their_batches]
    assert padded(own_batches) == pytest.approx(padded(their_batches), rel=0.01)


# Batches under a number of tokens


@st.composite
def token_policies(draw: st.DrawFn) -> MaxTokens:
    lengths, max_tokens = draw(LENGTHS), draw(st.integers(1, 3000))
    if draw(st.booleans()):
        return MaxTokens(max_tokens, lengths=lengths)
    return BucketedMaxTokens(max_tokens, lengths=lengths, bucket_size=draw(st.integers(1, 200)))


def batches(policy: MaxTokens, seed: int = 0, epoch: int = 0) -> list[list[int]]:
    """In the order in which they are dealt out."""
    return listed(deal(policy, 1, seed, epoch)[0])


@few
@given(token_policies(), SEEDS)
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
