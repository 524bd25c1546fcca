"""The layer below `DGraph`, under the paper's names: plans from outside, and each role's share.

`summary_buffer` summarises what is buffered, `plan_raw` makes a plan from decisions taken
elsewhere, and `loader_do_plan` and `constructor_do_plan` give the share of a plan that one loader
and one constructor carry out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.mixture.sample_table import SampleTable
from evenstep.plan.partition.items import Costs
from evenstep.strategy.assignment import Assignment
from evenstep.strategy.loading_plan import LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep.strategy.plan_builder import bound_for


@dataclass(frozen=True, kw_only=True)
class BufferSummary:
    """The buffered samples of a source."""

    source: str
    samples: int
    first: int
    """Position of the first buffered sample; 0 if there is none."""
    last: int
    """Position of the last one; -1 if there is none."""
    tokens: Mapping[str, int]
    """By modality, of all samples."""
    longest: Mapping[str, int]
    """By modality, tokens of the longest sample."""


def summary_buffer(buffered: SampleTable) -> dict[str, BufferSummary]:
    """By source, a summary of its buffered samples.

    For a mixing schedule or a dashboard that looks at the loaders' buffers: how far each source has
    been read, and whether a sample exceeds the limit of a micro-batch before it is drawn.
    """
    order = buffered.source.argsort(kind="stable")
    counts = buffered.counts()
    bounds = np.append(0, counts.cumsum())
    summaries = {}
    for number, name in enumerate(buffered.sources):
        rows = order[bounds[number] : bounds[number + 1]]
        positions = buffered.position[rows]
        lengths = {modality: column[rows] for modality, column in buffered.lengths.items()}
        summaries[name] = BufferSummary(
            source=name,
            samples=len(rows),
            first=int(positions.min()) if len(rows) else 0,
            last=int(positions.max()) if len(rows) else -1,
            tokens={modality: int(column.sum()) for modality, column in lengths.items()},
            longest={modality: int(column.max(initial=0)) for modality, column in lengths.items()},
        )
    return summaries


def plan_raw(
    samples: SampleTable,
    tree: ClientPlaceTree,
    axis: str,
    bucket: npt.ArrayLike,
    micro_batch: npt.ArrayLike,
    order: npt.ArrayLike | None = None,
    *,
    micro_batches: int,
    modality: Sequence[str] = (),
    costs: npt.ArrayLike | None = None,
    max_tokens: int | None = None,
    **fields: Any,
) -> LoadingPlan:
    """A plan from decisions taken elsewhere, with the checks of every plan.

    For an assignment that no primitive expresses: one of the user's own solver, or one that was
    recorded from another system and is to be replayed.

    Args:
        samples: of the step, carried samples first.
        tree, axis: as for `DGraph`.
        bucket, micro_batch: [samples] where each goes; both -1 for a sample that is carried.
        order: [samples] index within the micro-batch; None is the order of `samples`.
        micro_batches: of each bucket.
        modality: lengths that count as tokens; may be left out if there is only one.
        costs: [samples] None is the tokens of each.
        max_tokens: limit of a micro-batch; None for no limit.
        fields: others of `LoadingPlan`, such as ``step``, ``broadcast_at`` or ``weights``.

    Raises:
        ConfigurationError: a column of another length, a number out of range, an `order` with
            gaps, a micro-batch over `max_tokens`, or an empty one.
    """
    buckets = tree.bucket_count(axis)
    where, which = np.asarray(bucket, np.int64), np.asarray(micro_batch, np.int64)
    index = _in_given_order(where, which) if order is None else np.asarray(order, np.int64)
    names = bound_for(tuple(modality), samples)
    given = samples.tokens(names) if costs is None else np.asarray(costs)
    columns = {"bucket": where, "micro_batch": which, "order": index, "costs": given}
    for name, column in columns.items():
        if column.shape != (len(samples),):
            raise ConfigurationError(
                f"{name} of shape {column.shape} must have one entry for each of {len(samples):,} "
                "samples"
            )
    assignment = Assignment.of(where, which, index, buckets=buckets, micro_batches=micro_batches)
    assignment.check()
    read: Costs = given.astype(np.float64 if given.dtype.kind == "f" else np.int64)  # type: ignore[assignment]
    plan = LoadingPlan(
        **{"step": 0, **fields},
        samples=samples,
        tree=tree,
        axis=axis,
        assignment=assignment,
        costs=read,
        modality=names,
        max_tokens=max_tokens,
    )
    held = assignment.sums(plan.tokens)
    if max_tokens is not None and held.max() > max_tokens:
        b, k = divmod(int(held.argmax()), micro_batches)
        raise ConfigurationError(
            f"micro-batch {k} of bucket {b} holds {held[b, k]:,} tokens, over max_tokens="
            f"{max_tokens:,}; move samples, or carry some with bucket -1"
        )
    empty = np.flatnonzero(np.diff(assignment.offsets) == 0)
    if len(empty):
        b, k = divmod(int(empty[0]), micro_batches)
        raise ConfigurationError(
            f"micro-batch {k} of bucket {b} is empty: its ranks would leave the others waiting; "
            "give it a sample, or give all buckets fewer micro-batches"
        )
    return plan


@dataclass(frozen=True, eq=False, kw_only=True)
class LoaderTask:
    """The share of a plan that a Source Loader carries out."""

    step: int
    rows: Int64Array
    """[n] rows of the plan, by source and position: the order in which samples are read."""
    samples: SampleTable
    """[n] the same samples, to be prepared and staged; those with bucket -1 stay buffered."""
    bucket: Int64Array
    """[n] bucket whose constructor gets each, -1 for a sample that is carried."""
    subplans: Mapping[str, Int64Array]
    """By name, [n] the bucket in the subplan; -1 for a sample without its modality."""

    @classmethod
    def of(cls, plan: LoadingPlan, rows: Int64Array) -> LoaderTask:
        """The part of a plan with these rows, ordered by source and position."""
        return cls(
            step=plan.step,
            rows=rows,
            samples=plan.samples[rows],
            bucket=plan.assignment.bucket[rows].astype(np.int64),
            subplans={
                name: subplan.assignment.bucket[rows].astype(np.int64)
                for name, subplan in plan.subplans.items()
            },
        )


def loader_do_plan(plan: LoadingPlan, sources: Sequence[str]) -> LoaderTask:
    """The share of a plan for the loader of these sources.

    For a loader process of another system that follows evenstep's plans: the samples it must read,
    and the constructor that each goes to.

    Raises:
        ConfigurationError: a source that the plan does not know.
    """
    samples = plan.samples
    unknown = [name for name in sources if name not in samples.sources]
    if unknown:
        raise ConfigurationError(
            f"source {unknown[0]!r} is not one of the {len(samples.sources)} sources of the plan"
        )
    owned = np.isin(np.array(samples.sources), list(sources))
    rows = np.flatnonzero(owned[samples.source])
    rows = rows[np.lexsort((samples.position[rows], samples.source[rows]))]
    return LoaderTask.of(plan, rows)


@dataclass(frozen=True, eq=False, kw_only=True)
class ConstructorTask:
    """The share of a plan that the Data Constructor of a bucket carries out."""

    step: int
    bucket: int
    micro_batches: tuple[Int64Array, ...]
    """Rows of the plan in each micro-batch, in order."""
    samples: tuple[SampleTable, ...]
    """The same samples."""
    sources: tuple[str, ...]
    """Sources whose loaders have staged samples for it."""
    fetched_by: Int64Array
    """Global ranks of the clients that will ask for it."""
    shards: int
    """Context-parallel ranks that share each micro-batch; 1 if samples are distributed at CP or
    below, where each rank has its own."""


def constructor_do_plan(plan: LoadingPlan, bucket: int) -> ConstructorTask:
    """The share of a plan, or of a subplan, for the constructor of one bucket.

    For a constructor process of another system that follows evenstep's plans: the samples of each
    micro-batch, the loaders that have them, and the clients that will fetch them.

    Raises:
        ConfigurationError: there is no such bucket, or groups of buckets share their samples.
    """
    if plan.group_first is not None:
        raise ConfigurationError(
            "groups of buckets share their samples, others in every micro-batch; read "
            "plan.group(bucket, micro_batch), plan.members and plan.clients_of instead"
        )
    members = tuple(plan.assignment.members(bucket, k) for k in range(plan.micro_batches))
    present = np.unique(plan.samples.source[np.concatenate(members)])
    return ConstructorTask(
        step=plan.step,
        bucket=bucket,
        micro_batches=members,
        samples=tuple(plan.samples[rows] for rows in members),
        sources=tuple(plan.samples.sources[number] for number in present.tolist()),
        fetched_by=plan.delivery.clients_of(bucket),
        shards=plan.tree.sizes["CP"] if plan.axis == "DP" else 1,
    )


def _in_given_order(bucket: Int64Array, micro_batch: Int64Array) -> Int64Array:
    """[samples] index within the micro-batch, in the order of the samples; -1 as in `bucket`."""
    rows = np.lexsort((np.arange(len(bucket)), micro_batch, bucket))
    new = np.ones(len(rows), np.bool_)  # [samples] first of its micro-batch
    new[1:] = (np.diff(bucket[rows]) != 0) | (np.diff(micro_batch[rows]) != 0)
    starts = np.maximum.accumulate(np.where(new, np.arange(len(rows)), 0))
    order = np.empty(len(rows), np.int64)
    order[rows] = np.arange(len(rows)) - starts
    return np.where(bucket < 0, -1, order)
