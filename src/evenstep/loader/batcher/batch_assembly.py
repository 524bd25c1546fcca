"""From a planned step and its samples to the batch and its `StepInfo`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evenstep.batch.check import check_packed, check_supervised
from evenstep.batch.labels import IGNORE_INDEX
from evenstep.batch.loss_scale import loss_scale, micro_batch_scales, shard_loss_scale
from evenstep.batch.pack import PackCollator
from evenstep.batch.step_info import StepInfo
from evenstep.context_parallel.batch_shards import document_lengths, shard_batch
from evenstep.errors import CollateError, EvenstepError, described
from evenstep.loader.batcher.filler_sample import FillerSample
from evenstep.loader.batcher.spec import LoaderSpec
from evenstep.loader.batcher.whole_updates import StepOfUpdate
from evenstep.loader.workers.seeding import rank_seed, sample_seed, seed_everything
from evenstep.protocol.planned_step import PlannedStep


def make_step(
    spec: LoaderSpec,
    epoch: int,
    of_update: StepOfUpdate,
    groups: list[list[Any]],
    indices: tuple[Any, ...],
    *,
    filler_sample: Callable[[], Any],
    seeds: bool,
) -> tuple[StepInfo, Any]:
    """Collates, checks, shards and scales one step.

    Args:
        groups: this rank's samples, by micro-batch; none for a filler step.
        indices: dataset indices of all samples, in order.
        filler_sample: makes a sample for a filler step.
        seeds: seed this process by the step, so that what ``collate_fn`` draws at random is a
            function of the step. False where the process is the trainer's own.

    Raises:
        CollateError: the collate function raised, or made a batch that contradicts its samples.
    """
    planned = of_update.planned
    if seeds:
        seed_everything(sample_seed(rank_seed(spec.seed, epoch, spec.rank), planned.index))
    where = f"step {planned.index} of epoch {epoch} on rank {spec.rank}"
    per_step = spec.policy.micro_batches
    fillers = _fillers(planned, groups, per_step - len(groups), filler_sample)
    try:
        batches = [spec.collate_fn(samples) for samples in groups + fillers]
    except EvenstepError:
        raise
    except BaseException as error:
        raise CollateError(
            f"{where}, samples {list(indices)}: collate_fn raised {described(error)}"
        ) from error
    totals = planned.totals
    supervised = [int(planned.columns_of(group)[1].sum()) for group in planned.micro_batches]
    limit = spec.policy.limit
    for batch, expected in zip(batches, supervised):
        if spec.loss_scaling == "token":
            check_supervised(batch, expected, where)
        if spec.policy.packed and limit is not None:
            check_packed(batch, limit.max_tokens, where)
    total = of_update.totals.counted(spec.loss_scaling)
    scale = loss_scale(
        totals,
        spec.rank,
        spec.loss_scaling,
        mean_supervised=planned.mean_supervised,
        total=total,
    )
    peers = spec.policy.context_parallel
    if peers > 1:
        batches, held = _own_shards(spec, batches)
        supervised = held[: len(groups)]
        if spec.loss_scaling == "token":
            tokens = of_update.totals.supervised_tokens
            scale = shard_loss_scale(sum(supervised), tokens, peers * spec.world_size)
    scales: tuple[float, ...] = ()
    if per_step > 1:
        scales = micro_batch_scales(scale, spec.loss_scaling, list(map(len, groups)), supervised)
        scales += (0.0,) * len(fillers)
    step = StepInfo(
        epoch=epoch,
        step=planned.index,
        rank=spec.rank,
        world_size=spec.world_size,
        context_rank=spec.context_rank,
        accumulate=spec.accumulate,
        ends_update=of_update.ends_update,
        filler=planned.filler,
        indices=None if spec.iterable else indices,
        totals=totals,
        loss_scale=scale,
        loss_scales=scales,
    )
    return step, batches if per_step > 1 else batches[0]


def _fillers(
    planned: PlannedStep, groups: list[list[Any]], count: int, filler_sample: Callable[[], Any]
) -> list[list[Any]]:
    """Zero-loss micro-batches, run so that collectives match. Each holds a copy of the step's
    shortest sample, so that a resumed step makes the same again; a copy, since a collate function
    may change its samples."""
    if not count:
        return []
    if not groups:
        return [[filler_sample()] for _ in range(count)]
    shortest = int(planned.columns_of(planned.members)[0].argmin())
    own = FillerSample.of(list(itertools.chain.from_iterable(groups))[shortest])
    return [[own.sample()] for _ in range(count)]


def _own_shards(spec: LoaderSpec, batches: Sequence[Any]) -> tuple[list[dict[str, Any]], list[int]]:
    """Cuts this context-parallel rank's shard out of each micro-batch.

    Args:
        batches: whole micro-batches, as `PackCollator` makes them.

    Returns:
        The shards, and the supervised tokens in each.

    Raises:
        CollateError: a collate function of another kind made a batch that cannot be cut.
    """
    collate = spec.collate_fn
    options: dict[str, Any] = {}
    if isinstance(collate, PackCollator):
        options["labels_shifted"] = not collate.mask_first_label
        options["per_sample_fields"] = collate.per_sample_fields
    shards = []
    for batch in batches:
        sharding = spec.policy.shard(document_lengths(batch))
        shards.append(shard_batch(batch, sharding, spec.context_rank, **options))
    supervised = [int(np.count_nonzero(s["shift_labels"] != IGNORE_INDEX)) for s in shards]
    return shards, supervised
