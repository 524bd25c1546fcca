from __future__ import annotations

import numpy as np
import pytest
import torch

import evenstep
from evenstep import StepInfo, TokenBudget
from evenstep.batch import Composition
from evenstep.cost import GroupShapes, PaddedTokenCost
from evenstep.protocol.receipts import Receipt
from evenstep.tools.simulate import sample_lengths, simulate
from worlds import totals_of


def steps_of(ranks: list[list[list[int]]], accumulate: int = 1) -> list[StepInfo]:
    """One epoch of steps, from the lengths of each rank's groups, as they come from the loader."""
    receipts = []
    for groups in ranks:
        offsets = np.cumsum([0, *map(len, groups)])
        lengths = np.concatenate(groups).astype(np.int64)
        shapes = GroupShapes.measure(lengths, offsets)
        every = np.arange(len(groups) + 1)
        receipt = Receipt.of(
            shapes, lengths, shapes.tokens, PaddedTokenCost(), packed_to=None, steps=every
        )
        receipts.append(receipt)
    totals = totals_of(receipts)
    return [
        StepInfo(
            epoch=0,
            step=index,
            rank=0,
            world_size=len(ranks),
            filler=False,
            indices=None,
            totals=totals.step(index),
            loss_scale=1.0,
            accumulate=accumulate,
            ends_update=(index + 1) % accumulate == 0 or index + 1 == len(totals),
        )
        for index in range(len(totals))
    ]


def composed(steps: list[StepInfo]) -> Composition:
    composition = Composition()
    for step in steps:
        composition.add(step)
    return composition


def test_a_run_of_random_batches_is_told_from_one_of_sorted_ones() -> None:
    lengths = sample_lengths("ultrachat", 6_400, 0)
    mixed = lengths.reshape(8, 100, 8).tolist()
    by_length = np.sort(lengths).reshape(100, 8, 8).swapaxes(0, 1).tolist()
    assert composed(steps_of(mixed)).value == pytest.approx(1, abs=0.03)
    assert composed(steps_of(by_length)).value < 0.02


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_training_reads_off_what_simulate_says(accumulate: int) -> None:
    lengths, policy = sample_lengths("ultrachat", 150, 0) // 16 + 1, TokenBudget(512)
    loader = evenstep.DataLoader(
        [{"input_ids": torch.zeros(int(length), dtype=torch.int64)} for length in lengths],
        policy=policy,
        memory=evenstep.Memory(buffer_size=32),
        accumulate=accumulate,
        shuffle=False,
    )
    trained = composed([step for _, step in loader.steps()])
    simulated = simulate(policy, [lengths], buffer_size=32, accumulate=accumulate)
    assert trained.value == pytest.approx(simulated.composition, rel=1e-12)
    assert trained.samples_per_update == simulated.samples_per_update
    assert trained.tokens_per_update_cv == pytest.approx(simulated.tokens_per_update_cv)


def test_the_steps_of_an_update_count_as_one() -> None:
    short_then_long = [[[10] * 4, [1000] * 4] * 20]
    assert composed(steps_of(short_then_long)).value == 0
    together = composed(steps_of(short_then_long, accumulate=2))
    assert together.value > 1
    assert (together.updates, together.samples_per_update) == (20, 8)
    assert together.tokens_per_update == 4040
    assert together.tokens_per_update_cv == pytest.approx(0, abs=1e-6)


def test_an_update_counts_once_it_has_ended_as_the_last_of_an_epoch_does() -> None:
    *first, last = steps_of([[[5, 5], [3], [9]]], accumulate=2)
    composition = composed(first)
    assert (composition.updates, composition.tokens_per_update) == (1, 13)
    composition.add(last)
    assert (composition.updates, composition.tokens_per_update) == (2, 11)
    assert composition.tokens_per_update_cv == pytest.approx(2 / 11)
