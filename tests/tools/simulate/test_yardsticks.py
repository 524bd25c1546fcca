"""Batches formed from all lengths of a data set, and how ranks get them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.cost import PaddedTokenCost
from evenstep.plan.groups import Groups
from evenstep.plan.policies.by_name import PolicyOptions
from evenstep.tools.simulate import deal, simulate
from evenstep.tools.simulate.run import run_epoch
from evenstep.tools.simulate.yardsticks import (
    YARDSTICKS,
    bucketed_max_tokens,
    length_grouped,
    max_tokens,
    megabatch,
    sorted_runs,
)


@st.composite
def several_lengths(draw: st.DrawFn) -> np.ndarray:
    # Their number and spread decide what matters, so those are drawn; lengths come from a seed.
    count, longest = draw(st.integers(1, 150)), draw(st.sampled_from([1, 5, 200]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.integers(1, longest, count, endpoint=True)


few = settings(max_examples=25)
LENGTHS, RANKS, SEEDS = several_lengths(), st.integers(1, 20), st.integers(0, 2**64 - 1)
FORMS = st.tuples(st.just(length_grouped), st.integers(1, 9)) | st.tuples(
    st.sampled_from([max_tokens, bucketed_max_tokens]), st.integers(1, 3000)
)


def listed(groups: Groups) -> list[list[int]]:
    return [groups.group(g).tolist() for g in range(len(groups))]


@few
@given(FORMS, LENGTHS, RANKS, SEEDS)
def test_ranks_get_equally_many_groups_and_only_what_wraps_around_comes_twice(
    formed, lengths: np.ndarray, ranks: int, seed: int
) -> None:
    form, size = formed
    dealt = form(lengths, ranks, seed, size)
    assert len(dealt) == ranks
    assert len({len(share) for share in dealt}) == 1
    for share in dealt:
        assert share.sizes.min() >= 1
        assert len(np.unique(share.members)) == len(share.members)
    assert [listed(share) for share in form(lengths, ranks, seed, size)] == [
        listed(share) for share in dealt
    ]
    times = Counter(int(i) for share in dealt for i in share.members)
    assert sorted(times) == list(range(len(lengths)))
    if form is length_grouped:  # samples wrap around
        assert sum(times.values()) - len(lengths) == -len(lengths) % ranks
        return
    once = listed(form(lengths, 1, seed, size)[0])
    padded = -(-len(once) // ranks) * ranks
    in_turn = [listed(share)[step] for step in range(len(dealt[0])) for share in dealt]
    assert in_turn == [once[i % len(once)] for i in range(padded)]


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

    size = megabatch(count, batch_size)
    order = sorted_runs(permutation, -lengths, size)
    # They also let the first of all and the first of the longest megabatch change places.
    longest = int(lengths[order[::size]].argmax()) * size
    order[[0, longest]] = order[[longest, 0]]
    assert order.tolist() == expected


# In a simulation

GIVEN = PolicyOptions(max_tokens=700, batch_size=3, cost=PaddedTokenCost())


@few
@given(st.sampled_from(sorted(YARDSTICKS)), LENGTHS, st.integers(1, 5), st.integers(1, 40))
def test_a_simulation_makes_the_steps_that_were_formed(
    name: str, lengths: np.ndarray, ranks: int, buffer_size: int
) -> None:
    yardstick = YARDSTICKS[name](GIVEN)
    shards = deal(len(lengths), ranks, 7)
    given_ = {"buffer_size": buffer_size, "seed": 3, "identities": shards}
    epoch = run_epoch(yardstick, [lengths[shard] for shard in shards], **given_)
    dealt = yardstick.dealt(lengths, ranks, 3)
    for rank, own, names in zip(epoch.ranks, dealt, epoch.identities):
        made = [names[step.members].tolist() for step in rank.steps]
        assert made == listed(own.groups)
    figures = simulate(yardstick, [lengths[shard] for shard in shards], **given_)
    assert (figures.policy, figures.samples, figures.missing) == (name, len(lengths), 0)
    assert figures.filler_steps == 0
