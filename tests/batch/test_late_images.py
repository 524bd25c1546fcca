"""Pixels made once a group is known are those that the collate function makes at once."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("PIL")

from PIL import Image

import evenstep
from evenstep.batch.count_media import LATE
from evenstep.batch.images.lazy_images import LazyImage, lazy
from evenstep.errors import CollateError, ConfigurationError
from families import FAMILIES, Family
from families.media import image
from image_decodings import decodings as decodings

QWEN = FAMILIES["Qwen2-VL"]


def encoded(picture: Any, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def rows_of(family: Family, count: int = 7) -> list[dict[str, Any]]:
    """Rows whose images are as PIL opens them: not decoded."""
    rows = [family.row(number) for number in range(count)]
    for number, row in enumerate(rows):
        kind = ("JPEG", "PNG")[number % 2]
        row["images"] = [Image.open(io.BytesIO(encoded(each, kind))) for each in row["images"]]
    return rows


def collator(family: Family, **options: Any) -> evenstep.PreparingCollator:
    made = evenstep.PreparingCollator(collate_fn=family.collate, **options)
    return made.learned(rows_of(family))


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype
        assert torch.equal(value, other[name])


# One of each rule from sizes.
@pytest.mark.parametrize("name", ["Qwen2-VL", "Idefics3", "SmolVLM", "Gemma 3", "InternVL"])
def test_groups_are_those_made_at_once_and_each_image_is_decoded_once(
    name: str, decodings: list[Any]
) -> None:
    family = FAMILIES[name]
    late, at_once = collator(family), collator(family, late=False)
    assert late.late
    assert not at_once.late
    decodings.clear()
    samples = [pickle.loads(pickle.dumps(late.prepare(row))) for row in rows_of(family)]
    kept = [sample for sample in samples if LATE in sample]
    assert len(kept) >= 3
    few = sum(len(sample[LATE].pixels) > 0 and _count(sample) for sample in kept)
    all_images = sum(len(row["images"]) for row in rows_of(family))
    assert len(decodings) == all_images - few  # those with pixels smaller than their files
    late(kept)
    assert len(decodings) == all_images
    late(kept)  # nothing is kept of what was decoded
    assert len(decodings) == all_images + few
    for group in ([0], [0, 3], [4, 0, 1, 2, 3, 5, 6]):
        ours = late([samples[i] for i in group])
        assert_equal(ours, at_once([at_once.prepare(rows_of(family)[i]) for i in group]))


def _count(sample: dict[str, Any]) -> int:
    images = sample[LATE].images
    return sum(len(each) if isinstance(each, list) else 1 for each in images)


def test_what_a_collate_function_changes_of_images_and_pixels_is_kept() -> None:
    class Changing:
        """Converts images, crops one at random, and trains on half precision."""

        def __init__(self) -> None:
            self.inner = QWEN.collate
            self.processor = self.inner.processor

        def __call__(self, rows: list[Any]) -> Any:
            for row in rows:
                first, *rest = row["images"] or [None]
                if first is not None:
                    at = int(np.random.randint(9))
                    cropped = first.crop((at, 4, 30 + at, 29))
                    row["images"] = [cropped, *(each.convert("L") for each in rest)]
            batch = self.inner(rows)
            if "pixel_values" in batch:
                batch["pixel_values"] = batch["pixel_values"].to(torch.bfloat16)
            return batch

    late = evenstep.PreparingCollator(collate_fn=Changing()).learned(rows_of(QWEN))
    assert late.late
    np.random.seed(5)
    samples = [late.prepare(row) for row in rows_of(QWEN)]
    assert any(LATE in sample for sample in samples)
    batch = late(samples)
    np.random.seed(5)
    assert batch["pixel_values"].dtype == torch.bfloat16
    at_once = replace(late, late=False)
    assert_equal(batch, at_once([at_once.prepare(row) for row in rows_of(QWEN)]))


PROCESSOR = QWEN.collate.processor


def by_global(rows: list[Any]) -> Any:
    text = [PROCESSOR.apply_chat_template(row["messages"], tokenize=False) for row in rows]
    images = [each for row in rows for each in row["images"]] or None
    batch = dict(PROCESSOR(text=text, images=images, padding=True, return_tensors="pt"))
    return {**batch, "labels": batch["input_ids"].clone()}


hidden = [by_global]


def by_list(rows: list[Any]) -> Any:
    return hidden[0](rows)


def test_one_that_is_not_found_can_be_given(caplog: Any) -> None:
    caplog.set_level("INFO", "evenstep")
    for processor in (PROCESSOR, None):
        assert "collate_fn shows no processor" not in caplog.text
        made = evenstep.PreparingCollator(collate_fn=by_list, processor=processor)
        assert made.learned(rows_of(QWEN)).late is (processor is not None)
    assert "collate_fn shows no processor" in caplog.text
    with pytest.raises(ConfigurationError, match=r"late=True: .*pass .*processor="):
        replace(made, late=True).learned(rows_of(QWEN))


# Bad images


def prepared(row: dict[str, Any]) -> tuple[evenstep.PreparingCollator, dict[str, Any]]:
    late = collator(QWEN)
    sample = late.prepare(row, "sample 17")
    assert LATE in sample
    return late, sample


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Path.unlink, r"image 0 of 1 \(.*image.png\).*No such file"),
        (
            lambda path: image(9).resize((20, 90)).save(path),
            "(image_grid_thw|pixel_values) was to be",
        ),
        (
            lambda path: path.write_bytes(encoded(image(9), "JPEG")[:-80]),
            r"image 0 of 1 .*pixel_values.*truncated.*late=False",
        ),
    ],
    ids=["gone", "another", "damaged"],
)
def test_a_file_that_is_bad_once_its_group_is_planned_is_an_error_of_its_sample(
    tmp_path: Path, change: Any, said: str
) -> None:
    path = tmp_path / "image.png"
    image(9).save(path)
    late, sample = prepared({**QWEN.row(1), "images": [Image.open(path)]})
    change(path)
    with pytest.raises(CollateError, match=f"sample 17: .*{said}"):
        late([sample])


# Images as they are kept


@pytest.mark.parametrize(("kind", "mode"), [("JPEG", "RGB"), ("PNG", "P"), ("PNG", "RGBA")])
def test_a_lazy_image_is_the_image(kind: str, mode: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    image(3).convert(mode).save(path, kind)
    whole = Image.open(path)
    for opened in (Image.open(path), Image.open(io.BytesIO(path.read_bytes()))):
        one = lazy(opened)
        assert isinstance(one, LazyImage)
        assert (one.size, one.mode, one.format) == (whole.size, whole.mode, kind)
        again = pickle.loads(pickle.dumps(one))
        assert len(pickle.dumps(one)) < 2000 + path.stat().st_size
        for found in (one, again, one.copy()):
            converted = found.convert("RGB")
            assert found.encoded is not None
            assert converted.mode == "RGB"
            assert np.array_equal(converted, whole.convert("RGB"))
            assert np.array_equal(found, whole)
            assert found.encoded is None
    drawn = lazy(Image.open(path)).copy()
    drawn.paste(1, (0, 0, 4, 4))
    assert np.array_equal(pickle.loads(pickle.dumps(drawn)), drawn)
