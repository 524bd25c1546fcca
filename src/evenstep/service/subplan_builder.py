"""A client's part of a subplan: micro-batches of another module over the same samples, and where
what it makes of them is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.service.batch_builder import collated, own_copy
from evenstep.service.collators import vision_fields
from evenstep.service.job import Job
from evenstep.service.service_step import SubplanStep
from evenstep.strategy import Assignment, LoadingPlan


def subplan_batches(
    job: Job, plan: LoadingPlan, name: str, bucket: int, samples: Mapping[int, Any]
) -> list[Any]:
    """[micro_batches] of a bucket of a subplan, collated; None for one without samples.

    Args:
        samples: by row of the plan, those of the bucket.

    Raises:
        CollateError: the collate function raised.
    """
    subplan = plan.subplans[name]
    collate = job.subplan_collate.get(name, vision_fields)
    batches = []
    for k in range(subplan.micro_batches):
        rows = subplan.assignment.members(bucket, k)
        where = f"micro-batch {k} of bucket {bucket} of subplan {name!r} in step {plan.step}"
        chosen = [samples[row] for row in rows.tolist()]
        batches.append(collated(collate, chosen, plan.samples[rows], where) if chosen else None)
    return batches


def subplan_step(
    plan: LoadingPlan, name: str, own: int, batches: Mapping[int, list[Any]]
) -> SubplanStep:
    """
    Args:
        own: the client's bucket of the plan itself.
        batches: by bucket of the subplan that the client fetches, see `subplan_batches`.
    """
    subplan = plan.subplans[name]
    cells = [(bucket, k) for bucket in batches for k in range(subplan.micro_batches)]
    rows = [subplan.assignment.members(bucket, k) for bucket, k in cells]
    main_rows = [plan.assignment.members(own, k) for k in range(plan.micro_batches)]
    return SubplanStep(
        micro_batches=own_copy([batch for each in batches.values() for batch in each]),
        samples=tuple(plan.samples[each] for each in rows),
        goes_to=tuple(_routes(plan.assignment, each) for each in rows),
        comes_from=tuple(_routes(subplan.assignment, each) for each in main_rows),
        imbalance=subplan.imbalance,
        imbalance_before=subplan.imbalance_before,
    )


def _routes(assignment: Assignment, rows: Int64Array) -> Int64Array:
    """[rows, 3] bucket, micro-batch and index of samples in another plan of the same samples; -1
    for a sample that is not placed in it."""
    columns = (assignment.bucket, assignment.micro_batch, assignment.order)
    return np.stack([column[rows].astype(np.int64) for column in columns], axis=1)
