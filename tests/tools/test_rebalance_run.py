"""Rollouts are drawn as a model generates them, and other ways to divide them are what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.rebalance import WAYS, compared, draw_updates, plain, verl
from evenstep.cost import PaddedTokenCost
from evenstep.errors import ConfigurationError

COST = PaddedTokenCost()


def divided(way, lengths: list[int], max_tokens: int, packed: bool = True) -> list[list[list[int]]]:
    """[ranks][micro-batches] lengths of two ranks."""
    tokens = np.array(lengths)
    rank, step = way(tokens, ranks=2, max_tokens=max_tokens, packed=packed, cost=COST)
    return [
        [tokens[(rank == r) & (step == s)].tolist() for s in range(max(step) + 1)] for r in range(2)
    ]


def test_a_plain_split_keeps_the_order() -> None:
    lengths = [6, 5, 4, 1, 1, 1, 1, 1]
    assert divided(plain, lengths, 10) == [[[6], [5, 4, 1]], [[1, 1, 1, 1], []]]
    padded = divided(plain, lengths, 10, packed=False)
    assert padded == [[[6], [5, 4], [1]], [[1, 1, 1, 1], [], []]]


def test_differencing_gives_ranks_equal_counts_and_micro_batches_equal_costs() -> None:
    ranks = divided(verl, [9, 7, 6, 4, 3, 3, 2, 2], 9)
    assert [sum(map(len, own)) for own in ranks] == [4, 4]
    assert sorted(sum(map(sum, own)) for own in ranks) == [18, 18]
    assert [len(own) for own in ranks] == [2, 2]


@given(
    rows=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    ranks=st.integers(1, 4),
    packed=st.booleans(),
)
def test_other_ways_keep_equal_counts_and_the_limit(
    rows: list[int], ranks: int, packed: bool
) -> None:
    lengths = np.array(rows * ranks)
    for way in (plain, verl):
        rank, step = way(lengths, ranks=ranks, max_tokens=40, packed=packed, cost=COST)
        assert np.bincount(rank).tolist() == [len(rows)] * ranks
        if way is plain or not packed:
            held = [lengths[rank * 100 + step == at] for at in np.unique(rank * 100 + step)]
            assert max(m.sum() if packed else m.max() * len(m) for m in held) <= 40


def test_rollouts_are_drawn_in_groups_that_are_alike() -> None:
    updates = draw_updates("rollouts", ranks=8, samples=32, steps=4, seed=1)
    assert [len(each) for each in updates] == [256] * 4
    every = np.concatenate(updates)
    assert every.max() == 16_384
    assert np.median(every) == pytest.approx(2000, rel=0.02)
    logs = np.log(every)
    assert 0.3 < np.corrcoef(logs[:-1], logs[1:])[0, 1] < 0.6


def test_a_file_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, np.arange(1, 12))
    drawn = draw_updates(str(path), ranks=2, samples=2, steps=9)
    assert [each.tolist() for each in drawn] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    (few,) = draw_updates(str(path), ranks=3, samples=32, steps=9)
    assert few.tolist() == list(range(1, 10))
    with pytest.raises(ConfigurationError, match="11 sequences, fewer than ranks=12"):
        draw_updates(str(path), ranks=12, samples=1, steps=1)


def test_evenstep_is_the_most_even() -> None:
    updates = draw_updates("rollouts", ranks=8, samples=32, steps=3)
    found = compared(updates, ranks=8, max_tokens=32_768, packed=True, cost=COST)
    imbalance = {name: own["imbalance"] for name, own in found.items()}
    assert list(imbalance) == [*WAYS, "least possible"]
    assert 1 <= imbalance["least possible"] <= imbalance["evenstep"] < imbalance["verl"]
    assert imbalance["evenstep"] < imbalance["plain split"]
