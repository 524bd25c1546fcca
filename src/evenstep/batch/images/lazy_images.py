"""`LazyImage`: an image as its file, decoded when its pixels are first read; and rows of them.

Datasets of Hugging Face decode the images of a row when it is read. `UndecodedRows` reads the same
rows as they are stored, and puts a `LazyImage` in place of each image. An image that a dataset has
opened with PIL and not decoded becomes one as well.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageFile
from torch.utils.data import Dataset

_ORIENTATION = 0x0112  # a tag of EXIF
_SIDEWAYS = (5, 6, 7, 8)
"""Orientations in which width and height change places."""


@dataclass(frozen=True, eq=False)
class EncodedImage:
    """The file of an image, in memory or on disk. Picklable."""

    path: str | None
    data: np.ndarray[Any, Any] | None = None
    """[bytes] uint8; None where it is read from `path`."""
    decoder: Callable[[dict[str, Any]], Image.Image] | None = None
    """Decodes ``{"bytes": ..., "path": ...}`` upright, as ``datasets.Image`` does; None is PIL."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return len(self.path or "") if self.data is None else int(self.data.nbytes)

    def open(self) -> Image.Image:
        """The image, not yet decoded.

        Raises:
            OSError: the file is missing, or not that of an image.
        """
        if self.data is None:
            assert self.path is not None
            return Image.open(self.path)
        return Image.open(io.BytesIO(self.data.tobytes()))

    def decode(self) -> Image.Image:
        """
        Raises:
            Exception: the file is missing or damaged.
        """
        if self.decoder is not None:
            data = None if self.data is None else self.data.tobytes()
            return self.decoder({"bytes": data, "path": self.path})
        image = self.open()
        image.load()
        return image

    def upright(self, header: Image.Image) -> tuple[int, int]:
        """Width and height of the image once it is decoded."""
        width, height = header.size
        if self.decoder is None:
            return width, height
        # PIL looks for it behind the pixels of a PNG, and would decode them first.
        known = header.format != "PNG" or "exif" in header.info
        turned = known and header.getexif().get(_ORIENTATION) in _SIDEWAYS
        return (height, width) if turned else (width, height)


class LazyImage(Image.Image):  # type: ignore[misc]
    """An image of PIL in all respects. Its size and mode are known from the file's header; a change
    of mode, too, waits until pixels are read. Pickled as its file, until then."""

    encoded: EncodedImage | None = None
    """None once it is decoded: then it is an image like any other."""
    modes: tuple[str, ...] = ()
    """What it is converted to, one after the other, once it is decoded."""

    def __init__(
        self, encoded: EncodedImage, modes: tuple[str, ...] = (), mode: str | None = None
    ) -> None:
        """
        Args:
            mode: of the decoded image; None is that of the header.

        Raises:
            OSError: the file is missing, or not that of an image.
        """
        super().__init__()
        header = encoded.open()
        self.encoded, self.modes = encoded, modes
        self._size = encoded.upright(header)
        self._first_mode = mode or header.mode
        self._mode = modes[-1] if modes else self._first_mode
        self.format, self.info = header.format, header.info
        if encoded.data is None:
            header.close()

    def load(self) -> Any:
        if self.encoded is not None:
            image, size = self.encoded.decode(), self.size
            for mode in self.modes:
                image = image.convert(mode)
            image.load()
            if image.size != size:
                raise OSError(f"its header says {size}, and its pixels are {image.size}")
            self.encoded = None
            self.im, self._mode, self.palette = image.im, image.mode, image.palette
        return super().load()

    def convert(self, mode: str | None = None, *options: Any, **named: Any) -> Image.Image:
        if self.encoded is None or mode is None or options or named:
            return super().convert(mode, *options, **named)
        modes = self.modes if mode == self.mode else (*self.modes, mode)
        return LazyImage(self.encoded, modes, self._first_mode)

    def copy(self) -> Image.Image:
        if self.encoded is None:
            return super().copy()
        return LazyImage(self.encoded, self.modes, self._first_mode)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.encoded is None:
            return super().__reduce_ex__(protocol)
        return LazyImage, (self.encoded, self.modes, self._first_mode)


def lazy(image: Any) -> Any:
    """An image as a `LazyImage`, if PIL has opened and not yet decoded it; anything else as it
    is."""
    if not isinstance(image, ImageFile.ImageFile) or not image.tile or image.fp is None:
        return image
    path = os.path.abspath(image.filename) if isinstance(image.filename, str) else ""
    if os.path.isfile(path) and image.filename:
        encoded = EncodedImage(path)
    else:
        place = image.fp.tell()
        image.fp.seek(0)
        encoded = EncodedImage(None, np.frombuffer(image.fp.read(), np.uint8))
        image.fp.seek(place)
    try:
        again = LazyImage(encoded)
    except OSError:  # the file's image does not begin where the file does
        return image
    # Else it was drafted in another size, or is another frame of the file.
    same = (again.size, again.mode, again.format) == (image.size, image.mode, image.format)
    return again if same and not getattr(image, "is_animated", False) else image


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
