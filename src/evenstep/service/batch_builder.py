"""Builds the micro-batches of one bucket: collated samples, and each context-parallel rank's shard.

Ranks that share a bucket share its rows. A row is collated once. If context-parallel ranks each
take a shard of it, it is planned once how to cut it, and each shard is made when its rank asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.batch.labels import IGNORE_INDEX, as_array
from evenstep.batch.pack import PackCollator
from evenstep.context_parallel.batch_shards import document_lengths, shard_batch
from evenstep.errors import CollateError, EvenstepError, described
from evenstep.plan.sharding import Sharding, shard
from evenstep.service.job import Job
from evenstep.service.sample_measure import SUPERVISED
from evenstep.strategy import LoadingPlan
from evenstep.strategy.sample_table import SampleTable


def context_shards(job: Job, plan: LoadingPlan) -> int:
    """Number of context-parallel ranks that share each row of a plan; 1 if each has its own rows,
    or gets whole rows, to broadcast them or because the job says so."""
    if plan.axis != "DP" or "CP" in plan.broadcast_at or job.sharding is None:
        return 1
    return plan.tree.sizes["CP"]


@dataclass
class BuiltBucket:
    """The micro-batches of one bucket in one step."""

    step: int
    bucket: int
    samples: tuple[SampleTable, ...]
    """[micro_batches]"""
    batches: list[Any]
    """[micro_batches] with whole rows."""
    shardings: list[Sharding] | None
    """[micro_batches] how each is cut; None if context-parallel ranks do not share rows."""
    labels_shifted: bool
    _shards: dict[int, tuple[list[Any], tuple[int, ...]]] = field(default_factory=dict)

    def for_rank(self, context_rank: int) -> tuple[list[Any], tuple[int, ...]]:
        """The micro-batches of a context-parallel rank, and the supervised tokens in each."""
        if self.shardings is None:
            supervised = tuple(int(t.lengths[SUPERVISED].sum()) for t in self.samples)
            return self.batches, supervised
        if context_rank not in self._shards:
            shards = [
                shard_batch(batch, sharding, context_rank, labels_shifted=self.labels_shifted)
                for batch, sharding in zip(self.batches, self.shardings)
            ]
            counts = tuple(int((s["shift_labels"] != IGNORE_INDEX).sum()) for s in shards)
            self._shards[context_rank] = shards, counts
        return self._shards[context_rank]


def build(
    job: Job, plan: LoadingPlan, bucket: int, samples: Mapping[int, Any], shards: int
) -> BuiltBucket:
    """Collates the micro-batches of a bucket.

    Args:
        samples: by row of the plan, at least those of the bucket.
        shards: see `context_shards`.

    Raises:
        CollateError: the collate function raised, or made a batch that cannot be sharded or has
            other supervised tokens than were measured.
    """
    members = [plan.assignment.members(bucket, k) for k in range(plan.micro_batches)]
    tables = tuple(plan.samples[rows] for rows in members)
    batches, shardings = [], []
    for k, (rows, table) in enumerate(zip(members, tables)):
        where = f"micro-batch {k} of bucket {bucket} in step {plan.step}"
        batch = collated(job.collator, [samples[row] for row in rows.tolist()], table, where)
        _check_supervised(job, batch, table, where)
        batches.append(batch)
        if shards > 1:
            shardings.append(_sharding(job, batch, shards, where))
    return BuiltBucket(
        step=plan.step,
        bucket=bucket,
        samples=tables,
        batches=batches,
        shardings=shardings if shards > 1 else None,
        labels_shifted=isinstance(job.collator, PackCollator) and not job.collator.mask_first_label,
    )


def collated(collate: Any, samples: Sequence[Any], table: SampleTable, where: str) -> Any:
    """The collate function's batch.

    Args:
        where: the micro-batch, for errors.

    Raises:
        CollateError: the function raised.
    """
    try:
        return collate(samples)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        names = ", ".join(str(table.identity(row)) for row in range(min(len(table), 3)))
        more = f" and {len(table) - 3:,} more" if len(table) > 3 else ""
        raise CollateError(
            f"{where}, of samples {names}{more}, cannot be collated: {described(error)}"
        ) from error


def own_copy(batches: Sequence[Any]) -> list[Any]:
    """Shallow copies, so that a client can add and remove fields without changing another's."""
    return [dict(batch) if type(batch) is dict else batch for batch in batches]


def _sharding(job: Job, batch: Any, shards: int, where: str) -> Sharding:
    try:
        lengths = document_lengths(batch)
        if callable(job.sharding):
            return job.sharding(lengths, shards)
        assert job.sharding is not None
        return shard(lengths, shards, methods=list(job.sharding))
    except EvenstepError as error:
        raise CollateError(
            f"{where} cannot be cut over {shards} context-parallel ranks: {error}; choose "
            "collate='pack', or sharding=None for whole rows"
        ) from error


def _check_supervised(job: Job, batch: Any, table: SampleTable, where: str) -> None:
    """Compares the labels of a batch with what was measured, if `PackCollator` made it: then each
    label is known."""
    if not isinstance(job.collator, PackCollator) or not job.collator.mask_first_label:
        return
    labels, expected = batch["labels"], int(table.lengths[SUPERVISED].sum())
    if labels.dtype.is_floating_point or labels.ndim != 2:
        return
    counted = int(np.count_nonzero(as_array(labels) != IGNORE_INDEX))  # in a tenth of torch's time
    if counted != expected:
        raise CollateError(
            f"{where} has {counted:,} supervised tokens, but {expected:,} were measured in its "
            "samples, so loss scales would be wrong; let supervised= of Job count the labels of "
            "each sample, except its first, that are not -100, or leave it out"
        )
