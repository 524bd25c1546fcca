"""The cost of each module by rank, and whether every picture was encoded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from evenstep.errors import InvariantError
from evenstep.strategy import LoadingPlan
from evenstep.strategy.sample_table import SampleTable
from evenstep_demos.service.messages import StepRecord
from evenstep_demos.service.vision.strategies import ENCODER, backbone_cost, encoder_cost

Records = Mapping[int, Sequence[StepRecord]]


def vision_costs(
    plans: Sequence[LoadingPlan], records: Records
) -> dict[str, npt.NDArray[np.float64]]:
    """Predicted costs: "encoder" [steps, ranks], "backbone" [steps, data-parallel groups]."""
    encoder = [
        [
            sum(encoder_cost(t.lengths["image"]).sum() for t in records[rank][number].encoded)
            for rank in sorted(records)
        ]
        for number in range(len(plans))
    ]
    backbone = [
        plan.assignment.sums(backbone_cost(plan.samples.lengths["text"])).sum(axis=1)
        for plan in plans
    ]
    return {
        "encoder": np.array(encoder, np.float64),
        "backbone": np.array(backbone, np.float64),
    }


def check_encoded(plans: Sequence[LoadingPlan], records: Records) -> int:
    """Checks that every picture of a step was encoded by one rank: the planned one, if the plan
    names one. Returns the number of pictures.

    Raises:
        InvariantError: a picture was encoded never, twice, or by another rank.
    """
    pictures = 0
    for number, plan in enumerate(plans):
        has = plan.assignment.placed & (plan.samples.lengths["image"] > 0)
        tables = [t for rank in sorted(records) for t in records[rank][number].encoded]
        if _names(tables) != _names([plan.samples[has]]):
            raise InvariantError(
                f"the pictures that were encoded in step {plan.step} are not, each once, those of "
                "its samples"
            )
        subplan = plan.subplans.get(ENCODER)
        for bucket in range(0 if subplan is None else subplan.buckets):
            assert subplan is not None
            (rank,) = subplan.delivery.clients_of(bucket).tolist()
            if list(records[rank][number].encoded) != [subplan.members(bucket, 0)]:
                raise InvariantError(
                    f"rank {rank} has encoded other pictures in step {plan.step} than planned"
                )
        pictures += int(has.sum())
    return pictures


def _names(tables: Sequence[SampleTable]) -> list[tuple[int, int]]:
    return sorted(
        (int(s), int(p)) for table in tables for s, p in zip(table.source, table.position)
    )
