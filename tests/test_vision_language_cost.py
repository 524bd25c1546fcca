"""A cost of two parts: the language model's, and the vision tower's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cost import (
    FittedCost,
    GroupShapes,
    MemoryLimit,
    PaddedTokenCost,
    TransformerCost,
    VisionLanguageCost,
)
from evenstep.cost.vision_language import vision_part
from evenstep.errors import ConfigurationError
from evenstep.plan import Even, FixedBatch

TOWER = TransformerCost.vision(layers=3, hidden_size=16, heads=2, ffn_size=48)
LANGUAGE = TransformerCost(layers=2, hidden_size=64, heads=4, ffn_size=128)
GROUPS = st.lists(
    st.lists(
        st.tuples(st.integers(1, 5000), st.lists(st.integers(1, 900), max_size=5)),
        min_size=1,
        max_size=6,
    ),
    min_size=1,
    max_size=5,
)
"""Of each sample its tokens, and the patches of its images."""


def shapes_of(groups: list[list[tuple[int, list[int]]]]) -> GroupShapes:
    samples = [sample for group in groups for sample in group]
    vision = [[sum(p), len(p), sum(x * x for x in p)] for _, p in samples]
    offsets = np.cumsum([0, *map(len, groups)])
    return GroupShapes.measure([n for n, _ in samples], offsets, np.array(vision).T)


@given(GROUPS, st.none() | st.integers(1, 64), st.booleans())
def test_the_vision_tower_attends_within_each_image_and_never_pads(
    groups: list[list[tuple[int, list[int]]]], window: int | None, packed: bool
) -> None:
    cost = VisionLanguageCost(language=LANGUAGE, vision=TOWER, window=window)
    shapes = shapes_of(groups)
    images = [[patches for _, sample in group for patches in sample] for group in groups]
    expected = [
        sum(TOWER.per_token * p + TOWER.per_pair * p * (window or p) for p in group)
        for group in images
    ]
    np.testing.assert_allclose(cost.of_vision(shapes), expected)
    whole = LANGUAGE(shapes, packed=packed) + expected
    np.testing.assert_allclose(cost(shapes, packed=packed), whole)
    np.testing.assert_array_equal(vision_part(cost, shapes), cost.of_vision(shapes))


@given(GROUPS)
def test_costs_of_one_part_ignore_images(groups: list[list[tuple[int, list[int]]]]) -> None:
    counted = shapes_of(groups)
    bare = GroupShapes(counted.samples, counted.tokens, counted.longest, counted.squares)
    for cost in (LANGUAGE, PaddedTokenCost()):
        np.testing.assert_array_equal(cost(counted, packed=True), cost(bare, packed=True))
        assert not vision_part(cost, counted).any()
    both = VisionLanguageCost(language=LANGUAGE, vision=TOWER)
    np.testing.assert_array_equal(both(bare, packed=False), LANGUAGE(bare, packed=False))


@given(GROUPS, st.integers(1, 8), st.integers(1, 3000))
def test_a_group_fits_if_all_its_limits_hold(
    groups: list[list[tuple[int, list[int]]]], max_images: int, max_patches: int
) -> None:
    limit = MemoryLimit(max_tokens=10**6, max_images=max_images, max_patches=max_patches)
    expected = [
        sum(len(p) for _, p in group) <= max_images and sum(sum(p) for _, p in group) <= max_patches
        for group in groups
    ]
    assert limit.fits(shapes_of(groups)).tolist() == expected


def test_a_limit_on_images_needs_them() -> None:
    with pytest.raises(ConfigurationError, match="max_images=3 needs the images"):
        MemoryLimit(max_tokens=9, max_images=3).fits(GroupShapes.measure([4], [0, 1]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"language": 3, "vision": TOWER}, "language=3 must be a cost"),
        ({"language": LANGUAGE, "vision": PaddedTokenCost()}, "must be TransformerCost.vision"),
        ({"language": LANGUAGE, "vision": TOWER, "window": 0}, "window=0 must be at least 1"),
    ],
)
def test_wrong_parts_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        VisionLanguageCost(**options)


def test_a_cost_of_two_parts_has_images_counted_and_one_of_text_has_not() -> None:
    both = VisionLanguageCost(
        language=LANGUAGE, vision=FittedCost(per_group=0, per_token=1.0, per_pair=0)
    )
    assert Even(100, cost=both).counts_patches
    assert Even(100, max_images=2).counts_patches
    assert not Even(100, cost=LANGUAGE).counts_patches
    assert not FixedBatch(2).counts_patches


def test_the_fingerprint_of_text_only_options_is_that_of_earlier_releases() -> None:
    assert "max_images" not in Even(100).fingerprint
    assert "max_images" in Even(100, max_images=2).fingerprint
