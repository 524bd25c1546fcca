"""Images in the rows of a dataset, opened but not decoded.

Datasets of Hugging Face decode the images of a row when it is read. `UndecodedRows` reads the same
rows as they are stored, and puts a `LazyImage` where an image would be. An image that a dataset has
opened with PIL and not decoded becomes one as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from evenstep.batch.images.encoded import EncodedImage, LazyImage, lazy

_DEEPEST = 8  # containers within each other


def with_lazy_images(row: Any, *, deep: int = _DEEPEST) -> Any:
    """A row whose images, as far as they are not decoded, are `LazyImage`."""
    if isinstance(row, dict) and deep:
        return {name: with_lazy_images(value, deep=deep - 1) for name, value in row.items()}
    if type(row) in (list, tuple) and deep and not isinstance(next(iter(row), None), (int, float)):
        return type(row)(with_lazy_images(value, deep=deep - 1) for value in row)
    return lazy(row)


def undecoded(dataset: Any) -> Any:
    """A dataset of the same rows, whose images are not decoded; the dataset itself where that is
    not possible: it is not one of Hugging Face with images, or changes its rows as it returns
    them."""
    module: Any = sys.modules.get("datasets")
    if module is None or not isinstance(dataset, module.Dataset):
        return dataset
    own_format = dataset.format
    if own_format["type"] is not None or set(own_format["columns"]) != set(dataset.column_names):
        return dataset
    kinds = _kinds(dataset.features)
    images = [kind for kind in kinds if isinstance(kind, module.Image) and kind.decode]
    decoded = [kind for kind in kinds if getattr(kind, "decode", False)]
    # Others that are decoded too, such as sounds, would be left as they are stored.
    plain = all(isinstance(k, (module.Image, module.Value, module.ClassLabel)) for k in kinds)
    if not images or len(decoded) > len(images) or not plain:
        return dataset
    return UndecodedRows(dataset)


class UndecodedRows(Dataset):  # type: ignore[type-arg]
    """See the module docstring."""

    def __init__(self, dataset: Any) -> None:
        self._stored = dataset.with_format("arrow")
        self._features = dict(dataset.features)

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            {name: _opened(row[name], feature) for name, feature in self._features.items()}
            for row in self._stored[list(indices)].to_pylist()
        ]


def _kinds(feature: Any) -> list[Any]:
    """The features within a feature that hold values."""
    if isinstance(feature, Mapping):
        return [kind for inner in feature.values() for kind in _kinds(inner)]
    if isinstance(feature, (list, tuple)):
        return [kind for inner in feature for kind in _kinds(inner)]
    inner = getattr(feature, "feature", None)
    return [feature] if inner is None else _kinds(inner)


def _opened(value: Any, feature: Any) -> Any:
    if value is None:
        return None
    if isinstance(feature, Mapping):
        return {name: _opened(value[name], inner) for name, inner in feature.items()}
    if isinstance(feature, (list, tuple)):
        return [_opened(each, feature[0]) for each in value]
    inner = getattr(feature, "feature", None)
    if inner is not None:
        return [_opened(each, inner) for each in value]
    return _image(value, feature) if getattr(feature, "decode", False) else value


def _image(value: Mapping[str, Any], feature: Any) -> Any:
    path, data = value["path"], value["bytes"]
    if data is None and not os.path.isfile(path or ""):
        return feature.decode_example(value)  # on another host; or an error that says what is wrong
    array = None if data is None else np.frombuffer(data, np.uint8)
    encoded = EncodedImage(path, array, feature.decode_example)
    return LazyImage(encoded, mode=feature.mode)
