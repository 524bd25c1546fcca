"""The form of torchtitan's train loop: `(input_dict, labels)`, labels shifted.

torchtitan finds documents by their positions alone: one begins wherever a position is 0. From
positions it makes the masks of its FlexAttention and variable-length attention.
"""

from __future__ import annotations

from typing import Any

import torch

from evenstep.batch.formats.packed import PackedRow, read_packed
from evenstep.errors import CollateError


def to_torchtitan(
    batch: dict[str, Any], *, labels_shifted: bool = False, rows: bool = False
) -> tuple[dict[str, Any], torch.Tensor]:
    """What a torchtitan data loader yields.

    ``{"input": ids, "positions": positions}`` and labels, int64 [T]; -100 where nothing is
    predicted. Other fields join the dictionary, whose entries all become arguments of the model.
    torchtitan divides by the labels of all ranks itself: no `loss_scale` here.

    Args:
        batch: of ``PackCollator()``.
        labels_shifted: the dataset has shifted the labels (``mask_first_label=False``).
        rows: return [1, T] instead of [T], as torchtitan took before August 2026.

    Raises:
        CollateError: not such a batch, labels that contradict `labels_shifted`, a loss mask that
            says more than the labels, or the samples' own positions if they are not 0 exactly
            where a document begins.
    """
    packed = read_packed(batch)
    _check_positions(packed)
    packed.check_loss_mask("torchtitan")
    labels, _ = packed.next_labels(labels_shifted)
    form = {"input": packed.input_ids, "positions": packed.position_ids, **packed.rest}
    if rows:
        return form, labels
    length = packed.input_ids.shape[1]
    flat = {
        name: value[0]
        if isinstance(value, torch.Tensor) and value.shape[:2] == (1, length)
        else value
        for name, value in form.items()
    }
    return flat, labels[0]


def _check_positions(packed: PackedRow) -> None:
    positions = packed.position_ids
    begins = torch.zeros_like(packed.input_ids, dtype=torch.bool)
    begins[0, packed.bounds[:-1].long()] = True
    if positions.shape != begins.shape or not torch.equal(positions == 0, begins):
        raise CollateError(
            "the samples' own position_ids are not 0 exactly where a document begins, which is "
            "how torchtitan finds documents; leave position_ids out in the dataset"
        )
