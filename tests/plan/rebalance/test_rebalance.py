"""Sequences of an update to ranks and micro-batches: each once, equal counts, even costs."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evenstep.cost import GroupShapes, PaddedTokenCost, TransformerCost
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.rebalance import (
    Rebalancing,
    fewest_micro_batches,
    least_imbalance,
    plan_rebalance,
)

MODEL = TransformerCost(
    layers=28, hidden_size=3584, heads=28, kv_heads=4, ffn_size=18944, vocab_size=152_064
)


def rollouts(ranks: int, seed: int, longest: int = 16_384) -> Any:
    """32 answers for each rank, 16 to a prompt, whose lengths have a long tail that is cut off."""
    rng = np.random.default_rng(seed)
    prompts = rng.normal(np.log(2000), 0.6, 2 * ranks).repeat(16)
    return np.exp(prompts + rng.normal(0, 0.6, 32 * ranks)).astype(np.int64).clip(16, longest)


def check(
    plan: Rebalancing, lengths: Any, max_tokens: int, packed: bool, together: bool = False
) -> None:
    every = [plan.of_rank(rank) for rank in range(plan.ranks)]
    assert {len(own) for own in every} == {plan.micro_batches}
    assert all(any(map(len, own)) for own in every)
    flat = np.concatenate([m for own in every for m in own])
    assert np.array_equal(np.sort(flat), np.arange(len(lengths)))
    held = [lengths[members] for own in every for members in own if len(members)]
    assert max(int(m.sum() if packed else len(m) * m.max()) for m in held) <= max_tokens
    empty = plan.ranks * plan.micro_batches - len(held)
    assert together or empty == max(0, plan.ranks * plan.micro_batches - len(lengths))
    assert plan.restore([[lengths[members] for members in own] for own in every]) == list(lengths)


def random_update(rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    ranks, max_tokens = int(rng.integers(1, 10)), int(rng.integers(1, 401))
    lengths = rng.integers(1, max_tokens + 1, rng.integers(ranks, 61))
    if rng.integers(2):  # many are as long as the longest
        lengths = np.minimum(lengths, rng.integers(1, max_tokens + 1))
    options: dict[str, Any] = {"ranks": ranks, "max_tokens": max_tokens}
    options["packed"] = bool(rng.integers(2))
    options["multiple_of"] = int(rng.integers(1, 4))
    options["cost"] = (None, MODEL, PaddedTokenCost())[rng.integers(3)]
    if options["packed"] and options["cost"] is None:
        options["cost"] = rng.integers(0, 50, len(lengths))
    if rng.integers(2):
        together = np.arange(len(lengths)) // rng.integers(1, max(2, len(lengths) // ranks + 1))
        if together[-1] + 1 >= ranks:
            options["together"] = together
    return lengths, options


SOAK = [pytest.param(n, n + 1000, marks=pytest.mark.soak) for n in range(60, 10_060, 1000)]


@pytest.mark.parametrize(("first", "end"), [(0, 60), *SOAK])
def test_each_sequence_once_in_equally_many_micro_batches_within_the_limit(
    first: int, end: int
) -> None:
    for seed in range(first, end):
        lengths, options = random_update(np.random.default_rng(seed))
        plan = plan_rebalance(lengths, **options)
        packed, together = options["packed"], options.get("together")
        check(plan, lengths, options["max_tokens"], packed, together is not None)
        assert plan.micro_batches % options["multiple_of"] == 0
        limits = {"ranks": plan.ranks, "max_tokens": options["max_tokens"]}
        assert plan.micro_batches >= fewest_micro_batches(lengths, packed=packed, **limits)
        if packed:
            costs = options["cost"]
            if callable(costs):
                costs = costs(GroupShapes.of_equals(1, lengths), packed=True)
            assert plan.imbalance >= least_imbalance(costs, lengths, **limits) * (1 - 1e-12)
        if together is not None:
            pairs = set(zip(together.tolist(), plan.rank.tolist()))
            assert len(pairs) == len(np.unique(together))


def test_prompts_and_answers_that_are_padded_apart_stay_within_the_limit() -> None:
    for seed in range(25):
        rng = np.random.default_rng(seed)
        ranks = int(rng.integers(1, 5))
        prompts, answers = rng.integers(0, 80, (2, rng.integers(ranks, 40))) ** 2 // 80
        answers += 1
        max_tokens = int(prompts.max() + answers.max()) * int(rng.integers(1, 6))
        options: dict[str, Any] = {"ranks": ranks, "max_tokens": max_tokens, "packed": False}
        plan = plan_rebalance(prompts + answers, prompts=prompts, **options)
        check(plan, prompts + answers, max_tokens, packed=False)
        for members in (m for rank in range(ranks) for m in plan.of_rank(rank) if len(m)):
            width = prompts[members].max() + answers[members].max()
            assert len(members) * width <= max_tokens


@pytest.mark.parametrize(
    ("ranks", "packed", "limit", "max_tokens"),
    [(8, True, 0.005, 16_384), (64, True, 0.005, 32_768), (64, False, 0.08, 16_384)],
)
def test_rollouts_are_even(ranks: int, packed: bool, limit: float, max_tokens: int) -> None:
    lengths = rollouts(ranks, seed=ranks)
    options: dict[str, Any] = {"ranks": ranks, "max_tokens": max_tokens}
    plan, again = (plan_rebalance(lengths, cost=MODEL, packed=packed, **options) for _ in "12")
    check(plan, lengths, max_tokens, packed)
    assert np.array_equal(plan.rank, again.rank)
    assert np.array_equal(plan.micro_batch, again.micro_batch)
    # No short sequences that fit cost as much as one that fills a micro-batch by itself.
    costs = MODEL(GroupShapes.of_equals(1, lengths), packed=True)
    assert plan.imbalance <= least_imbalance(costs, lengths, **options) + limit
    assert plan.micro_batches <= fewest_micro_batches(lengths, packed=packed, **options) + 1


WRONG = [
    ({"lengths": [5]}, ConfigurationError, r"1 sequences are fewer than ranks=2"),
    ({"lengths": [5, 200]}, SampleError, r"sequence 1 has 200 tokens, over max_tokens=100"),
    ({"lengths": [5, 0]}, ConfigurationError, r"lengths that are not at least 1"),
    ({"cost": [1.0, float("nan")]}, ConfigurationError, r"costs\[1\]=nan must be finite"),
    (
        {"cost": [1.0, -2.0]},
        ConfigurationError,
        r"costs\[1\]=-2.0 must be finite and not negative",
    ),
    ({"cost": [1.0]}, ConfigurationError, r"cost has 1 entries for 2 sequences"),
    ({"cost": [1, 2], "packed": False}, ConfigurationError, r"contradicts packed=False"),
    ({"together": [0, 0]}, ConfigurationError, r"together has 1 ids for ranks=2"),
    ({"together": [0]}, ConfigurationError, r"together of shape \(1,\)"),
    ({"prompts": [1, 1]}, ConfigurationError, r"prompts= are for packed=False"),
    ({"prompts": [1], "packed": False}, ConfigurationError, r"prompts of shape \(1,\)"),
    (
        {"prompts": [1, 7], "packed": False},
        ConfigurationError,
        r"sequence 1 has 6 tokens and a prompt of 7",
    ),
    (
        {"lengths": [60, 70], "prompts": [50, 10], "packed": False},
        SampleError,
        r"has 110 tokens, padded to the longest prompt and the longest answer, over max_tokens=100",
    ),
    ({"multiple_of": 0}, ConfigurationError, r"multiple_of=0 must be at least 1"),
]


@pytest.mark.parametrize(("wrong", "kind", "message"), WRONG)
def test_bad_arguments_are_named(wrong: dict[str, Any], kind: type, message: str) -> None:
    given = {"lengths": [5, 6], "ranks": 2, "max_tokens": 100, **wrong}
    with pytest.raises(kind, match=message):
        plan_rebalance(given.pop("lengths"), **given)


def test_the_schedule_for_slime() -> None:
    names = run_path(str(Path(__file__).parents[3] / "examples" / "slime_schedule.py"))
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(6.5, 0.8, 150).astype(int).clip(1, 4096)
    # Some rollouts have two sequences, and the last rollouts fill no step.
    rollouts = np.repeat(rng.permutation(120), np.arange(120) % 4 // 3 + 1)
    ranks, config = 4, {"cp_size": 2, "vpp_size": 2, "microbatch_group_size_per_vp_stage": 2}
    partitions, micro_batches, counts, sizes = names["build_dp_schedule"](
        SimpleNamespace(max_tokens_per_gpu=2048),
        {"dp_size": ranks, **config},
        lengths.tolist(),
        global_batch_size=50,
        rollout_indices=rollouts.tolist(),
    )
    assert sizes == [50, 50]
    assert len(counts) == 2
    assert all(count % 2 == 0 for count in counts)
    kept = list(dict.fromkeys(rollouts.tolist()))[:100]
    assert sorted(chain(*partitions)) == np.flatnonzero(np.isin(rollouts, kept)).tolist()
    for own, groups in zip(partitions, micro_batches, strict=True):
        assert list(chain(*groups)) == list(range(len(own)))
        assert len(groups) == sum(counts)
        assert all(0 < lengths[[own[n] for n in group]].sum() <= 4096 for group in groups)
        first = {rollouts[own[n]] for group in groups[: counts[0]] for n in group}
        assert first <= set(kept[:50])
