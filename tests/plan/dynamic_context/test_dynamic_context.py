"""Dynamic context parallelism: what every plan keeps, and how even plans are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError, InvariantError, SampleError
from evenstep.plan.dynamic_context import (
    ContextPlan,
    DynamicContext,
    Exchange,
    least_step,
    plan_dynamic_context,
)
from evenstep.plan.packing import DocumentCost
from evenstep.plan.sharding import shard
from evenstep.plan.sharding.attention_tiles import TILE
from evenstep.tools.simulate import sample_lengths

TOKENS = 16_384


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], DynamicContext]:
    """Documents of any lengths that fit, many of one length among them, and any options."""
    powers_of_two = draw(st.booleans())
    options = DynamicContext(
        ranks=draw(st.sampled_from([1, 2, 4, 8, 16]) if powers_of_two else st.integers(1, 24)),
        tokens_per_rank=draw(st.integers(1, 3000)),
        cost=DocumentCost(linear=draw(st.sampled_from([0, 1, 24_576])), quadratic=1),
        exchange=Exchange(
            within=draw(st.sampled_from([0, 300, 10**6])), node=draw(st.integers(1, 8))
        ),
        multiple_of=draw(st.integers(1, 4)),
        powers_of_two=powers_of_two,
    )
    longest = options.capacity
    one = st.one_of(
        st.integers(1, min(40, longest)),
        st.integers(1, min(2 * options.tokens_per_rank, longest)),
        st.integers(1, longest),
        st.just(min(options.tokens_per_rank * 3 // 5 + 1, longest)),
    )
    return draw(st.lists(one, max_size=60)), options


@settings(max_examples=100, deadline=None)
@given(step=steps())
def test_every_document_is_in_one_group_and_no_rank_is_over_its_limit(
    step: tuple[list[int], DynamicContext],
) -> None:
    given_lengths, options = step
    lengths = np.array(given_lengths, np.int64)
    plan = plan_dynamic_context(lengths, options)
    assert sorted(plan.documents.tolist()) == list(range(len(lengths)))
    assert plan.micro_batches % options.multiple_of == 0
    held = [0] * plan.micro_batches
    for index in range(len(plan)):
        number, first, size = (
            int(column[index]) for column in (plan.micro_batch, plan.first, plan.size)
        )
        assert first == held[number]  # contiguous and disjoint
        held[number] += size
        assert int(lengths[plan.group(index)].sum()) <= size * options.tokens_per_rank
        assert {plan.group_of(number, rank) for rank in (first, first + size - 1)} == {index}
        if options.powers_of_two:
            assert size & (size - 1) == 0
            assert first % size == 0
    assert held == [options.ranks] * plan.micro_batches
    plan.check(lengths, options.tokens_per_rank)
    again = plan_dynamic_context(lengths.tolist() or lengths, options)
    assert all(np.array_equal(value, vars(again)[name]) for name, value in vars(plan).items())


def shorts_and_longs(name: str, ranks: int, seed: int = 0) -> tuple[Any, DynamicContext]:
    """About four micro-batches of documents."""
    tokens = 1024 if name == "coyo-text" else TOKENS
    if name == "lognormal":
        made = np.random.default_rng(seed).normal(np.log(1024), 1.4, ranks * tokens * 4 // 2700)
        lengths = np.clip(np.exp(made), 16, 131_072).astype(np.int64)
    else:
        mean = {"coyo-text": 17.24, "pretrain-128k": 4370}[name]
        lengths = sample_lengths(name, int(ranks * tokens * 4 / mean), seed)
    return lengths, DynamicContext(ranks=ranks, tokens_per_rank=tokens)


def slowest(plan: ContextPlan, lengths: Any, options: DynamicContext) -> tuple[Any, Any]:
    """[micro-batches] cost of the slowest rank, and the mean of all, in tiles as they are cut."""
    per_tile = 2 * TILE * TILE * options.cost.quadratic
    most, total = np.zeros((2, plan.micro_batches))
    for index in range(len(plan)):
        own = plan.group(index)
        if len(own):
            sharding = shard(lengths[own], int(plan.size[index]))
            ranks = options.cost.linear * sharding.tokens + per_tile * sharding.tiles()
            number = plan.micro_batch[index]
            most[number] = max(most[number], ranks.max())
            total[number] += ranks.sum()
    return most, total / plan.ranks


@pytest.mark.parametrize("name", ["pretrain-128k", "lognormal", "coyo-text"])
@pytest.mark.parametrize("ranks", [8, 64])
def test_ranks_of_all_micro_batches_have_equal_work(name: str, ranks: int) -> None:
    lengths, options = shorts_and_longs(name, ranks)
    plan = plan_dynamic_context(lengths, options)
    most, mean = slowest(plan, lengths, options)
    assert most.sum() <= 1.02 * mean.sum()
    assert most.sum() >= 0.999 * least_step(lengths, options)
    # Few ranks to a document.
    size = np.empty(len(lengths))
    size[plan.documents] = plan.size.repeat(np.diff(plan.offsets))
    short = lengths < options.tokens_per_rank // 4
    assert size[short].mean() <= 5


def test_a_long_document_has_no_more_ranks_than_attention_hides_exchange_for() -> None:
    # Alone it would be fastest on all 64, but for the exchange.
    lengths = np.array([65_536] + [2048] * 500)
    free = Exchange(within=0, between=0)
    options = DynamicContext(ranks=64, tokens_per_rank=TOKENS, exchange=free)
    slow = replace(options, exchange=Exchange(within=300, between=65_536, node=4))

    def ranks_of_the_longest(each: DynamicContext) -> int:
        plan = plan_dynamic_context(lengths, each)
        return int(plan.size[[0 in plan.group(index) for index in range(len(plan))]][0])

    assert ranks_of_the_longest(slow) <= 4 < ranks_of_the_longest(options)
    assert least_step(lengths, slow) > least_step(lengths, options)


def test_the_bound_is_the_longest_document_where_exchange_holds_it_up() -> None:
    options = DynamicContext(
        ranks=4, tokens_per_rank=1024, exchange=Exchange(within=10**6, between=10**6)
    )
    # On one rank, as two would wait for a million units a token.
    cost = 24_576 * 1024 + int(options.attention(np.array([1024]))[0])
    assert least_step(np.array([1024]), options) == cost
    assert least_step(np.array([], np.int64), options) == 0
    # And the mean where there are many.
    assert least_step(np.full(400, 1024), options) == 100 * cost


def test_groups_within_a_node_do_not_reach_into_the_next() -> None:
    lengths = sample_lengths("pretrain-128k", 2000, 3)
    options = DynamicContext(ranks=64, tokens_per_rank=TOKENS)
    plan = plan_dynamic_context(lengths, options)
    node = options.exchange.node
    inside = (plan.size > 1) & (plan.size <= node)
    reaches = plan.first // node != (plan.first + plan.size - 1) // node
    assert inside.sum() > 20
    assert (reaches & inside).sum() <= 0.2 * inside.sum()


def test_micro_batches_of_a_pipeline_cost_equally_much() -> None:
    lengths = np.random.default_rng(5).lognormal(np.log(1500), 1.4, 1500).astype(int)
    lengths = lengths.clip(1, 40_000)
    # Four micro-batches, with a quarter of their memory to spare.
    lengths = lengths[: int(np.searchsorted(lengths.cumsum(), 3 * 32 * TOKENS))]
    spread = {}
    for pipeline in (False, True):
        options = DynamicContext(ranks=32, tokens_per_rank=TOKENS, pipeline=pipeline)
        plan = plan_dynamic_context(lengths, options)
        plan.check(lengths, TOKENS)
        of_group = np.arange(len(plan)).repeat(np.diff(plan.offsets))
        costs = options.cost.of_documents(lengths)[plan.documents]
        costs = np.bincount(plan.micro_batch[of_group], costs)
        spread[pipeline] = costs.max() / costs.mean()
    assert spread[True] < 1.1 < 1.3 < spread[False]


@pytest.mark.parametrize(
    ("lengths", "error", "says"),
    [
        ([5, 0], SampleError, "document 1 has 0 tokens"),
        ([5, 41], SampleError, "document 1 has 41 tokens, over the 40 that 4 ranks of 10 hold"),
        ([1.5], ConfigurationError, "whole numbers"),
        ([[1]], ConfigurationError, "shape"),
    ],
)
def test_documents_that_cannot_be_planned_are_named(
    lengths: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        plan_dynamic_context(lengths, DynamicContext(ranks=4, tokens_per_rank=10))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ranks": 0}, "ranks=0"),
        ({"tokens_per_rank": None}, "tokens_per_rank=None"),
        ({"multiple_of": 0}, "multiple_of=0"),
        ({"ranks": 6, "powers_of_two": True}, "ranks=6 must be a power of two"),
        ({"tokens_per_rank": 2**40, "ranks": 2**20}, "costs"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        DynamicContext(**{"ranks": 4, "tokens_per_rank": 10, **options})


def test_a_damaged_plan_is_noticed() -> None:
    lengths = np.array([900, 30, 30, 30])
    plan = plan_dynamic_context(lengths, DynamicContext(ranks=4, tokens_per_rank=400))
    for broken, says in (
        (replace(plan, documents=plan.documents * 0), "every document once"),
        (replace(plan, first=plan.first + 1), "one after the other"),
        (replace(plan, ranks=5), "one after the other"),
    ):
        with pytest.raises(InvariantError, match=says):
            broken.check(lengths, 400)
    with pytest.raises(InvariantError, match="over the limit of 100"):
        plan.check(lengths, 100)
    with pytest.raises(ConfigurationError, match="rank=4"):
        plan.group_of(0, 4)
