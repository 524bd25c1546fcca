from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cost import GroupShapes, PaddedTokenCost, TransformerCost
from evenstep.errors import InvariantError
from evenstep.protocol.receipts import Receipt
from worlds import totals_of

COSTS = (PaddedTokenCost(), TransformerCost(layers=2, hidden_size=64, heads=4, ffn_size=128))


def make_receipt(
    groups: list[list[int]], supervised: list[int], cost=COSTS[0], packed=False, steps=None
):
    lengths = [length for group in groups for length in group]
    offsets = np.cumsum([0] + [len(group) for group in groups])
    shapes = GroupShapes.measure(lengths, offsets)
    bounds = np.arange(len(groups) + 1) if steps is None else np.array(steps)
    tokens = np.array(supervised, np.int64)
    return Receipt.of(shapes, np.array(lengths), tokens, cost, packed=packed, steps=bounds)


@st.composite
def receipts(draw, steps: int):
    length = st.integers(1, draw(st.sampled_from([3, 300, 70_000, 2**31 - 1])))
    groups = [draw(st.lists(length, min_size=1, max_size=6)) for _ in range(steps)]
    supervised = [draw(st.integers(0, sum(group))) for group in groups]
    return make_receipt(groups, supervised, draw(st.sampled_from(COSTS)), draw(st.booleans()))


@given(st.data())
def test_every_rank_decodes_exactly_what_each_rank_encoded(data):
    steps = data.draw(st.integers(1, 5))
    ranks = data.draw(st.integers(1, 6))
    sent = [
        Receipt.none() if data.draw(st.integers(0, 3)) == 0 else data.draw(receipts(steps))
        for _ in range(ranks)
    ]
    totals = totals_of(sent)
    assert len(totals) == max(len(receipt) for receipt in sent)
    for rank, receipt in enumerate(sent):
        for field in fields(Receipt):
            column = getattr(totals, field.name)[rank]
            expected = getattr(receipt, field.name) if len(receipt) else np.zeros(len(totals))
            np.testing.assert_array_equal(column, expected)


def test_a_step_is_one_column_of_the_round():
    sent = [make_receipt([[5, 3], [9]], [8, 0]), make_receipt([[4], [2, 2]], [4, 3])]
    step = totals_of(sent).step(1)
    assert step.samples.tolist() == [1, 2]
    assert step.tokens.tolist() == [9, 4]
    assert step.padded_tokens.tolist() == [9, 4]
    assert step.supervised_tokens.tolist() == [0, 3]
    assert step.cost.tolist() == [9.0, 4.0]


@given(st.lists(st.lists(st.integers(1, 4_000_000), min_size=1, max_size=30), min_size=1))
def test_moments_of_lengths_are_those_of_the_samples_to_half_precision(groups):
    moments = totals_of([make_receipt(groups, [0] * len(groups))]).moments
    for step, group in enumerate(groups):
        lengths = np.array(group, np.float64)
        mean = np.average(lengths, weights=lengths)
        second, third = ((lengths * (lengths - mean) ** power).sum() for power in (2, 3))
        assert moments.samples[0, step] == len(group)
        assert moments.tokens[0, step] == sum(group)
        assert moments.mean[0, step] == pytest.approx(mean, rel=5e-4)
        assert moments.second[0, step] == pytest.approx(second, rel=2e-3, abs=1e-3 * sum(group))
        assert moments.third[0, step] == pytest.approx(
            third, rel=3e-3, abs=1e-9 * mean * second + 1e-2 * sum(group)
        )


def test_columns_that_do_not_vary_take_no_bytes():
    one = make_receipt([[100]] * 2, [100] * 2).encode()
    many = make_receipt([[100]] * 500, [100] * 500).encode()
    assert len(many) == len(one)


def test_a_receipt_of_a_thousand_sample_window_takes_a_few_bytes_per_step():
    draw = np.random.default_rng(0)
    groups = [draw.integers(900, 1300, 9).tolist() for _ in range(112)]
    encoded = make_receipt(groups, [sum(group) for group in groups]).encode()
    assert len(encoded) <= 112 * 11


def test_unequally_many_steps_are_refused():
    sent = [make_receipt([[5]] * count, [5] * count) for count in (2, 3)]
    with pytest.raises(InvariantError, match="rank 0 planned 2 steps in round 0, and rank 1 3"):
        totals_of(sent)


def test_micro_batches_of_a_step_are_added_up() -> None:
    cost = TransformerCost(layers=2, hidden_size=64, heads=4, ffn_size=128)
    groups, supervised = [[5, 3], [7], [2, 2, 2]], [4, 7, 1]
    whole = make_receipt(groups, supervised, cost, steps=[0, 2, 3])
    parts = make_receipt(groups, supervised, cost)
    assert whole.samples.tolist() == [3, 3]
    assert whole.tokens.tolist() == [15, 6]
    assert whole.padded_tokens.tolist() == [17, 6]
    assert whole.supervised_tokens.tolist() == [11, 1]
    assert whole.cost[0] == pytest.approx(parts.cost[:2].sum())
