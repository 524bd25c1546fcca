"""Which labels are supervised, that is, contribute to the loss.

Defined here alone, so that measuring, collating and checking agree. A label of -100 is not
supervised. Whether the first label of a sample is depends on the model: see
`evenstep.plan.label_reading`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.plan.label_reading import FIRST, UNKNOWN, UNSHIFTED

IGNORE_INDEX = -100
"""The label that PyTorch's cross entropy leaves out by default."""

MAPPINGS = (dict, Mapping)
"""For `isinstance`, which takes several times as long to find out that a dict is a Mapping."""

LABEL_FIELDS = ("labels", "label", "label_ids")
"""Names of fields of labels; the first one present counts."""


class Supervised(NamedTuple):
    """Supervised tokens of a sample."""

    causal: int
    """If its labels are read as "causal"."""
    shows: int = 0
    """Bits of `evenstep.plan.label_reading`."""

    def read(self, labels: str) -> int:
        """The number in one of the `READINGS`."""
        return self.causal + (self.shows & FIRST if labels == "every" else 0)


def labels_of(sample: Any) -> Any | None:
    """The labels of a sample or of a batch, by key or by attribute; None where there are none."""
    if isinstance(sample, (np.ndarray, list)) or is_tensor(sample):
        return None
    for name in LABEL_FIELDS:
        labels = field_of(sample, name)
        if labels is not None:
            return labels
    return None


def field_of(sample: Any, name: str) -> Any | None:
    """A field of a sample, by key or by attribute; None where there is none."""
    return sample.get(name) if isinstance(sample, MAPPINGS) else getattr(sample, name, None)


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor. Does not import torch, since processes that measure
    samples may not need it: where torch was not imported, no value is a tensor."""
    # A module that another thread is importing may have no such name yet.
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def as_array(value: Any) -> npt.NDArray[Any]:
    """`value` as an array, without a copy where it is a CPU tensor of a type that NumPy has.

    Raises:
        TypeError: a sparse or nested tensor.
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


def numbers_of(value: Any) -> npt.NDArray[Any]:
    """As `as_array`, of numbers.

    Raises:
        TypeError, ValueError, RuntimeError: they are no numbers, or not a number (NaN).
    """
    array = as_array(value)
    if array.dtype.kind not in "iufb":
        raise TypeError(f"not numbers but {array.dtype}")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError("some are NaN")
    return array


def size_of(value: Any) -> int | None:
    """The first dimension of an array, list or tuple; None of anything else."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return len(value) if isinstance(value, (list, tuple)) else None
    return shape[0] if len(shape) else None


def are_integers(values: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a sequence holds integers alone; cheaper than to make an array of it."""
    try:
        return isinstance(sum(values), (int, np.integer))
    except TypeError:
        return False


def count_labels(labels: Any, width: int | None, tokens: Any | None) -> Supervised:
    """The supervised ones of a sample's labels.

    Args:
        labels: numbers of any shape, or nested lists of them; or one text, which counts 1.
        width: as many labels may belong to the tokens one by one; None if none do.
        tokens: [width] a sequence of numbers; None where the sample does not have them.

    Raises:
        TypeError, ValueError, RuntimeError: the labels are neither numbers nor text, or not a
            number (NaN).
    """
    if isinstance(labels, str):
        return Supervised(1)
    if isinstance(labels, list) and labels and type(labels[0]) is int and are_integers(labels):
        # Counting in a list is several times cheaper than making an array of it.
        count = len(labels) - labels.count(IGNORE_INDEX)
    elif isinstance(labels, (list, tuple)) and labels and _is_sequence(labels[0]):
        return Supervised(sum(count_labels(part, None, None).causal for part in labels), UNSHIFTED)
    else:
        labels = numbers_of(labels)
        count = int(np.count_nonzero(labels != IGNORE_INDEX))
        if not labels.size:
            raise ValueError("there are none")
        if not labels.ndim:
            return Supervised(count)
        if labels.ndim > 1 or labels.dtype.kind == "f":
            return Supervised(count, UNSHIFTED)
    if len(labels) != width:
        return Supervised(count, UNSHIFTED)
    if labels[0] == IGNORE_INDEX:
        return Supervised(count)
    if tokens is None:
        return Supervised(count - 1, FIRST | UNKNOWN)
    return Supervised(count - 1, FIRST if _is_copy(labels, tokens) else FIRST | UNSHIFTED)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0


def _is_copy(labels: Any, tokens: Any) -> bool:
    """Whether labels, of which the first is not -100, are an aligned copy of as many tokens."""
    if labels[0] != tokens[0]:
        return False
    if isinstance(labels, list) and isinstance(tokens, list) and labels == tokens:
        return True
    labels, tokens = as_array(labels), as_array(tokens)
    differs = labels != tokens
    return not (differs.any() and (differs & (labels != IGNORE_INDEX)).any())
