from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cost import GroupShapes, PaddedTokenCost, TransformerCost, VisionLanguageCost
from evenstep.errors import InvariantError
from evenstep.protocol.receipts import Receipt, RoundTotals, counts_by_source
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
    return Receipt.of(
        shapes, np.array(lengths), tokens, cost, packed_to=1 if packed else None, steps=bounds
    )


@st.composite
def receipts(draw, steps: int):
    length = st.integers(1, draw(st.sampled_from([3, 300, 70_000, 10**9])))
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
            expected = getattr(receipt, field.name) if len(receipt) else np.zeros(column.shape)
            np.testing.assert_array_equal(column, expected)


BOTH = VisionLanguageCost(
    language=COSTS[1],
    vision=TransformerCost.vision(layers=2, hidden_size=64, heads=4, ffn_size=128),
)


@st.composite
def receipts_of_images(draw, steps: int):
    """Receipts of groups with and without images, and what each step's vision costs."""
    groups = [draw(st.lists(st.integers(1, 300), min_size=1, max_size=4)) for _ in range(steps)]
    samples = [length for group in groups for length in group]
    most = draw(st.sampled_from([0, 3, 300, 70_000]))
    patches = draw(st.lists(st.integers(0, most), min_size=len(samples), max_size=len(samples)))
    vision = np.array([patches, np.minimum(patches, 3), np.square(patches)], np.int64)
    offsets = np.cumsum([0, *map(len, groups)])
    shapes = GroupShapes.measure(samples, offsets, vision)
    return Receipt.of(
        shapes,
        np.array(samples),
        np.zeros(steps, np.int64),
        draw(st.sampled_from([BOTH, *COSTS])),
        packed_to=None,
        steps=np.arange(steps + 1),
    )


@given(st.data())
def test_images_and_both_parts_of_the_cost_are_known_of_every_rank(data):
    steps = data.draw(st.integers(1, 4))
    sent = [data.draw(receipts_of_images(steps)) for _ in range(data.draw(st.integers(1, 4)))]
    sent.append(Receipt.none())
    totals = totals_of(sent)
    for rank, receipt in enumerate(sent[:-1]):
        for field in fields(Receipt):
            column = getattr(totals, field.name)[rank]
            np.testing.assert_array_equal(column, getattr(receipt, field.name))
        assert (receipt.vision_cost <= receipt.cost).all()
    assert not totals.patches[-1].any()


@given(st.data(), st.integers(1, 3))
def test_samples_and_tokens_of_each_source_are_known_of_every_rank(data, sources):
    steps = data.draw(st.integers(1, 4))
    a_sample = st.tuples(st.integers(0, sources - 1), st.integers(1, 70_000))
    sent, wanted = [], []
    for _ in range(data.draw(st.integers(1, 3))):
        groups = [data.draw(st.lists(a_sample, min_size=1, max_size=5)) for _ in range(steps)]
        lengths = np.array([length for group in groups for _, length in group])
        offsets = np.cumsum([0, *map(len, groups)])
        receipt = Receipt.of(
            GroupShapes.measure(lengths, offsets),
            lengths,
            np.zeros(steps, np.int64),
            PaddedTokenCost(),
            packed_to=None,
            steps=np.arange(steps + 1),
            by_source=counts_by_source(
                np.array([source for group in groups for source, _ in group]),
                sources,
                lengths,
                offsets,
            ),
        )
        sent.append(receipt.encode())
        of = [
            [[n for s, n in group if s == source] for source in range(sources)] for group in groups
        ]
        wanted.append([[*map(len, one), *map(sum, one)] for one in of])
    assert RoundTotals.decode(sent, sources=sources).by_source.tolist() == wanted


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


def test_a_receipt_of_a_thousand_sample_window_takes_a_few_bytes_per_step():
    draw = np.random.default_rng(0)
    groups = [draw.integers(900, 1300, 9).tolist() for _ in range(112)]
    encoded = make_receipt(groups, [sum(group) for group in groups]).encode()
    assert len(encoded) <= 112 * 11


def test_unequally_many_steps_are_refused():
    sent = [make_receipt([[5]] * count, [5] * count) for count in (2, 3)]
    with pytest.raises(InvariantError, match="rank 0 planned 2 steps, and rank 1 3"):
        totals_of(sent)


@pytest.mark.parametrize("value", [-1.0, np.inf, np.nan, 1e300])
def test_a_cost_that_is_no_cost_is_named_where_it_is_made(value):
    """And not as a message of this rank that is damaged."""
    with pytest.raises(InvariantError, match=r"steps cost .* to .* by <function"):
        make_receipt([[5], [4]], [0, 0], lambda shapes, *, packed: np.full(2, value))
