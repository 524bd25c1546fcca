"""Checks that a collated batch is what was planned.

If it supervises another number of tokens than its samples were measured to have, `loss_scale` is
wrong, and so is every gradient. If it pads a group that was planned to be packed, memory may run
out at some later step. Nothing else would reveal either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from evenstep.batch.labels import IGNORE_INDEX, labels_of
from evenstep.errors import CollateError


def check_packed(batch: Any, max_tokens: int, where: str) -> None:
    """
    Args:
        batch: what the collate function returned for a group that was planned to be packed.
        max_tokens: real tokens that the group may have.
        where: the name of the batch in the error.

    Raises:
        CollateError: ``input_ids`` has several rows, and more elements than that.
    """
    tokens = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if not isinstance(tokens, torch.Tensor) or tokens.ndim < 2 or len(tokens) == 1:
        return
    if tokens.numel() > max_tokens:
        raise CollateError(
            f"{where}: the batch has {len(tokens)} rows of {tokens[0].numel():,} tokens, over "
            f"max_tokens={max_tokens:,}, because the policy counts real tokens and the collate "
            "function pads; use evenstep.PackCollator, or packed=False"
        )


def check_supervised(batch: Any, expected: int, where: str) -> None:
    """Compares the labels of a batch with what was measured.

    Labels are counted in three ways, since the batch alone does not show whether the model shifts
    them: all that are not -100; all but each row's first position; and, as `supervised_of` counts
    samples, all but the first real position of rows whose labels are an aligned copy of their
    tokens (the first real position is where ``attention_mask`` begins, so left padding makes no
    difference). Agreement with one of the counts is enough.

    Args:
        batch: what the collate function returned. Passes unless it is a mapping with a tensor of
            labels, and these are no fractions, as those of mixed samples are.
        expected: supervised tokens of its samples.
        where: the name of the batch in the error, such as "step 12 on rank 1".

    Raises:
        CollateError: none of the counts is `expected`.
    """
    labels = labels_of(batch) if isinstance(batch, Mapping) else None
    if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
        return
    supervised = labels != IGNORE_INDEX
    total = int(supervised.sum())
    if total == expected:
        return
    if labels.ndim > 1 and int(supervised[:, 1:].sum()) == expected:
        return
    if labels.ndim == 2 and total - _first_of_copies(batch, labels, supervised) == expected:
        return
    raise CollateError(
        f"{where}: the collated labels hold {total:,} supervised tokens, but the samples were "
        f"measured to hold {expected:,}, so loss_scale would be wrong. The collate function makes, "
        "masks or truncates labels after they were counted. Do that in the dataset; or count what "
        "it keeps with length_fn=evenstep.SampleCounts(supervised=...); or weight ranks by samples "
        "with loss_scaling='sample'. If "
        "the dataset shifts labels itself and the batch is packed, set "
        "PackCollator(mask_first_label=False)"
    )


def _first_of_copies(
    batch: Mapping[str, Any], labels: torch.Tensor, supervised: torch.Tensor
) -> int:
    tokens = batch.get("input_ids")
    if not isinstance(tokens, torch.Tensor) or tokens.shape != labels.shape:
        return 0
    mask = batch.get("attention_mask")
    start = torch.zeros(len(labels), 1, dtype=torch.int64, device=labels.device)
    if isinstance(mask, torch.Tensor) and mask.shape == labels.shape:
        start = (mask != 0).to(torch.int8).argmax(dim=1, keepdim=True)
    copies = ~((labels != tokens) & supervised).any(dim=1)
    return int((supervised.gather(1, start)[:, 0] & copies).sum())
