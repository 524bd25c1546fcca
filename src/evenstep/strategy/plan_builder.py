"""A description and samples make an outcome, and an outcome makes a plan.

What turns out other than asked for is said in the plan's notes: samples that are carried to the
next step, and fewer micro-batches where there are too few samples for those wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, SampleError
from evenstep.strategy.assignment import Assignment
from evenstep.strategy.balance.levels import Balancing, assign
from evenstep.strategy.loading_plan import LoadingPlan
from evenstep.strategy.mesh import Buckets
from evenstep.strategy.sample_costs import CostFunction, Costs, name_of, sample_costs
from evenstep.strategy.sample_table import SampleTable

__all__ = ["GraphSpec", "Placement", "bound_for", "place_samples", "to_loading_plan"]


@dataclass(frozen=True, kw_only=True)
class GraphSpec:
    """What the primitives were told."""

    modality: tuple[str, ...] = ()
    """None given is all that the samples have, where that is one."""
    subgroups: Buckets | None = None
    group_size: int | None = None
    cost: CostFunction | None = None
    balancing: Balancing = field(default_factory=Balancing)
    broadcast_at: tuple[str, ...] = ()
    stages: str | None = None


@dataclass(frozen=True, eq=False)
class Placement:
    """Where samples go."""

    assignment: Assignment
    costs: Costs
    modality: tuple[str, ...]
    max_tokens: int | None
    notes: tuple[str, ...]


def bound_for(modality: tuple[str, ...], samples: SampleTable) -> tuple[str, ...]:
    """The modality that counts.

    Raises:
        ConfigurationError: the samples do not have it, or have several and none was named.
    """
    have = tuple(samples.lengths)
    if not modality and len(have) == 1:
        return have
    unknown = [name for name in modality if name not in have]
    if unknown or not modality:
        asked = f"modality {unknown[0]!r} is unknown" if unknown else "call modality(name)"
        raise ConfigurationError(f"{asked}: samples have lengths of {', '.join(have) or 'none'}")
    return modality


def place_samples(
    samples: SampleTable,
    rows: Int64Array,
    wanted: GraphSpec,
    *,
    micro_batches: int,
    max_tokens: int | None,
    subplan: str | None,
) -> Placement:
    """
    Args:
        samples: of the step.
        rows: [n] ascending, those to place.
        wanted: the description.
        micro_batches: of each bucket.
        max_tokens: that a micro-batch holds.
        subplan: its name; None for the main plan.

    Raises:
        ConfigurationError, SampleError: see `DGraph.plan`.
    """
    subgroups = wanted.subgroups
    if subgroups is None:
        which = "" if subplan is None else f" of subplan {subplan!r}"
        raise ConfigurationError(f"the samples{which} are not distributed: call distribute(axis)")
    modality = bound_for(wanted.modality, samples)
    tokens = samples.tokens(modality)
    notes: list[str] = []
    _check_lengths(samples, tokens, modality, max_tokens, subplan)
    if subplan is None:
        micro_batches = _micro_batches(len(rows), subgroups, micro_batches, notes)
    else:
        rows = rows[tokens[rows] > 0]
    costs_of_rows = sample_costs(wanted.cost, tokens[rows])
    costs: Costs = np.zeros(len(samples), costs_of_rows.dtype)  # type: ignore[assignment]
    costs[rows] = costs_of_rows
    within = assign(
        costs_of_rows,
        tokens[rows],
        subgroups,
        wanted.balancing,
        micro_batches=micro_batches,
        max_tokens=max_tokens,
    )
    left = rows[~within.placed]
    if len(left):
        room = f"{within.buckets * micro_batches:,} micro-batches of {max_tokens:,} tokens"
        what = f"{len(left):,} of {len(rows):,} samples, {tokens[left].sum():,} tokens,"
        if subplan is not None:
            raise ConfigurationError(
                f"{what} find no room in the {room} of subplan {subplan!r}; raise its max_tokens "
                "or micro_batches, or leave max_tokens out"
            )
        notes.append(f"{what} are carried to the next step: no room in {room}")
    return Placement(_spread(within, rows, len(samples)), costs, modality, max_tokens, tuple(notes))


def to_loading_plan(outcome: Placement, wanted: GraphSpec, **more: Any) -> LoadingPlan:
    """The plan of an outcome; `more` are fields of `LoadingPlan`."""
    assert wanted.subgroups is not None
    axis = wanted.subgroups.axis
    balancing = wanted.balancing
    methods = {"intra": balancing.intra, "inter": balancing.inter}
    if balancing.together:
        methods = {"both": balancing.intra}
    return LoadingPlan(
        axis=axis,
        group_size=wanted.group_size,
        broadcast_at=wanted.broadcast_at,
        stages=wanted.stages or ("all" if axis == "WORLD" else "ends"),
        assignment=outcome.assignment,
        costs=outcome.costs,
        modality=outcome.modality,
        max_tokens=outcome.max_tokens,
        notes=outcome.notes,
        methods={
            level: method if isinstance(method, str) else name_of(method)
            for level, method in methods.items()
            if method is not None
        },
        **more,
    )


def _check_lengths(
    samples: SampleTable,
    tokens: Int64Array,
    modality: Sequence[str],
    max_tokens: int | None,
    subplan: str | None,
) -> None:
    if not len(samples):
        return
    shortest, longest = int(tokens.argmin()), int(tokens.argmax())
    names = "+".join(modality)
    if subplan is None and tokens[shortest] < 1:
        raise SampleError(
            f"sample {samples.identity(shortest)} has no {names}; name all modalities that the "
            "module works on, as in modality('text', 'image'), or filter it in the source"
        )
    if max_tokens is not None and tokens[longest] > max_tokens:
        raise SampleError(
            f"sample {samples.identity(longest)} has {tokens[longest]:,} tokens of {names}, over "
            f"max_tokens={max_tokens:,}{'' if subplan is None else f' of subplan {subplan!r}'}; "
            "truncate it in the source's transform or raise max_tokens"
        )


def _micro_batches(count: int, subgroups: Buckets, wanted: int, notes: list[str]) -> int:
    buckets = subgroups.bucket_count
    if count < buckets:
        raise ConfigurationError(
            f"{count} samples cannot give each of {buckets} buckets at {subgroups.axis} one, and a "
            "rank without work would leave the others waiting; draw more samples in a step"
        )
    possible = min(wanted, count // buckets)
    if possible < wanted:
        notes.append(
            f"{possible} micro-batches in each bucket instead of {wanted}: there are only "
            f"{count:,} samples for {buckets:,} buckets"
        )
    return possible


def _spread(within: Assignment, rows: Int64Array, samples: int) -> Assignment:
    """An assignment of some rows as one of all samples."""
    if len(rows) == samples:
        return within
    columns = np.full((3, samples), -1, np.int32)
    columns[:, rows] = within.bucket, within.micro_batch, within.order
    return Assignment.of(*columns, buckets=within.buckets, micro_batches=within.micro_batches)
