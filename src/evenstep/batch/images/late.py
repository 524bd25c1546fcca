"""A row prepared late: `LateImages` keeps its images, and makes its pixels once its group is known.

Each sample's pixels are compared with what was planned: other shapes would give the model other
tokens than the text has places for, and groups other sizes than fit in memory. `why_at_once` finds
out on a few rows whether preparing late gives the same samples as preparing at once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evenstep.batch.count_media import LATE, MediaShape, image_bytes
from evenstep.batch.images.lazy_images import LazyImage, with_lazy_images
from evenstep.batch.images.processors import TakenCall, check_image_tokens, flat, standing_in
from evenstep.batch.images.rules import LargeImages, NotPlanned
from evenstep.errors import CollateError, described

_REMEDY = (
    "repair the sample or leave it out of the dataset; with PreparingCollator(late=False) samples "
    "are made before they are planned, and skip_bad_samples can skip them"
)


@dataclass(frozen=True)
class LateImages:
    """A call of the image processor that is still to be made."""

    name: str
    """What errors call the sample."""
    images: Any
    arguments: Mapping[str, Any]
    pixels: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    """Shape and dtype of each field that is still to be made, as the call will return it."""
    rest: Mapping[str, Any]
    """What else it will return."""
    dtypes: Mapping[str, torch.dtype]
    """Of those fields in the sample."""

    @property
    def nbytes(self) -> int:
        """Memory that the images take."""
        return sum(map(image_bytes, flat(self.images)))

    def made(self, image_processor: Any) -> dict[str, torch.Tensor]:
        """The fields that were to be made.

        Raises:
            CollateError: an image cannot be made, or becomes something else than was planned.
        """
        from transformers import BatchFeature

        try:
            result = image_processor(_copies(self.images), **self.arguments)
            found = BatchFeature(dict(result), tensor_type="pt")
        except Exception as error:
            raise CollateError(
                f"{self.name}: {self._culprit()} was planned by its header, and cannot be made "
                f"into {', '.join(self.pixels)}: {described(error)}; {_REMEDY}"
            ) from error
        for name, wanted in self.pixels.items():
            tensor = found.get(name)
            has = None if tensor is None else (tuple(tensor.shape), tensor.dtype)
            if has != wanted:
                raise self._unlike(name, wanted, has)
        for name, value in self.rest.items():
            if not torch.equal(torch.as_tensor(value), torch.as_tensor(found.get(name, []))):
                raise self._unlike(name, value, found.get(name))
        return {name: found[name].to(self.dtypes[name]) for name in self.pixels}

    def _unlike(self, name: str, planned: Any, has: Any) -> CollateError:
        return CollateError(
            f"{self.name}: by the sizes of its images, {name} was to be {planned}, and the image "
            f"processor makes {has}; use PreparingCollator(late=False)"
        )

    def _culprit(self) -> str:
        """The first image that cannot be decoded."""
        images = flat(self.images)
        for number, image in enumerate(images):
            encoded = getattr(image, "encoded", None)
            path = f" ({encoded.path})" if encoded is not None and encoded.path else ""
            try:
                image.copy().load()
            except Exception:
                return f"image {number} of {len(images)}{path}"
        return f"one of {len(images)} images"


def keep_images(
    sample: dict[str, Any], calls: Sequence[TakenCall], *, name: str
) -> TakenCall | None:
    """Puts `LateImages` into a sample that was prepared with a stand-in, and shapes in place of its
    pixels.

    Args:
        calls: those that the stand-in took.
        name: what errors call the sample.

    Returns:
        The call that pixels will come from; None for a sample without.

    Raises:
        NotPlanned: pixels of the sample are not those of one call; or they take no more memory than
            its images.
    """
    fields = {
        field: value
        for field, value in sample.items()
        if isinstance(value, torch.Tensor) and value.device.type == "meta"
    }
    if not fields:
        return None
    call = call_of(fields, calls)
    if call is None:
        raise NotPlanned(f"collate_fn changes {', '.join(fields)}")
    late = LateImages(
        name=name,
        images=call.images,
        arguments=call.arguments,
        pixels={f: (tuple(call.result[f].shape), call.result[f].dtype) for f in fields},
        rest={field: value for field, value in call.result.items() if field not in fields},
        dtypes={field: value.dtype for field, value in fields.items()},
    )
    if late.nbytes >= sum(math.prod(v.shape) * v.element_size() for v in fields.values()):
        raise LargeImages("its images take more memory than their pixels")
    for field, value in fields.items():
        sample[field] = MediaShape(tuple(value.shape))
    sample[LATE] = late
    return call


def call_of(fields: Mapping[str, Any], calls: Sequence[TakenCall]) -> TakenCall | None:
    """The last call that returned fields of these shapes; None if there is none, or calls with
    other images did as well.

    Args:
        fields: pixels of a sample, as tensors.
    """
    fits = [
        call
        for call in calls
        if all(getattr(call.result.get(f), "shape", None) == v.shape for f, v in fields.items())
    ]
    if not fits or any(not _same(call, fits[-1]) for call in fits):
        return None
    return fits[-1]


def _same(one: TakenCall, other: TakenCall) -> bool:
    def sources(call: TakenCall) -> list[int]:
        return [id(getattr(image, "encoded", None) or image) for image in flat(call.images)]

    return sources(one) == sources(other) and dict(one.arguments) == dict(other.arguments)


def _copies(images: Any) -> Any:
    """So that what is decoded is dropped once its pixels are made."""
    if isinstance(images, (list, tuple)):
        return [_copies(each) for each in images]
    return images.copy() if isinstance(images, LazyImage) else images


Prepare = Callable[[Any], dict[str, Any]]
"""A row -> its sample, by the user's collate function."""


def prepared(
    prepare: Prepare,
    row: Any,
    processor: Any,
    *,
    late: bool,
    media: Collection[str],
    name: str,
) -> dict[str, Any]:
    """The sample of a row. Its image tokens are counted.

    Args:
        processor: that `prepare` uses, of a known rule.
        media: names of media fields.
        name: what errors call the sample.

    Raises:
        ImageTokensError: the sample's image tokens do not match its images.
        Exception: what `prepare` raises.
    """
    if late:
        # Whatever a stand-in cannot do, the image processor does, or raises an error that says
        # what is wrong with the row.
        with contextlib.suppress(Exception):
            return _later(prepare, row, processor, name)
    with standing_in(processor, plans=False) as real:
        sample = prepare(row)
    fields = {n: v for n, v in sample.items() if n in media and isinstance(v, torch.Tensor)}
    call = call_of(fields, real.calls) if fields else None
    if call is not None:
        check_image_tokens(sample, call, processor)
    return sample


def _later(prepare: Prepare, row: Any, processor: Any, name: str) -> dict[str, Any]:
    """The sample of a row, without its pixels.

    Raises:
        Exception: it is to be made at once.
    """
    with standing_in(processor, plans=True) as stand_in:
        sample = prepare(with_lazy_images(row))
    call = keep_images(sample, stand_in.calls, name=name)
    if call is not None:
        check_image_tokens(sample, call, processor)
    return sample


def why_at_once(
    prepare: Prepare,
    rows: Sequence[Any],
    samples: Sequence[Mapping[str, Any]],
    processor: Any,
) -> str | None:
    """Why samples are to be made at once; None if making them late gives the same.

    Args:
        rows: a few.
        samples: those rows, prepared at once.
    """
    why, late = "no image of the first rows is kept", False
    for row, at_once in zip(rows, samples, strict=True):
        try:
            sample = _later(prepare, row, processor, "a sample")
            kept = sample.pop(LATE, None)
            if kept is not None:
                sample.update(kept.made(processor.image_processor))
        except LargeImages as error:
            why = str(error)
            continue
        except Exception as error:
            return f"a stand-in for the image processor does not do: {described(error)}"
        if kept is None and "pixel_values" in at_once:
            return "collate_fn does not call the image processor of the processor that it shows"
        if kept is not None:
            late = True
        if different := _different(sample, at_once):
            return f"it makes another {different!r} of the same row"
    return None if late else why


def _different(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first field in which two samples differ."""
    for name in (*one, *other):
        mine, theirs = one.get(name), other.get(name)
        same = type(mine) is type(theirs) and (name in one) == (name in other)
        if same and isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
            same = mine.dtype == theirs.dtype and torch.equal(mine, theirs)
        if not same:
            return name
    return None
