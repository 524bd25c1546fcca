from __future__ import annotations

import pkgutil
from collections import UserDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep import batch as package
from evenstep.batch import (
    LOSS_SCALING,
    Composition,
    StepInfo,
    StepTotals,
    attach_step,
    loss_scale,
    pop_step,
)
from evenstep.batch.loss_scale import micro_batch_scales
from evenstep.batch.step_info import RankLoads
from evenstep.errors import ConfigurationError
from evenstep.integrations.job_facts import StepValues


def totals(**changes: list[float]) -> StepTotals:
    columns = {
        "samples": [2, 3, 0],
        "tokens": [30, 50, 0],
        "padded_tokens": [40, 60, 0],
        "supervised_tokens": [10, 20, 0],
        "cost": [40.0, 80.0, 0.0],
        "length_mean": [20.0, 25.0, 0.0],
        "length_deviation": [3.0, 0.0, 0.0],
        "length_skew": [0.0, 0.0, 0.0],
        **changes,
    }
    whole = ("samples", "tokens", "padded_tokens", "supervised_tokens")
    return StepTotals(
        **{
            name: np.array(column, np.int64 if name in whole else np.float64)
            for name, column in columns.items()
        }
    )


def step_info(rank: int = 1, **changes) -> StepInfo:
    values = {
        "epoch": 2,
        "step": 7,
        "rank": rank,
        "world_size": 3,
        "filler": rank == 2,
        "indices": (np.int64(4), 9, 1),
        "totals": totals(),
        "loss_scale": 2.0,
        **changes,
    }
    return StepInfo(**values)


def test_imbalance_and_padding_follow_their_definitions():
    step = step_info()
    assert step.imbalance == pytest.approx(80 / 40)
    assert step.padding == pytest.approx(0.2)


def test_where_ranks_wait_at_updates_imbalance_is_that_of_the_update():
    loads = RankLoads.of(totals(), packed=True) + RankLoads.of(
        totals(cost=[80.0, 40.0, 0.0]), packed=True
    )
    middle, last = (step_info(loads=loads, ends_update=ends) for ends in (False, True))
    for step in (middle, last):
        assert step.imbalance == step.to_line()["imbalance"] == pytest.approx(loads.cost.max() / 80)
    assert (middle.ends_wait, last.ends_wait, step_info(ends_update=False).ends_wait) == (
        *(False, True, True),
    )
    values = StepValues()
    for step in (middle, last):
        values.add(step)
    assert values.take()["imbalance"] == pytest.approx(loads.cost.max() / 80)


def test_a_composition_takes_the_samples_of_all_ranks():
    composition = Composition()
    for number in range(4):
        composition.add(step_info(rank=number % 2, ends_update=number % 2 == 1))
    assert (composition.updates, composition.samples_per_update) == (2, 10)
    assert (composition.tokens_per_update, composition.tokens_per_update_cv) == (160, 0)


@pytest.mark.parametrize("make", [dict, UserDict])
def test_a_step_put_into_a_batch_comes_out_once_and_leaves_it_clean(make):
    batch = make(input_ids=torch.ones(1, 2))
    step = step_info()
    assert attach_step(batch, step)
    assert pop_step(batch) is step
    assert list(batch) == ["input_ids"]
    with pytest.raises(ConfigurationError, match="popped already"):
        pop_step(batch)


def test_no_name_that_is_imported_on_first_use_is_that_of_a_module():
    """Which would replace it when imported."""
    lazy = set(package.__all__) - {"loss_scale"}
    assert not lazy & {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert len(lazy) > 20
    assert all(getattr(package, name) for name in package.__all__)


# Factors of losses


def counts(samples: list[int], supervised: list[int]) -> StepTotals:
    n, t = np.array(samples, np.int64), np.array(supervised, np.int64)
    return StepTotals(n, t, t, t, *[t.astype(np.float64)] * 4)


ranks = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5), min_size=1, max_size=6)


@given(ranks, st.integers(0, 2**31), st.sampled_from(["token", "sample"]))
def test_scaling_turns_the_mean_over_ranks_into_the_mean_over_all(groups, seed, mode):
    """Of tokens, of which a rank or all may have none, or of samples."""
    rng = np.random.default_rng(seed)
    sizes = [sum(group) if mode == "token" else len(group) for group in groups]
    losses = [rng.exponential(size=count) for count in sizes]
    step = counts([len(group) for group in groups], [sum(group) for group in groups])
    averaged = sum(
        loss_scale(step, rank, mode) / len(groups) * mine.mean()
        for rank, mine in enumerate(losses)
        if len(mine)
    )
    everything = np.concatenate(losses)
    assert averaged == pytest.approx(everything.mean() if len(everything) else 0.0, rel=1e-12)
    for rank, group in enumerate(groups):
        assert sum(group) or mode == "sample" or loss_scale(step, rank, mode) == 0.0


@pytest.mark.parametrize("mode", LOSS_SCALING)
def test_a_filler_weighs_nothing_in_every_mode(mode):
    step = counts([3, 0], [12, 0])
    scales = [loss_scale(step, rank, mode) for rank in (0, 1)]
    assert scales == [1.0 if mode == "none" else 2.0, 0.0]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token", (0.4, 1.2)),
        ("sample", (1.2, 0.4)),
        ("none", (1.6, 1.6)),
    ],
)
def test_micro_batches_share_the_scale_of_their_rank_by_what_they_count(mode, expected) -> None:
    scales = micro_batch_scales(1.6, mode, samples=[3, 1], supervised=[10, 30])
    assert scales == pytest.approx(expected)
    assert micro_batch_scales(0.0, "token", [2, 1], [0, 0]) == (0.0, 0.0)
