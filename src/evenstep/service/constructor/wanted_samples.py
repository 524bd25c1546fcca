"""`WantedSamples`: what a Data Constructor fetches of one step, and from which loaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenstep.errors import InvariantError
from evenstep.service.job.source_layout import SourceLayout, StageKey, loader_tasks, rows_of
from evenstep.service.messages import Handle
from evenstep.strategy import LoaderTask, LoadingPlan

Samples = dict[StageKey, dict[int, Any]]
"""By bucket of the plan or of a subplan: samples by row."""


@dataclass(frozen=True)
class WantedSamples:
    """What must be fetched of a step."""

    plan: LoadingPlan
    tasks: Mapping[Handle, LoaderTask]
    staged_on: dict[Handle, list[StageKey]]
    """By loader, the buckets of which it has samples."""
    samples: Samples
    """The samples fetched so far."""

    @classmethod
    def of(
        cls,
        plan: LoadingPlan,
        keys: Sequence[StageKey],
        loaders: Sequence[Handle],
        layout: SourceLayout,
    ) -> WantedSamples:
        tasks = dict(zip(loaders, loader_tasks(plan, layout, keys)))
        staged_on = {loader: own for loader, task in tasks.items() if (own := _keys_in(task, keys))}
        return cls(plan, tasks, staged_on, {key: {} for key in keys})

    def check(self) -> None:
        """
        Raises:
            InvariantError: samples are missing.
        """
        for key, samples in self.samples.items():
            rows = rows_of(self.plan, [key])
            if samples.keys() != set(rows.tolist()):
                raise InvariantError(
                    f"step {self.plan.step}: bucket {key} has {len(rows)} samples, and "
                    f"{len(samples)} were staged for it"
                )


def _keys_in(task: LoaderTask, keys: Sequence[StageKey]) -> list[StageKey]:
    """The buckets of which a loader has samples."""
    return [
        (name, bucket)
        for name, bucket in keys
        if bool(((task.bucket if name is None else task.subplans[name]) == bucket).any())
    ]
