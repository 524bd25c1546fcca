from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dealt_epochs import LENGTHS, SEEDS, WORLDS, deal, few, listed
from evenstep.errors import ConfigurationError
from evenstep.plan.groups.groups import Groups
from evenstep.plan.offline.fixed_size import LengthGrouped, Sorted, shares, sorted_runs
from evenstep.plan.offline.policy import OfflinePolicy


@st.composite
def policies(draw: st.DrawFn) -> OfflinePolicy:
    lengths, batch_size = draw(LENGTHS), draw(st.integers(1, 9))
    if draw(st.booleans()):
        return Sorted(batch_size, lengths=lengths, ascending=draw(st.booleans()))
    return LengthGrouped(
        batch_size, lengths=lengths, megabatch=draw(st.none() | st.integers(1, 60))
    )


# What batches are dealt out by


@few
@given(st.integers(1, 60), WORLDS)
def test_batches_are_dealt_in_turn_and_the_leading_ones_again_to_fill_the_last_step(
    count: int, world_size: int
) -> None:
    dealt = shares(Groups(np.arange(count), np.arange(count + 1)), world_size)
    in_turn = [share.members[step] for step in range(len(dealt[0])) for share in dealt]
    steps = -(-count // world_size)
    assert in_turn == [i % count for i in range(steps * world_size)]


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


# Both policies


@few
@given(policies(), WORLDS, SEEDS)
def test_all_ranks_get_equally_many_batches_of_which_none_is_too_large(
    policy: OfflinePolicy, world_size: int, seed: int
) -> None:
    dealt = deal(policy, world_size, seed)
    assert len(dealt) == world_size
    assert len({len(share) for share in dealt}) == 1
    assert all(share.sizes.min() >= 1 for share in dealt)
    assert all(share.sizes.max() <= policy.largest_group for share in dealt)


@few
@given(policies(), WORLDS, SEEDS)
def test_no_rank_gets_a_sample_twice(policy: OfflinePolicy, world_size: int, seed: int) -> None:
    for share in deal(policy, world_size, seed):
        assert len(np.unique(share.members)) == len(share.members)


@few
@given(policies(), WORLDS, SEEDS, st.integers(0, 100))
def test_equal_seed_and_epoch_give_equal_batches(
    policy: OfflinePolicy, world_size: int, seed: int, epoch: int
) -> None:
    one, other = (deal(policy, world_size, seed, epoch) for _ in range(2))
    assert [listed(share) for share in one] == [listed(share) for share in other]


@pytest.mark.parametrize("kind", [Sorted, LengthGrouped])
def test_bad_options_are_named(kind: type[Sorted] | type[LengthGrouped]) -> None:
    with pytest.raises(ConfigurationError, match="batch_size=0 must be at least 1"):
        kind(0, lengths=np.array([1]))
    with pytest.raises(ConfigurationError, match="batch_size=None"):
        kind(None, lengths=np.array([1]))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="lengths"):
        kind(1, lengths=np.array([0.5]))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="megabatch=0 must be at least 1"):
        LengthGrouped(1, lengths=np.array([1]), megabatch=0)


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


@few
@given(LENGTHS, st.integers(1, 9), WORLDS)
def test_sorted_repeats_leading_batches_and_nothing_else(
    lengths: np.ndarray, batch_size: int, world_size: int
) -> None:
    dealt = deal(Sorted(batch_size, lengths=lengths), world_size)
    batches = Counter(tuple(batch) for share in dealt for batch in listed(share))
    count = -(-len(lengths) // batch_size)
    assert len(batches) == count
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert sum(batches.values()) - count == -count % world_size


# Length grouped


@few
@given(LENGTHS, st.integers(1, 9), WORLDS, SEEDS)
def test_length_grouped_repeats_fewer_samples_than_there_are_ranks(
    lengths: np.ndarray, batch_size: int, world_size: int, seed: int
) -> None:
    dealt = deal(LengthGrouped(batch_size, lengths=lengths), world_size, seed)
    times = Counter(int(i) for share in dealt for i in share.members)
    assert sorted(times) == list(range(len(lengths)))
    assert sum(times.values()) - len(lengths) == -len(lengths) % world_size


@few
@given(LENGTHS, st.integers(1, 9), WORLDS, SEEDS)
def test_length_grouped_batches_are_full_but_the_last(
    lengths: np.ndarray, batch_size: int, world_size: int, seed: int
) -> None:
    for share in deal(LengthGrouped(batch_size, lengths=lengths), world_size, seed):
        assert (share.sizes[:-1] == batch_size).all()


def test_length_grouped_megabatches_are_sorted_longest_first_and_cover_the_ranks_together() -> None:
    lengths = np.random.default_rng(0).integers(1, 1000, 480)
    dealt = deal(LengthGrouped(4, lengths=lengths, megabatch=48), 3)
    in_turn = np.stack([share.members for share in dealt], axis=1).ravel()
    for begin in range(0, 480, 48):
        assert (np.diff(lengths[in_turn[begin : begin + 48]]) <= 0).all()
    assert np.diff(lengths[in_turn]).max() > 0


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


@pytest.mark.parametrize("world_size", [1, 3, 8])
def test_length_grouped_pads_and_steps_as_hugging_face_does(world_size: int) -> None:
    theirs = pytest.importorskip("transformers.trainer_pt_utils")
    batch_size = 8
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
