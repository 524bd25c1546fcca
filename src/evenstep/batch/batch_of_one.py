"""A batch of one sample, as that sample; and whether such samples make the same batches.

`unbatch` makes a sample of what a processor or a collate function makes of one row. Fields with one
value per token lose the batch's dimension, and their padding. Media keep their dimensions: the
first counts images, tiles or patches. `PadCollator` and `PackCollator` make batches of such samples
again.

`padding_of` and `check_alike` compare what a collate function makes of a group with what it makes
of each row alone. Where joining its samples does not give its batches, samples would be trained on
in another form than its author meant, and nothing else would show it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from evenstep.batch.columns import tensor_of
from evenstep.batch.labels import IGNORE_INDEX, LABEL_FIELDS
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.batch.trim import Trim
from evenstep.errors import CollateError, SampleError

TOKENS = "input_ids"


def unbatch(batch: Mapping[str, Any], media: Collection[str] = MEDIA_FIELDS) -> dict[str, Any]:
    """The sample of a batch of one.

    - ``input_ids``, ``labels`` and all tensors of their shape [1, T, ...] become [T, ...], without
      padding: see `evenstep.batch.trim`.
    - Labels of another length lose the -100 at their end.
    - Media keep their dimensions.
    - Other tensors [1, ...] become [...], and lists of one element that element. All else is kept.

    Args:
        batch: what a processor or a collate function returned for one row.
        media: names of the fields of images, videos and audio.

    Raises:
        SampleError: ``input_ids`` has several rows, or none; or as `Trim`.
    """
    tokens = batch.get(TOKENS)
    width = None
    if isinstance(tokens, torch.Tensor):
        if tokens.ndim != 2 or len(tokens) != 1:
            raise SampleError(
                f"one row became input_ids of shape {tuple(tokens.shape)}, not (1, tokens); a "
                "collate function that prepares samples must make one sequence of each row"
            )
        width = tokens.shape[1]
    sample = {}
    for name, value in batch.items():
        if name in media and tokens is not None:
            sample[name] = value
        elif isinstance(value, torch.Tensor) and value.ndim and len(value) == 1:
            per_token = value.ndim > 1 and value.shape[1] == width
            sample[name] = value[0]
            if name in LABEL_FIELDS and not per_token and value.ndim == 2:
                sample[name] = _without_end(value[0])
        elif isinstance(value, list) and len(value) == 1:
            sample[name] = value[0]
        else:
            sample[name] = value
    trimmed: dict[str, Any] = Trim(media)(sample)
    return trimmed


def _without_end(labels: torch.Tensor) -> torch.Tensor:
    """Labels of an encoder-decoder without their padding."""
    real = (labels != IGNORE_INDEX).nonzero()
    return labels[: int(real[-1]) + 1] if len(real) else labels[:0]


_CLOSE = {"rtol": 1e-4, "atol": 1e-4, "equal_nan": True}


def padding_of(
    samples: Sequence[Mapping[str, Any]], theirs: Mapping[str, Any], media: Collection[str]
) -> dict[str, Any]:
    """Options of `PadCollator` that pad as a collate function did.

    Args:
        samples: what it made of each row alone, as `unbatch` returns them.
        theirs: what it made of all rows.
        media: names of media fields.
    """
    sides, values = [], {}
    for name, whole in theirs.items():
        if name in media or not isinstance(whole, torch.Tensor) or whole.ndim < 2:
            continue
        for row, sample in zip(whole, samples):
            part = sample.get(name)
            if not isinstance(part, torch.Tensor) or not part.ndim or len(part) >= len(row):
                continue
            side = _side(part, row)
            if side is None:
                continue
            sides.append(side)
            rest = row[len(part) :] if side == "right" else row[: len(row) - len(part)]
            values[name] = rest.flatten()[0].item()
    style: dict[str, Any] = {"side": "left" if "left" in sides else "right"}
    if "input_ids" in values:
        style["pad_token_id"] = values.pop("input_ids")
    style["pad_values"] = values
    return style


def _side(part: torch.Tensor, row: torch.Tensor) -> str | None:
    """Where `row` has padding beside `part`; None if it does not hold it."""
    if part.shape[1:] != row.shape[1:]:
        return None
    if torch.equal(row[: len(part)], part.to(row.dtype)):
        return "right"
    return "left" if torch.equal(row[len(row) - len(part) :], part.to(row.dtype)) else None


def check_alike(
    samples: Sequence[Mapping[str, Any]],
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    *,
    media: Collection[str],
) -> None:
    """Compares two batches of the same rows, up to padding.

    Args:
        samples: the rows, prepared one by one.
        ours: those, collated.
        theirs: what the collate function made of all rows.
        media: names of media fields.

    Raises:
        CollateError: names the first field that differs.
    """
    for name in (*theirs, *(name for name in ours if name not in theirs)):
        if name == "attention_mask" and name not in theirs:
            continue
        if name not in ours or name not in theirs:
            where = "each row alone" if name not in theirs else "them together"
            raise _different(name, len(samples), f"it is there only for {where}")
        mine, other = tensor_of(ours[name]), tensor_of(theirs[name])
        if mine is None or other is None:
            continue  # text and other objects
        if name in media:
            same = _equal_up_to_zeros(mine, other)
        else:
            same = len(mine) == len(other) == len(samples) and all(
                _holds(row, sample.get(name)) for row, sample in zip(other, samples)
            )
        if not same:
            shapes = f"{tuple(mine.shape)} against {tuple(other.shape)}"
            raise _different(name, len(samples), f"shapes {shapes}")


def _holds(row: torch.Tensor, value: Any) -> bool:
    part = tensor_of(value)
    if part is None:
        return False
    if part.shape == row.shape:
        return torch.allclose(part.to(row.dtype), row, **_CLOSE)  # type: ignore[arg-type]
    return bool(part.ndim) and bool(row.ndim) and _side(part, row) is not None


def _equal_up_to_zeros(mine: torch.Tensor, other: torch.Tensor) -> bool:
    if mine.ndim != other.ndim or mine.shape[:1] != other.shape[:1]:
        return False
    least = [min(sizes) for sizes in zip(mine.shape, other.shape)]
    both = tuple(slice(size) for size in least)
    if not torch.allclose(mine[both].to(other.dtype), other[both], **_CLOSE):  # type: ignore[arg-type]
        return False
    # What is beyond the part that both have is padding.
    return all(
        torch.count_nonzero(whole) == torch.count_nonzero(whole[both]) for whole in (mine, other)
    )


def _different(name: str, rows: int, how: str) -> CollateError:
    return CollateError(
        f"collate_fn makes another {name!r} of {rows} rows together than of each alone ({how}), "
        "and evenstep prepares each alone. If the field belongs to images, videos or audio, name "
        "it in PreparingCollator(media_fields=(*MEDIA_FIELDS, ...)); otherwise use "
        "PreparingCollator(collate_fn=..., again=True), which collates every group by collate_fn"
    )
