"""Sequences of an update to ranks and micro-batches: each once, equal counts, even costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.cost import PaddedTokenCost, TransformerCost
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.rebalance import Rebalancing, plan_rebalance

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
    flat = np.concatenate([m for own in every for m in own])
    assert sorted(flat.tolist()) == list(range(len(lengths)))
    for own in every:
        assert any(map(len, own))
        for members in own:
            held = lengths[members]
            width = held.sum() if packed else len(held) * held.max(initial=0)
            assert width <= max_tokens
    empty = sum(not len(members) for own in every for members in own)
    assert together or empty == max(0, plan.ranks * plan.micro_batches - len(lengths))


@st.composite
def updates(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    ranks = draw(st.integers(1, 9))
    max_tokens = draw(st.integers(1, 400))
    count = draw(st.integers(ranks, 60))
    lengths = np.array(draw(st.lists(st.integers(1, max_tokens), min_size=count, max_size=count)))
    options: dict[str, Any] = {"ranks": ranks, "max_tokens": max_tokens}
    options["packed"] = draw(st.booleans())
    options["multiple_of"] = draw(st.integers(1, 3))
    if draw(st.booleans()):
        options["together"] = np.arange(count) // draw(st.integers(1, max(1, count // ranks)))
        if len(set(options["together"].tolist())) < ranks:
            del options["together"]
    if draw(st.booleans()):
        options["cost"] = draw(st.sampled_from([MODEL, PaddedTokenCost()]))
    return lengths, options


@settings(max_examples=300)
@given(updates())
def test_each_sequence_once_in_equally_many_micro_batches_within_the_limit(update: Any) -> None:
    lengths, options = update
    plan = plan_rebalance(lengths, **options)
    check(plan, lengths, options["max_tokens"], options["packed"], "together" in options)
    assert plan.micro_batches % options["multiple_of"] == 0
    again = plan_rebalance(lengths, **options)
    assert np.array_equal(plan.rank, again.rank)
    assert np.array_equal(plan.micro_batch, again.micro_batch)
    if "together" in options:
        pairs = set(zip(options["together"].tolist(), plan.rank.tolist()))
        assert len(pairs) == len(set(options["together"].tolist()))


@pytest.mark.parametrize(
    ("ranks", "max_tokens", "limit"),
    [
        (8, 32_768, 1.01),
        (64, 32_768, 1.02),
        (512, 32_768, 1.03),
        # No short sequences that fit cost as much as one that fills a micro-batch by itself.
        (8, 16_384, 1.02),
        (64, 16_384, 1.02),
        (512, 16_384, 1.03),
    ],
)
def test_rollouts_are_even(ranks: int, max_tokens: int, limit: float) -> None:
    lengths = rollouts(ranks, seed=ranks)
    plan = plan_rebalance(lengths, ranks=ranks, max_tokens=max_tokens, cost=MODEL)
    check(plan, lengths, max_tokens, packed=True)
    assert plan.imbalance <= limit
    fewest = -(-int(lengths.sum()) // (ranks * max_tokens))
    assert plan.micro_batches <= fewest + 1


def test_imbalance_counts_the_slowest_rank_of_each_micro_batch() -> None:
    plan = plan_rebalance([9, 3, 3, 3, 3, 3], ranks=2, max_tokens=9)
    assert plan.micro_batches == 2
    assert sorted(plan.costs[:, 0].tolist()) == [9, 9]
    assert sorted(plan.costs[:, 1].tolist()) == [3, 3]
    assert plan.imbalance == plan.rank_imbalance == 1


def test_costs_decide_where_lengths_are_equal() -> None:
    plan = plan_rebalance([4] * 4, ranks=2, max_tokens=16, costs=[5.0, 1.0, 3.0, 3.0])
    assert plan.costs.sum(axis=1).tolist() == [6, 6]


WRONG = [
    ({"lengths": [5]}, ConfigurationError, r"1 sequences are fewer than ranks=2"),
    ({"lengths": [5, 200]}, SampleError, r"sequence 1 has 200 tokens, over max_tokens=100"),
    ({"lengths": [5, 0]}, ConfigurationError, r"lengths are not from 1"),
    ({"costs": [1.0, float("nan")]}, ConfigurationError, r"costs\[1\]=nan must be finite"),
    (
        {"costs": [1.0, -2.0]},
        ConfigurationError,
        r"costs\[1\]=-2.0 must be finite and not negative",
    ),
    ({"costs": [1.0]}, ConfigurationError, r"costs has 1 entries for 2 sequences"),
    ({"costs": [1, 2], "packed": False}, ConfigurationError, r"costs= contradicts packed=False"),
    ({"together": [0, 0]}, ConfigurationError, r"together has 1 ids for ranks=2"),
    ({"together": [0]}, ConfigurationError, r"together of shape \(1,\)"),
    ({"multiple_of": 0}, ConfigurationError, r"multiple_of=0 must be at least 1"),
]


@pytest.mark.parametrize(("wrong", "kind", "message"), WRONG)
def test_bad_arguments_are_named(wrong: dict[str, Any], kind: type, message: str) -> None:
    given = {"lengths": [5, 6], "ranks": 2, "max_tokens": 100, **wrong}
    with pytest.raises(kind, match=message):
        plan_rebalance(given.pop("lengths"), **given)
