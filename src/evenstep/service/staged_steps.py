"""`StagedStep`: a step's samples that a loader has ready for constructors to fetch.

A sample may be in several buckets: of the plan itself, and of subplans. Their constructors ask at
different times, so a sample that is read for the first of them is kept for the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.service.sample_columns import Columns, from_columns, to_columns
from evenstep.service.source_layout import StageKey
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
    """By row of the plan, samples that buckets not seen yet have too."""

    def stage(
        self,
        task: LoaderTask,
        keys: Sequence[StageKey] | None,
        take: Callable[[list[int]], Sequence[Any]],
    ) -> int:
        """Makes buckets ready that are not; returns the number of samples that were taken for it.

        Args:
            keys: the buckets; None is all that the task has.
            take: gives the samples of some rows of the task, ascending.
        """
        numbers = task.rows.tolist()  # rows of the plan
        columns: dict[str | None, list[int]] = {None: task.bucket.tolist()}
        columns.update((name, buckets.tolist()) for name, buckets in task.subplans.items())
        wanted = self._missing(columns, keys)
        rows = sorted(
            row
            for row in {r for each in wanted.values() for r in each}
            if numbers[row] not in self._samples
        )
        if rows:
            self._samples.update(zip([numbers[row] for row in rows], take(rows)))
        for key, each in wanted.items():
            of_plan = [numbers[row] for row in each]
            samples = [self._samples[number] for number in of_plan]
            self.buckets[key] = Fetched(np.array(of_plan, np.int64), samples)
        self._seen.update(wanted)
        for row in {r for each in wanted.values() for r in each}:
            others = [
                (name, buckets[row]) for name, buckets in columns.items() if buckets[row] >= 0
            ]
            if self._seen.issuperset(others):
                self._samples.pop(numbers[row], None)
        return len(rows)

    def _missing(
        self, columns: Mapping[str | None, list[int]], keys: Sequence[StageKey] | None
    ) -> dict[StageKey, list[int]]:
        """The rows of each bucket that is wanted and not ready."""
        found: dict[StageKey, list[int]] = {}
        for name, buckets in columns.items():
            for row, bucket in enumerate(buckets):
                if bucket >= 0:
                    found.setdefault((name, bucket), []).append(row)
        return {
            key: rows
            for key, rows in found.items()
            if key not in self.buckets and (keys is None or key in keys)
        }
