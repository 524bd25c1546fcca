"""Builds the micro-batches of one bucket: collated samples, each context-parallel rank's shard, and
the micro-batches of subplans.

Ranks that share a bucket share its rows. A row is collated once. If context-parallel ranks each
take a shard of it, the cut is planned once, and each shard is made when its rank asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.batch.check import supervised_in, without_padded_first
from evenstep.batch.columns import with_own_labels
from evenstep.batch.formats.hugging_face import leave_cache_out
from evenstep.batch.labels import IGNORE_INDEX, labels_of
from evenstep.batch.pack import PackCollator
from evenstep.batch.pad import PadCollator
from evenstep.context_parallel.batch_shards import document_lengths, shard_batch
from evenstep.errors import CollateError, EvenstepError, described
from evenstep.mixture.sample_table import SampleTable
from evenstep.plan.sharding import Sharding, shard
from evenstep.service.client.service_step import SubplanStep
from evenstep.service.job.collators import keeps_first_label, vision_fields
from evenstep.service.job.job import Job
from evenstep.service.job.sample_measure import SUPERVISED
from evenstep.strategy import Assignment, LoadingPlan


def context_shards(job: Job, plan: LoadingPlan) -> int:
    """Number of context-parallel ranks that share each row of a plan; 1 if each has its own rows,
    or gets whole rows, to broadcast them or because the job says so."""
    if plan.axis != "DP" or "CP" in plan.broadcast_at or job.sharding is None:
        return 1
    return plan.tree.sizes["CP"]


@dataclass
class BuiltBucket:
    """The micro-batches of one bucket in one step."""

    samples: tuple[SampleTable, ...]
    """[micro_batches]"""
    batches: list[Any]
    """[micro_batches] with whole rows."""
    shardings: list[Any] | None
    """[micro_batches] how each is cut, a `Sharding`; None if ranks do not share rows."""
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
            counts = (int((each["shift_labels"] != IGNORE_INDEX).sum()) for each in shards)
            self._shards[context_rank] = shards, tuple(counts)
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
    batches: list[Any] = []
    shardings: list[Any] = []
    for k, (rows, table) in enumerate(zip(members, tables)):
        where = f"micro-batch {k} of bucket {bucket} in step {plan.step}"
        chosen = [samples[row] for row in rows.tolist()]
        if isinstance(job.collator, PadCollator) and all(
            labels_of(each) is None for each in chosen
        ):
            # As others in the job may have labels.
            chosen = [with_own_labels(each, shifted=job.labels == "every") for each in chosen]
        batch = collated(job.collator, chosen, table, where)
        batch = without_padded_first(batch, job.labels)
        leave_cache_out(batch, packed=isinstance(job.collator, PackCollator) or len(rows) > 1)
        _check_supervised(job, batch, table, where)
        batches.append(batch)
        if shards > 1:
            shardings.append(_sharding(job, batch, shards, where))
    return BuiltBucket(
        samples=tables,
        batches=batches,
        shardings=shardings or None,
        labels_shifted=keeps_first_label(job.collator),
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
        why = described(error)
        if isinstance(error, EvenstepError):  # of a group, which says where in it a sample is
            why = _OF_GROUP.sub(lambda found: f"sample {table.identity(int(found[1]))}", why)
            why = why.replace("pass collate_fn=", "give the job collate=")
        raise CollateError(
            f"{where}, of samples {names}{more}, cannot be collated: {why}"
        ) from error


_OF_GROUP = re.compile(r"\bsample (\d+) of (?:the group|it)\b")


def own_copy(batches: Sequence[Any]) -> list[Any]:
    """Shallow copies, so that a client can add and remove fields without changing another's."""
    return [dict(batch) if type(batch) is dict else batch for batch in batches]


def _sharding(job: Job, batch: Any, shards: int, where: str) -> Sharding:
    try:
        lengths = document_lengths(batch)
        if callable(job.sharding):
            return job.sharding(lengths, shards)
        assert job.sharding is not None  # see `context_shards`
        return shard(lengths, shards, methods=list(job.sharding))
    except EvenstepError as error:
        raise CollateError(
            f"{where} cannot be cut over {shards} context-parallel ranks: {error}; choose "
            "collate='pack', or sharding=None for whole rows"
        ) from error


def _check_supervised(job: Job, batch: Any, table: SampleTable, where: str) -> None:
    expected = int(table.lengths[SUPERVISED].sum())
    counted = supervised_in(batch, job.labels, len(table))
    if counted is not None and expected not in counted:
        raise CollateError(
            f"{where} has {counted[0]:,} supervised tokens, but {expected:,} were measured in its "
            "samples, so loss scales would be wrong. Let supervised= of MeasureOptions count the "
            "labels of each sample that the collate function keeps; or, if the model reads labels "
            f"otherwise than {job.labels!r}, say so with labels= of MeasureOptions"
        )


def subplan_batches(
    job: Job, plan: LoadingPlan, name: str, bucket: int, samples: Mapping[int, Any]
) -> list[Any]:
    """[micro_batches] of a bucket of a subplan, collated; None for one without samples.

    Args:
        samples: by row of the subplan, those of the bucket; images if it deals them one by one.

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
        batches.append(collated(collate, chosen, subplan.samples[rows], where) if chosen else None)
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
    needed, made = main_rows, rows
    if subplan.sample_rows is not None:
        begins = subplan.sample_rows.searchsorted(np.arange(len(plan) + 1))
        every = np.arange(len(subplan))
        needed = [_joined([every[begins[n] : begins[n + 1]] for n in each]) for each in main_rows]
        made = [subplan.sample_rows[each] for each in rows]
    return SubplanStep(
        micro_batches=own_copy([batch for each in batches.values() for batch in each]),
        samples=tuple(subplan.samples[each] for each in rows),
        goes_to=tuple(_routes(plan.assignment, each) for each in made),
        comes_from=tuple(_routes(subplan.assignment, each) for each in needed),
        made_by=plan.tree.clients_of_buckets(subplan.axis),
        needed_by=plan.tree.clients_of_buckets(plan.axis),
        imbalance=subplan.imbalance,
        imbalance_before=subplan.imbalance_before,
    )


def _joined(rows: Sequence[Int64Array]) -> Int64Array:
    return np.concatenate([np.empty(0, np.int64), *rows])


def _routes(assignment: Assignment, rows: Int64Array) -> Int64Array:
    """[rows, 3] bucket, micro-batch and index of samples in another plan of the same samples; -1
    for a sample that is not placed in it."""
    columns = (assignment.bucket, assignment.micro_batch, assignment.order)
    return np.stack([column[rows].astype(np.int64) for column in columns], axis=1)
