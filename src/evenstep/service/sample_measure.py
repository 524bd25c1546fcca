"""`SampleMeasure`: what a planner knows of a sample, its lengths by modality and supervised tokens.

Supervised tokens, those that contribute to the loss, have their own column, `SUPERVISED`: with it
loss scales are exact before any batch is made. It is not a modality, and no strategy counts it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evenstep.batch.labels import IGNORE_INDEX, as_array, labels_of
from evenstep.batch.measure import length_of, patches_of, supervised_of, tokens_of
from evenstep.data.source import Source
from evenstep.errors import SampleError, described

SUPERVISED = "supervised"
"""The name of the column."""

MODALITIES: Mapping[str, Callable[[Any], int]] = {"text": length_of, "image": patches_of}
"""The default modalities of a job."""


def supervised_when_packed(sample: Any, length: int) -> int:
    """Supervised tokens of a sample in a packed row, where the first label of each document is
    masked: its other labels that are not -100. Without labels, all tokens except the first."""
    labels = labels_of(sample)
    if labels is None or isinstance(labels, str):
        return supervised_of(sample, length)
    array = as_array(labels)
    if array.ndim != 1 or tokens_of(sample) is None:
        return supervised_of(sample, length)
    return int((array[1:] != IGNORE_INDEX).sum())


@dataclass(frozen=True, kw_only=True)
class SampleMeasure:
    """Measures the prepared samples of any source. Picklable if its functions are."""

    modalities: Mapping[str, Callable[[Any], int]]
    supervised: Callable[[Any], int] | None
    """From a sample to its supervised tokens; None counts labels, according to `packed`."""
    packed: bool
    """Whether rows are packed with the first label of each document masked."""
    counted: str
    """The modality whose length is the number of labels if a sample has no labels."""

    def __call__(self, source: Source, sample: Any, shard: int, index: int) -> tuple[int, ...]:
        """Lengths in the order of `modalities`, then supervised tokens.

        Raises:
            SampleError: a length cannot be determined.
        """
        name = f"sample {source.name}[{shard}][{index}]"
        given = {} if source.lengths is None else source.measure(sample, shard, index)
        unknown = [modality for modality in given if modality not in self.modalities]
        if unknown:
            raise SampleError(
                f"lengths= of source {source.name!r} gives {unknown[0]!r} for {name}, and the job "
                f"has the modalities {', '.join(self.modalities)}; name it in modalities= of Job"
            )
        lengths = [
            given[modality] if modality in given else _count(function, sample, modality, name)
            for modality, function in self.modalities.items()
        ]
        length = lengths[list(self.modalities).index(self.counted)]
        if self.supervised is not None:
            counted = _count(self.supervised, sample, "supervised tokens", name)
        else:
            by_default = supervised_when_packed if self.packed else supervised_of
            counted = _count(lambda s: by_default(s, length), sample, "supervised tokens", name)
        return (*lengths, counted)


def _count(function: Callable[[Any], int], sample: Any, what: str, name: str) -> int:
    try:
        value = function(sample)
        count = operator.index(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        raise SampleError(f"{what} of {name} cannot be determined: {described(error)}") from error
    if isinstance(value, bool) or not 0 <= count < 1 << 31:
        raise SampleError(
            f"{what} of {name} is {value!r}; it must be a whole number from 0 to {(1 << 31) - 1:,}"
        )
    return count
