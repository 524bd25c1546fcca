"""What is drawn at random while samples are prepared is a function of (seed, epoch, index)."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset

import evenstep
from evenstep.batch.joining import keeping_random_state
from evenstep.loader.workers.worker_start import epoch_seed, sample_seed, seed_everything
from loader_options import grouped

COUNT = 40
SEEDS = st.integers(0, 2**70)
INDICES = st.one_of(st.integers(), st.text(), st.tuples(st.integers(), st.text()))


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


@given(SEEDS, st.integers(0, 10**6), INDICES)
def test_any_seed_epoch_and_index_seed_all_three_generators(
    seed: int, epoch: int, index: Any
) -> None:
    value = sample_seed(epoch_seed(seed, epoch), index)
    with keeping_random_state():
        seed_everything(value)
        first = drawn()
        seed_everything(value)
        assert drawn() == first
        seed_everything(sample_seed(epoch_seed(seed, epoch + 1), index))
        assert all(one != other for one, other in zip(drawn(), first))


class Augmented(Dataset):
    """Draws at random: how many tokens a sample has, and what they are."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        length = random.randint(1, 12)
        return {
            "input_ids": torch.randint(1, 1000, (length,)),
            "noise": float(np.random.rand()),
            "identity": index,
        }


def augmented(epochs: int = 1, **options: Any) -> list[dict[int, tuple]]:
    """By epoch, what was drawn at random for each sample."""
    loader = evenstep.DataLoader(
        Augmented(),
        **grouped(
            **{"policy": evenstep.TokenBudget(64), "buffer_size": 12, "num_workers": 1, **options}
        ),
    )
    passes = []
    for _ in range(epochs):
        drawn: dict[int, tuple] = {}
        for batch, step in loader.steps():
            rows = zip(batch["identity"].tolist(), batch["noise"].tolist(), batch["input_ids"])
            for (index, noise, tokens), mask in zip(rows, batch["attention_mask"]):
                drawn[index] = (noise, tokens[mask.bool()].tolist())
            assert step.samples == len(batch["identity"])
        assert sorted(drawn) == list(range(COUNT))
        passes.append(drawn)
    loader.close()
    return passes


def test_augmentation_is_a_function_of_seed_epoch_and_sample_whoever_prepares_it() -> None:
    first, second = augmented(2)
    assert augmented(2, num_workers=3, chunk_size=1, shuffle=True) == [first, second]
    assert augmented(2, persistent_workers=True, chunk_size=5) == [first, second]
    (other,) = augmented(seed=1)
    assert len({noise for noise, _ in first.values()}) == COUNT
    for index in range(COUNT):
        assert len({drawn[index][0] for drawn in (first, second, other)}) == 3


def test_without_workers_the_random_state_is_the_trainers() -> None:
    with keeping_random_state():
        seed_everything(5)
        expected = [sample["noise"] for sample in map(Augmented().__getitem__, range(COUNT))]
        seed_everything(5)
        (ours,) = augmented(num_workers=0)
    assert [ours[index][0] for index in range(COUNT)] == pytest.approx(expected)
