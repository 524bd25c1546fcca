"""A loader over rows with images that makes pixels once their group is planned."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("datasets")
pytest.importorskip("PIL")

import datasets
from PIL import Image

import evenstep
from evenstep.batch.images.lazy_images import LazyImage, UndecodedRows, undecoded
from evenstep.errors import SampleError
from families import FAMILIES
from families.media import image, messages
from image_decodings import decodings as decodings
from loader_options import grouped

N = 30
QWEN = FAMILIES["Qwen2-VL"]
POLICY = evenstep.Even(max_tokens=400)
TURNED = 6  # an orientation of EXIF


def file_of(number: int, **options: Any) -> bytes:
    file = io.BytesIO()
    exif = Image.Exif()
    if number % 4 == 1:
        exif[0x0112] = TURNED
    image(number).save(file, "JPEG", exif=exif, **options)
    return file.getvalue()


def count_of(number: int) -> int:
    return number % 3


def write_files(folder: Path) -> None:
    for number in range(N):
        for place in range(count_of(number)):
            (folder / f"{number}-{place}.jpg").write_bytes(file_of(7 * number + place))


def hugging_face(folder: Path | None = None) -> Any:
    """Rows with lists of images, in bytes or in files."""
    if folder is not None:
        write_files(folder)
    rows = []
    for number in range(N):
        images = [
            {"bytes": file_of(7 * number + place), "path": None}
            if folder is None
            else {"bytes": None, "path": str(folder / f"{number}-{place}.jpg")}
            for place in range(count_of(number))
        ]
        rows.append({"id": number, "images": images, "text": f"what is {number}?"})
    features = datasets.Features(
        {
            "id": datasets.Value("int64"),
            "images": datasets.List(datasets.Image()),
            "text": datasets.Value("string"),
        }
    )
    return datasets.Dataset.from_list(rows, features=features)


class Opening(Dataset):  # type: ignore[type-arg]
    """As users write it: images are opened, and not decoded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_files(folder)

    def __len__(self) -> int:
        return N

    def __getitem__(self, number: int) -> dict[str, Any]:
        paths = [self.folder / f"{number}-{place}.jpg" for place in range(count_of(number))]
        images = [Image.open(path) for path in paths]
        return {"id": number, "images": images, "text": f"what is {number}?"}


class Collate:
    def __init__(self) -> None:
        self.inner = QWEN.collate
        self.processor = self.inner.processor

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        made = []
        for row in rows:
            images = [each.convert("RGB") for each in row["images"]]
            made.append(
                {"images": images, "messages": messages(row["id"], ["image"] * len(images))}
            )
        batch = self.inner(made)
        batch["id"] = torch.tensor([row["id"] for row in rows])
        return batch


def loader_of(dataset: Any, late: bool | None = None, **options: Any) -> evenstep.DataLoader:
    collate_fn = evenstep.PreparingCollator(collate_fn=Collate(), late=late)
    options = {"shuffle": True, "policy": POLICY, **options}
    return evenstep.DataLoader(dataset, collate_fn=collate_fn, **grouped(**options))


def batches(loader: evenstep.DataLoader) -> list[dict[str, torch.Tensor]]:
    found = [dict(batch) for batch, _ in loader.steps()]
    loader.close()
    return [{name: value.clone() for name, value in batch.items()} for batch in found]


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs) > 3
    for one, other in zip(ours, theirs):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("kind", "workers"), [("files", 0), pytest.param("opened", 2, marks=pytest.mark.slow)]
)
def test_batches_are_those_made_at_once_bit_for_bit(
    workers: int, kind: str, tmp_path: Path
) -> None:
    data = {"files": hugging_face, "opened": Opening}[kind](tmp_path)
    late = loader_of(data, num_workers=workers)
    late.learn()
    assert late.learned is not None
    assert late.learned.collate is not None
    assert late.learned.collate["late"]
    at_once = loader_of(data, late=False, num_workers=workers)
    ours, theirs = batches(late), batches(at_once)
    assert sorted(n for batch in ours for n in batch["id"].tolist()) == list(range(N))
    assert_same(ours, theirs)


def test_a_damaged_image_ends_the_epoch_with_its_name_and_can_be_skipped_at_once(
    tmp_path: Path,
) -> None:
    data = Opening(tmp_path)
    number = 11  # has two images
    whole = file_of(7 * number + 1)
    (tmp_path / f"{number}-1.jpg").write_bytes(whole[:-100])
    with pytest.raises(SampleError, match=rf"sample {number}: image 1 of 2 \(.*late=False"):
        batches(loader_of(data, skip_bad_samples=3))
    at_once = loader_of(data, late=False, skip_bad_samples=3)
    told = [n for batch in batches(at_once) for n in batch["id"].tolist()]
    assert sorted(told) == [n for n in range(N) if n != number]


# Rows of Hugging Face


def test_rows_are_those_of_the_dataset_with_images_not_decoded(decodings: list[Any]) -> None:
    data = hugging_face().shuffle(seed=1).select(range(20))
    stored = undecoded(data)
    assert isinstance(stored, UndecodedRows)
    assert len(stored) == 20
    ours = [*stored.__getitems__(list(range(10))), *(stored[index] for index in range(10, 20))]
    images = [each for row in ours for each in row["images"]]
    assert images
    assert all(isinstance(each, LazyImage) for each in images)
    assert not decodings
    for mine, theirs in zip(ours, data):
        assert mine.keys() == theirs.keys()
        assert (mine["id"], mine["text"]) == (theirs["id"], theirs["text"])
        for one, other in zip(mine["images"], theirs["images"], strict=True):
            assert (one.size, one.mode) == (other.size, other.mode)
            assert np.array_equal(one, other)
