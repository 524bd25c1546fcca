"""A row, prepared late or at once; and whether both make the same of a few rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from evenstep.batch.images.late import call_of, keep_images
from evenstep.batch.images.opened import with_lazy_images
from evenstep.batch.images.options import LargeImages
from evenstep.batch.images.stand_in import standing_in
from evenstep.batch.images.tokens import check_image_tokens
from evenstep.batch.media_shape import LATE
from evenstep.errors import described

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
    for name in (*one, *(name for name in other if name not in one)):
        if name not in one or name not in other:
            return name
        mine, theirs = one[name], other[name]
        if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
            same = mine.dtype == theirs.dtype and torch.equal(mine, theirs)
        else:
            same = type(mine) is type(theirs)
        if not same:
            return name
    return None
