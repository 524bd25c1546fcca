from __future__ import annotations

import json
from collections import UserDict
from types import MappingProxyType

import numpy as np
import pytest
import torch

from evenstep.batch import STEP_KEY, StepInfo, StepTotals, attach_step, pop_step
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


def test_plain_properties_are_this_ranks_and_global_ones_everybodys():
    step = step_info(rank=1)
    mine = (step.samples, step.tokens, step.padded_tokens, step.supervised_tokens, step.cost)
    assert mine == (3, 50, 60, 20, 80.0)
    everybody = (
        step.global_samples,
        step.global_tokens,
        step.global_padded_tokens,
        step.global_supervised_tokens,
        step.global_cost,
    )
    assert everybody == (5, 80, 100, 30, 120.0)
    assert {type(value) for value in (*mine, *everybody)} == {int, float}


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


def test_to_dict_is_json_with_both_shares():
    values = json.loads(json.dumps(step_info().to_dict()))
    assert values["indices"] == [4, 9, 1]
    assert values["tokens"] == 50
    assert values["global_tokens"] == 80
    assert values["loss_scale"] == 2.0
    assert values["per_rank"]["supervised_tokens"] == [10, 20, 0]
    assert step_info(indices=None).to_dict()["indices"] is None


@pytest.mark.parametrize("make", [dict, UserDict])
def test_a_step_put_into_a_batch_comes_out_once_and_leaves_it_clean(make):
    batch = make(input_ids=torch.ones(1, 2))
    step = step_info()
    assert attach_step(batch, step)
    assert pop_step(batch) is step
    assert list(batch) == ["input_ids"]
    with pytest.raises(ConfigurationError, match="popped already, a wrapper"):
        pop_step(batch)


@pytest.mark.parametrize("batch", [torch.ones(2), (1, 2), MappingProxyType({"a": 1})])
def test_other_batches_are_left_alone_and_point_to_steps(batch):
    assert not attach_step(batch, step_info())
    with pytest.raises(ConfigurationError, match=r"loader\.steps\(\)"):
        pop_step(batch)


def test_a_field_of_the_same_name_is_never_overwritten():
    with pytest.raises(ConfigurationError, match=STEP_KEY):
        attach_step({STEP_KEY: 1}, step_info())
