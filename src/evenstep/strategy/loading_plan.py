"""`LoadingPlan`: all that loaders, constructors and clients need to know about a step.

It holds decisions alone; costs of micro-batches, deliveries and the order of arrival follow from
them, and are computed on demand. Metadata only; equal plans make equal batches.

Invariant: each sample is either placed, once, or carried to the next step. It is identified by
(source, shard, index), as in `SampleTable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.mixture.sample_table import SampleTable
from evenstep.plan.partition.items import Costs
from evenstep.strategy.assignment import Assignment
from evenstep.strategy.balance.levels import arrival
from evenstep.strategy.mesh import ClientPlaceTree, Delivery


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class LoadingPlan:
    """The result of a step's strategy. Rows of all columns are those of `samples`."""

    step: int
    samples: SampleTable
    """Samples carried here from the step before, then those drawn, in the order drawn."""
    tree: ClientPlaceTree
    axis: str
    """Axis at which samples are distributed, with buckets as in `ClientPlaceTree.buckets`."""
    assignment: Assignment
    costs: Costs
    """[samples] 0 for a sample without this modality."""
    modality: tuple[str, ...]
    """Lengths whose sum counts as a sample's tokens."""
    carried_in: int = 0
    """Number of samples, the first ones, that were carried here from the step before."""
    broadcast_at: tuple[str, ...] = ()
    stages: str = "ends"
    """Stages of a pipeline that need data."""
    max_tokens: int | None = None
    """Limit of a micro-batch; None if there is none."""
    methods: Mapping[str, str] = field(default_factory=dict)
    """By level, "intra", "inter" or "both", the name of the method; without levels not balanced."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """By source, its weight in this step, if the mixture reports weights."""
    notes: tuple[str, ...] = ()
    """Deviations from what the strategy asked for, in words."""
    subplans: Mapping[str, LoadingPlan] = field(default_factory=dict)
    """By name, plans of other modules for the same samples. Their rows are those of `samples`, or
    images of them; a sample without a module's modality is in no bucket there."""
    sample_rows: Int64Array | None = None
    """Of a subplan that deals images one by one: [images] the row of the plan's samples that each
    is of, ascending. Its own rows, also those of `samples`, are then images: sample after sample,
    those of each in order."""

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def buckets(self) -> int:
        return self.assignment.buckets

    @property
    def micro_batches(self) -> int:
        """Micro-batches of each bucket."""
        return self.assignment.micro_batches

    def __getstate__(self) -> dict[str, Any]:
        # Cached properties are not pickled.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    # Samples

    @cached_property
    def tokens(self) -> Int64Array:
        """[samples] tokens of the modality."""
        return self.samples.tokens(self.modality)

    @cached_property
    def carried(self) -> SampleTable:
        """Samples that did not fit, to go first in the next step."""
        return self.samples[~self.assignment.placed]

    def members(self, bucket: int, micro_batch: int) -> SampleTable:
        """Samples of a micro-batch, in order."""
        return self.samples[self.assignment.members(bucket, micro_batch)]

    # Costs

    @cached_property
    def cost_after(self) -> Costs:
        """[buckets, micro_batches] cost as planned."""
        return self.assignment.sums(self.costs)

    @cached_property
    def cost_before(self) -> Costs:
        """[buckets, micro_batches] cost of the same samples in the order of arrival."""
        return self.arrival.sums(self.costs)

    @cached_property
    def arrival(self) -> Assignment:
        """The assignment of the same samples in the order of arrival, equally many in each
        micro-batch."""
        placed = np.flatnonzero(self.assignment.placed)
        return arrival(placed, len(self), self.buckets, self.micro_batches)

    @property
    def imbalance(self) -> float:
        """Cost of the costliest bucket over the mean: 1.0 is perfect, and a single bucket's."""
        return 1.0 if self.buckets == 1 else imbalance(self.cost_after.sum(axis=1))

    @property
    def imbalance_before(self) -> float:
        """Imbalance in the order of arrival."""
        return 1.0 if self.buckets == 1 else imbalance(self.cost_before.sum(axis=1))

    # Delivery

    @cached_property
    def delivery(self) -> Delivery:
        """Which client fetches which buckets."""
        return self.tree.delivery(self.axis, self.broadcast_at, stages=self.stages)


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskPart:
    """The samples of a `LoaderTask` that a plan or a subplan places; of a subplan that deals images
    one by one, their images."""

    row: Int64Array
    """[n] the sample of each, from 0 in the task."""
    planned: Int64Array
    """[n] row of the plan, or of the subplan that deals images."""
    image: Int64Array | None
    """[n] which of its sample's images each is; None for whole samples."""
    bucket: Int64Array
    """[n] from 0."""

    @classmethod
    def of(cls, plan: LoadingPlan, rows: Int64Array, samples: int) -> TaskPart:
        """That of some rows of a step with this number of samples."""
        bucket, image = plan.assignment.bucket.astype(np.int64), None
        if plan.sample_rows is None:
            row = np.flatnonzero(bucket[rows] >= 0)
            planned = rows[row]
        else:
            place = np.full(samples, -1, np.int64)
            place[rows] = np.arange(len(rows))
            planned = np.flatnonzero((place[plan.sample_rows] >= 0) & (bucket >= 0))
            row = place[plan.sample_rows[planned]]
            image = planned - plan.sample_rows.searchsorted(plan.sample_rows[planned])
        return cls(row=row, planned=planned, image=image, bucket=bucket[planned])

    def entries(self) -> list[tuple[int, int, int | None, int]]:
        """`row`, `planned`, `image` and `bucket` of each."""
        images = [None] * len(self.row) if self.image is None else self.image.tolist()
        return list(zip(self.row.tolist(), self.planned.tolist(), images, self.bucket.tolist()))


@dataclass(frozen=True, eq=False, kw_only=True)
class LoaderTask:
    """The share of a plan that a Source Loader carries out."""

    step: int
    rows: Int64Array
    """[n] rows of the plan, by source and position: the order in which samples are read."""
    samples: SampleTable
    """[n] the same samples, to be prepared and staged; those that no part has stay buffered."""
    parts: Mapping[str | None, TaskPart]
    """Of the plan itself, under None, and of its subplans by name."""

    @classmethod
    def of(cls, plan: LoadingPlan, rows: Int64Array) -> LoaderTask:
        """The part of a plan with these rows, ordered by source and position."""
        plans: list[tuple[str | None, LoadingPlan]] = [(None, plan), *plan.subplans.items()]
        parts = {name: TaskPart.of(each, rows, len(plan)) for name, each in plans}
        return cls(step=plan.step, rows=rows, samples=plan.samples[rows], parts=parts)


def imbalance(loads: Costs) -> float:
    """The largest load over the mean; 1.0 if all are 0."""
    total = float(loads.sum())
    return float(loads.max()) * loads.size / total if total else 1.0
