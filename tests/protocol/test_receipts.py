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
BOTH = VisionLanguageCost(
    language=COSTS[1],
    vision=TransformerCost.vision(layers=2, hidden_size=64, heads=4, ffn_size=128),
)


def make_receipt(groups, supervised, cost=COSTS[0], *, packed=False, vision=None, by_source=None):
    lengths = np.array([length for group in groups for length in group])
    return Receipt.of(
        GroupShapes.measure(lengths, offsets_of(groups), vision),
        lengths,
        np.array(supervised, np.int64),
        cost,
        packed_to=1 if packed else None,
        steps=np.arange(len(groups) + 1),
        by_source=by_source,
    )


def offsets_of(groups):
    return np.cumsum([0, *map(len, groups)])


@st.composite
def receipts(draw, steps: int, *, images: bool):
    """Receipts of groups that have images, or of text."""
    longest = draw(st.sampled_from([3, 300, 70_000, 10**9]))
    groups = [draw(st.lists(st.integers(1, longest), min_size=1, max_size=6)) for _ in range(steps)]
    supervised = [draw(st.integers(0, sum(group))) for group in groups]
    cost, packed = draw(st.sampled_from(COSTS)), draw(st.booleans())
    if not images:
        return make_receipt(groups, supervised, cost, packed=packed)
    samples = sum(map(len, groups))
    most = draw(st.sampled_from([0, 3, 300, 70_000]))
    patches = draw(st.lists(st.integers(0, most), min_size=samples, max_size=samples))
    vision = np.array([patches, np.minimum(patches, 3), np.square(patches)], np.int64)
    return make_receipt(groups, supervised, draw(st.sampled_from([BOTH, cost])), vision=vision)


@given(st.data(), st.booleans())
def test_every_rank_decodes_exactly_what_each_rank_encoded(data, images):
    steps = data.draw(st.integers(1, 5))
    sent = data.draw(
        st.lists(receipts(steps, images=images) | st.just(Receipt.none()), min_size=1, max_size=6)
    )
    totals = totals_of(sent)
    assert len(totals) == max(len(receipt) for receipt in sent)
    for rank, receipt in enumerate(sent):
        for field in fields(Receipt):
            column = getattr(totals, field.name)[rank]
            expected = getattr(receipt, field.name) if len(receipt) else np.zeros(column.shape)
            np.testing.assert_array_equal(column, expected)
        assert not images or (receipt.vision_cost <= receipt.cost).all()


@given(st.data(), st.integers(1, 3))
def test_samples_and_tokens_of_each_source_are_known_of_every_rank(data, sources):
    steps = data.draw(st.integers(1, 4))
    a_sample = st.tuples(st.integers(0, sources - 1), st.integers(1, 70_000))
    sent, wanted = [], []
    for _ in range(data.draw(st.integers(1, 3))):
        drawn = [data.draw(st.lists(a_sample, min_size=1, max_size=5)) for _ in range(steps)]
        groups = [[length for _, length in group] for group in drawn]
        by_source = counts_by_source(
            np.array([source for group in drawn for source, _ in group]),
            sources,
            np.concatenate(groups),
            offsets_of(groups),
        )
        sent.append(make_receipt(groups, [0] * steps, by_source=by_source).encode())
        of = [
            [[n for s, n in group if s == source] for source in range(sources)] for group in drawn
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


@pytest.mark.parametrize("value", [-1.0, np.inf, np.nan, 1e300])
def test_a_cost_that_is_no_cost_is_named_where_it_is_made(value):
    """And not as a message of this rank that is damaged."""
    with pytest.raises(InvariantError, match=r"steps cost .* to .* by <function"):
        make_receipt([[5], [4]], [0, 0], lambda shapes, *, packed: np.full(2, value))
