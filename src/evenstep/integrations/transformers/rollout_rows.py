"""Rows of rollouts, as ranks exchange them, and micro-batches of such rows.

TRL pads prompts on the left and completions on the right. What belongs to each token of a
completion is as wide as the completions; what belongs to a whole rollout has one number, or one
column of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from evenstep.errors import ConfigurationError

_LEFT = ("prompt_ids", "prompt_mask")

Row = dict[str, torch.Tensor]


def rows_of(batch: Mapping[str, Any]) -> tuple[list[Row], dict[str, Any]]:
    """The rows of a micro-batch, and what is not of single rows.

    Raises:
        ConfigurationError: the micro-batch has images, or another column that is not known.
    """
    prompts = _lengths(batch["prompt_mask"].flip(1))
    answers = _lengths(batch["completion_mask"])
    width = batch["completion_mask"].shape[1]
    rows: list[Row] = [{} for _ in prompts]
    shared = {}
    for name, column in batch.items():
        if column is None or getattr(column, "ndim", None) == 0:
            shared[name] = column
            continue
        shape = tuple(getattr(column, "shape", ()))
        known = shape[:1] == (len(rows),) and shape[1:] in ((), (1,), (width,))
        if not known and name not in _LEFT:
            raise ConfigurationError(
                f"a micro-batch has {name!r} of shape {shape}, and balance_rollouts knows columns "
                f"of {len(rows)} rows and of 1 or {width} tokens; it exchanges no images: train "
                "without it"
            )
        column = column.cpu()
        for row, value, prompt, answer in zip(rows, column, prompts, answers):
            if name in _LEFT:
                value = value[-prompt:]
            elif shape[1:] == (width,):
                value = value[:answer]
            row[name] = value
    return rows, shared


def batch_of(rows: Sequence[Row], device: torch.device) -> dict[str, torch.Tensor]:
    """A micro-batch of rows, as narrow as they allow. Padding is 0, which the masks leave out."""
    batch = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        side = "left" if name in _LEFT else "right"
        made = (
            pad_sequence(values, batch_first=True, padding_side=side)
            if values[0].ndim
            else torch.stack(values)
        )
        batch[name] = made.to(device)
    return batch


def _lengths(mask: torch.Tensor) -> list[int]:
    """Tokens of each row up to the last that counts, and at least one: TRL masks whole completions,
    and a micro-batch without any column of them is none."""
    position = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    found: list[int] = ((mask != 0) * position).amax(1).clamp(min=1).tolist()
    return found
