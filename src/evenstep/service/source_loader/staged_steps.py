"""`StagedStep`: a step's samples that a loader has ready for constructors to fetch, and how they
are sent.

A sample may be in several buckets: of the plan itself, and of subplans. Their constructors ask at
different times, so a sample that is read for the first of them is kept for the others. In a bucket
of images that are dealt one by one, it is cut: only those images are sent.

Samples are sent by field, with small arrays joined into one: an array adds a fixed cost to a
message whatever its size, so a step of small samples takes a third of the time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.batch.count_media import nth_image
from evenstep.service.job.source_layout import StageKey
from evenstep.service.transport.frames import OWN_FRAME_BYTES
from evenstep.strategy import LoaderTask

STEPS_KEPT = 128
"""Steps that a loader remembers. Samples of older ones are read again if a constructor asks."""


@dataclass(frozen=True)
class Fetched:
    """Samples of a bucket that one loader has staged."""

    rows: Int64Array
    """[samples] rows of the plan."""
    samples: list[Any]

    def __reduce__(self) -> tuple[Any, ...]:
        columns = to_columns(self.samples)
        if columns is None:
            return Fetched, (self.rows, self.samples)
        return _of_columns, (self.rows, columns)


def _of_columns(rows: Int64Array, columns: Columns) -> Fetched:
    return Fetched(rows, from_columns(columns))


@dataclass
class StagedStep:
    """See the module docstring."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while samples are staged."""
    buckets: dict[StageKey, Fetched] = field(default_factory=dict)
    """What can be fetched."""
    size: int = 0
    """Bytes of all samples that were staged; 0 once all are released."""
    _seen: set[StageKey] = field(default_factory=set)
    """Buckets that were staged at some time."""
    _samples: dict[int, Any] = field(default_factory=dict)
    """By row of the plan, samples that other buckets still need."""

    def stage(
        self,
        task: LoaderTask,
        keys: Sequence[StageKey] | None,
        take: Callable[[list[int]], Sequence[Any]],
    ) -> None:
        """Makes buckets ready that are not.

        Args:
            keys: the buckets; None is all that the task has.
            take: gives the samples of some rows of the task, ascending.
        """
        numbers = task.rows.tolist()  # rows of the plan
        found: dict[StageKey, list[tuple[int, int, int | None]]] = {}
        for name, part in task.parts.items():
            for row, planned, image, bucket in part.entries():
                found.setdefault((name, bucket), []).append((row, planned, image))
        wanted = {
            key: entries
            for key, entries in found.items()
            if key not in self.buckets and (keys is None or key in keys)
        }
        needed = {row for entries in wanted.values() for row, *_ in entries}
        rows = sorted(row for row in needed if numbers[row] not in self._samples)
        if rows:
            self._samples.update(zip([numbers[row] for row in rows], take(rows)))
        for key, entries in wanted.items():
            samples = [
                whole if image is None else nth_image(whole, image)
                for row, _, image in entries
                for whole in [self._samples[numbers[row]]]
            ]
            of_plan = np.array([planned for _, planned, _ in entries], np.int64)
            self.buckets[key] = Fetched(of_plan, samples)
        self._seen.update(wanted)
        left = (entries for key, entries in found.items() if key not in self._seen)
        for row in needed - {row for entries in left for row, *_ in entries}:
            self._samples.pop(numbers[row], None)


class JoinedArrays(NamedTuple):
    """Arrays of one dimension, one after the other."""

    joined: npt.NDArray[Any]
    lengths: list[int]


Columns = dict[str, "list[Any] | JoinedArrays"]
"""By field, the value of each sample."""


def to_columns(samples: Sequence[Any]) -> Columns | None:
    """The samples by field; None if they are not dicts with the same fields in the same order."""
    if not samples or type(samples[0]) is not dict or not samples[0]:
        return None
    names = list(samples[0])
    if any(type(sample) is not dict or list(sample) != names for sample in samples):
        return None
    return {name: _joined([sample[name] for sample in samples]) for name in names}


def from_columns(columns: Columns) -> list[dict[str, Any]]:
    """Inverse of `to_columns`. Arrays are views of those that were joined."""
    values = [
        _split(column) if isinstance(column, JoinedArrays) else column
        for column in columns.values()
    ]
    return [dict(zip(columns, each)) for each in zip(*values)]


def _joined(values: list[Any]) -> list[Any] | JoinedArrays:
    """The values themselves if they are no arrays of one kind, or so large that to send each costs
    less than to copy it."""
    first = values[0]
    if type(first) is not np.ndarray or first.dtype.kind not in "biufc" or not first.dtype.isnative:
        return values
    size = 0
    for value in values:
        if type(value) is not np.ndarray or value.ndim != 1 or value.dtype != first.dtype:
            return values
        size += value.nbytes
    if size >= len(values) * OWN_FRAME_BYTES:
        return values
    return JoinedArrays(np.concatenate(values), [len(value) for value in values])


def _split(arrays: JoinedArrays) -> list[npt.NDArray[Any]]:
    bounds = accumulate(arrays.lengths, initial=0)
    return [arrays.joined[begin:end] for begin, end in pairwise(bounds)]
