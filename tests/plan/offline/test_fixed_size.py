from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dealt_epochs import LENGTHS, SEEDS, WORLDS, deal, few
from evenstep.plan.offline.policies import LengthGrouped, Sorted, sorted_runs


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
