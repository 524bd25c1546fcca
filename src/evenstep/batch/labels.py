"""Which labels are supervised, that is, contribute to the loss.

Defined here alone, so that measuring, padding and checking agree. A label of -100 is not
supervised. And a causal model whose labels are an aligned copy of its input
(``labels[i] == input_ids[i]`` wherever it is not -100) shifts them by one inside: it predicts
position i from the positions before i, so nothing ever predicts position 0, and that label is not
supervised either, whatever its value.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

IGNORE_INDEX = -100
"""The label that PyTorch's cross entropy leaves out by default."""

MAPPINGS = (dict, Mapping)
"""For `isinstance`, which takes several times as long to find out that a dict is a Mapping."""

LABEL_FIELDS = ("labels", "label", "label_ids")
"""Names of fields of labels; the first one present counts."""


def labels_of(sample: Any) -> Any | None:
    """The labels of a sample or of a batch, by key or by attribute; None where there are none."""
    if isinstance(sample, MAPPINGS):
        for name in LABEL_FIELDS:
            labels = sample.get(name)
            if labels is not None:
                return labels
        return None
    if isinstance(sample, (np.ndarray, list)) or is_tensor(sample):
        return None
    for name in LABEL_FIELDS:
        labels = getattr(sample, name, None)
        if labels is not None:
            return labels
    return None


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor. Does not import torch, since processes that measure
    samples may not need it: where torch was not imported, no value is a tensor."""
    # A module that another thread is importing may have no such name yet.
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def as_array(value: Any) -> npt.NDArray[Any]:
    """`value` as an array, without a copy where it is a CPU tensor of a type that NumPy has.

    Raises:
        ValueError: nested lists of unequal lengths.
    """
    if not is_tensor(value):
        return np.asarray(value)
    try:
        array: npt.NDArray[Any] = value.numpy()
    except (RuntimeError, TypeError):  # needs grad, lies on an accelerator, or is bfloat16
        plain = value.detach().cpu()
        array = (plain.float() if plain.dtype.is_floating_point else plain).numpy()
    return array


def count_supervised(labels: Any, tokens: Any | None) -> int:
    """How many labels are supervised.

    Args:
        labels: numbers of any shape, or one text, which counts 1.
        tokens: a sequence of numbers that the labels may be a copy of, or None.

    Raises:
        TypeError, ValueError: the labels are neither numbers nor text.
    """
    if isinstance(labels, list) and labels and type(labels[0]) is int:
        # Counting in a list is several times cheaper than making an array of it.
        count = len(labels) - labels.count(IGNORE_INDEX)
        masked = labels[0] == IGNORE_INDEX
    elif isinstance(labels, str):
        return 1
    else:
        labels = as_array(labels)
        if labels.dtype.kind not in "iufb":
            raise TypeError(f"not numbers but {labels.dtype}")
        count = int(np.count_nonzero(labels != IGNORE_INDEX))
        masked = labels.ndim != 1 or not len(labels) or labels[0] == IGNORE_INDEX
    if not masked and tokens is not None:
        count -= copies_inputs(labels, tokens)
    return count


def copies_inputs(labels: Any, tokens: Any) -> bool:
    """Whether the first label is not -100 and the labels are an aligned copy of the tokens.

    Both are sequences of numbers. All of them are compared only where the first ones agree, so a
    sample with a masked prompt costs next to nothing.
    """
    if isinstance(labels, list) and isinstance(tokens, list):
        if not labels or labels[0] == IGNORE_INDEX or labels[0] != tokens[0]:
            return False
        if labels == tokens:
            return True
    labels, tokens = as_array(labels), as_array(tokens)
    if labels.shape != tokens.shape or not len(labels):
        return False
    if labels[0] == IGNORE_INDEX or labels[0] != tokens[0]:
        return False
    differs = labels != tokens
    return not (differs.any() and (differs & (labels != IGNORE_INDEX)).any())
