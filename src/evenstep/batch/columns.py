"""A group of samples by field: one list per field, and each list as tensors.

Nothing is padded or joined here.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from evenstep.batch.labels import IGNORE_INDEX, LABEL_FIELDS
from evenstep.batch.media import MEDIA_FIELDS, join_media
from evenstep.errors import CollateError

TOKENS = "input_ids"


class Columns:
    """The fields of a group."""

    def __init__(
        self, fields: dict[str, list[Any]], media: Collection[str], *, bare: bool = False
    ) -> None:
        """
        Args:
            media: names that media fields may have.

        Raises:
            CollateError: shapes of media that cannot be joined, or numbers in some samples and
                something else in others.
        """
        self.fields = fields
        """One value per sample; None in a media field of a sample that lacks it."""
        self.bare = bare
        """Samples are sequences of tokens, not mappings."""
        self.media = _joined_media(fields, media)
        """The media fields, each as one tensor: see `evenstep.batch.media`."""
        self.tensors = {
            name: tensors_of(name, values)
            for name, values in fields.items()
            if name not in self.media
        }
        """All others, each as tensors; None where it does not hold numbers."""


def columns_of(
    samples: Sequence[Any],
    media: Collection[str] = MEDIA_FIELDS,
    *,
    labels_shifted: bool = False,
) -> Columns:
    """Splits a group into fields. Where some samples have labels, copies of their tokens, and some
    have none, these get their own: see `with_own_labels`. Numbers in ``label`` or ``label_ids``
    become ``labels``, int64 or float, as collate functions of Hugging Face make them.

    Args:
        media: fields that samples with ``input_ids`` may lack.
        labels_shifted: whether labels are those of the next token.

    Raises:
        CollateError: no samples, samples of different types or with different fields, or neither
            mappings nor sequences of tokens; or as `Columns`.
    """
    if not len(samples):
        raise CollateError("a group without samples cannot be collated")
    first = samples[0]
    kind = Mapping if isinstance(first, Mapping) else type(first)
    for position, sample in enumerate(samples):
        if not isinstance(sample, kind):
            raise CollateError(
                f"sample 0 of the group is a {type(first).__name__} and sample {position} of it a "
                f"{type(sample).__name__}; return one type from the dataset"
            )
    if kind is Mapping:
        return Columns(_mapping_fields(samples, media, labels_shifted), media)
    if isinstance(first, (torch.Tensor, np.ndarray)) or _is_numbers(first):
        return Columns({TOKENS: list(samples)}, media, bare=True)
    raise CollateError(
        f"samples of type {type(first).__name__} cannot be collated; pass collate_fn=, or return "
        "dictionaries of tensors from the dataset"
    )


def tensors_of(name: str, values: list[Any]) -> list[torch.Tensor] | None:
    """One column as tensors of one dtype; None where it does not hold numbers.

    Lists of integers become int64, of floats torch's default dtype. Arrays and tensors keep theirs,
    but unsigned arrays wider than a byte become int64, as PyTorch can do little with them. Where
    samples differ, all take the wider dtype.

    Raises:
        CollateError: numbers in some samples and something else in others.
    """
    tensors = [tensor_of(value) for value in values]
    rows = [tensor for tensor in tensors if tensor is not None]
    if len(rows) != len(tensors):
        if all(not row.numel() for row in rows):
            return None  # an empty list may stand among lists of strings
        odd = next(i for i, tensor in enumerate(tensors) if tensor is None)
        usual = next(i for i, tensor in enumerate(tensors) if tensor is not None)
        raise CollateError(
            f"field {name!r} holds numbers in sample {usual} of the group and "
            f"{type(values[odd]).__name__} in sample {odd}; return one kind, or pass collate_fn="
        )
    if len({row.dtype for row in rows}) > 1:
        dtype = functools.reduce(torch.promote_types, (row.dtype for row in rows))
        rows = [row.to(dtype) for row in rows]
    return rows


def _joined_media(fields: dict[str, list[Any]], media: Collection[str]) -> dict[str, torch.Tensor]:
    rows: dict[str, list[torch.Tensor | None]] = {}
    for name in (each for each in fields if each in media):
        tensors = tensors_of(name, [value for value in fields[name] if value is not None])
        if tensors:
            present = iter(tensors)
            rows[name] = [None if value is None else next(present) for value in fields[name]]
    return join_media(rows, media, one_each=TOKENS not in fields)


def shapes_text(rows: Sequence[torch.Tensor], limit: int = 4) -> str:
    """The first few different shapes, for an error message."""
    shapes = list(dict.fromkeys(tuple(row.shape) for row in rows))
    return ", ".join(map(str, shapes[:limit])) + (", ..." if len(shapes) > limit else "")


def listed(values: list[Any]) -> list[Any] | None:
    """A column that does not hold numbers; None where no sample has a value."""
    return None if all(value is None for value in values) else list(values)


def _mapping_fields(
    samples: Sequence[Mapping[str, Any]], media: Collection[str], labels_shifted: bool
) -> dict[str, list[Any]]:
    keys = samples[0].keys()
    if all(sample.keys() == keys for sample in samples):
        fields = {name: [sample[name] for sample in samples] for name in samples[0]}
    else:
        names = dict.fromkeys(name for sample in samples for name in sample)
        fields = {name: [sample.get(name) for sample in samples] for name in names}
        for name in names:
            lacking = [position for position, sample in enumerate(samples) if name not in sample]
            if lacking and name not in media and name not in LABEL_FIELDS:
                raise _incomplete(name, samples, lacking[0])
    for name in LABEL_FIELDS:
        column = fields.get(name, [])
        if any(labels is None for labels in column) and listed(column):
            fields[name] = _completed(name, column, samples, labels_shifted)
    return _as_labels(fields)


def _as_labels(fields: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """``label``, or else ``label_ids``, under the name that models know."""
    name = next((name for name in LABEL_FIELDS if name in fields), "labels")
    rows = None if name == "labels" else tensors_of(name, fields[name])
    if not rows:
        return fields
    kind = torch.get_default_dtype() if rows[0].is_floating_point() else torch.int64
    others = {other: values for other, values in fields.items() if other not in LABEL_FIELDS}
    return {**others, "labels": [row.to(kind) for row in rows]}


def _completed(
    name: str, column: list[Any], samples: Sequence[Mapping[str, Any]], shifted: bool
) -> list[Any]:
    """The labels of a group, in which samples that have none get their own."""
    found = []
    for labels, sample in zip(column, samples):
        own = tensor_of(with_own_labels(sample, name, shifted=shifted).get(name))
        tokens = own if shifted else tensor_of(sample.get(TOKENS))
        given = own if labels is None else tensor_of(labels)
        if given is None or not (labels is None or copies_tokens(given, tokens)):
            why = ", and the labels that there are do not show what these would be"
            lacking = next(k for k, each in enumerate(column) if each is None)
            raise _incomplete(name, samples, lacking, why)
        found.append(given)
    return found


def with_own_labels(sample: Any, name: str = "labels", *, shifted: bool = False) -> Any:
    """A mapping that has labels of its own: each of its tokens, but the first and padding.

    Args:
        sample: any other than a mapping with one sequence of tokens is returned as it is.
        shifted: each label where the token before it is, as data sets have them that shift labels
            themselves; otherwise where the token itself is.
    """
    tokens = tensor_of(sample.get(TOKENS)) if isinstance(sample, Mapping) else None
    if tokens is None or tokens.ndim != 1:
        return sample
    labels = tokens.to(torch.int64, copy=True)
    if (mask := tensor_of(sample.get("attention_mask"))) is not None:
        labels[mask == 0] = IGNORE_INDEX
    labels[:1] = IGNORE_INDEX
    return {**sample, name: labels.roll(-1) if shifted else labels}


def copies_tokens(labels: torch.Tensor, tokens: torch.Tensor | None) -> bool:
    """Whether all labels that are not -100 are the tokens at their places, as those for causal
    language models are."""
    if tokens is None or labels.shape != tokens.shape or labels.is_floating_point():
        return False
    return not bool(((labels != tokens) & (labels != IGNORE_INDEX)).any())


def _incomplete(
    name: str, samples: Sequence[Mapping[str, Any]], lacking: int, why: str = ""
) -> CollateError:
    having = next(k for k, sample in enumerate(samples) if sample.get(name) is not None)
    return CollateError(
        f"field {name!r} of sample {having} of the group is missing in sample {lacking} of it, "
        f"whose fields are {list(samples[lacking])}{why}; return the same fields for every sample, "
        "or pass collate_fn="
    )


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and (not value or isinstance(value[0], (int, float, np.number)))


def tensor_of(value: Any) -> torch.Tensor | None:
    """A field of one sample as a tensor; None where it does not hold numbers."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (bool, int, float)):
        return torch.tensor(value)
    if isinstance(value, (list, tuple)):
        return _tensor_of_list(value)
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.kind not in "iufbc":
            return None
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(np.int64)
        # torch cannot share memory that is read-only, runs backwards or has swapped bytes.
        if not (array.flags.carray and array.dtype.isnative):
            array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
        return torch.from_numpy(array)
    return None


def _tensor_of_list(value: Sequence[Any]) -> torch.Tensor | None:
    leaf: Any = value
    while isinstance(leaf, (list, tuple)):
        if not leaf:
            return torch.empty(0, dtype=torch.int64) if leaf is value else None
        leaf = leaf[0]
    if not isinstance(leaf, (int, float, np.number)):
        return None
    try:
        array = np.array(value)
    except ValueError:  # nested lists of unequal lengths
        return None
    if array.dtype.kind == "f":
        return torch.from_numpy(array).to(torch.get_default_dtype())
    return torch.from_numpy(array) if array.dtype.kind in "iub" else None
