"""`StagedStep`: a step's samples that a loader has ready for constructors to fetch.

A sample may be in several buckets: of the plan itself, and of subplans. Their constructors ask at
different times, so a sample that is read for the first of them is kept for the others.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
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


@dataclass
class StagedStep:
    """See the module docstring."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while samples are staged."""
    buckets: dict[StageKey, Fetched] = field(default_factory=dict)
    """What can be fetched."""
    _seen: set[StageKey] = field(default_factory=set)
    """Buckets that were staged at some time."""
    _samples: dict[int, Any] = field(default_factory=dict)
    """By row of the plan, samples that buckets not seen yet have too."""

    def missing(
        self, task: LoaderTask, keys: Sequence[StageKey] | None
    ) -> dict[StageKey, Int64Array]:
        """Buckets that are not staged now, with their rows of the task: those among the keys, or
        all if None are given."""
        found: dict[StageKey, Int64Array] = {}
        for name, buckets in _columns(task).items():
            for bucket in np.unique(buckets[buckets >= 0]).tolist():
                key = (name, bucket)
                if key not in self.buckets and (keys is None or key in keys):
                    found[key] = np.flatnonzero(buckets == bucket)
        return found

    def to_read(self, task: LoaderTask, wanted: dict[StageKey, Int64Array]) -> Int64Array:
        """Rows of the task, ascending, that are in wanted buckets and not kept from before."""
        rows = sorted({row for each in wanted.values() for row in each.tolist()})
        kept = [row for row in rows if int(task.rows[row]) not in self._samples]
        return np.array(kept, np.int64)

    def add(self, task: LoaderTask, rows: Int64Array, samples: Sequence[Any]) -> None:
        """Keeps samples that were read."""
        self._samples.update(zip(task.rows[rows].tolist(), samples))

    def stage(self, task: LoaderTask, wanted: dict[StageKey, Int64Array]) -> None:
        """Makes wanted buckets ready, and forgets the samples that no other bucket is to have."""
        for key, rows in wanted.items():
            plan_rows = task.rows[rows]
            samples = [self._samples[row] for row in plan_rows.tolist()]
            self.buckets[key] = Fetched(plan_rows, samples)
        self._seen.update(wanted)
        columns = {name: buckets.tolist() for name, buckets in _columns(task).items()}
        for row in {row for each in wanted.values() for row in each.tolist()}:
            keys = [(name, buckets[row]) for name, buckets in columns.items() if buckets[row] >= 0]
            if self._seen.issuperset(keys):
                self._samples.pop(int(task.rows[row]), None)


def _columns(task: LoaderTask) -> dict[str | None, Int64Array]:
    """By subplan, None for the plan itself: the bucket of each row of the task."""
    return {None: task.bucket, **task.subplans}
