"""Checks that a collated batch is what was planned.

If it supervises another number of tokens than its samples were measured to have, `loss_scale` is
wrong, and so is every gradient. If it pads a group that was planned to be packed, memory may run
out at some later step. Nothing else would reveal either.

`misfits` finds which samples of a group keep it from being collated, by collating few of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from evenstep.batch.columns import copies_tokens
from evenstep.batch.labels import IGNORE_INDEX, LABEL_FIELDS, as_array, labels_of
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
            f"max_tokens={max_tokens:,} without padding; use evenstep.PackCollator, or packed=False"
        )


def check_rows(batch: Any, samples: int) -> None:
    """
    Args:
        batch: what the collate function returned. Passes unless it is a tensor, or has several,
            which all have as many rows, and one of them a number for each. A list of as many values
            as there are samples may be these samples, and passes.
        samples: that it was given.

    Raises:
        CollateError: it has fewer rows than samples.
    """
    if isinstance(batch, (tuple, list)):
        values = [] if len(batch) == samples else list(batch)
    else:
        values = list(batch.values()) if isinstance(batch, Mapping) else [batch]
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.ndim]
    rows = {len(tensor) for tensor in tensors}
    if len(rows) == 1 and min(rows) < samples and any(tensor.ndim == 1 for tensor in tensors):
        raise CollateError(
            f"the collate function made {min(rows)} rows of {samples} samples; let the dataset "
            "return None for bad ones, with faults=evenstep.Faults(skip_bad_samples=...)"
        )


def without_padded_first(batch: Any, labels: str | None) -> Any:
    """The batch, with -100 for labels that a model would predict from the padding before them.

    That is the first label of a row that is padded on the left, of a model that shifts labels: to
    the right nothing predicts it.

    Args:
        batch: what the collate function returned. Changed in place, but for the tensor of labels.
        labels: as for `check_supervised`.
    """
    found = _labels(batch)
    mask = None if found is None else batch.get("attention_mask")
    if found is None or not isinstance(mask, torch.Tensor) or mask.shape != found.shape:
        return batch
    padded = mask[:, 0] == 0
    if not padded.any() or not _shifts(batch, found, labels):
        return batch
    rows = padded.nonzero()[:, 0]
    kept = found.clone()  # a collate function may use the tokens themselves as labels
    kept[rows, (mask[rows] != 0).to(torch.int8).argmax(dim=1)] = IGNORE_INDEX
    name = next(name for name in LABEL_FIELDS if batch.get(name) is found)
    batch[name] = kept
    return batch


def supervised_in(batch: Any, labels: str | None, samples: int) -> tuple[int, ...] | None:
    """Supervised tokens of a batch; None unless it is a mapping with a tensor of labels.

    Args:
        labels: how the model reads labels, one of `evenstep.plan.label_reading.READINGS`; None
            where the batch shows it: labels that are a copy of its tokens are shifted inside the
            model, and others have been shifted.
        samples: in the batch. A row of fractions for each may be its probabilities, as made by
            mixing samples, and then counts 1: the second number.
    """
    found = _labels(batch)
    if found is None:
        return None
    counted = found[:, 1:] if _shifts(batch, found, labels) else found
    count = int(np.count_nonzero(as_array(counted) != IGNORE_INDEX))  # in a tenth of torch's time
    if found.is_floating_point() and len(found) == samples:
        return count, samples
    return (count,)


def check_supervised(
    batch: Any, expected: int, where: str, labels: str | None = None, samples: int = 0
) -> None:
    """Compares the labels of a batch with what was measured.

    Args:
        batch: what the collate function returned.
        expected: supervised tokens of its samples.
        where: the name of the batch in the error, such as "step 12 on rank 1".
        labels, samples: as for `supervised_in`.

    Raises:
        CollateError: the batch has another number of supervised tokens.
    """
    counted = supervised_in(batch, labels, samples)
    if counted is None or expected in counted:
        return
    said = "the batch shows" if labels is None else f"labels={labels!r} says"
    raise CollateError(
        f"{where}: the collated labels hold {counted[0]:,} supervised tokens, but the samples were "
        f"measured to hold {expected:,}. If the collate function makes or masks labels, do that in "
        "the dataset, or count them with length_fn=evenstep.SampleCounts(supervised=...), or use "
        f"loss_scaling='sample'. If the model reads labels otherwise than {said}, pass labels="
        "'causal' or labels='every', and leave mask_first_label out of PackCollator"
    )


def _labels(batch: Any) -> torch.Tensor | None:
    found = labels_of(batch) if isinstance(batch, Mapping) else None
    return found if isinstance(found, torch.Tensor) else None


def _shifts(batch: Mapping[str, Any], found: torch.Tensor, labels: str | None) -> bool:
    """Whether the model shifts the labels of a batch, so that the first of each row counts not."""
    if labels == "every" or found.ndim != 2 or found.is_floating_point():
        return False
    tokens = batch.get("input_ids")
    if not isinstance(tokens, torch.Tensor):
        return labels == "causal"
    if tokens.shape != found.shape:
        return False
    return labels == "causal" or copies_tokens(found, tokens)


Collate = Callable[[list[Any]], Any]

_PATIENCE = 10.0  # seconds
_REFERENCES = 3
"""Samples with which the others are tried, as the first one may be the misfit."""


def misfits(collate: Collate, samples: Sequence[Any]) -> dict[int, BaseException]:
    """By position, the samples that cannot be collated, and what was raised.

    Those are the samples that cannot be collated alone, if others can, or that cannot be collated
    with a sample with which most others can. None where that does not tell, takes too long, or all
    samples can be collated.
    """
    until = time.monotonic() + _PATIENCE
    good = list(range(len(samples)))
    found = _failing(collate, [[sample] for sample in samples], until)
    if len(found) == len(samples):  # it takes no sample alone
        found = {}
    good = [place for place in good if place not in found]
    for reference in good[:_REFERENCES]:
        others = [place for place in good if place != reference]
        pairs = [[samples[reference], samples[place]] for place in others]
        failing = _failing(collate, pairs, until)
        if 2 * len(failing) <= len(others):
            found |= {others[number]: error for number, error in failing.items()}
            break
    return {} if time.monotonic() > until else found


def _failing(
    collate: Collate, groups: Sequence[list[Any]], until: float
) -> dict[int, BaseException]:
    """By position, what `collate` raises for groups; the first ones, if time runs out."""
    found: dict[int, BaseException] = {}
    for place, group in itertools.takewhile(lambda _: time.monotonic() < until, enumerate(groups)):
        try:
            collate(group)
        except Exception as error:
            found[place] = error
    return found
