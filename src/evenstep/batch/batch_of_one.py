"""A batch of one sample, as that sample.

`unbatch` makes a sample of what a processor or a collate function makes of one row. Fields with one
value per token lose the batch's dimension, and their padding. Media keep their dimensions: the
first counts images, tiles or patches. `PadCollator` and `PackCollator` make batches of such samples
again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from evenstep.batch.labels import IGNORE_INDEX, LABEL_FIELDS
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.batch.trim import Trim
from evenstep.errors import SampleError

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
