"""`place_samples`: from a `DGraph`'s spec and the step's samples to a `LoadingPlan`.

The plan's notes record any deviation from the spec: samples that are carried to the next step, and
fewer micro-batches if there are too few samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, SampleError
from evenstep.mixture.sample_table import SampleTable
from evenstep.plan.partition.items import Costs
from evenstep.strategy.assignment import Assignment
from evenstep.strategy.balance.levels import Balancing, assign
from evenstep.strategy.balance.methods import CostFunction, sample_costs
from evenstep.strategy.balance.micro_batches import Bins
from evenstep.strategy.loading_plan import LoadingPlan


class TooFewSamplesError(ConfigurationError):
    """A step has fewer samples than buckets. Where a mixture ends, that is its end."""


@dataclass(frozen=True, kw_only=True)
class GraphSpec:
    """The arguments of a graph's primitives."""

    modality: tuple[str, ...] = ()
    """Empty is the samples' only modality."""
    axis: str = ""
    """At which samples are distributed; empty if they are not."""
    buckets: int = 0
    cost: CostFunction | None = None
    balancing: Balancing = field(default_factory=Balancing)
    broadcast_at: tuple[str, ...] = ()
    stages: str | None = None
    one_by_one: bool = False
    """Whether units of samples are placed, and not samples."""

    @property
    def stages_needing(self) -> str:
        """Stages of a pipeline that need data."""
        return self.stages or ("all" if self.axis == "WORLD" else "ends")

    @property
    def methods(self) -> dict[str, str]:
        """See `LoadingPlan`."""
        found = {"intra": self.balancing.intra, "inter": self.balancing.inter}
        if self.balancing.together:
            found = {"both": self.balancing.intra}
        return {level: method for level, method in found.items() if method is not None}


def bound_for(modality: tuple[str, ...], samples: SampleTable) -> tuple[str, ...]:
    """The modalities whose lengths count, out of those that a spec names.

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
    spec: GraphSpec,
    *,
    micro_batches: int,
    max_tokens: int | None,
    subplan: str | None,
    **more: Any,
) -> LoadingPlan:
    """
    Args:
        rows: [n] ascending, the samples to place.
        micro_batches: of each bucket, of up to `max_tokens`.
        subplan: its name; None for the main plan.
        more: fields of the plan.

    Raises:
        ConfigurationError, SampleError: see `DGraph.plan`.
    """
    if not spec.axis:
        which = "" if subplan is None else f" of subplan {subplan!r}"
        raise ConfigurationError(f"the samples{which} are not distributed: call distribute(axis)")
    modality = bound_for(spec.modality, samples)
    tokens = samples.tokens(modality)
    notes: list[str] = []
    _check_lengths(samples, tokens, modality, max_tokens, subplan)
    if subplan is None:
        micro_batches = _micro_batch_count(len(rows), spec, micro_batches, notes)
    else:
        rows = rows[tokens[rows] > 0]
    costs_of_rows = sample_costs(spec.cost, tokens[rows])
    costs: Costs = np.zeros(len(samples), costs_of_rows.dtype)  # type: ignore[assignment]
    costs[rows] = costs_of_rows
    bins = Bins(spec.buckets, micro_batches, max_tokens)
    within = assign(costs_of_rows, tokens[rows], bins, spec.balancing)
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
    return LoadingPlan(
        samples=samples,
        axis=spec.axis,
        broadcast_at=spec.broadcast_at,
        stages=spec.stages_needing,
        assignment=_over_all(within, rows, len(samples)),
        costs=costs,
        modality=modality,
        max_tokens=max_tokens,
        notes=tuple(notes),
        methods=spec.methods,
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


def _micro_batch_count(samples: int, spec: GraphSpec, wanted: int, notes: list[str]) -> int:
    """Micro-batches of each bucket: those wanted, or as many as there are samples for."""
    if samples < spec.buckets:
        raise TooFewSamplesError(
            f"{samples} samples cannot give each of {spec.buckets} buckets at {spec.axis} one, "
            "and a rank without any would leave the others waiting; draw more samples in a step"
        )
    possible = min(wanted, samples // spec.buckets)
    if possible < wanted:
        notes.append(
            f"{possible} micro-batches in each bucket instead of {wanted}: there are only "
            f"{samples:,} samples for {spec.buckets:,} buckets"
        )
    return possible


def _over_all(within: Assignment, rows: Int64Array, samples: int) -> Assignment:
    """The assignment of all samples, from that of some rows."""
    if len(rows) == samples:
        return within
    columns = np.full((3, samples), -1, np.int32)
    columns[:, rows] = within.bucket, within.micro_batch, within.order
    return Assignment.of(*columns, buckets=within.buckets, micro_batches=within.micro_batches)
