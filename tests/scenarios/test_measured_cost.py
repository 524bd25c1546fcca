"""A job that measures its cost: all ranks change it at the same round, and a state holds it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ranks import Rank, run
from torch.utils.data import Dataset

import evenstep
from evenstep.cost import FittedCost
from evenstep.loader import step_clock

TRUTH = FittedCost(per_group=1e-3, per_token=1e-5, per_pair=1e-5 / 1_500)
"""Attention takes as long as all else at 1,500 tokens; the loader begins with 24,000."""
SAVED, RESUMED = 200, 60


class Texts(Dataset[Any]):
    def __init__(self) -> None:
        drawn = np.exp(np.random.default_rng(0).normal(4.5, 1.2, 7_000))
        self.lengths = drawn.clip(4, 1000).astype(int)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": torch.full((int(self.lengths[index]),), index)}


def costs_of(step: evenstep.StepInfo) -> np.ndarray:
    """[ranks] seconds."""
    tokens = step.totals.padded_tokens
    pairs = tokens * step.totals.length_mean
    return TRUTH.per_group + TRUTH.per_token * tokens + TRUTH.per_pair * pairs


def train(rank: Rank, states: list[Any] | None) -> Any:
    clock = SimpleNamespace(now=0.0)
    step_clock.time = SimpleNamespace(perf_counter=lambda: clock.now)  # type: ignore[assignment]
    loader = evenstep.DataLoader(
        Texts(),
        policy=evenstep.Even(2048, packed=True, cost=evenstep.MeasuredCost()),
        collate_fn=evenstep.PackCollator(),
        shuffle=True,
        seed=3,
        num_workers=1,
        multiprocessing_context="fork",
    )
    if states is not None:
        loader.load_state_dict(states[rank.rank])
    indices, imbalances, state = [], [], None
    for _, step in loader.steps():
        costs = costs_of(step)
        clock.now += float(costs.max())
        indices.append(step.indices)
        imbalances.append(float(costs.max() / costs.mean()))
        if step.step == SAVED:
            state = loader.state_dict()
        if states is not None and len(indices) == RESUMED:
            break
    loader.close()
    return indices, imbalances, state


def test_steps_become_even_in_time_alike_on_all_ranks_and_after_a_resume(tmp_path: Any) -> None:
    first, second = run(train, 2, None, folder=tmp_path / "whole", within=200)
    indices = [first[0], second[0]]
    every = [i for rank in indices for step in rank for i in step]
    assert sorted(every) == list(range(len(Texts())))
    before, after = np.array(first[1][:40]), np.array(first[1][220:-40])
    assert np.median(before) > 1.015
    assert np.median(after) < 1.003
    states = [first[2], second[2]]
    now, then = states[0]["epoch"]["ratios"]
    assert then == [pytest.approx(2**36 / 1_500, rel=0.1), 0]
    assert now in ([0, 0], then)  # it may be about to change
    assert states[1]["epoch"]["ratios"] == [now, then]
    resumed = run(train, 2, states, folder=tmp_path / "resumed", within=200)
    for rank in range(2):
        assert resumed[rank][0] == indices[rank][SAVED + 1 :][:RESUMED]
