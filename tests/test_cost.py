"""Costs are checked against counts made in another way: plain Python, or torch's FLOP counter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from evenstep.cost import (
    Cost,
    FittedCost,
    GroupShapes,
    MemoryLimit,
    PaddedTokenCost,
    TokenCost,
    TransformerCost,
    VisionLanguageCost,
    fit,
)
from evenstep.cost.vision_language import vision_part
from evenstep.plan import Even, FixedBatch

GROUPS = st.lists(st.lists(st.integers(1, 40_000), min_size=1, max_size=6), min_size=1, max_size=6)

SMALL = TransformerCost(layers=2, hidden_size=64, heads=4, ffn_size=160, vocab_size=101)
COSTS: list[Cost] = [
    TokenCost(),
    PaddedTokenCost(),
    SMALL,
    TransformerCost.vision(layers=2, hidden_size=64, heads=4, ffn_size=160),
    FittedCost(per_group=1e-3, per_token=1e-6, per_pair=1e-10),
]
by_kind = pytest.mark.parametrize("cost", COSTS, ids=lambda cost: type(cost).__name__)


def shapes_of(groups: list[list[int]]) -> GroupShapes:
    offsets = np.cumsum([0] + [len(group) for group in groups])
    return GroupShapes.measure([length for group in groups for length in group], offsets)


# Shapes


def test_attention_cost_follows_the_squares_when_packed_and_the_longest_when_padded() -> None:
    attention = FittedCost(per_group=0.0, per_token=0.0, per_pair=1.0)
    shapes = shapes_of([[10, 90], [50, 50]])
    assert attention(shapes, packed=True).tolist() == [8_200, 5_000]
    assert attention(shapes, packed=False).tolist() == [2 * 90 * 90, 5_000]


@given(GROUPS)
def test_shapes_equal_a_plain_count(groups: list[list[int]]) -> None:
    shapes = shapes_of(groups)
    assert len(shapes) == len(groups)
    assert shapes.samples.tolist() == [len(group) for group in groups]
    assert shapes.tokens.tolist() == [sum(group) for group in groups]
    assert shapes.longest.tolist() == [max(group) for group in groups]
    assert shapes.padded.tolist() == [len(group) * max(group) for group in groups]
    assert shapes.squares.tolist() == [sum(n * n for n in group) for group in groups]


# Padded and packed


@given(GROUPS)
def test_token_costs_count_padding_only_where_it_is_computed(groups: list[list[int]]) -> None:
    shapes = shapes_of(groups)
    real = [float(sum(group)) for group in groups]
    padded = [float(len(group) * max(group)) for group in groups]
    assert TokenCost()(shapes, packed=False).tolist() == real
    assert TokenCost()(shapes, packed=True).tolist() == real
    assert PaddedTokenCost()(shapes, packed=False).tolist() == padded
    assert PaddedTokenCost()(shapes, packed=True).tolist() == real


@by_kind
@given(groups=GROUPS)
def test_costs_are_positive_and_packing_never_costs_more(
    cost: Cost, groups: list[list[int]]
) -> None:
    padded = cost(shapes_of(groups), packed=False)
    packed = cost(shapes_of(groups), packed=True)
    assert padded.dtype == packed.dtype == np.float64
    assert (packed > 0).all()
    assert (packed <= padded * (1 + 1e-12)).all()


# Transformer FLOPs against torch's counter


class Layer:
    """One transformer layer, made of nothing but the matrix products that the cost counts."""

    def __init__(self, cost: TransformerCost) -> None:
        hidden, kv_heads = cost.hidden_size, cost.kv_heads or cost.heads
        kv_size = hidden // cost.heads * kv_heads
        self.cost = cost
        self.query, self.output = weight(hidden, hidden), weight(hidden, hidden)
        self.key, self.value = weight(kv_size, hidden), weight(kv_size, hidden)
        self.router = weight(cost.experts, hidden) if cost.experts else None
        self.up, self.gate = weight(cost.ffn_size, hidden), weight(cost.ffn_size, hidden)
        self.down = weight(hidden, cost.ffn_size)

    def heads(self, x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        made = functional.linear(x, matrix)
        split = made.view(*x.shape[:2], -1, self.cost.hidden_size // self.cost.heads)
        repeats = self.cost.heads // split.shape[2]
        return split.transpose(1, 2).repeat_interleave(repeats, 1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (self.heads(x, m) for m in (self.query, self.key, self.value))
        attended = (query @ key.transpose(2, 3)).softmax(-1) @ value
        x = y = x + functional.linear(attended.transpose(1, 2).flatten(2), self.output)
        # Every token computes as many experts, and whichever it is, the same one can be counted.
        for _ in range(self.cost.top_k or 1):
            hidden = functional.silu(functional.linear(x, self.up))
            if self.cost.gated:
                hidden = hidden * functional.linear(x, self.gate)
            y = y + functional.linear(hidden, self.down)
        if self.router is not None:
            y = y * functional.linear(x, self.router).softmax(-1).sum(-1, keepdim=True)
        return y


def weight(rows: int, columns: int) -> torch.Tensor:
    return torch.full((rows, columns), 0.01, requires_grad=True)


def counted_flops(cost: TransformerCost, batches: list[tuple[int, int]]) -> int:
    """Forward and backward operations of batches of (samples, length)."""
    layers = [Layer(cost) for _ in range(cost.layers)]
    head = weight(cost.vocab_size, cost.hidden_size)
    with FlopCounterMode(display=False) as counter:
        for samples, length in batches:
            x = torch.ones(samples, length, cost.hidden_size, requires_grad=True)
            y = x
            for layer in layers:
                y = layer(y)
            if cost.vocab_size:
                y = functional.linear(y, head)
            y.sum().backward()
    return counter.get_total_flops()


MODELS = {
    "plain": {},
    "grouped-query": {"kv_heads": 2},
    "multi-query": {"kv_heads": 1},
    "with output projection": {"vocab_size": 101},
    "plain feed-forward": {"gated": False},
    "experts": {"experts": 6, "top_k": 2},
    "experts of two matrices": {"experts": 4, "top_k": 1, "gated": False},
}
MODEL = {"layers": 2, "hidden_size": 48, "heads": 4, "ffn_size": 80}


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS.keys())
def test_flops_equal_what_torch_counts_and_causal_attention_takes_half(
    options: dict[str, Any],
) -> None:
    cost, causal = (TransformerCost(**MODEL, **options, causal=which) for which in (False, True))
    lengths = [7, 19, 12]
    shapes = shapes_of([lengths])
    assert cost(shapes, packed=False)[0] == counted_flops(cost, [(len(lengths), max(lengths))])
    assert cost(shapes, packed=True)[0] == counted_flops(cost, [(1, length) for length in lengths])
    assert causal.per_token == cost.per_token
    assert causal.per_pair == cost.per_pair / 2


# Fitting

LENGTHS = np.repeat(2 ** np.arange(7, 17), 3)


@pytest.mark.parametrize("zero", ["per_group", "per_token", "per_pair"])
def test_fit_is_exact_without_noise_and_finds_what_is_not_there(zero: str) -> None:
    true = FittedCost(**{"per_group": 1e-3, "per_token": 1e-6, "per_pair": 1e-10, zero: 0.0})
    samples = np.arange(len(LENGTHS)) % 4 + 1
    shapes = shapes_of([[int(n)] * int(s) for n, s in zip(LENGTHS, samples)])
    seconds = true(shapes, packed=True)
    fitted = fit(LENGTHS, seconds, samples=samples)
    assert fitted(shapes, packed=True) == pytest.approx(seconds)
    assert getattr(fitted, zero) * LENGTHS.max() ** 2 < 1e-6


MEASUREMENTS = st.lists(
    st.tuples(st.integers(1, 200_000), st.floats(1e-6, 1e3), st.integers(1, 64)),
    min_size=3,
    max_size=20,
)


def relative_error(cost: FittedCost, rows: list[tuple[int, float, int]]) -> float:
    shapes = shapes_of([[length] * samples for length, _, samples in rows])
    seconds = np.array([second for _, second, _ in rows])
    return float(np.square(cost(shapes, packed=True) / seconds - 1).sum())


@given(MEASUREMENTS, st.tuples(*[st.floats(0, 4)] * 3).filter(any))
def test_fit_is_never_negative_and_no_other_cost_has_less_relative_error(
    rows: list[tuple[int, float, int]], factors: tuple[float, float, float]
) -> None:
    lengths, seconds, samples = zip(*rows)
    fitted = fit(lengths, seconds, samples=samples)
    assert min(fitted.per_group, fitted.per_token, fitted.per_pair) >= 0
    typical = float(np.median(seconds))
    tokens = float(np.median(np.multiply(lengths, samples)))
    other = FittedCost(
        per_group=factors[0] * typical,
        per_token=factors[1] * typical / tokens,
        per_pair=factors[2] * typical / tokens / float(np.median(lengths)),
    )
    assert relative_error(fitted, rows) <= relative_error(other, rows) * (1 + 1e-6) + 1e-9


# Memory


def test_memory_limit_counts_padding_only_where_groups_are_padded() -> None:
    shapes = shapes_of([[10, 90], [50, 50], [100], [1] * 100])
    assert MemoryLimit(max_tokens=100).fits(shapes).tolist() == [False, True, True, True]
    assert MemoryLimit(max_tokens=100, packed=True).fits(shapes).all()


# Two parts


TOWER = TransformerCost.vision(layers=3, hidden_size=16, heads=2, ffn_size=48)
LANGUAGE = TransformerCost(layers=2, hidden_size=64, heads=4, ffn_size=128)
IMAGE_GROUPS = st.lists(
    st.lists(
        st.tuples(st.integers(1, 5000), st.lists(st.integers(1, 900), max_size=5)),
        min_size=1,
        max_size=6,
    ),
    min_size=1,
    max_size=5,
)
"""Of each sample its tokens, and the patches of its images."""


def image_shapes(groups: list[list[tuple[int, list[int]]]]) -> GroupShapes:
    samples = [sample for group in groups for sample in group]
    vision = [[sum(p), len(p), sum(x * x for x in p)] for _, p in samples]
    offsets = np.cumsum([0, *map(len, groups)])
    return GroupShapes.measure([n for n, _ in samples], offsets, np.array(vision).T)


@given(IMAGE_GROUPS, st.none() | st.integers(1, 64), st.booleans())
def test_the_vision_tower_attends_within_each_image_and_never_pads(
    groups: list[list[tuple[int, list[int]]]], window: int | None, packed: bool
) -> None:
    cost = VisionLanguageCost(language=LANGUAGE, vision=TOWER, window=window)
    shapes = image_shapes(groups)
    images = [[patches for _, sample in group for patches in sample] for group in groups]
    expected = [
        sum(TOWER.per_token * p + TOWER.per_pair * p * (window or p) for p in group)
        for group in images
    ]
    np.testing.assert_allclose(cost.of_vision(shapes), expected)
    whole = LANGUAGE(shapes, packed=packed) + expected
    np.testing.assert_allclose(cost(shapes, packed=packed), whole)
    np.testing.assert_array_equal(vision_part(cost, shapes), cost.of_vision(shapes))


@pytest.mark.parametrize("name", ["samples", "images", "patches"])
@given(IMAGE_GROUPS, st.integers(1, 30_000), st.floats(0, 1))
def test_memory_limits_refuse_exactly_the_groups_over_any_of_them(
    name: str, groups: list[list[tuple[int, list[int]]]], max_tokens: int, share: float
) -> None:
    counts = {
        "samples": [len(group) for group in groups],
        "images": [sum(len(p) for _, p in group) for group in groups],
        "patches": [sum(sum(p) for _, p in group) for group in groups],
    }[name]
    most = max(1, int(share * max(counts)))
    expected = [
        len(group) * max(tokens for tokens, _ in group) <= max_tokens and count <= most
        for group, count in zip(groups, counts)
    ]
    limit = MemoryLimit(**{"max_tokens": max_tokens, f"max_{name}": most})
    assert limit.fits(image_shapes(groups)).tolist() == expected


def test_a_cost_of_two_parts_has_images_counted_and_one_of_text_has_not() -> None:
    both = VisionLanguageCost(
        language=LANGUAGE, vision=FittedCost(per_group=0, per_token=1.0, per_pair=0)
    )
    assert Even(100, cost=both).counts_patches
    assert Even(100, max_images=2).counts_patches
    assert not Even(100, cost=LANGUAGE).counts_patches
    assert not FixedBatch(2).counts_patches
