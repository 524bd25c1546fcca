"""A planned step and its samples -> the batch and its `StepInfo`."""

from __future__ import annotations

from typing import Any

from evenstep.batch.check import check_packed, check_supervised
from evenstep.batch.loss_scale import loss_scale
from evenstep.batch.step_info import StepInfo
from evenstep.errors import CollateError, EvenstepError
from evenstep.loader.seeding import rank_seed, sample_seed, seed_everything
from evenstep.loader.spec import LoaderSpec
from evenstep.settled import PlannedStep

__all__ = ["make_step"]


def make_step(
    spec: LoaderSpec,
    epoch: int,
    planned: PlannedStep,
    samples: list[Any],
    indices: tuple[Any, ...],
    *,
    seeds: bool,
) -> tuple[StepInfo, Any]:
    """
    Args:
        seeds: make what ``collate_fn`` draws at random a function of the step. Not where the
            random state of this process is the trainer's.

    Raises:
        CollateError: the collate function raised, or made a batch that contradicts its samples.
    """
    if seeds:
        seed_everything(sample_seed(rank_seed(spec.seed, epoch, spec.rank), planned.index))
    where = f"step {planned.index} of epoch {epoch} on rank {spec.rank}"
    try:
        batch = spec.collate_fn(samples)
    except EvenstepError:
        raise
    except Exception as error:
        raise CollateError(
            f"collate_fn raised {type(error).__name__} at {where}, samples {list(indices)}: {error}"
        ) from error
    totals = planned.totals
    if spec.loss_scaling == "token" and not planned.filler:
        check_supervised(batch, int(totals.supervised_tokens[spec.rank]), where)
    limit = spec.policy.limit
    if spec.policy.packed and limit is not None:
        check_packed(batch, limit.max_tokens, where)
    step = StepInfo(
        epoch=epoch,
        step=planned.index,
        rank=spec.rank,
        world_size=spec.world_size,
        filler=planned.filler,
        indices=None if spec.iterable else indices,
        totals=totals,
        loss_scale=loss_scale(
            totals, spec.rank, spec.loss_scaling, mean_supervised=planned.mean_supervised
        ),
    )
    return step, batch
