"""Samples that come with padding, as datasets tokenized with ``padding="max_length"`` hold them.

Their ``attention_mask`` says what is padding. `Trim` cuts it off every field with one entry per
token, before a sample is measured: what is planned, counted and collated are real tokens.

Labels say more than the mask, and some fields are not of these tokens, though they are as long: in
a data set for an encoder-decoder both texts may be padded to 128 tokens. So nothing is cut that may
be content: a label that is not -100, or an entry that differs from the one at the field's end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.batch.labels import IGNORE_INDEX, LABEL_FIELDS, MAPPINGS, as_array, size_of
from evenstep.errors import SampleError

MASK = "attention_mask"
_TOKENS = ("input_ids", "input_values")
_NOT_CONTENT = (*_TOKENS, MASK, "position_ids")
"""Fields whose entries mean nothing where the mask is 0."""


@dataclass(frozen=True)
class Trim:
    """Mapping -> the same without padding; the same object where there is none, or another type."""

    others: Collection[str] = ()
    """Fields that are not of the tokens, though they may be as long."""
    packed: bool = False
    """Samples are to be packed, so a mask must be all ones."""

    def __call__(self, sample: Any) -> Any:
        """
        Raises:
            SampleError: the mask has no ones, or zeros that cannot be cut and are to be packed; or
                labels count that are as constant as padding.
        """
        mask = sample.get(MASK) if isinstance(sample, MAPPINGS) else None
        if mask is None or (isinstance(mask, list) and mask.count(1) == len(mask)):  # as most are
            return sample
        tokens = next((t for name in _TOKENS if (t := sample.get(name)) is not None), None)
        real, length = _numbers(mask), size_of(tokens)
        if real is None or real.shape != (length,) or real.all():
            return sample
        ones = np.flatnonzero(real)
        if not len(ones):
            raise SampleError(
                "its attention_mask is 0 everywhere, so it has no tokens; filter it in the dataset"
            )
        begin, end = int(ones[0]), int(ones[-1]) + 1
        fields = {
            name: value
            for name, value in sample.items()
            if name not in self.others and size_of(value) == length
        }
        # In front of the ones, from there to the left, and behind them.
        before, after = slice(begin - 1, None, -1) if begin else slice(0), slice(end, None)
        more = [0, 0]
        for name in fields.keys() - _NOT_CONTENT:
            array = _numbers(fields[name])
            if array is None:
                del fields[name]
            else:
                sides = array[before], array[after]
                more = [max(m, _content(name, side)) for m, side in zip(more, sides)]
        kept = slice(begin - more[0], end + more[1])
        if self.packed and not real[kept].all():
            raise SampleError(
                "its attention_mask has zeros between its ones, or where it has labels, which "
                "packed rows cannot have; leave these tokens out in the dataset"
            )
        return {**sample, **{name: value[kept] for name, value in fields.items()}}


def _content(name: str, beyond: npt.NDArray[Any]) -> int:
    """How many entries beyond the mask's ones, counted from these, may be content.

    Raises:
        SampleError: they are labels that look like padding, but count.
    """
    if not len(beyond):
        return 0
    padding = IGNORE_INDEX if name in LABEL_FIELDS else beyond[-1]
    content = (beyond != padding).reshape(len(beyond), -1).any(axis=1)
    if name in LABEL_FIELDS and content.all() and len(beyond) > 1 and (beyond == beyond[0]).all():
        raise SampleError(
            f"its {name} are {beyond[0].tolist()} wherever its attention_mask is 0, and count, "
            f"though they look like padding; set them to {IGNORE_INDEX}, or leave the padding out"
        )
    return int(np.flatnonzero(content)[-1]) + 1 if content.any() else 0


def _numbers(value: Any) -> npt.NDArray[Any] | None:
    try:
        array = as_array(value)
    except ValueError:  # nested lists of unequal lengths
        return None
    return array if array.dtype.kind in "iufb" else None
