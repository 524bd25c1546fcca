"""Counts the tokens of every sample, in worker processes. Keeps nothing else of a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from evenstep.batch.measure import Measure
from evenstep.errors import ConfigurationError, SampleError, described
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.lengths import Lengths

_BLOCK = 64  # samples that a worker hands over at a time


class _Counted(Dataset[int | SampleError]):
    """Lengths in place of samples; the error of a sample that has none."""

    def __init__(self, dataset: Any, measure: Measure, indices: Sequence[int]) -> None:
        self._dataset = dataset
        self._measure = measure
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, position: int) -> int | SampleError:
        index = self._indices[position]
        name = f"sample {index}"
        try:
            return int(self._measure([self._dataset[index]], [name])[0, 0])
        except SampleError as error:
            return error
        except Exception as error:
            return SampleError(f"{name}: the dataset raised {described(error)}")


def _none_supervised(sample: Any) -> int:
    return 0  # not used; so labels need not fit the length


def count_lengths(
    dataset: Any,
    *,
    indices: Sequence[int] | None = None,
    num_workers: int = 0,
    length_fn: Callable[[Any], int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Lengths:
    """Reads a map-style dataset once, with its transforms, and counts tokens.

    Args:
        indices: count these samples only; all by default.
        num_workers: processes that prepare samples.
        length_fn: as for `evenstep.DataLoader`.
        progress: called with samples counted so far and samples in all.

    Raises:
        ConfigurationError: the dataset has no length or no samples.
        SampleError: a sample cannot be read or has no length; exclude it from the dataset.
    """
    check_at_least(0, num_workers=num_workers)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigurationError(
            f"lengths are counted by dataset index, and {type(dataset).__name__} lacks __len__ or "
            "__getitem__; policies that need no lengths in advance, such as evenstep.Even, take "
            "iterable datasets"
        )
    wanted = range(len(dataset)) if indices is None else indices
    if not len(wanted):
        raise ConfigurationError("the dataset is empty: there is nothing to count")
    measure = Measure(length_fn=length_fn, supervised_fn=_none_supervised)
    counted = _Counted(dataset, measure, wanted)
    loader: DataLoader[Any] = DataLoader(
        counted, batch_size=_BLOCK, num_workers=num_workers, collate_fn=list
    )
    found: list[int] = []
    for block in loader:
        for length in block:
            if isinstance(length, SampleError):
                raise length
        found += block
        if progress is not None:
            progress(len(found), len(wanted))
    return Lengths(np.array(found, np.int64))
