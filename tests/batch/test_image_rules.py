"""What follows from the sizes of images is what the image processors of transformers return."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("PIL")

import transformers
from PIL import Image

from evenstep.batch.images.processors import planned
from evenstep.batch.images.rules import NotPlanned
from families import FAMILIES

FLAT = {"return_tensors": "pt"}
CROPS = {
    "do_pan_and_scan": True,
    "pan_and_scan_min_crop_size": 20,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}
TILES = {"crop_to_patches": True, "max_patches": 6}
ROWS = {"return_row_col_info": True}

# Name -> the image processor, whether images come in one list for each row, and more arguments.
CASES: dict[str, tuple[Any, bool, dict[str, Any]]] = {
    name: (FAMILIES[name].processor().image_processor, nested, options)
    for name, nested, options in [
        ("Qwen2-VL", False, {}),
        ("GLM-4V", False, {}),
        ("Pixtral", True, {}),
        ("Mistral 3", False, {"patch_size": 16}),
        ("Idefics3", True, ROWS),
        ("SmolVLM", True, ROWS),
        ("Gemma 3", True, {}),
        ("InternVL", False, {}),
    ]
}
CASES |= {
    "Qwen2-VL, patches of 14": (
        transformers.Qwen2VLImageProcessorPil(size={"shortest_edge": 784, "longest_edge": 50_000}),
        False,
        {},
    ),
    "Qwen3-VL, patches of 16": (
        transformers.Qwen2VLImageProcessorPil(
            patch_size=16, size={"shortest_edge": 1024, "longest_edge": 65_536}
        ),
        False,
        {},
    ),
    "Idefics3, not split": (CASES["Idefics3"][0], True, {"do_image_splitting": False}),
    "Idefics3, many tiles": (
        transformers.Idefics3ImageProcessorPil(
            size={"longest_edge": 90}, max_image_size={"longest_edge": 16}
        ),
        False,
        ROWS,
    ),
    "Gemma 3, pan and scan": (CASES["Gemma 3"][0], True, CROPS),
    "InternVL, tiles": (CASES["InternVL"][0], False, TILES),
}
SIDES = st.integers(1, 300) | st.sampled_from([1, 2, 7, 8, 14, 16, 28, 32, 33, 64])
SIZES = st.tuples(SIDES, SIDES) | st.tuples(st.integers(1, 3), st.integers(100, 600))


def outcome(processor: Any, images: Any, arguments: dict[str, Any]) -> tuple[Any, str]:
    """What an image processor returns, or says of images that it refuses."""
    try:
        return processor(images, **arguments), ""
    except ValueError as error:
        return None, str(error)


def compare(name: str, sizes: list[tuple[int, int]]) -> None:
    processor, nested, options = CASES[name]
    images: Any = [Image.new("RGB", size, "white") for size in sizes]
    images = [images] if nested else images
    arguments = {**FLAT, **options}
    theirs, refused = outcome(processor, images, arguments)
    if refused:
        with pytest.raises((ValueError, NotPlanned), match=f"{re.escape(refused)}|too narrow"):
            planned(processor, images, arguments)
        return
    found = planned(processor, images, arguments)
    assert found.keys() == theirs.keys()
    for field, value in theirs.items():
        if not isinstance(value, torch.Tensor):
            assert found[field] == value
        elif found[field].device.type == "meta":
            assert (found[field].shape, found[field].dtype) == (value.shape, value.dtype)
        else:
            assert torch.equal(found[field], value)
    assert found["pixel_values"].device.type == "meta"


@pytest.mark.parametrize("name", CASES)
def test_shapes_grids_and_counts_are_those_of_the_image_processor(name: str) -> None:
    @given(st.lists(SIZES, min_size=1, max_size=3))
    def check(sizes: list[tuple[int, int]]) -> None:
        compare(name, sizes)

    check()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"return_tensors": None}, "return_tensors"),
        ({"do_resize": False}, "do_resize is off"),
        ({"do_convert_rgb": False}, "do_convert_rgb is off"),
        ({"something_new": 3}, "does not know of something_new"),
    ],
)
def test_what_changes_the_result_in_another_way_is_not_planned(options: Any, why: str) -> None:
    processor = CASES["Qwen2-VL"][0]
    with pytest.raises(NotPlanned, match=why):
        planned(processor, [Image.new("RGB", (40, 40))], {**FLAT, **options})
