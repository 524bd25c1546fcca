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
SAVED, RESUMED = 260, 100


class Texts(Dataset[Any]):
    def __init__(self) -> None:
        drawn = np.exp(np.random.default_rng(0).normal(4.5, 1.2, 20_000))
        self.lengths = drawn.clip(4, 1000).astype(int)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": torch.full((int(self.lengths[index]),), index)}


def costs_of(step: evenstep.StepInfo, packed: bool) -> np.ndarray:
    """[ranks] seconds."""
    tokens = step.totals.padded_tokens
    pairs = tokens * step.totals.length_mean if packed else tokens**2 / step.totals.samples
    return TRUTH.per_group + TRUTH.per_token * tokens + TRUTH.per_pair * pairs


def train(rank: Rank, packed: bool, states: list[Any] | None) -> Any:
    clock = SimpleNamespace(now=0.0)
    step_clock.time = SimpleNamespace(perf_counter=lambda: clock.now)  # type: ignore[assignment]
    loader = evenstep.DataLoader(
        Texts(),
        policy=evenstep.Even(4096, packed=packed, cost=evenstep.MeasuredCost()),
        collate_fn=evenstep.PackCollator() if packed else evenstep.PadCollator(),
        shuffle=True,
        seed=3,
        num_workers=1,
        multiprocessing_context="fork",
    )
    if states is not None:
        loader.load_state_dict(states[rank.rank])
    indices, imbalances, state = [], [], None
    for _, step in loader.steps():
        costs = costs_of(step, packed)
        clock.now += float(costs.max())
        indices.append(step.indices)
        imbalances.append(float(costs.max() / costs.mean()))
        if step.step == SAVED:
            state = loader.state_dict()
        if states is not None and len(indices) == RESUMED:
            break
    loader.close()
    return indices, imbalances, state


@pytest.mark.parametrize("packed", [pytest.param(False, marks=pytest.mark.soak), True])
def test_steps_become_even_in_time_alike_on_all_ranks_and_after_a_resume(
    packed: bool, tmp_path: Any
) -> None:
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    first, second = run(train, 2, packed, None, folder=tmp_path / "whole", within=200)
    indices = [first[0], second[0]]
    every = [i for rank in indices for step in rank for i in step]
    assert sorted(every) == list(range(len(Texts())))
    before, after = np.array(first[1][:40]), np.array(first[1][300:-60])
    assert np.median(before) > 1.015
    assert np.median(after) < 1.003
    states = [first[2], second[2]]
    now, then = states[0]["epoch"]["ratios"]
    assert then == [pytest.approx(2**36 / 1_500, rel=0.1), 0]
    assert now in (([0, 0], then) if packed else (then,))  # packed, it may be about to change
    assert states[1]["epoch"]["ratios"] == [now, then]
    resumed = run(train, 2, packed, states, folder=tmp_path / "resumed", within=200)
    for rank in range(2):
        assert resumed[rank][0] == indices[rank][SAVED + 1 :][:RESUMED]


def test_nothing_is_measured_unless_asked() -> None:
    assert (
        "ratios"
        not in evenstep.DataLoader(Texts(), policy=evenstep.Even(4096), shuffle=True).state_dict()[
            "epoch"
        ]
    )


PATCH = 0.5
"""What a patch takes, in tokens; the loader knows of no tower."""


class Pictures(Texts):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "patches": index * 7919 % 640}


def patches_of(sample: dict[str, Any]) -> int:
    return int(sample["patches"])


def only_tokens(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return evenstep.PadCollator()([{"input_ids": each["input_ids"]} for each in samples])


def train_alone(
    monkeypatch: pytest.MonkeyPatch, state: Any = None, **cost: Any
) -> tuple[list[tuple[int, ...]], list[float], Any]:
    """Indices and seconds of steps on one rank, and the state after some."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(step_clock, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    loader = evenstep.DataLoader(
        Pictures(),
        policy=evenstep.Even(4096, max_patches=8192, **cost),
        collate_fn=only_tokens,
        length_fn=evenstep.SampleCounts(patches=patches_of),
        shuffle=True,
        seed=3,
    )
    if state is not None:
        loader.load_state_dict(state)
    indices, seconds, saved = [], [], None
    for _, step in loader.steps():
        assert step.imbalance == 1
        assert step.imbalance_measured in (None, 1)
        took = float(costs_of(step, packed=False)[0]) + TRUTH.per_token * PATCH * step.patches
        clock.now += took
        indices.append(step.indices)
        seconds.append(took)
        if step.step == SAVED:
            saved = loader.state_dict()
        if state is not None and len(indices) == RESUMED:
            break
    loader.close()
    return indices, seconds, saved


@pytest.mark.slow
def test_one_rank_learns_what_pairs_and_patches_take_and_resumes_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = {"cost": evenstep.MeasuredCost()}
    indices, seconds, state = train_alone(monkeypatch, **measured)
    assert sorted(i for step in indices for i in step) == list(range(len(Pictures())))
    pair, patch = state["epoch"]["ratios"][0]
    assert pair == pytest.approx(2**36 / 1_500, rel=0.1)
    assert patch == pytest.approx(2**36 * PATCH, rel=0.1)
    _, unmeasured, _ = train_alone(monkeypatch)
    before, after = np.array(unmeasured[300:-100]), np.array(seconds[300:-100])
    assert after.std() / after.mean() < 0.7 * before.std() / before.mean()
    assert train_alone(monkeypatch, state, **measured)[0] == indices[SAVED + 1 :][:RESUMED]
