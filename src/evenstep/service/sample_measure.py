"""What a planner learns of a sample: its lengths by modality, and how many of its tokens bear loss.

The latter is a column of its own, `SUPERVISED`, by which loss scales are exact before any batch is
made; it is no modality, and no strategy counts it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evenstep.batch.labels import IGNORE_INDEX, as_array, labels_of
from evenstep.batch.measure import length_of, patches_of, supervised_of, tokens_of
from evenstep.data.source import Source
from evenstep.errors import SampleError

__all__ = ["MODALITIES", "SUPERVISED", "SampleMeasure", "supervised_when_packed"]

SUPERVISED = "supervised"
"""The reserved column."""

MODALITIES: Mapping[str, Callable[[Any], int]] = {"text": length_of, "image": patches_of}
"""Modalities of a job that names none."""


def supervised_when_packed(sample: Any, length: int) -> int:
    """Tokens of a sample that bear loss in a packed row, where the first label of each document is
    masked: its other labels that are not -100. Without labels, all tokens but the first."""
    labels = labels_of(sample)
    if labels is None or isinstance(labels, str):
        return supervised_of(sample, length)
    array = as_array(labels)
    if array.ndim != 1 or tokens_of(sample) is None:
        return supervised_of(sample, length)
    return int((array[1:] != IGNORE_INDEX).sum())


@dataclass(frozen=True, kw_only=True)
class SampleMeasure:
    """Measures the prepared samples of any source. Picklable as long as its functions are."""

    modalities: Mapping[str, Callable[[Any], int]]
    supervised: Callable[[Any], int] | None
    """Sample -> tokens that bear loss; None is by `packed`."""
    packed: bool
    """Whether rows are packed with the first label of each document masked."""
    counted: str
    """The modality whose length is that of the labels, where a sample has none."""

    def __call__(self, source: Source, sample: Any, shard: int, index: int) -> tuple[int, ...]:
        """Lengths in the order of `modalities`, then supervised tokens.

        Raises:
            SampleError: one cannot be told.
        """
        name = f"sample {source.name}[{shard}][{index}]"
        said = {} if source.lengths is None else source.measure(sample, shard, index)
        unknown = [modality for modality in said if modality not in self.modalities]
        if unknown:
            raise SampleError(
                f"lengths= of source {source.name!r} gives {unknown[0]!r} for {name}, and the job "
                f"has the modalities {', '.join(self.modalities)}; name it in modalities= of Job"
            )
        lengths = [
            said[modality] if modality in said else _whole(function, sample, modality, name)
            for modality, function in self.modalities.items()
        ]
        length = lengths[list(self.modalities).index(self.counted)]
        if self.supervised is not None:
            counted = _whole(self.supervised, sample, "supervised tokens", name)
        else:
            by_default = supervised_when_packed if self.packed else supervised_of
            counted = _whole(lambda s: by_default(s, length), sample, "supervised tokens", name)
        return (*lengths, counted)


def _whole(function: Callable[[Any], int], sample: Any, what: str, name: str) -> int:
    try:
        value = function(sample)
        count = operator.index(value)
    except Exception as error:
        raise SampleError(
            f"{what} of {name} cannot be told: {type(error).__name__}: {error}"
        ) from error
    if isinstance(value, bool) or not 0 <= count < 1 << 31:
        raise SampleError(
            f"{what} of {name} is {value!r}; it must be a whole number from 0 to {(1 << 31) - 1:,}"
        )
    return count
